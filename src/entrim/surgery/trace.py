"""Trace a network to its channel graph."""

from collections import Counter

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
from entrim.surgery.prune import freeze_incompatible
from entrim.surgery.verify import difference


@neutral_context()
def trace(model: nn.Module, example_inputs: ExampleInputs) -> ChannelGraph:
    """Return the channel graph of `model`.

    The network is traced in eval mode. Then a third of every group is pruned for trial: groups on
    whose size the code of the network depends are listed as frozen. Forward hooks of the user are
    called once, on a copy, to check that they do not change the outputs. Residual blocks are
    replaced by an identity for trial; those that cannot be are not listed. Cost: one torch.export,
    three forward passes in double precision and two more for blocks. If a trial fails, groups are
    bisected: about 4 log2(n) more passes for each frozen one of n groups; blocks are tested one by
    one.

    Parameters
    ----------
    model : nn.Module
        The network; it is not modified.
    example_inputs : Tensor, tuple or dict
        Inputs of a forward pass: one tensor, positional or keyword arguments.

    Returns
    -------
    ChannelGraph

    Raises
    ------
    TraceError
        If torch.export does not support the network, or a hook changes its outputs.
    NothingToCutError
        If no channel can be pruned.

    Examples
    --------
    >>> import torch, entrim
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> print(entrim.trace(net, torch.randn(3, 4)))
    group  channels  produced by
    0      8         0
    <BLANKLINE>
    layer  columns per channel  intercept goes to
    2      0: 1                 bias
    <BLANKLINE>
    frozen  channels  because
    2       2         it is an output of the network
    """
    model = unwrap(model)
    _check_hooks(model, example_inputs)
    graph = channel_graph(trace_ops(model, example_inputs))
    trial = {group.name: _two_thirds(group) for group in graph.groups}
    graph = freeze_incompatible(model, graph, trial, example_inputs)
    if not graph.groups:
        raise NothingToCutError(_reason(model, graph), graph)
    return graph


def _check_hooks(model: nn.Module, example_inputs: ExampleInputs) -> None:
    """Raise a TraceError if hooks change the outputs, because they cannot be traced."""
    if not has_user_hooks(model):
        return
    with torch.no_grad(), isolate_random_state():
        outputs = []
        for copy in (copy_module(model), copy_without_hooks(model)):
            torch.manual_seed(0)
            outputs.append(leaves(call(copy.eval(), example_inputs)))
    if difference(*outputs) > 0:
        raise TraceError(
            "a forward hook changes the outputs of the network, and hooks cannot be traced: move "
            "its computation to forward(), or remove the hook"
        )


def _two_thirds(group: Group) -> list[int]:
    """Return two of three channels, and more if a tensor would be empty.

    Half of the channels would not suffice: code that regroups a fixed number often runs on half.
    """
    firsts = {_first(member.indices) for member in group.members}
    return [unit for unit in range(group.channels) if unit % 3 != 1 or unit in firsts]


def _first(indices: Indices) -> int:
    return next(unit for unit, places in enumerate(indices) if places)


def _reason(model: nn.Module, graph: ChannelGraph) -> str:
    """Return one sentence with the most frequent reason."""
    name = type(model).__name__
    if not graph.frozen:
        return f"{name} has no convolution or linear layer: pass a network with channels"
    counts: Counter[str] = Counter()
    for one in graph.frozen:
        counts[one.reason] += one.channels
    reason, channels = counts.most_common(1)[0]
    return (
        f"no channel of {name} can be pruned, {channels:,} of {counts.total():,} because "
        f"{reason}: pass another module (`print(error.graph)` lists all layers)"
    )
