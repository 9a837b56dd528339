"""Sizes that modules store as attributes, such as `num_features`, and that pruning changes.

Layers of PyTorch are known: their rules count `in_channels` and similar attributes. Other modules
store widths under any name. An attribute is taken for a width if its name is one of a width, and
if all dimensions of this size in the module have the same channels. A trial verifies these guesses
where the network uses them; where it does not, they keep its metadata correct.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from torch import fx, nn

from entrim.graph.channel_ids import ChannelLayout
from entrim.graph.tracer import TraceState, Vector

_WIDTHS = re.compile(
    r"chan|chs|dim|feat|width|plane|hidden|filters|shape|^inp|^oup|^in_|^out_|head_size|intermediate|^groups$"
)
_HEADS = re.compile(r"heads$")
_OF_ONE_HEAD = re.compile(r"^(head_dim|key_dim|attention_head_size)$")
_OF_ALL_HEADS = re.compile(r"attn|all_head|inner")
_INPUTS, _OUTPUTS = re.compile(r"^in"), re.compile(r"^ou")
_OF_LAST_LAYERS = re.compile(r"feature|head_hidden")
"""Of a network: the inputs of its last layer with this width."""
Counted = tuple[Vector, int]
Bindings = Mapping[str, list[tuple[str, int]]]
"""Module -> the dimensions of the tensors in it, as (tensor, dimension)."""


def find_sizes(state: TraceState) -> dict[tuple[str, str], Counted]:
    """Return (module, attribute) -> the ids that it counts, and the number of ids per unit.

    An item of a container is named by a path, such as `feature_info.0.num_chs`.
    """
    inside = _bindings_by_module(state)
    found = {
        (module, attribute): counted
        for module, attribute, size in _stored_sizes(state.module, inside)
        if (module, attribute) not in state.attributes
        and (counted := _counted(state, inside[module], module, attribute, size)) is not None
    }
    return {**found, **_features(state)}


def _bindings_by_module(state: TraceState) -> dict[str, list[tuple[str, int]]]:
    inside: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for tensor, dim in state.bindings:
        module = tensor
        while module:
            module = module.rpartition(".")[0]
            inside[module].append((tensor, dim))
    return inside


def _stored_sizes(model: nn.Module, inside: Bindings) -> Iterator[tuple[str, str, int]]:
    """Yield (module, path, value) of every attribute with the name of a width."""
    for module, owner in model.named_modules():
        if module not in inside:
            continue
        for name, value in vars(owner).items():
            if name.startswith("_") or not (_WIDTHS.search(name) or _HEADS.search(name)):
                continue
            if type(value) is int:
                yield module, name, value
            elif isinstance(value, tuple) and all(type(size) is int for size in value):
                yield from ((module, f"{name}.{i}", v) for i, v in enumerate(value))


def _counted(
    state: TraceState, dims: list[tuple[str, int]], module: str, name: str, size: int
) -> Counted | None:
    """Return what an attribute counts if it is unambiguous, else None."""
    if size < 2 or _OF_ONE_HEAD.search(name):
        return None
    if _HEADS.search(name):
        return _heads(state, dims, size)
    fitting = [(tensor, dim) for tensor, dim in dims if state.shapes[tensor][dim] == size]
    inputs = [at for at in fitting if _is_input(state, *at)]
    if not module and _OF_LAST_LAYERS.search(name):
        fitting = inputs[-1:]
    elif _INPUTS.search(name):
        fitting = inputs or fitting
    elif _OUTPUTS.search(name):
        fitting = [at for at in fitting if at not in inputs]
    vectors = [state.channels.roots(state.bindings[at]) for at in fitting]
    if not fitting:  # inputs of a depthwise convolution with several outputs for each of them
        vectors = [
            state.channels.roots(ids)
            for (owner, _), (ids, step) in state.attributes.items()
            if step == 1 and len(ids) == size and owner.startswith(f"{module}.")
        ]
    of_heads = [ids for ids in vectors if len(ids.unique()) < len(ids)]
    if of_heads and len(of_heads) < len(vectors):
        apart = bool(_OF_ALL_HEADS.search(name))
        vectors = [ids for ids in vectors if (len(ids.unique()) < len(ids)) == apart]
    if len({tuple(sorted(ids.tolist())) for ids in vectors}) != 1:
        return None
    return vectors[0], 1


def _heads(state: TraceState, dims: list[tuple[str, int]], heads: int) -> Counted | None:
    """Return the ids of a dimension that consists of as many channels as there are heads."""
    for at in dims:
        ids = state.channels.roots(state.bindings[at])
        if len(ids) > heads and len(ids.unique()) == heads and len(ids) % heads == 0:
            return ids, len(ids) // heads
    return None


def _is_input(state: TraceState, tensor: str, dim: int) -> bool:
    return state.consumers.get(tensor, (None, None))[0] == dim


def _features(state: TraceState) -> dict[tuple[str, str], Counted]:
    """Return the sizes in `feature_info`, by which timm lists the outputs of some modules."""
    listed = getattr(state.module, "feature_info", None)
    last: dict[str, fx.Node] = {}
    for node in state.values if isinstance(listed, list) else ():
        for name, _ in node.meta.get("nn_module_stack", {}).values():
            last[name] = node
    found = {}
    for number, entry in enumerate(listed if isinstance(listed, list) else ()):
        node = last.get(entry.get("module", "")) if isinstance(entry, dict) else None
        value = None if node is None else state.values[node]
        if isinstance(value, ChannelLayout) and entry.get("num_chs") == len(value.ids):
            found["", f"feature_info.{number}.num_chs"] = (value.ids, 1)
    return found
