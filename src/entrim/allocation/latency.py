"""Estimate the latency of a network from the seconds of its operations at two widths.

Operations are timed one by one at full width and in a narrower network. The seconds of a layer are
then a linear function of the elements of its weight; what does not depend on the widths, such as
reordering of memory, is saved only if its residual block is removed.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import fx, nn

from entrim.allocation.costs import SECONDS, Costs, Term, Widths
from entrim.calibration.executor import Execution, Program
from entrim.calibration.tensor_store import Scratch, TensorStore
from entrim.entropic.moments import MEMORY_LIMIT
from entrim.graph.channel_graph import ChannelGraph, is_inside
from entrim.graph.eager import ExampleInputs
from entrim.graph.tracer import arguments_of

REPEATS = 20
"""Number of runs whose minimum is the time of an operation."""


@dataclass(frozen=True, slots=True)
class OperationTimes:
    """The seconds of the operations of a network on one batch."""

    layers: Mapping[str, float]
    """Seconds by name of the weight."""
    modules: Mapping[str, float]
    """Seconds of operations without a weight, by name of the module that calls them."""

    @classmethod
    def of(cls, model: nn.Module, example_inputs: ExampleInputs) -> "OperationTimes":
        """Return the minimum of several runs. Cost: one torch.export and 20 passes."""
        program = Program.of(model, example_inputs)
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        known = {name: tensors[name].detach() for name in program.names.values()}
        lowest = [float("inf")] * len(program.nodes)
        with torch.no_grad(), TensorStore(MEMORY_LIMIT, Scratch(None)) as store:
            run = Execution([program], [example_inputs], known, store)
            for _ in range(REPEATS):
                for place in range(len(program.nodes) - 1):
                    begin = time.perf_counter()
                    run.run(place, 0)
                    lowest[place] = min(lowest[place], time.perf_counter() - begin)
                    run.free(place, 0)
                run.free(len(program.nodes) - 1, 0)
        layers: dict[str, float] = {}
        modules: dict[str, float] = {}
        for node, seconds in zip(program.nodes, lowest, strict=True):
            if node.op == "call_function":
                weight = arguments_of(node).get("weight")
                found = program.names.get(weight) if isinstance(weight, fx.Node) else None
                total, key = (modules, _module_of(node)) if found is None else (layers, found)
                total[key] = total.get(key, 0.0) + seconds
        return cls(layers, modules)


def _module_of(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {"": ("", None)}
    return list(stack.values())[-1][0]


def with_latency(
    costs: Costs,
    graph: ChannelGraph,
    full: OperationTimes,
    narrow: OperationTimes,
    narrow_widths: Widths,
) -> Costs:
    """Return `costs` with the estimated latency as a further kind of cost, `SECONDS`.

    `narrow` are the times of the network with `narrow_widths`. Both numbers of a linear function
    are at least 0.
    """
    full_widths = {group.name: group.channels for group in graph.groups}
    terms: list[Term] = []
    for term in costs.terms:
        seconds = full.layers.get(term.tensor, 0.0)
        most, least = term.elements(full_widths), term.elements(narrow_widths)
        slope = 0.0
        if most > least:
            saved = seconds - narrow.layers.get(term.tensor, seconds)
            slope = min(max(0.0, saved / (most - least)), seconds / most)
        fixed = seconds - slope * most
        terms.append(replace(term, each={**term.each, SECONDS: slope}))
        terms.append(Term({SECONDS: fixed}, (), term.block))
    for module, seconds in full.modules.items():
        inside = (b.groups[0] for b in graph.blocks if b.groups and _is_part(module, b.name))
        terms.append(Term({SECONDS: seconds}, (), next(inside, None)))
    return Costs(tuple(terms), costs.rest)


def _is_part(module: str, block: str) -> bool:
    return module == block or is_inside(module, block)
