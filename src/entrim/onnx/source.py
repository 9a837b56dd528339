"""Read an ONNX file without executing it: sizes, external data and operators are checked first."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from entrim.errors import MissingExtraError, OnnxError

MAX_BYTES = 2**31 - 1
"""Maximum size of a protobuf file."""
MIN_OPSET = 9
_STANDARD = ("", "ai.onnx")
_QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
_QUANTIZED += ("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger")


def require_packages() -> tuple[Any, Any]:
    """Return the packages onnx and onnxruntime."""
    try:
        import onnx
        import onnx.reference
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("reading ONNX files", "onnx onnxruntime", "onnx") from error
    return onnx, onnxruntime


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """The file of a network: read again when the pruned network is written."""

    file: Path
    sha256: str

    def __deepcopy__(self, memo: Any) -> "Source":
        return self

    def read(self) -> Any:
        """Return the checked content as a ModelProto with all its tensors."""
        onnx, _ = require_packages()
        content = _read_bytes(self.file)
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise OnnxError(
                f"{self.file} changed after it was loaded: restore it, or load and prune it again"
            )
        return _parse(onnx, self.file, content)


def open_source(file: Path) -> tuple[Source, Any]:
    """Return the file and its checked content."""
    onnx, _ = require_packages()
    content = _read_bytes(file)
    source = Source(file.absolute(), hashlib.sha256(content).hexdigest())
    return source, _parse(onnx, file, content)


def _check_regular(file: Path) -> None:
    """Refuse folders, and pipes and devices, which could block."""
    if file.exists() and not file.is_file():
        raise OnnxError(f"{file} is not a regular file: name an .onnx file")


def _read_bytes(file: Path) -> bytes:
    try:
        _check_regular(file)
        if file.stat().st_size > MAX_BYTES:
            raise OnnxError(
                f"{file} is larger than 2 GiB, which protobuf does not support: store its weights "
                "as external data"
            )
        return file.read_bytes()
    except FileNotFoundError as error:
        raise OnnxError(f"there is no file {file}: name an .onnx file") from error
    except OSError as error:
        raise OnnxError(f"{file} cannot be read ({error.strerror}): name an .onnx file") from error


def _parse(onnx: Any, file: Path, content: bytes) -> Any:
    from google.protobuf.message import DecodeError

    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except (DecodeError, RuntimeError, ValueError) as error:
        raise OnnxError(f"{file} is truncated, or not an ONNX file: copy or export it again") from (
            error
        )
    if not model.HasField("graph") or not model.graph.node:
        raise OnnxError(f"{file} contains no network: copy or export it again")
    _check_model(onnx, file, model)
    limit = MAX_BYTES - model.ByteSize()
    for tensor in _tensors(onnx, model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            limit -= _load_external(onnx, tensor, file, limit)
        check_size(onnx, tensor, file)
    return model


def opset_of(model: Any) -> int:
    """Return the version of the standard operators."""
    return max((o.version for o in model.opset_import if o.domain in _STANDARD), default=1)


def _check_model(onnx: Any, file: Path, model: Any) -> None:
    if opset_of(model) < MIN_OPSET:
        raise OnnxError(
            f"{file} has opset {opset_of(model)}, entrim reads {MIN_OPSET} and later: convert it "
            "with onnx.version_converter"
        )
    if model.functions:
        raise OnnxError(
            f"{file} defines the function {model.functions[0].name}: replace its calls with "
            "onnx.inliner.inline_local_functions"
        )
    if model.graph.sparse_initializer:
        raise OnnxError(f"{file} contains sparse weights: export it again with dense ones")
    for node in model.graph.node:
        _check_node(onnx, node)
    _check_order(file, model.graph)


def _check_node(onnx: Any, node: Any) -> None:
    if node.op_type in _QUANTIZED:
        raise OnnxError(
            f"{describe(node)} belongs to a quantized network: prune the network in floating "
            "point, and quantize the result"
        )
    graphs = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
    if any(attribute.type in graphs for attribute in node.attribute):
        raise OnnxError(
            f"{describe(node)} is control flow, which depends on the inputs: export the network "
            "for one branch, without conditions and loops"
        )
    if node.domain not in _STANDARD:
        raise OnnxError(
            f"{describe(node)} is from the domain {node.domain!r}: export the network with "
            "standard operators"
        )


def _check_order(file: Path, graph: Any) -> None:
    """Refuse graphs that are cyclic, unsorted or incomplete, and values with two producers."""
    known = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        for name in node.input:
            if name and name not in known:
                raise OnnxError(
                    f"{describe(node)} reads {name!r}, which no earlier node computes: the graph "
                    "is cyclic, unsorted or incomplete; export it again"
                )
        for name in filter(None, node.output):
            if name in known:
                raise OnnxError(f"{describe(node)} computes {name!r} again: export the file again")
            known.add(name)
    for value in graph.output:
        if value.name not in known:
            raise OnnxError(f"{file} has the output {value.name!r}, which no node computes")


def first_line(error: Exception) -> str:
    """Return the first line of an error of another package, for messages."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def describe(node: Any) -> str:
    """Return the name and operator of a node, for messages."""
    return f"the node {node.name or ', '.join(node.output)!r} ({node.op_type})"


