"""A layer as wide as VGG-16's: residual, memory, time, paths, and growth with the rows."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

import entrim
from experiments.benchmarks.lenet_layers import Case
from experiments.benchmarks.record import check_line, measure_time, table

CHANNELS, OUTPUTS, SIDE = 512, 512, 4
PATH_EPS = [10 ** (-5 + 3 * i / 19) for i in range(20)]


def wide_rows(images: int, channels: int = CHANNELS, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return patches (images*16, channels*9) and outputs of a 3x3 convolution on smooth maps.

    Few factors that vary smoothly over a 4x4 map are mixed into rectified channels with some noise
    of their own, as in the late layers of a trained network. The outputs have unit variance, so
    that eps has the scale of the paper. 500 images make 8,000 rows.
    """
    g = torch.Generator().manual_seed(seed)
    coarse = torch.randn(images, 48, 2, 2, generator=g)
    factors = F.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear", align_corners=True)
    mixing = torch.randn(channels, 48, generator=g) / 48**0.5
    own = 0.3 * torch.randn(images, channels, SIDE, SIDE, generator=g)
    maps = torch.relu(torch.einsum("dk,nkhw->ndhw", mixing, factors) + own - 0.2)
    x = F.unfold(maps, 3, padding=1).transpose(1, 2).flatten(0, 1)
    weight = torch.randn(channels * 9, OUTPUTS, generator=g) / (9 * channels) ** 0.5
    importance = torch.rand(channels, generator=g).pow(3).repeat_interleave(9)
    y = x @ (weight * importance[:, None])
    return x, y / y.std()


def peak_memory(work: Callable[[], object]) -> int:
    """Return the peak growth of the process in bytes while `work` runs (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) * 1024 for x in lines if x.startswith(field))


def residual_cost(m: entrim.Moments) -> str:
    """Measure the cost of an optimality residual of 1e-3 in ridge solves, memory and time."""
    system = m.gram_sum / m.count
    system.diagonal().add_(1.0)
    _, cholesky = measure_time(partial(torch.linalg.cholesky, system), repeats=3)
    del system
    s, seconds = measure_time(lambda: entrim.solve(m))
    peak = peak_memory(lambda: entrim.solve(m)) / (8 * m.columns**2)
    error = s.mse / (m.target_sum_sq / m.count / m.outputs)
    rows = [
        ["channels kept", f"{len(s.kept)} of {m.channels}"],
        ["error / second moment of the outputs", error],
        ["optimality residual", s.optimality_residual],
        ["ridge solves", s.ridge_solves],
        ["full-size equivalents", s.full_size_solves],
        ["peak memory above the moments, n^2 doubles", peak],
        ["seconds", seconds],
        ["seconds of one Cholesky of this size", cholesky],
        ["time in Choleskys", seconds / cholesky],
    ]
    return "\n\n".join(
        [
            f"## 2. A layer of VGG-16's size: n = {m.columns}, M = {m.outputs}, {m.count} rows",
            table(["quantity", "measured"], rows),
            check_line("optimality residual 1e-3 reached", s.optimality_residual <= 1e-3)
            + "\n"
            + check_line("within 12 full-size equivalents", s.full_size_solves <= 12)
            + "\n"
            + check_line("at most 5 n^2 doubles above the moments", peak <= 5),
        ]
    )


def path_against_cold(wide: entrim.Moments, case: Case) -> str:
    """Measure a warm-started path of 20 eps against 20 cold starts."""
    rows = []
    for name, m, eps in (
        (f"{wide.channels} x 9", wide, PATH_EPS),
        *((n, m, [10 ** (-5 + 4 * i / 19) for i in range(20)]) for n, m in case.moments.items()),
    ):
        warm, warm_s = measure_time(lambda m=m, eps=eps: entrim.solve_path(m, eps))
        cold, cold_s = measure_time(lambda m=m, eps=eps: [entrim.solve(m, -e, e) for e in eps])
        ratios = [a.loss / b.loss for a, b in zip(warm, cold, strict=True)]
        rows.append(
            [name, cold_s, warm_s, warm_s / cold_s]
            + [sum(s.full_size_solves for s in path) for path in (cold, warm)]
            + [max(ratios), sum(ratios) / len(ratios)]
        )
    header = ["layer", "s cold", "s path", "path / cold", "full-size solves cold", "path"]
    return "\n\n".join(
        [
            "## 3. A path of 20 eps against the same 20 solved cold",
            table([*header, "worst F ratio", "mean F ratio"], rows),
            check_line(
                f"wide layer: at most half the time ({rows[0][3]:.2f}), F not worse by more than "
                f"1 % (worst {rows[0][6]:.4f})",
                rows[0][3] <= 0.5 and rows[0][6] <= 1.01,
            )
            + "\n"
            + check_line(
                "every LeNet layer too", all(row[3] <= 0.5 and row[6] <= 1.01 for row in rows[1:])
            ),
        ]
    )


def growth_with_rows() -> str:
    """Measure solving and collecting against the number of rows."""
    rows = []
    for images in (125, 250, 500, 1000, 2000):
        x, y = wide_rows(images, channels=128)
        m, collect = measure_time(lambda x=x, y=y: entrim.Moments.of(x, y, block=9), repeats=3)
        s, solving = measure_time(lambda m=m: entrim.solve(m), repeats=3)
        rows.append([len(x), collect, solving, solving / s.full_size_solves, len(s.kept)])
    counts = torch.tensor([float(row[0]) for row in rows]).log()
    slopes = [fit_slope(counts, torch.tensor([row[i] for row in rows]).log()) for i in (1, 3)]
    header = ["rows T", "s collecting", "s solving", "s solving / full-size solve", "kept"]
    return "\n\n".join(
        [
            "## 4. Growth with the number of rows, 128 x 9 columns, 512 outputs",
            table(header, rows),
            f"Fitted exponents in T: collecting {slopes[0]:.2f}, solving {slopes[1]:.2f}.",
            check_line("the time of a solve does not grow with T", slopes[1] < 0.2),
        ]
    )


def fit_slope(x: Tensor, y: Tensor) -> float:
    """Return the slope of the least-squares line."""
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
