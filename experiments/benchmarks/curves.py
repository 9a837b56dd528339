"""Accuracy against MACs without fine tuning: what each step of the method adds."""

from typing import Any

import torch

from experiments.benchmarks.cifar import Subject
from experiments.benchmarks.ledger import Ledger

INNER = "*.conv1"
"""The channels inside the residual blocks, which one layer makes and one reads."""
FRACTIONS = {
    "cifar10_resnet20": (0.5, 0.33, 0.67, 0.83, 0.4),
    "cifar10_resnet56": (0.5, 0.33, 0.67),
}
GLOBAL_EPS = {
    "cifar10_resnet20": (1e-4, 3e-4, 1e-3, 3e-3),
    "cifar10_resnet56": (1e-4, 3e-4),
}
ALONE = {"mode": "independent"}
STEPS: dict[str, dict[str, Any]] = {
    "paper": {**ALONE, "refit": False},
    "+ refit": ALONE,
    "+ sequential": {"correct": False},
    "+ correction": {},
}
"""Each with all before it; the last is the default."""
OTHERS: dict[str, dict[str, Any]] = {
    "BatchNorm re-estimated": {"batchnorm": "reestimate"},
    "greedy": {"selector": "greedy"},
    "lasso": {"selector": "lasso"},
    "magnitude": {"selector": "magnitude"},
    "random": {"selector": "random"},
}
"""The default with one thing changed."""
AT = {"cifar10_resnet20": (0.5, 0.33), "cifar10_resnet56": (0.5,)}
"""Where the others are measured."""
SHARES = {"cifar10_resnet20": (0.83, 0.71, 0.6), "cifar10_resnet56": (0.71,)}
"""Kept everywhere, the residual stream included."""
RIDGES = {"cifar10_resnet20": (1e-10, 1e-3, 1e-2), "cifar10_resnet56": ()}


def measure(name: str, ledger: Ledger) -> None:
    """Measure every point of the curves of one network that the ledger does not have."""
    subject = Subject.of(name)
    ledger.point(f"{name} intact", lambda: subject.accuracy(subject.model))
    for fraction in FRACTIONS[name]:
        inside = {"layers": INNER, "widths": {INNER: fraction}}
        for variant, options in (STEPS | (OTHERS if fraction in AT[name] else {})).items():
            options = {**inside, **options, "generator": torch.Generator().manual_seed(0)}
            ledger.point(f"{name} {variant} {fraction}", lambda o=options: subject.sparsified(**o))
    for share in SHARES[name]:
        everywhere = {"widths": {"*": share}}
        ledger.point(f"{name} stream too {share}", lambda o=everywhere: subject.sparsified(**o))
    for eps in GLOBAL_EPS[name]:
        for variant in ("paper", "+ correction"):
            options = {"layers": INNER, "eps_w": -eps, "eps_l2": eps, **STEPS[variant]}
            ledger.point(
                f"{name} one eps, {variant} {eps}", lambda o=options: subject.sparsified(**o)
            )
    for ridge in RIDGES[name]:
        options = {"layers": INNER, "widths": {INNER: 0.5}, "ridge": ridge}
        ledger.point(f"{name} ridge {ridge}", lambda o=options: subject.sparsified(**o))
