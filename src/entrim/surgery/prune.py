"""Apply a plan: a smaller network of the same class, verified before it is returned.

`SourceModel` and `ModelStructure` describe it as plain data, from which `load_model.rebuild`
restores it.
"""

import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from entrim.errors import PlanError, RolledBackWarning, SurgeryError, warn
from entrim.graph.channel_graph import ChannelGraph, is_inside, tensors_in
from entrim.graph.eager import (
    ExampleInputs,
    copy_module,
    copy_without_hooks,
    neutral_context,
    unwrap,
)
from entrim.graph.grouping import channel_graph
from entrim.graph.restricted import mark_removed
from entrim.graph.tracer import trace_ops
from entrim.surgery.load_model import (
    LAYOUTS,
    class_name_of,
    name_tensors,
    owner_of,
    read_size,
    replace_by_identity,
    tensors_of,
    write_size,
)
from entrim.surgery.plan import Plan, part_of, write_part, zero_removed
from entrim.surgery.verify import (
    EquivalenceCheck,
    Probe,
    Proof,
    any_nan,
    difference,
    require_numbers,
)

Kept = Mapping[str, Sequence[int]]
_NOTE = "_entrim_origin"
WRITTEN = "the code of the network depends on its size"


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
    on_sliced: Callable[[], None] = lambda: None,
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
    on_sliced : callable, optional
        Called when the network is sliced and compared, about halfway; new weights follow.

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
    if trial.error > max(limit, bench.tolerance):
        graph, stuck = _incompatible(model, graph, plan, bench, max(limit, bench.tolerance))
        plan = _roll_back(plan, graph, stuck) if stuck else plan
        trial = trial_prune(model, graph, plan.kept, bench, plan.removed_blocks)
    final = trial.error
    on_sliced()
    if plan.weights and final <= limit:
        _put(trial.model, plan.weights)
        removed = plan.removed_blocks
        padded = zero_pad(model, graph, plan)
        run = bench.run_restricted if graph.norms else bench.run
        wanted = run(padded, _windows(model, graph, plan.kept, removed))
        found = bench.run(trial.model, _windows(model, graph, None, removed))
        final = difference(found, wanted)
    proof = Proof(sliced=trial.error, final=final, tolerance=limit, dtype=bench.dtype)
    _check_proof(proof, trial.failure)
    changed = graph.attribute_deltas(plan.kept)
    source_of(model, changed, plan.kept, plan.removed_blocks).write_on(trial.model)
    return PrunedModel(model=trial.model, plan=plan, proof=proof, rolled_back=stuck)


def _incompatible(
    model: nn.Module, graph: ChannelGraph, plan: Plan, bench: EquivalenceCheck, limit: float
) -> tuple[ChannelGraph, tuple[str, ...]]:
    """Return the graph without wrong guesses of attributes, and the incompatible groups and blocks.

    The plan as a whole must be incorrect.
    """
    blocks: tuple[str, ...] = ()
    if trial_prune(model, graph, {}, bench, plan.removed_blocks).error > limit:
        blocks = incompatible_blocks(model, graph, plan.removed_blocks, bench, limit)
    rest = [name for name in plan.removed_blocks if name not in blocks]
    if blocks and trial_prune(model, graph, plan.kept, bench, rest).error <= limit:
        return graph, blocks
    graph, groups = without_wrong_guesses(model, graph, plan.kept, bench, limit, rest)
    return graph, (*groups, *blocks)


