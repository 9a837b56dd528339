"""The selected support, compared with the best of all subsets of its size."""

import pytest
import torch

from entrim import refit, select, solve, solve_k
from tests.layers import layer_moments


def excess_over_best(seed: int, k: int) -> tuple[float, float]:
    """Return the errors of the entropic and of a random selection, relative to the best one."""
    m = layer_moments(seed, channels=8, outputs=4)
    best = refit(m, select(m, k=k, method="exhaustive")).mse
    g = torch.Generator().manual_seed(seed)
    drawn = select(m, k=k, method="random", generator=g)
    entropic = solve_k(m, k=k).kept
    return refit(m, entropic).mse / best, refit(m, drawn).mse / best


@pytest.mark.parametrize("k", [2, 4, 6])
def test_the_support_is_close_to_the_best_of_its_size(k, record_property):
    ratios = torch.tensor([excess_over_best(seed, k) for seed in range(20)])
    entropic, drawn = ratios.median(0).values.tolist()
    record_property("median error over the best support's", f"{entropic:.3f}, random {drawn:.3f}")
    assert entropic < 1.05
    assert drawn > 1.5


def test_both_solvers_find_losses_within_a_few_percent_of_each_other():
    ratios = []
    for seed in range(20):
        m = layer_moments(seed, channels=8, outputs=4)
        ratios.append(
            solve(m, -0.03, 0.03).loss
            / solve(m, -0.03, 0.03, solver="alternating", max_solves=1000).loss
        )
    assert sum(ratios) / len(ratios) < 1.005
    assert max(ratios) < 1.05
