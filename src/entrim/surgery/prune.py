"""Apply a plan: a smaller network of the same class, verified before it is returned."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from entrim.errors import PlanError, RolledBackWarning, SurgeryError
from entrim.graph.channel_graph import ChannelGraph
from entrim.graph.eager import (
    ExampleInputs,
    copy_module,
    copy_without_hooks,
    neutral_context,
    unwrap,
)
from entrim.graph.grouping import channel_graph
from entrim.graph.residual_blocks import is_inside, tensors_in
from entrim.graph.tracer import trace_ops
from entrim.surgery.plan import Plan
from entrim.surgery.structure import layout_of, replace_by_identity, source_of
from entrim.surgery.verify import EquivalenceCheck, Probe, Proof, difference, require_numbers

Dims = Mapping[int, Sequence[int]]
"""Kept positions, for every dimension that shrinks."""


def part_of(tensor: Tensor, dims: Dims) -> Tensor:
    """Return the kept part of `tensor`."""
    for dim, positions in dims.items():
        tensor = tensor.index_select(dim, torch.tensor(positions, device=tensor.device))
    return tensor


def write_part(tensor: Tensor, dims: Dims, part: Tensor) -> None:
    """Write `part` to the kept positions of `tensor`."""
    where = [
        torch.tensor(dims.get(dim, range(size)), device=tensor.device)
        for dim, size in enumerate(tensor.shape)
    ]
    tensor[torch.meshgrid(*where, indexing="ij") if where else ...] = part.to(tensor)


def zero_removed(tensor: Tensor, dim: int, dims: Dims) -> None:
    """Set the removed positions along `dim` to zero."""
    kept = dims.get(dim, range(tensor.shape[dim]))
    removed = sorted(set(range(tensor.shape[dim])).difference(kept))
    tensor.index_fill_(dim, torch.tensor(removed, device=tensor.device).long(), 0)


Kept = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrunedModel:
    """A pruned network, the plan that was applied, and the result of its verification."""

    model: nn.Module
    plan: Plan
    """The given plan without rolled-back groups."""
    proof: Proof
    rolled_back: tuple[str, ...]
    """Groups that were not pruned, and blocks that were not removed, because the code of the
    network depends on them."""


@neutral_context()
def apply_plan(
    model: nn.Module,
    plan: Plan,
    example_inputs: ExampleInputs,
    *,
    min_channels: int = 1,
    tolerance: float | None = None,
) -> nn.Module:
    """Return a new, smaller network of the same class.

    `entrim.surgery.prune.prune` does the same and also returns the verification.

    Parameters
    ----------
    model : nn.Module
        The network; it is not modified.
    plan : Plan
        Kept channels, removed blocks and new weights.
    example_inputs : Tensor, tuple or dict
        Inputs with which the network is traced and verified.
    min_channels : int, default 1
        Minimum number of channels along any dimension.
    tolerance : float, optional
        Maximum relative difference in the verification; the default depends on the precision.

    Returns
    -------
    nn.Module

    Raises
    ------
    PlanError
        If the plan does not fit the network.
    SurgeryError
        If the verification fails.

    Examples
    --------
    >>> import torch, entrim
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> entrim.apply_plan(net, entrim.Plan({"0": [1, 6]}), torch.randn(3, 4))[0]
    Linear(in_features=4, out_features=2, bias=True)
    """
    return prune(model, plan, example_inputs, min_channels=min_channels, tolerance=tolerance).model


@neutral_context()
def prune(
    model: nn.Module,
    plan: Plan,
    example_inputs: ExampleInputs,
    *,
    graph: ChannelGraph | None = None,
    min_channels: int = 1,
    tolerance: float | None = None,
) -> PrunedModel:
    """Return the pruned network with its verification.

    Groups and blocks on which the code of the network depends are not pruned, with a
    RolledBackWarning.
    Other differences above `tolerance` raise a SurgeryError.

    Parameters
    ----------
    model, plan, example_inputs, min_channels, tolerance
        As in `apply_plan`.
    graph : ChannelGraph, optional
        The result of `trace`, to avoid tracing again.

    Returns
    -------
    PrunedModel

    Examples
    --------
    >>> import torch, entrim
    >>> from entrim.surgery.prune import prune
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> done = prune(net, entrim.Plan({"0": [1, 6]}), torch.randn(3, 4))
    >>> done.model[0].out_features, done.proof.final <= done.proof.tolerance
    (2, True)
    """
    if not isinstance(plan, Plan):
        raise PlanError(f"plan must be an entrim.Plan, got {type(plan).__name__}")
    model = unwrap(model)
    if graph is None:
        graph = channel_graph(trace_ops(model, example_inputs))
    _check_graph(graph, model)
    plan.validate(graph, min_channels)
    bench = EquivalenceCheck.of(model, example_inputs)
    limit = bench.tolerance if tolerance is None else tolerance
    trial, stuck = trial_prune(model, graph, plan.kept, bench, plan.removed_blocks), ()
    beyond_rounding = max(limit, bench.tolerance)
    if trial.error > beyond_rounding:
        blocks = incompatible_blocks(model, graph, plan.removed_blocks, bench, beyond_rounding)
        removed = [name for name in plan.removed_blocks if name not in blocks]
        groups = incompatible_groups(model, graph, plan.kept, bench, beyond_rounding, removed)
        stuck = (*groups, *blocks)
    if stuck:
        plan = _roll_back(plan, graph, stuck)
        trial = trial_prune(model, graph, plan.kept, bench, plan.removed_blocks)
    final = trial.error
    if plan.weights and final <= limit:
        _put(trial.model, plan.weights)
        removed = plan.removed_blocks
        wanted = bench.run(zero_pad(model, graph, plan), _windows(model, graph, plan.kept, removed))
        found = bench.run(trial.model, _windows(model, graph, None, removed))
        final = difference(found, wanted)
    proof = Proof(sliced=trial.error, final=final, tolerance=limit, dtype=bench.dtype)
    _check_proof(proof, trial.failure)
    source_of(model, graph, plan.kept, plan.removed_blocks).write_on(trial.model)
    return PrunedModel(model=trial.model, plan=plan, proof=proof, rolled_back=stuck)


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """A trial network, and its difference from the original with zeroed weights."""

    model: nn.Module
    error: float
    failure: str = ""
    """The error, if the network did not run."""


def trial_prune(
    model: nn.Module,
    graph: ChannelGraph,
    kept: Kept,
    bench: EquivalenceCheck,
    removed_blocks: Sequence[str] = (),
) -> Attempt:
    """Return `model` pruned to `kept`, compared with the original with zeroed weights."""
    small = slice_model(model, graph, kept, removed_blocks)
    masked = mask_model(model, graph, kept, removed_blocks)
    wanted = bench.run(masked, _windows(model, graph, kept, removed_blocks))
    require_numbers(wanted, model)
    try:
        found = bench.run(small, _windows(model, graph, None, removed_blocks))
        return Attempt(small, difference(found, wanted))
    except Exception as error:
        return Attempt(small, math.inf, f"{type(error).__name__}: {error}")


def incompatible_blocks(
    model: nn.Module,
    graph: ChannelGraph,
    removed_blocks: Sequence[str],
    bench: EquivalenceCheck,
    limit: float,
) -> tuple[str, ...]:
    """Return the blocks that cannot be replaced by an identity, added one by one."""
    follows: list[str] = []
    for name in removed_blocks:
        if trial_prune(model, graph, {}, bench, [*follows, name]).error <= limit:
            follows.append(name)
    return tuple(name for name in removed_blocks if name not in follows)


def incompatible_groups(
    model: nn.Module,
    graph: ChannelGraph,
    kept: Kept,
    bench: EquivalenceCheck,
    limit: float,
    removed_blocks: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the groups of `kept` on whose size the code of the network depends.

    `kept` as a whole must be incorrect. Halves of the groups are added while the pruned network is
    correct, so that all added groups are compatible with each other. Cost: about 2 log2(n) trials
    of two forward passes for each incompatible one of n groups.
    """
    follows: dict[str, Sequence[int]] = {}

    def is_correct(names: Sequence[str]) -> bool:
        trial = {**follows, **{name: kept[name] for name in names}}
        return trial_prune(model, graph, trial, bench, removed_blocks).error <= limit

    def add(names: Sequence[str], *, known_incorrect: bool) -> None:
        if not known_incorrect and is_correct(names):
            follows.update({name: kept[name] for name in names})
        elif len(names) > 1:
            first, second = names[: len(names) // 2], names[len(names) // 2 :]
            add(first, known_incorrect=False)
            add(second, known_incorrect=all(name in follows for name in first))

    add(list(kept), known_incorrect=True)
    return tuple(name for name in kept if name not in follows)


def slice_model(
    model: nn.Module, graph: ChannelGraph, kept: Kept, removed_blocks: Sequence[str] = ()
) -> nn.Module:
    """Return a copy of `model` without the removed channels and blocks, with updated attributes."""
    small = copy_module(model)
    for name in removed_blocks:
        replace_by_identity(small, name)
    absent = tensors_in(map(graph.block, removed_blocks))
    for parameter in small.parameters():
        parameter.grad = None
    done: set[int] = set()
    for name, dims in graph.kept_indices(kept).items():
        if name in absent:
            continue
        old = _find(small, name)
        if id(old) in done:
            continue
        new = part_of(old.detach(), dims)
        done.add(id(_replace(small, old, _in_format_of(old, new))))
    for (module, attribute), fall in graph.attribute_deltas(kept).items():
        if any(is_inside(f"{module}.{attribute}", name) for name in removed_blocks):
            continue
        owner = small.get_submodule(module)
        setattr(owner, attribute, getattr(owner, attribute) - fall)
    return small


def mask_model(
    model: nn.Module, graph: ChannelGraph, kept: Kept, removed_blocks: Sequence[str] = ()
) -> nn.Module:
    """Return a copy of `model` with zero weights on removed channels and zero removed branches."""
    full, stays = copy_without_hooks(model), graph.kept_indices(kept)
    with torch.no_grad():
        for site in graph.consumers:
            zero_removed(_find(full, site.weight), site.dim, stays.get(site.weight, {}))
        for block in map(graph.block, removed_blocks):
            for name in block.zeroed:
                _find(full, name).zero_()
    return full


def zero_pad(model: nn.Module, graph: ChannelGraph, plan: Plan) -> nn.Module:
    """Return the original with `plan.weights` at the kept positions and zeros elsewhere."""
    full = mask_model(model, graph, plan.kept, plan.removed_blocks)
    stays = graph.kept_indices(plan.kept)
    with torch.no_grad():
        for name, new in plan.weights.items():
            write_part(_find(full, name), stays.get(name, {}), new)
    return full


def _windows(
    model: nn.Module,
    graph: ChannelGraph,
    kept: Kept | None = None,
    removed_blocks: Sequence[str] = (),
) -> list[Probe]:
    """Return a probe of every consumer outside of removed blocks, at the outputs kept by `kept`."""
    modules, stays = dict(model.named_modules()), graph.kept_indices(kept or {})
    absent = tensors_in(map(graph.block, removed_blocks))
    windows = []
    for site in graph.consumers:
        layer = modules.get(site.layer)
        if not isinstance(layer, nn.Linear | _ConvNd) or site.weight in absent:
            continue
        rank, positions = len(graph.shapes[site.weight]), None
        stay = stays.get(site.weight, {}).get(1 - site.dim)
        if stay is not None:
            size = graph.shapes[site.weight][1 - site.dim]
            copies = layer.groups if isinstance(layer, _ConvNd) and layer.transposed else 1
            positions = [copy * size + place for copy in range(copies) for place in stay]
        windows.append(Probe(site.layer, 1 - rank, positions))
    return windows


def _check_graph(graph: ChannelGraph, model: nn.Module) -> None:
    tensors = (model.named_parameters(), model.named_buffers())
    for name, tensor in chain.from_iterable(tensors):
        if graph.shapes.get(name) != tuple(tensor.shape):
            raise PlanError(
                f"{name} has the shape {graph.shapes.get(name)} in the graph, but "
                f"{tuple(tensor.shape)} in the network: pass the graph of trace() for this network"
            )


def _roll_back(plan: Plan, graph: ChannelGraph, stuck: Sequence[str]) -> Plan:
    names = ", ".join(stuck)
    why = f"{names} cannot be pruned, because the code of the network depends on the size"
    blocks = [name for name in plan.removed_blocks if name in stuck]
    groups = [graph.group(name) for name in plan.kept if name in stuck]
    touched = {member.tensor for group in groups for member in group.members}
    if touched & plan.weights.keys() or (blocks and plan.weights):
        raise SurgeryError(
            f"{why}, and the plan has new weights for it: remove {names} from the plan and solve "
            "again (trace() lists such groups as frozen)"
        )
    warnings.warn(f"{why}; all its channels are kept", RolledBackWarning, stacklevel=3)
    kept = {name: units for name, units in plan.kept.items() if name not in stuck}
    removed = [name for name in plan.removed_blocks if name not in stuck]
    return Plan(kept, plan.weights, removed)


def _check_proof(proof: Proof, failure: str) -> None:
    if failure:
        raise SurgeryError(
            f"the pruned network does not run ({failure}): prune fewer groups at once, and report "
            "the network"
        )
    for what, error in (("sliced", proof.sliced), ("final", proof.final)):
        if not error <= proof.tolerance:
            raise SurgeryError(
                f"the {what} network differs from the original with zeros by {error:.2e}, above "
                f"tolerance={proof.tolerance:.0e}: pass a larger tolerance if the network is "
                "ill-conditioned, otherwise report the network"
            )


def _put(small: nn.Module, weights: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, new in weights.items():
            _find(small, name).copy_(new)


def _find(model: nn.Module, name: str) -> Tensor:
    owner, _, leaf = name.rpartition(".")
    return getattr(model.get_submodule(owner), leaf)


def _replace(model: nn.Module, old: Tensor, new: Tensor) -> Tensor:
    """Replace `old` by `new` in all modules and return it; shared tensors stay shared."""
    if isinstance(old, nn.Parameter):
        new = nn.Parameter(new, requires_grad=old.requires_grad)
    for module in model.modules():
        store: Any
        for store in (module._parameters, module._buffers):
            store.update({leaf: new for leaf, tensor in store.items() if tensor is old})
    return new


def _in_format_of(old: Tensor, new: Tensor) -> Tensor:
    return new.contiguous(memory_format=layout_of(old) or torch.contiguous_format)
