"""The distance of the entropic selection from the best subset, where all can be tried."""

import torch

import entrim
from experiments.benchmarks.record import table
from experiments.benchmarks.wide_layer import wide_rows

LAYERS, CHANNELS = 20, 8


def distance_from_the_best() -> str:
    """Measure the error after a refit over that of the best subset, on small random layers."""
    layers = [
        entrim.Moments.of(*wide_rows(50, channels=CHANNELS, seed=seed), block=9)
        for seed in range(LAYERS)
    ]
    rows = []
    for k in (2, 4, 6):
        excesses = [excess(m, k, seed) for seed, m in enumerate(layers)]
        ratios = torch.tensor(excesses, dtype=torch.float64)
        hits = [f"{int((column < 1 + 1e-9).sum())} of {LAYERS}" for column in ratios.T]
        rows.append([k, *ratios.median(0).values.tolist(), *ratios.max(0).values.tolist(), *hits])
    names = ["solve_k", "select entropic", "random"]
    header = [f"{what} {name}" for what in ("median", "worst", "best found by") for name in names]
    return "\n\n".join(
        [
            f"## 7. Distance from the best of all subsets, {LAYERS} random layers of {CHANNELS} "
            "channels x 9: error after a refit over that of the best subset",
            table(["k", *header], rows),
        ]
    )


def excess(m: entrim.Moments, k: int, seed: int) -> list[float]:
    """Return the errors of `solve_k`, entropic `select` and random channels over the best."""
    generator = torch.Generator().manual_seed(seed)
    best = entrim.refit(m, entrim.select(m, k=k, method="exhaustive")).mse
    choices = [
        entrim.solve_k(m, k=k).kept,
        entrim.select(m, k=k, method="entropic"),
        entrim.select(m, k=k, method="random", generator=generator),
    ]
    return [entrim.refit(m, kept).mse / best for kept in choices]
