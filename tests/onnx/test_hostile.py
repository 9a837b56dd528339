"""Hostile and odd files are refused with one sentence, in bounded memory and time."""

import os
import random
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import entrim.onnx
from entrim.errors import OnnxError
from tests.onnx.files import graph, kernel, write

CONV = helper.make_node("Conv", ["x", "w"], ["c"], name="first/conv", pads=[1, 1, 1, 1])
RELU = helper.make_node("Relu", ["c"], ["y"])


def after_conv(*nodes: Any, **constants: Any) -> Any:
    return graph([CONV, *nodes], {"w": kernel(6, 3), **constants})


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def refusal(file: Path) -> str:
    """Return the sentence with which a file is refused."""
    with pytest.raises(OnnxError) as caught:
        entrim.onnx.load(file)
    assert "\n" not in str(caught.value)
    return str(caught.value)


LARGE = ints(2**16, 2**16)
GROWING: dict[str, tuple[list[Any], dict[str, np.ndarray]]] = {
    "ConstantOfShape": ([helper.make_node("ConstantOfShape", ["s"], ["z"])], {"s": LARGE}),
    "Expand": (
        [helper.make_node("Expand", ["a", "s"], ["z"])],
        {"a": np.ones(1, np.float32), "s": LARGE},
    ),
    "outer product": (
        [
            helper.make_node("Transpose", ["a"], ["b"], perm=[1, 0]),
            helper.make_node("MatMul", ["a", "b"], ["z"]),
        ],
        {"a": np.ones((2**15, 1), np.float32)},
    ),
    "doubled again and again": (
        [
            helper.make_node("Concat", [name, name], [after], axis=0)
            for name, after in zip("adefghijklmn", "defghijklmnz", strict=True)
        ],
        {"a": np.ones((2**17, 1), np.float32)},
    ),
}


@pytest.mark.parametrize("name", GROWING)
def test_constants_that_would_fill_the_memory_are_refused(name: str, tmp_path: Path) -> None:
    nodes, constants = GROWING[name]
    used = [
        helper.make_node("ReduceSum", ["z"], ["total"]),
        helper.make_node("Add", ["c", "total"], ["y"]),
    ]
    file = write(after_conv(*nodes, *used, **constants), tmp_path / "net.onnx")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    assert "computes a constant of" in refusal(file)
    assert time.process_time() - begin < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB


def test_activations_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ReduceMean", ["c"], ["m"], keepdims=1),
        helper.make_node("Expand", ["m", "s"], ["y"]),
    ]
    file = write(after_conv(*nodes, s=ints(1, 1, 2**17, 2**17)), tmp_path / "net.onnx")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "does not run on random inputs" in refusal(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20


def test_a_huge_declared_input_is_refused(tmp_path: Path) -> None:
    model = graph([CONV, RELU], {"w": kernel(6, 3)}, shape=(1, 3, 2**16, 2**16))
    assert "pass a smaller input_shape" in refusal(write(model, tmp_path / "net.onnx"))


def external(name: str, **entries: Any) -> Any:
    """Return a tensor of 162 numbers whose data are in another file."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[6, 3, 3, 3])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def with_external(file: Path, *tensors: Any) -> Path:
    model = graph([CONV, RELU], {})
    model.graph.initializer.extend(tensors)
    file.write_bytes(model.SerializeToString())
    return file


@pytest.mark.parametrize(
    "entries", [{"offset": -4}, {"length": 10**15}, {"offset": "x"}, {"offset": 10}, {}]
)
def test_external_data_of_another_size_are_refused(entries: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"\0" * 700)
    file = with_external(tmp_path / "net.onnx", external("w", location="data", **entries))
    assert "copy" in refusal(file)


def test_links_out_of_the_folder_and_pipes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"\0" * 648)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "pipe")
    for location, part in (
        ("link", "outside of its folder"),
        ("a\0b", "outside of its folder"),
        ("pipe", "not a regular file"),
        (".", "outside of its folder"),
        ("gone", "cannot be read"),
    ):
        file = with_external(folder / "net.onnx", external("w", location=location))
        assert part in refusal(file)
    assert "not a regular file" in refusal(folder / "pipe")
    assert "not a regular file" in refusal(folder)


def test_more_than_two_gib_are_refused_before_they_are_read(tmp_path: Path) -> None:
    with (tmp_path / "large.onnx").open("wb") as stream:
        stream.truncate(2**31)
    assert "larger than 2 GiB" in refusal(tmp_path / "large.onnx")
    with (tmp_path / "data").open("wb") as stream:
        stream.truncate(2**31)
    file = with_external(tmp_path / "net.onnx", external("w", location="data"))
    assert "more than 2 GiB in total" in refusal(file)


def test_quantized_files_are_refused_however_they_are_written(tmp_path: Path) -> None:
    scale, zero = np.asarray(np.float32(1)), np.asarray(np.uint8(0))
    nodes = {
        "QDQ": [
            helper.make_node("QuantizeLinear", ["c", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        ],
        "integer": [
            helper.make_node("DynamicQuantizeLinear", ["c"], ["q", "k", "o"]),
            helper.make_node("Cast", ["q"], ["y"], to=1),
        ],
    }
    for name, chain in nodes.items():
        file = write(after_conv(*chain, s=scale, z=zero), tmp_path / f"{name}.onnx")
        assert "quantized network: prune the network in floating point" in refusal(file)


def damaged(content: bytes, draw: random.Random) -> bytes:
    """Return a file with a few other bytes, or another graph."""
    if draw.random() < 0.5:
        found = bytearray(content)
        for _ in range(draw.randint(1, 4)):
            found[draw.randrange(len(found))] = draw.randrange(256)
        return bytes(found)
    model = onnx.ModelProto.FromString(content)
    node, tensor = draw.choice(model.graph.node), draw.choice(model.graph.initializer)
    kind = draw.randrange(6)
    if kind == 0:
        node.op_type = draw.choice(["Concat", "Reshape", "Gemm", "Resize", "Split", "Constant"])
    elif kind == 1:
        node.input[draw.randrange(len(node.input))] = draw.choice(["y", "", "w", "x", "v"])
    elif kind == 2:
        tensor.dims[:] = [draw.choice([0, 1, -1, 3, 2**62]) for _ in range(draw.randint(0, 4))]
    elif kind == 3:
        tensor.data_type = draw.randrange(30)
    elif kind == 4:
        del node.output[:]
    else:
        model.graph.node.remove(node)
    return model.SerializeToString()


def sentence(file: Path, content: bytes) -> str:
    """Return the sentence with which a file is refused, or nothing."""
    file.write_bytes(content)
    try:
        entrim.onnx.load(file)
    except OnnxError as error:
        return str(error)
    else:
        return ""


def test_damaged_files_are_imported_or_refused_and_never_fail_otherwise(tmp_path: Path) -> None:
    nodes = [
        CONV,
        helper.make_node("Reshape", ["c", "s"], ["r"]),
        helper.make_node("MatMul", ["r", "m"], ["y"]),
    ]
    constants = {"w": kernel(6, 3), "s": ints(0, -1), "m": kernel(1, 384, 4).reshape(384, 16)}
    content, draw = graph(nodes, constants).SerializeToString(), random.Random(0)
    file = tmp_path / "net.onnx"
    sentences = [sentence(file, damaged(content, draw)) for _ in range(60)]
    assert not any("\n" in one for one in sentences)
    assert 20 < sum(map(bool, sentences)) < 60