def compatible_groups(
    model: nn.Module, kept: Kept, example_inputs: ExampleInputs, graph: ChannelGraph
) -> set[str]:
    """Return the groups of `kept` that can be pruned to these channels together."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RolledBackWarning)
        return set(prune(model, Plan(kept), example_inputs, graph=graph).plan.kept)


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
    run = bench.run_restricted if graph.norms else bench.run
    wanted = run(masked, _windows(model, graph, kept, removed_blocks))
    if graph.norms and any_nan(wanted):  # a weight with marks was used in another way
        require_numbers(bench.run(model, ()), model)
        return Attempt(small, math.inf)
    require_numbers(wanted, model)
    try:
        found = bench.run(small, _windows(model, graph, None, removed_blocks))
        return Attempt(small, difference(found, wanted))
    except Exception as error:
        return Attempt(small, math.inf, f"{type(error).__name__}: {error}")


def freeze_incompatible(
    model: nn.Module, graph: ChannelGraph, kept: Kept, example_inputs: ExampleInputs
) -> ChannelGraph:
    """Return the graph without the groups and blocks on which the code of the network depends.

    All groups are pruned to `kept` for trial, and all blocks are replaced by an identity.
    """
    bench = EquivalenceCheck.of(model, example_inputs)
    if trial_prune(model, graph, kept, bench).error > bench.tolerance:
        graph, stuck = without_wrong_guesses(model, graph, kept, bench, bench.tolerance)
        graph = graph.freeze(stuck, WRITTEN)
    names = [block.name for block in graph.blocks]
    if not names or trial_prune(model, graph, {}, bench, names).error <= bench.tolerance:
        return graph
    stuck = incompatible_blocks(model, graph, names, bench, bench.tolerance)
    return replace(graph, blocks=tuple(b for b in graph.blocks if b.name not in stuck))


def incompatible_blocks(
    model: nn.Module,
    graph: ChannelGraph,
    removed_blocks: Sequence[str],
    bench: EquivalenceCheck,
    limit: float,
) -> tuple[str, ...]:
    """Return the blocks that cannot be replaced by an identity."""
    fitting = _compatible(
        removed_blocks, lambda names: trial_prune(model, graph, {}, bench, names).error <= limit
    )
    return tuple(name for name in removed_blocks if name not in fitting)


def without_wrong_guesses(
    model: nn.Module,
    graph: ChannelGraph,
    kept: Kept,
    bench: EquivalenceCheck,
    limit: float,
    removed_blocks: Sequence[str] = (),
) -> tuple[ChannelGraph, tuple[str, ...]]:
    """Return the graph without wrong guesses of attributes, and the incompatible groups.

    `kept` as a whole must be incorrect.
    """
    stuck = incompatible_groups(model, graph, kept, bench, limit, removed_blocks)
    guessed = {g.name for g in graph.groups if any(a.is_guess for a in g.attributes)}
    if not guessed.intersection(stuck):
        return graph, stuck
    graph = graph.without_guesses(stuck)
    if trial_prune(model, graph, kept, bench, removed_blocks).error <= limit:
        return graph, ()
    return graph, incompatible_groups(model, graph, kept, bench, limit, removed_blocks)


def incompatible_groups(
    model: nn.Module,
    graph: ChannelGraph,
    kept: Kept,
    bench: EquivalenceCheck,
    limit: float,
    removed_blocks: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the groups of `kept` on whose size the code of the network depends.

    `kept` as a whole must be incorrect. Groups with which the network does not run are found first,
    on tensors without data. Cost: about 2 log2(n) trials for each incompatible one of n groups.
    """

    def is_correct(names: Sequence[str]) -> bool:
        trial = {name: kept[name] for name in names}
        return trial_prune(model, graph, trial, bench, removed_blocks).error <= limit

    fitting = list(kept)
    runs = _runner_without_data(model, graph, kept, bench, removed_blocks)
    if runs is not None and not runs(fitting):
        fitting = _compatible(fitting, runs)
        if is_correct(fitting):
            return tuple(name for name in kept if name not in fitting)
    fitting = _compatible(fitting, is_correct)
    return tuple(name for name in kept if name not in fitting)


