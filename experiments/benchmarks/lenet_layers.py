"""The LeNet layers of the paper: both solvers, selection, and the network itself."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import entrim
from experiments import normalization
from experiments.benchmarks.lenet import accuracy, layer_rows, load_lenet
from experiments.benchmarks.record import check_line, measure_time, table
from experiments.datasets import load_mnist
from experiments.models import LeNet

IMAGES = 500
EPS = {"fc1": (0.01, 0.05), "fc2": (1e-4, 1e-3), "fc3": (1e-4, 1e-3)}
BLOCK = {"fc1": 25, "fc2": 1, "fc3": 1}
RANDOM_DRAWS = 50
RANDOM_NETWORKS = 20
MOST_SUBSETS = 13_000


@dataclass(frozen=True)
class Case:
    """A trained LeNet and the moments of its prunable layers on unlabeled training images."""

    model: LeNet
    moments: dict[str, entrim.Moments]

    @classmethod
    def load(cls) -> "Case":
        model = load_lenet()
        images = load_mnist("train")[:IMAGES].normalize(normalization.MNIST)
        rows = {name: layer_rows(model, name, images) for name in EPS}
        return cls(
            model,
            {name: entrim.Moments.of(x, y, block=BLOCK[name]) for name, (x, y) in rows.items()},
        )


def mm_against_alternating(case: Case) -> str:
    """Measure both solvers to the same residual: F, channels, ridge solves, seconds."""
    rows, seconds, ratios = [], [0.0, 0.0], []
    for name, eps_values in EPS.items():
        for eps in eps_values:
            m = case.moments[name]
            slow, slow_s = measure_time(
                lambda m=m, e=eps: entrim.solve(m, -e, e, solver="alternating", max_solves=3000)
            )
            fast, fast_s = measure_time(lambda m=m, e=eps: entrim.solve(m, -e, e), repeats=5)
            seconds = [seconds[0] + slow_s, seconds[1] + fast_s]
            ratios.append(fast.loss / slow.loss)
            quality = [slow.loss, fast.loss, len(slow.kept), len(fast.kept)]
            cost = [slow.ridge_solves, fast.ridge_solves, slow_s, fast_s, slow_s / fast_s]
            rows.append([name, eps, *quality, *cost])
    rows.append(["total", "", "", "", "", "", "", "", *seconds, seconds[0] / seconds[1]])
    header = ["layer", "eps", "F alternating", "F mm", "kept alternating", "kept mm"]
    header += ["ridge solves alternating", "mm", "s alternating", "s mm", "times faster"]
    no_worse = sum(r <= 1 + 1e-6 for r in ratios)
    return "\n\n".join(
        [
            f"## 1. Solver mm against alternating, LeNet layers, {IMAGES} images, residual 1e-3",
            table(header, rows),
            check_line(
                f"F never worse by more than 1 % (worst {max(ratios):.4f})", max(ratios) < 1.01
            )
            + "\n"
            + check_line(f"F lower or equal on most ({no_worse} of 6)", no_worse > 3)
            + "\n"
            + check_line(
                f"50 times faster in total ({seconds[0] / seconds[1]:.0f})",
                seconds[0] > 50 * seconds[1],
            ),
        ]
    )


def selection_quality(case: Case) -> str:
    """Measure the squared error after a refit over the variance, by selector at equal k."""
    rows = []
    for name, k in (("fc1", 8), ("fc1", 4), ("fc2", 80), ("fc2", 40), ("fc3", 43), ("fc3", 18)):
        m = case.moments[name]
        weight = case.model.get_submodule(name).weight
        assert isinstance(weight, Tensor)
        errors = {"entropic": relative_error(m, entrim.solve_k(m, k=k).kept)}
        for method in ("entropic", "greedy", "lasso", "magnitude"):
            kept = entrim.select(m, k=k, method=method, weight=weight)
            errors["select " + method] = relative_error(m, kept)
        errors["random"] = random_error(m, k)
        rows.append([name, k, *errors.values(), exhaustive_error(m, k)])
    header = [
        "layer",
        "k",
        "entropic (solve_k)",
        "entropic, swapped (select)",
        "greedy",
        "lasso",
        "magnitude",
    ]
    header += [f"random (mean of {RANDOM_DRAWS})", "best of all subsets"]
    plain, polished = (sum(row[i] <= row[4] for row in rows) for i in (2, 3))
    return "\n\n".join(
        [
            "## 5. Selection at equal k: squared error after refit over the outputs' variance",
            table(header, rows),
            f"At least as good as greedy: entropic on {plain} of {len(rows)}, after swaps on "
            f"{polished}. The swaps improve the entropic choice on "
            f"{sum(row[3] < row[2] for row in rows)} and never worsen it.",
        ]
    )


def relative_error(m: entrim.Moments, kept: Tensor) -> float:
    """Return the mean squared error after refit over the outputs' variance."""
    mean = m.cross_sum[0] / m.count
    variance = (m.target_sum_sq / m.count - float(mean.square().sum())) / m.outputs
    return entrim.refit(m, kept).mse / variance


