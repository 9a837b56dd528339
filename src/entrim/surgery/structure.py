"""The structure of a pruned network as plain data, from which `load_model.rebuild` restores it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from entrim.graph.channel_graph import is_inside
from entrim.surgery.load_model import (
    LAYOUTS,
    class_name_of,
    name_tensors,
    owner_of,
    read_size,
    tensors_of,
)

_NOTE = "_entrim_origin"


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