def _compatible(names: Sequence[str], is_correct: Callable[[Sequence[str]], bool]) -> list[str]:
    """Return a subset of `names` that is correct; all of them are not.

    Halves are added while the result is correct, so all are compatible with each other.
    """
    found: list[str] = []

    def add(some: Sequence[str], *, known_incorrect: bool) -> None:
        if not known_incorrect and is_correct([*found, *some]):
            found.extend(some)
        elif len(some) > 1:
            first, second = some[: len(some) // 2], some[len(some) // 2 :]
            add(first, known_incorrect=False)
            add(second, known_incorrect=all(name in found for name in first))

    add(names, known_incorrect=True)
    return found


def _runner_without_data(
    model: nn.Module,
    graph: ChannelGraph,
    kept: Kept,
    bench: EquivalenceCheck,
    removed_blocks: Sequence[str],
) -> Callable[[Sequence[str]], bool] | None:
    """Return a function of groups: whether the network without their channels runs.

    Only shapes are computed, on the device "meta". Returns None if the network does not support it.
    """
    empty = copy_without_hooks(model).eval().to("meta")

    def runs(names: Sequence[str]) -> bool:
        trial = {name: kept[name] for name in names}
        try:
            bench.run_without_data(slice_model(empty, graph, trial, removed_blocks))
        except Exception:
            return False
        return True

    return runs if runs(()) else None


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
    stores = _stores_by_tensor(small)
    for name, dims in graph.kept_indices(kept).items():
        if name in absent:
            continue
        old = _find(small, name)
        if id(old) in stores:  # not replaced yet under another name
            new = _in_format_of(old, part_of(old.detach(), dims))
            if isinstance(old, nn.Parameter):
                new = nn.Parameter(new, requires_grad=old.requires_grad)
            for store, leaf in stores[id(old)][1]:
                store[leaf] = new
    for (module, attribute), fall in graph.attribute_deltas(kept).items():
        if any(is_inside(f"{module}.{attribute}", name) for name in removed_blocks):
            continue
        owner = small.get_submodule(module)
        write_size(owner, attribute, read_size(owner, attribute) - fall)
    return small


def mask_model(
    model: nn.Module, graph: ChannelGraph, kept: Kept, removed_blocks: Sequence[str] = ()
) -> nn.Module:
    """Return a copy of `model` with zero weights on removed channels and zero removed branches.

    Removed channels are marked in normalizations over channels.
    """
    full, stays = copy_without_hooks(model), graph.kept_indices(kept)
    with torch.no_grad():
        for site in graph.consumers:
            zero_removed(_find(full, site.weight), site.dim, stays.get(site.weight, {}))
        for name, stay in graph.restricted_norms(kept).items():
            _find(full, name).copy_(mark_removed(_find(full, name), stay))
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
    warn(f"{why}; all its channels are kept", RolledBackWarning)
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


def _stores_by_tensor(
    model: nn.Module,
) -> dict[int, tuple[Tensor, list[tuple[dict[str, Any], str]]]]:
    """Return every tensor by its id, which it keeps alive, and all places where it is stored."""
    found: dict[int, tuple[Tensor, list[tuple[dict[str, Any], str]]]] = {}
    for module in model.modules():
        store: Any
        for store in (module._parameters, module._buffers):
            for leaf, tensor in store.items():
                if tensor is not None:
                    found.setdefault(id(tensor), (tensor, []))[1].append((store, leaf))
    return found


def _in_format_of(old: Tensor, new: Tensor) -> Tensor:
    return new.contiguous(memory_format=layout_of(old) or torch.contiguous_format)


@dataclass(frozen=True, slots=True)
class SourceModel:
    """The network that was pruned: class, tensors and attributes that a replacement must have."""

    class_name: str
    """The qualified name of its class."""
    tensors: Mapping[str, str]
    """Its parameters and buffers, such as {"conv.weight": "float32[6, 1, 5, 5]"}."""
    counts: Sequence[str]
    """Attributes of modules that pruning changed, such as "conv.out_channels"."""
    kept: Mapping[str, Sequence[int]]
    """Kept channels of the last pruning, without rolled-back groups."""
    removed_blocks: Sequence[str] = ()
    """Modules that were replaced by an identity, in any pruning."""

    def has_tensor(self, name: str) -> bool:
        """Whether the pruned network still contains the tensor `name` of the source."""
        return not any(is_inside(name, block) for block in self.removed_blocks)

    @classmethod
    def of(cls, model: nn.Module) -> "SourceModel | None":
        """Return the source of `model`, None if it was not pruned by entrim."""
        note = vars(model).get(_NOTE)
        return None if note is None else cls(**json.loads(note))

    def write_on(self, small: nn.Module) -> None:
        """Store the source on `small`.

        It is stored as text, so that it survives copying, pickling and scripting without entrim.
        """
        setattr(small, _NOTE, json.dumps(asdict(self)))


def source_of(
    model: nn.Module,
    changed: Iterable[tuple[str, str]],
    kept: Mapping[str, Sequence[int]],
    removed_blocks: Sequence[str] = (),
) -> SourceModel:
    """Return the source of `model` pruned to `kept`; the first one, if it was pruned before.

    `changed` contains the attributes that pruning changed, as (module, name).
    """
    first = SourceModel.of(model)
    counts = {f"{module}.{name}".lstrip(".") for module, name in changed}
    if first is None:
        first = SourceModel(class_name_of(model), tensors_of(model), (), kept)
    found = replace(
        first, kept=kept, removed_blocks=sorted({*first.removed_blocks, *removed_blocks})
    )
    return replace(found, counts=sorted(filter(found.has_tensor, counts.union(first.counts))))


def values_of(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers, shared ones once."""
    pairs = chain(model.named_parameters(), model.named_buffers())
    return {name: tensor.detach() for name, tensor in pairs}


@dataclass(frozen=True, slots=True)
class ModelStructure:
    """The structure of a network, without its class and the values of its tensors."""

    shared: Mapping[str, str]
    """Further name of a shared tensor -> its first name."""
    fixed: Sequence[str]
    """Parameters that do not require gradients."""
    channels_last: Sequence[str]
    """Tensors in channels-last memory format."""
    training: Sequence[str]
    """Modules in training mode."""
    counts: Mapping[str, int]
    """Attributes of modules that pruning changed."""
    identities: Sequence[str] = ()
    """Modules that are an identity in place of a residual block."""

    @classmethod
    def of(cls, model: nn.Module, origin: SourceModel) -> "ModelStructure":
        """Return the structure of `model`, which was pruned from `origin`."""
        first: dict[int, str] = {}
        stands = {name: first.setdefault(id(tensor), name) for name, tensor in name_tensors(model)}
        return cls(
            shared={name: stand for name, stand in stands.items() if name != stand},
            fixed=[name for name, p in model.named_parameters() if not p.requires_grad],
            channels_last=[name for name, tensor in name_tensors(model) if layout_of(tensor)],
            training=[name for name, module in model.named_modules() if module.training],
            counts={count: read_size(*owner_of(model, count)) for count in origin.counts},
            identities=list(origin.removed_blocks),
        )

    def to_plain(self) -> dict[str, Any]:
        """Return the structure as plain data; without identities, as earlier versions read it."""
        plain = asdict(self)
        return plain if self.identities else {k: v for k, v in plain.items() if k != "identities"}


def layout_of(tensor: Tensor) -> torch.memory_format | None:
    """Return the channels-last format of a tensor, None for the contiguous one."""
    layout = LAYOUTS.get(tensor.dim())
    if layout is None or tensor.is_contiguous():
        return None
    return layout if tensor.is_contiguous(memory_format=layout) else None
