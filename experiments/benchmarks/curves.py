"""Accuracy against MACs without fine tuning: the contribution of each step of the method."""

from typing import Any

from entrim import EntropicPenalty, Reconstruction, Widths
from experiments.benchmarks.cifar import BenchmarkModel
from experiments.benchmarks.record import Ledger

INNER = "*.conv1"
"""The channels inside the residual blocks, with one producer and one consumer."""
FRACTIONS = {
    "cifar10_resnet20": (0.5, 0.33, 0.67, 0.83, 0.4),
    "cifar10_resnet56": (0.5, 0.33, 0.67),
}
GLOBAL_EPS = {
    "cifar10_resnet20": (1e-4, 3e-4, 1e-3, 3e-3),
    "cifar10_resnet56": (1e-4, 3e-4),
}
STEPS: dict[str, dict[str, Any]] = {
    "paper": {"reconstruction": Reconstruction(weights="solution")},
    "+ refit": {"reconstruction": Reconstruction(order="independent")},
    "+ sequential": {"reconstruction": Reconstruction(residual_correction=False)},
    "+ correction": {},
}
"""Each with all before it; the last is the default."""
OTHERS: dict[str, dict[str, Any]] = {
    "BatchNorm re-estimated": {"reconstruction": Reconstruction(batchnorm="reestimate")},
    "greedy": {"selector": "greedy"},
    "lasso": {"selector": "lasso"},
    "magnitude": {"selector": "magnitude"},
    "random": {"selector": "random"},
}
"""The default with one thing changed."""
AT = {"cifar10_resnet20": (0.5, 0.33), "cifar10_resnet56": (0.5,)}
"""Where the others are measured."""
SHARES = {"cifar10_resnet20": (0.83, 0.71, 0.6), "cifar10_resnet56": (0.71,)}
"""Fractions kept in all groups, including the residual stream."""
RIDGES = {"cifar10_resnet20": (1e-10, 1e-3, 1e-2), "cifar10_resnet56": ()}


def measure(name: str, ledger: Ledger) -> None:
    """Measure every point of the curves of one network that is missing in the ledger."""
    tested = BenchmarkModel.of(name)
    ledger.point(f"{name} intact", lambda: tested.accuracy(tested.model))
    for fraction in FRACTIONS[name]:
        inside = {"include": INNER, "budget": Widths(fraction)}
        for variant, options in (STEPS | (OTHERS if fraction in AT[name] else {})).items():
            options = {**inside, **options}
            ledger.point(f"{name} {variant} {fraction}", lambda o=options: tested.prune(**o))
    for share in SHARES[name]:
        widths = Widths(share)
        ledger.point(f"{name} stream too {share}", lambda w=widths: tested.prune(budget=w))
    for eps in GLOBAL_EPS[name]:
        for variant in ("paper", "+ correction"):
            penalty = EntropicPenalty(eps_w=-eps, eps_l2=eps)
            options = {"include": INNER, "budget": penalty, **STEPS[variant]}
            ledger.point(f"{name} one eps, {variant} {eps}", lambda o=options: tested.prune(**o))
    for ridge in RIDGES[name]:
        options = {"include": INNER, "budget": Widths(0.5)}
        options["reconstruction"] = Reconstruction(ridge=ridge)
        ledger.point(f"{name} ridge {ridge}", lambda o=options: tested.prune(**o))
