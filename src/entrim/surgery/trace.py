"""From a network and an example to its channel graph."""

import torch
from torch import nn

from entrim.errors import NothingToCutError, TraceError
from entrim.graph.channel_graph import ChannelGraph, Group, Indices
from entrim.graph.eager import (
    ExampleInputs,
    call,
    copy_module,
    copy_without_hooks,
    has_user_hooks,
    isolate_random_state,
    leaves,
    neutral_context,
    unwrap,
)
from entrim.graph.grouping import channel_graph
from entrim.graph.tracer import trace_ops
from entrim.surgery.prune import incompatible_groups, trial_prune
from entrim.surgery.verify import EquivalenceCheck, difference

WRITTEN = "its size is written into the network's code"


@neutral_context()
def trace(model: nn.Module, example_inputs: ExampleInputs) -> ChannelGraph:
    """Return the channel graph of `model`, called with `example`: a tensor, a tuple or a dict.

    The network is followed as it computes in eval mode and is not touched. Then a third of every
    group is cut for trial: a group that the network's own code cannot follow is listed as frozen.
    Cost: one torch.export and three forward passes in double precision, two more a group where the
    trial fails. Forward hooks that were registered on the network are called once here, on a copy,
    to check that they do not change its outputs; nothing else in entrim calls them.

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
    model = unwrap(model)
    _check_hooks(model, example_inputs)
    graph = channel_graph(trace_ops(model, example_inputs))
    bench = EquivalenceCheck.of(model, example_inputs)
    trial = {group.name: _two_thirds(group) for group in graph.groups}
    if trial_prune(model, graph, trial, bench).error > bench.tolerance:
        graph = graph.freeze(
            incompatible_groups(model, graph, trial, bench, bench.tolerance), WRITTEN
        )
    if not graph.groups:
        raise NothingToCutError(_reason(model, graph))
    return graph


def _check_hooks(model: nn.Module, example_inputs: ExampleInputs) -> None:
    """Refuse hooks that change what the network computes: a traced graph would not hold them."""
    if not has_user_hooks(model):
        return
    with torch.no_grad(), isolate_random_state():
        outputs = []
        for copy in (copy_module(model), copy_without_hooks(model)):
            torch.manual_seed(0)
            outputs.append(leaves(call(copy.eval(), example_inputs)))
    if difference(*outputs) > 0:
        raise TraceError(
            "a forward hook changes what the network computes, and a hook cannot be traced: do the "
            "same in forward(), or remove the hook"
        )


def _two_thirds(group: Group) -> list[int]:
    """Return two units of three, and more where a tensor would have nothing left.

    Half of the channels would not do: code that regroups a fixed number of them often runs on half.
    """
    firsts = {_first(member.indices) for member in group.members}
    return [unit for unit in range(group.channels) if unit % 3 != 1 or unit in firsts]


def _first(indices: Indices) -> int:
    return next(unit for unit, places in enumerate(indices) if places)


def _reason(model: nn.Module, graph: ChannelGraph) -> str:
    name = type(model).__name__
    if not graph.frozen:
        return f"{name} has no convolution or Linear: hand over a network that has channels"
    return f"no channel of {name} can be cut: change what holds them, or hand over a part\n{graph}"
