"""Several consumers of one channel group share one w."""

import pytest
import torch
from hypothesis import given, settings

from entrim import Moments, solve, solve_k
from entrim.entropic.solve import regress
from entrim.errors import BadRowsError
from tests.layers import eps_values, layer_moments, layer_rows, shapes


@pytest.mark.parametrize("solver", ["mm", "alternating"])
@settings(max_examples=8)
@given(shape=shapes(), eps=eps_values)
def test_two_copies_of_one_problem_have_the_same_solution(solver, shape, eps):
    m = layer_moments(**shape)
    one = solve(m, -eps, eps, solver=solver, max_solves=40)
    both = solve([m, m], -eps, eps, solver=solver, max_solves=40)
    torch.testing.assert_close(both.w, one.w, rtol=0, atol=1e-8)
    assert both.loss == pytest.approx(one.loss, rel=1e-10)
    for part in both.parts:
        torch.testing.assert_close(part.weight, one.weight, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(part.bias, one.bias, rtol=1e-6, atol=1e-8)


def test_consumers_with_different_blocks_and_outputs_share_one_selection():
    plain, wide = layer_moments(0, channels=8), layer_moments(1, channels=8, block=9, outputs=5)
    joint = solve([plain, wide], -0.05, 0.05)
    assert joint.status.converged
    assert [p.weight.shape for p in joint.parts] == [
        (3, len(joint.kept)),
        (5, 9 * len(joint.kept)),
    ]
    for part in joint.parts:
        assert torch.equal(part.kept, joint.kept)
        assert torch.equal(part.w, joint.w)
    assert joint.loss == pytest.approx(sum(p.loss for p in joint.parts) / 2)
    assert joint.mse == pytest.approx(sum(p.mse for p in joint.parts) / 2)


def test_a_channel_that_only_one_consumer_needs_is_kept():
    x, _ = layer_rows(2, channels=6)
    first, second = Moments.of(x, x[:, [1]]), Moments.of(x, x[:, [4]])
    assert solve(first).kept.tolist() == [1]
    assert solve(second).kept.tolist() == [4]
    assert solve([first, second]).kept.tolist() == [1, 4]


def test_a_channel_that_is_dead_for_one_consumer_only_can_be_kept():
    x, y = layer_rows(3)
    other = x.clone()
    other[:, 0] = 0
    assert 0 in solve([Moments.of(x, x[:, :1]), Moments.of(other, y)], -1e-4, 1e-4).kept


def test_consumers_of_different_widths_cannot_share_a_group():
    with pytest.raises(BadRowsError, match=r"same number of channels, got \[6, 7\]"):
        solve([layer_moments(4), layer_moments(4, channels=7)])
    with pytest.raises(BadRowsError, match="list of moments is empty"):
        solve([])


def test_the_weights_for_a_fixed_w_solve_the_normal_equations_of_every_consumer():
    eps, rows = (
        0.02,
        [layer_rows(seed, channels=6, block=block) for seed, block in ((0, 1), (1, 9))],
    )
    moments = [Moments.of(x, y, block=x.shape[1] // 6) for x, y in rows]
    w = torch.tensor([0.5, 0, 0.7, 0.1, 0, 0.3], dtype=torch.float64)
    for (x, y), part in zip(rows, regress(moments, w, eps), strict=True):
        assert part.kept.tolist() == [0, 2, 3, 5]
        s = w.repeat_interleave(x.shape[1] // 6)
        z = torch.cat([torch.ones(len(x), 1), (x * s)[:, s > 0]], 1).double()
        inner = torch.cat([part.bias[None], (part.weight / s[s > 0]).T])
        slope = z.T @ (z @ inner - y.double()) / len(x) + eps * inner
        torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-10)


def test_a_solution_at_a_width_names_its_ridge():
    m = layer_moments(5, channels=8)
    found = solve_k(m, k=4)
    again = regress([m], found.w, found.eps_l2)[0]
    torch.testing.assert_close(again.weight, found.weight)
    torch.testing.assert_close(again.bias, found.bias)