def _tensors(onnx: Any, graph: Any) -> Iterator[Any]:
    """Yield all tensors in a file."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            if attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
                raise OnnxError(f"{describe(node)} contains sparse values: export it again")


def _load_external(onnx: Any, tensor: Any, file: Path, limit: int) -> int:
    """Read the external data of `tensor`, of at most `limit` bytes; return its length."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    data = _external_file(file, entries.get("location", ""))
    try:
        offset, size = int(entries.get("offset", 0)), data.stat().st_size
        length = int(entries.get("length", size - offset))
        if min(offset, length) < 0 or offset + length > size:
            raise OnnxError(f"{data} is too short for the tensor {tensor.name!r}: copy it again")
        if length > limit:
            raise OnnxError(
                f"the weights of {file} have more than 2 GiB in total, which onnxruntime does not "
                "read from memory: prune the network in PyTorch"
            )
        with data.open("rb") as stream:
            stream.seek(offset)
            tensor.raw_data = stream.read(length)
    except OnnxError:
        raise
    except (OSError, ValueError) as error:
        raise OnnxError(f"the external data {data} cannot be read: copy it next to {file}") from (
            error
        )
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]
    return length


def _external_file(file: Path, location: str) -> Path:
    """Return the path of external data; it must be a regular file in the folder of `file`."""
    folder = file.resolve().parent
    data = folder if "\0" in location else (folder / location).resolve()
    if data == folder or not data.is_relative_to(folder):
        raise OnnxError(
            f"{file} refers to data outside of its folder ({location!r}): store the data next to it"
        )
    _check_regular(data)
    return data


def check_size(onnx: Any, tensor: Any, file: Path) -> None:
    """Refuse a tensor whose declared size differs from its data, before memory is allocated."""
    if any(size < 0 for size in tensor.dims):
        raise OnnxError(f"the tensor {tensor.name!r} in {file} has a negative size: export again")
    numbers = math.prod(tensor.dims)
    try:
        kind = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except KeyError as error:
        raise OnnxError(
            f"the tensor {tensor.name!r} in {file} has the unknown type {tensor.data_type}: export "
            "again"
        ) from error
    if kind.kind == "O" or kind.itemsize == 0:
        raise OnnxError(f"the tensor {tensor.name!r} in {file} contains no numbers: export again")
    if tensor.HasField("raw_data"):
        found, expected = len(tensor.raw_data), numbers * kind.itemsize
    else:
        field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
        found = len(getattr(tensor, field))
        expected = numbers * (2 if kind.kind == "c" else 1)
    if found != expected:
        raise OnnxError(
            f"the tensor {tensor.name!r} in {file} declares the shape {list(tensor.dims)}, but its "
            "data has another size: copy or export the file again"
        )
