"""Write a pruned network into a copy of the ONNX file that it was imported from."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from entrim.errors import OnnxError, SaveError
from entrim.graph.eager import copy_without_hooks, neutral_context
from entrim.onnx.edits import Targets, edit_constants
from entrim.onnx.folding import Folded, fold_constants
from entrim.onnx.model import OnnxModel
from entrim.onnx.runtime import Session, difference, is_equal, random_inputs
from entrim.onnx.sizes import Place
from entrim.onnx.source import MAX_BYTES, first_line, require_packages
from entrim.results import SparsifyResult
from entrim.storage import atomic

_ATTRIBUTES = {-1: "split", -2: "starts", -3: "ends"}
_COUNTS = {"groups": "group", "num_groups": "num_groups"}
"""Attribute of a module -> attribute of its node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A written file.

    Attributes
    ----------
    file : Path
        The file.
    parity : float
        Largest relative difference between the file in onnxruntime and the pruned module.
    bytes_before, bytes_after : int
        Size of the original and of the written network.
    """

    file: Path
    parity: float
    bytes_before: int
    bytes_after: int


@neutral_context()
def save(result: SparsifyResult | nn.Module, file: str | os.PathLike[str]) -> Written:
    """Write a pruned network as an ONNX file.

    The original file is edited: graph, names of nodes and tensors, inputs, outputs, opset and
    metadata stay the same, and dynamic sizes stay dynamic. Only weights and constants that contain
    channel counts differ. The file is checked, and compared with the module in onnxruntime, before
    it is written.

    Parameters
    ----------
    result : SparsifyResult or OnnxModel
        The result of pruning a network of `load`, or the pruned network.
    file : str or path
        The file to write.

    Returns
    -------
    Written

    Raises
    ------
    OnnxError
        If the network was not imported with `load`, or the written network would differ.
    SaveError
        If the file cannot be written.
    """
    content, written = render(result, file)
    write_file(content, written.file)
    return written


def render(
    result: SparsifyResult | nn.Module, file: str | os.PathLike[str]
) -> tuple[bytes, Written]:
    """Return the content of the file that `save` would write, and its description."""
    model = result.model if isinstance(result, SparsifyResult) else result
    if not isinstance(model, OnnxModel):
        raise OnnxError(
            f"the network is a {type(model).__name__}, not one that entrim.onnx.load returned: use "
            "entrim.export.formats.to_onnx"
        )
    place = Path(file)
    if place.resolve() == model.nodes.source.file.resolve():
        raise SaveError(f"{place} is the original, which is needed again: name another file")
    proto = model.nodes.source.read()
    before = proto.ByteSize()
    still: Any = copy_without_hooks(model).cpu().eval()
    edit(proto, still)
    if proto.ByteSize() > MAX_BYTES:
        raise SaveError(f"the network is larger than 2 GiB: prune it further to write {place}")
    content = proto.SerializeToString()
    parity = _compare(content, still, str(place))
    written = Written(file=place, parity=parity, bytes_before=before, bytes_after=len(content))
    return content, written


def write_file(content: bytes, place: Path) -> None:
    """Write the content of a file in one step."""
    try:
        atomic.write(place, content)
    except OSError as error:
        raise SaveError(
            f"{place} cannot be written ({error.strerror}): free space, or name another file"
        ) from error


def edit(proto: Any, model: OnnxModel) -> None:
    """Replace weights and channel counts in `proto` by those of `model`."""
    onnx, _ = require_packages()
    valid = _is_valid(onnx, proto)
    folded = fold_constants(proto)
    target = _weights(proto.graph, model, folded)
    counts: dict[Place, int] = {}
    with torch.no_grad():
        model.compute(_random_inputs(model), edits=counts)
    for (node, number, position), count in counts.items():
        if number < 0:
            _edit_attribute(proto.graph.node[node], _ATTRIBUTES[number], position, count)
            continue
        array = target.get((node, number), folded.arrays[proto.graph.node[node].input[number]])
        if array.reshape(-1)[position] != count:
            array = array.copy()
            array.reshape(-1)[position] = count
            target[node, number] = array
    edit_constants(proto, folded, target)
    _edit_counts(proto.graph, model)
    _infer_shapes(onnx, proto)
    if valid and not _is_valid(onnx, proto):
        raise OnnxError(
            "the edited file does not pass onnx.checker, while the original does: report the "
            f"operators of {model.nodes.source.file}"
        )


def _random_inputs(model: OnnxModel) -> tuple[torch.Tensor, ...]:
    """Return random inputs of the shapes and types of the import."""
    return random_inputs(model.nodes.shapes, model.nodes.types)


def _weights(graph: Any, model: OnnxModel, folded: Folded) -> Targets:
    """Return the new value of every constant input that differs from the file."""
    tensors = dict(model.named_parameters(remove_duplicate=False))
    tensors |= dict(model.named_buffers(remove_duplicate=False))
    target: Targets = {}
    for name, origin in model.nodes.origins.items():
        old = folded.arrays[graph.node[origin.node].input[origin.number]]
        new = tensors[name].detach()
        new = new.T if origin.layout == "transposed" else new
        array = new.numpy().astype(old.dtype)
        if origin.layout == "vector":
            array = array.reshape([array.size if size == old.size else size for size in old.shape])
        if array.shape != old.shape or not np.array_equal(array, old):
            target[origin.node, origin.number] = np.ascontiguousarray(array)
    return target


def _edit_attribute(node: Any, name: str, position: int, value: int) -> None:
    for attribute in node.attribute:
        if attribute.name == name:
            attribute.ints[position] = value


def _edit_counts(graph: Any, model: OnnxModel) -> None:
    """Write the numbers of groups of convolutions and norms."""
    for name, number in model.nodes.modules.items():
        module = model.get_submodule(name)
        for attribute in graph.node[number].attribute:
            for own, other in _COUNTS.items():
                if attribute.name == other and hasattr(module, own):
                    attribute.i = getattr(module, own)


def _infer_shapes(onnx: Any, proto: Any) -> None:
    """Replace the recorded shapes of intermediate values by those of the edited network."""
    before = {value.name for value in proto.graph.value_info}
    if not before:
        return
    del proto.graph.value_info[:]
    try:
        inferred = onnx.shape_inference.infer_shapes(proto)
    except Exception as error:
        raise OnnxError(
            f"the shapes of the edited file cannot be inferred ({first_line(error)}): report the "
            "operators of the original"
        ) from error
    proto.graph.value_info.extend(v for v in inferred.graph.value_info if v.name in before)


def _is_valid(onnx: Any, proto: Any) -> bool:
    try:
        onnx.checker.check_model(proto, full_check=True)
    except Exception:
        return False
    return True


def _compare(content: bytes, model: OnnxModel, what: str) -> float:
    """Return the relative difference of the file from the module; refuse a large one."""
    inputs = _random_inputs(model)
    with torch.no_grad():
        found: Any = model.compute([x.clone() for x in inputs])
    expected: Sequence[torch.Tensor] = found if isinstance(found, tuple) else (found,)
    error = difference(Session(content, what).run(inputs), expected)
    if not is_equal(error, inputs):
        raise OnnxError(
            f"{what} would differ from the pruned network by {error:.1e}: report the operators of "
            f"{model.nodes.source.file}"
        )
    return error
