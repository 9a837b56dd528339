"""Groups whose channels are divided among tensors: every tensor keeps a channel."""

import pytest
import torch

import entrim
from entrim.graph.channel_graph import Group, Member
from entrim.selection.base import ChannelRanking, GroupStatistics, GroupTarget
from entrim.selection.entropic import select_channels
from entrim.selection.targets import find_selector

GROUP = Group(
    name="stem",
    channels=6,
    members=(
        Member("stem.weight", 0, tuple((k,) for k in range(6))),
        Member("left.weight", 1, ((0,), (1,), (2,), (), (), ())),
        Member("right.weight", 1, ((), (), (), (0,), (1,), (2,))),
    ),
    attributes=(),
    layers=("stem",),
)


def statistics() -> GroupStatistics:
    """Return statistics in which the last three channels explain the outputs."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(200, 6, generator=g, dtype=torch.float64)
    weight = torch.zeros(2, 6, dtype=torch.float64)
    weight[:, 3:] = torch.randn(2, 3, generator=g, dtype=torch.float64) + 3
    weight[:, 1] = 0.01
    moments = entrim.Moments.of(x, x @ weight.T)
    return GroupStatistics(group=GROUP, moments=(moments,), weights=(weight,), generator=g)


@pytest.mark.parametrize("selector", ["greedy", "magnitude", "entropic"])
def test_a_slice_without_channels_keeps_its_strongest(selector: str) -> None:
    chosen = find_selector(selector)
    assert chosen is not None
    found = select_channels(GroupTarget(channels=6, selector=chosen, width=3), statistics())
    assert found.kept == (1, 3, 4, 5)
    assert "every slice" in found.reason


def test_a_group_without_signal_keeps_a_channel_of_every_slice() -> None:
    x = torch.zeros(50, 6, dtype=torch.float64)
    weight = torch.arange(12.0, dtype=torch.float64).view(2, 6)
    dead = GroupStatistics(
        group=GROUP,
        moments=(entrim.Moments.of(x, x @ weight.T),),
        weights=(weight,),
        generator=torch.Generator(),
    )
    chosen = find_selector("entropic")
    assert chosen is not None
    found = select_channels(GroupTarget(channels=6, selector=chosen, width=2), dead)
    assert found.kept == (0, 5)
    assert "zero on these images" in found.reason


def test_a_selection_with_a_channel_of_every_slice_is_not_changed() -> None:
    scores = entrim.Scores({"stem": [9.0, 0.0, 0.0, 0.0, 8.0, 0.0]})
    found = select_channels(GroupTarget(channels=6, selector=scores, width=2), statistics())
    assert found.kept == (0, 4)
    assert "slice" not in found.reason


def test_a_ranking_removes_the_last_channel_of_a_slice_last() -> None:
    ranking = ChannelRanking.of(GROUP, [0, 1, 2, 3, 4, 5])
    assert ranking.min_width == 2
    assert ranking.kept(2) == (2, 5)
    assert ranking.kept(4) == (2, 3, 4, 5)