def random_error(m: entrim.Moments, k: int) -> float:
    """Return the mean over random choices."""
    g = torch.Generator().manual_seed(0)
    draws = [entrim.select(m, k=k, method="random", generator=g) for _ in range(RANDOM_DRAWS)]
    return sum(relative_error(m, kept) for kept in draws) / RANDOM_DRAWS


def exhaustive_error(m: entrim.Moments, k: int) -> float | str:
    """Return the error of the best subset if all can be tried."""
    if math.comb(m.channels, k) > MOST_SUBSETS:
        return "too many"
    return relative_error(m, entrim.select(m, k=k, method="exhaustive"))


def network_accuracy(case: Case) -> str:
    """Put solved layers into the network and measure the test set, without training."""
    mnist = load_mnist("test")
    images, labels = mnist.normalize(normalization.MNIST), mnist.labels
    base = accuracy(case.model, images, labels)
    m = case.moments["fc1"]
    rows = [["baseline", 16, "", "99.04", base, base]]
    for label, eps, paper_k, paper in (("E1", 0.01, 8, "98.49"), ("E2", 0.05, 4, "97.35")):
        for name, s in (
            (f"{label}, eps {eps}", entrim.solve(m, -eps, eps)),
            (f"{label}, the paper's {paper_k} channels", entrim.solve_k(m, k=paper_k)),
        ):
            fit = entrim.refit(m, s.kept)
            raw = accuracy(with_fc1(case.model, s.kept, s.weight, s.bias), images, labels)
            refitted = accuracy(with_fc1(case.model, s.kept, fit.weight, fit.bias), images, labels)
            rows.append([name, len(s.kept), paper_k, paper, raw, refitted])
    for k in (8, 4):
        rows.append([f"random {k} channels, mean of {RANDOM_NETWORKS}", k, "", "", ""])
        rows[-1].append(random_accuracy(case, k, images, labels))
    header = ["model", "channels of conv1 kept", "paper's", "paper's accuracy", "ours, raw"]
    return "\n\n".join(
        [
            "## 6. The network with the solved layer, 10,000 test images, nothing trained",
            table([*header, "ours, after refit"], rows),
        ]
    )


def random_accuracy(case: Case, k: int, images: Tensor, labels: Tensor) -> float:
    """Return the mean accuracy over random choices of k channels, each refitted."""
    m, g, total = case.moments["fc1"], torch.Generator().manual_seed(0), 0.0
    for _ in range(RANDOM_NETWORKS):
        kept = entrim.select(m, k=k, method="random", generator=g)
        fit = entrim.refit(m, kept)
        total += accuracy(with_fc1(case.model, kept, fit.weight, fit.bias), images, labels)
    return total / RANDOM_NETWORKS


def with_fc1(model: LeNet, kept: Tensor, weight: Tensor, bias: Tensor) -> nn.Module:
    """Return a LeNet whose fc1 uses only the `kept` channels of conv1, with the given weights."""
    small = LeNet().eval()
    small.load_state_dict(model.state_dict())
    columns = (kept[:, None] * BLOCK["fc1"] + torch.arange(BLOCK["fc1"])).flatten()
    with torch.no_grad():
        small.fc1.weight.zero_()
        small.fc1.weight[:, columns] = weight.float()
        small.fc1.bias.copy_(bias)
    return small
