"""The form of a network as plain data: where a cut one comes from, and how to make it again."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from entrim.graph.channel_graph import ChannelGraph
from entrim.graph.eager import copy_module

_NOTE = "_entrim_origin"


@dataclass(frozen=True, slots=True)
class SourceModel:
    """The network that was cut: what another one must look like to stand in for it."""

    class_name: str
    """The qualified name of its class."""
    tensors: Mapping[str, str]
    """Its parameters and buffers, such as {"conv.weight": "float32[6, 1, 5, 5]"}."""
    counts: Sequence[str]
    """Every number on a module that followed the cut, such as "conv.out_channels"."""
    kept: Mapping[str, Sequence[int]]
    """The plan of the last cut, without the groups that were rolled back."""

    @classmethod
    def of(cls, model: nn.Module) -> "SourceModel | None":
        """Return where `model` was cut from, None when entrim did not cut it."""
        note = vars(model).get(_NOTE)
        return None if note is None else cls(**json.loads(note))

    def write_on(self, small: nn.Module) -> None:
        """Note on `small` that it was cut from here.

        As text: a network that is copied, pickled or scripted takes it along without entrim.
        """
        setattr(small, _NOTE, json.dumps(asdict(self)))


def source_of(
    model: nn.Module, graph: ChannelGraph, kept: Mapping[str, Sequence[int]]
) -> SourceModel:
    """Return the origin of `model` cut to `kept`; of a network cut before, its first origin."""
    first = SourceModel.of(model)
    counts = {f"{module}.{name}".lstrip(".") for module, name in graph.attribute_deltas(kept)}
    if first is None:
        return SourceModel(class_name_of(model), tensors_of(model), sorted(counts), kept)
    return SourceModel(first.class_name, first.tensors, sorted(counts.union(first.counts)), kept)


def class_name_of(model: nn.Module) -> str:
    """Return the qualified name of the class, without the module: scripts are called __main__."""
    return type(model).__qualname__


def tensors_of(model: nn.Module) -> dict[str, str]:
    """Return {name: dtype and shape} of all parameters and buffers, shared ones by every name."""
    return {
        name: f"{_plain(tensor.dtype)}{list(tensor.shape)}" for name, tensor in name_tensors(model)
    }


def name_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all parameters and buffers, also non-persistent ones, shared ones by every name."""
    yield from chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    )


def values_of(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers as they are stored, shared ones once."""
    pairs = chain(model.named_parameters(), model.named_buffers())
    return {name: tensor.detach() for name, tensor in pairs}


@dataclass(frozen=True, slots=True)
class ModelStructure:
    """Everything about a network but its class and the values of its tensors."""

    shared: Mapping[str, str]
    """Further name of a shared tensor -> its first name."""
    fixed: Sequence[str]
    """Parameters that do not ask for gradients."""
    channels_last: Sequence[str]
    """Tensors stored with the channels innermost."""
    training: Sequence[str]
    """Modules in training mode."""
    counts: Mapping[str, int]
    """The numbers on modules that followed the cut."""

    @classmethod
    def of(cls, model: nn.Module, counts: Sequence[str]) -> "ModelStructure":
        """Return the form of `model`, with the values of the attributes that `counts` names."""
        first: dict[int, str] = {}
        stands = {name: first.setdefault(id(tensor), name) for name, tensor in name_tensors(model)}
        return cls(
            shared={name: stand for name, stand in stands.items() if name != stand},
            fixed=[name for name, p in model.named_parameters() if not p.requires_grad],
            channels_last=[name for name, tensor in name_tensors(model) if layout_of(tensor)],
            training=[name for name, module in model.named_modules() if module.training],
            counts={count: getattr(*_split(model, count)) for count in counts},
        )

    def given_to(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
        """Return a copy of `model` in this form that holds `tensors`, on the devices of `model`."""
        small, ready = copy_module(model), {}
        for name, old in list(name_tensors(small)):
            stand = self.shared.get(name, name)
            if stand not in ready:
                ready[stand] = self._like(old, stand, tensors[stand])
            module, leaf = _split(small, name)
            store = module._parameters if leaf in module._parameters else module._buffers
            store[leaf] = ready[stand]
        for name, module in small.named_modules():
            module.training = name in self.training
        for count, value in self.counts.items():
            owner, attribute = _split(small, count)
            if not (type(value) is int and type(getattr(owner, attribute)) is int):
                raise TypeError(f"{count} is not a number that a cut changes")
            setattr(owner, attribute, value)
        return small

    def _like(self, old: Tensor, name: str, new: Tensor) -> Tensor:
        """Return `new` as the kind of tensor that `old` is; a meta tensor becomes a real one."""
        new = new.to("cpu" if old.is_meta else old.device)
        if name in self.channels_last:
            new = new.contiguous(memory_format=_LAYOUTS[new.dim()])
        if isinstance(old, nn.Parameter):
            return nn.Parameter(new, requires_grad=name not in self.fixed)
        return new


_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


def layout_of(tensor: Tensor) -> torch.memory_format | None:
    """Return the layout of a tensor with its channels innermost, None for the usual one."""
    layout = _LAYOUTS.get(tensor.dim())
    if layout is None or tensor.is_contiguous():
        return None
    return layout if tensor.is_contiguous(memory_format=layout) else None


def _split(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    owner, _, leaf = name.rpartition(".")
    return model.get_submodule(owner), leaf


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
