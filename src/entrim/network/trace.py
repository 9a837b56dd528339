"""From a network and an example to its channel graph."""

from torch import nn

from entrim.errors import NothingToCutError
from entrim.graph import ChannelGraph, Group, Positions
from entrim.network.follow import Example, follow
from entrim.network.grouping import channel_graph
from entrim.network.proof import Bench
from entrim.network.surgery import attempt, stuck_groups

WRITTEN = "its size is written into the network's code"


def trace(model: nn.Module, example: Example) -> ChannelGraph:
    """Return the channel graph of `model`, called with `example`: a tensor, a tuple or a dict.

    The network is followed as it computes in eval mode and is not touched. Then a third of every
    group is cut for trial: a group that the network's own code cannot follow is listed as frozen.
    Cost: one torch.export and three forward passes in double precision, two more a group where the
    trial fails.

    >>> import torch, entrim
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> print(entrim.trace(net, torch.randn(3, 4)))
    group  channels  produced by
    0      8         0
    <BLANKLINE>
    site  columns per channel  intercept goes to
    2     0: 1                 bias
    <BLANKLINE>
    frozen  channels  because
    2       2         it is an output of the network
    """
    graph = channel_graph(follow(model, example))
    bench = Bench.of(model, example)
    trial = {group.name: _two_thirds(group) for group in graph.groups}
    if attempt(model, graph, trial, bench).error > bench.tolerance:
        graph = graph.freezing(stuck_groups(model, graph, trial, bench, bench.tolerance), WRITTEN)
    if not graph.groups:
        raise NothingToCutError(_why(model, graph))
    return graph


def _two_thirds(group: Group) -> list[int]:
    """Return two units of three, and more where a tensor would have nothing left.

    Half of the channels would not do: code that regroups a fixed number of them often runs on half.
    """
    firsts = {_first(member.positions) for member in group.members}
    return [unit for unit in range(group.channels) if unit % 3 != 1 or unit in firsts]


def _first(positions: Positions) -> int:
    return next(unit for unit, places in enumerate(positions) if places)


def _why(model: nn.Module, graph: ChannelGraph) -> str:
    name = type(model).__name__
    if not graph.frozen:
        return f"{name} has no convolution or Linear: hand over a network that has channels"
    return f"no channel of {name} can be cut: change what holds them, or hand over a part\n{graph}"
