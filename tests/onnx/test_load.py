"""An imported file computes what onnxruntime computes, or is refused with one sentence."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import entrim.onnx
from entrim.errors import OnnxError
from entrim.onnx import operators
from tests.onnx.files import graph, kernel, write
from tests.pipeline.networks import Residual

CONV = helper.make_node("Conv", ["x", "w"], ["c"], name="first/conv", pads=[1, 1, 1, 1])


def after_conv(*nodes: Any, opset: int = 17, **constants: Any) -> Any:
    return graph([CONV, *nodes], {"w": kernel(6, 3), **constants}, opset=opset)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


OPERATORS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Relu": (helper.make_node("Relu", ["c"], ["y"]), {}),
    "HardSigmoid": (helper.make_node("HardSigmoid", ["c"], ["y"], alpha=0.3), {}),
    "Clip": (
        helper.make_node("Clip", ["c", "a", "b"], ["y"]),
        {"a": np.float32(0), "b": np.float32(1)},
    ),
    "PRelu": (helper.make_node("PRelu", ["c", "s"], ["y"]), {"s": kernel(6, 1, 1)[:, 0]}),
    "Add": (helper.make_node("Add", ["c", "s"], ["y"]), {"s": kernel(1, 6, 1)}),
    "Pow": (helper.make_node("Pow", ["c", "s"], ["y"]), {"s": np.float32(2)}),
    "ConvTranspose": (
        helper.make_node("ConvTranspose", ["c", "v"], ["y"], strides=[2, 2], pads=[0, 0, 1, 1]),
        {"v": kernel(6, 4)},
    ),
    "SAME": (
        helper.make_node("Conv", ["c", "v"], ["y"], auto_pad="SAME_UPPER", strides=[2, 2]),
        {"v": kernel(4, 6)},
    ),
    "MaxPool": (
        helper.make_node("MaxPool", ["c"], ["y"], kernel_shape=[3, 3], pads=[0, 0, 1, 1]),
        {},
    ),
    "AveragePool": (
        helper.make_node("AveragePool", ["c"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
        {},
    ),
    "Slice": (
        helper.make_node("Slice", ["c", "a", "b", "d"], ["y"]),
        {"a": ints(2), "b": ints(4), "d": ints(1)},
    ),
    "Reshape": (helper.make_node("Reshape", ["c", "s"], ["y"]), {"s": ints(0, 2, 3, -1)}),
    "Expand": (helper.make_node("Expand", ["c", "s"], ["y"]), {"s": ints(2, 1, 6, 1, 1)}),
    "Resize": (
        helper.make_node("Resize", ["c", "", "s"], ["y"], mode="linear"),
        {"s": np.array([1, 1, 2, 2], np.float32)},
    ),
    "DepthToSpace": (helper.make_node("SpaceToDepth", ["c"], ["y"], blocksize=2), {}),
    "ReduceMean": (helper.make_node("ReduceMean", ["c"], ["y"], axes=[2, 3]), {}),
    "Softmax": (helper.make_node("Softmax", ["c"], ["y"], axis=1), {}),
    "Pad": (
        helper.make_node("Pad", ["c", "s"], ["y"], mode="reflect"),
        {"s": ints(0, 0, 1, 2, 0, 0, 3, 0)},
    ),
    "LayerNormalization": (
        helper.make_node("LayerNormalization", ["c", "s"], ["y"]),
        {"s": np.arange(8, dtype=np.float32)},
    ),
    "InstanceNormalization": (
        helper.make_node("InstanceNormalization", ["c", "s", "s"], ["y"]),
        {"s": np.arange(1, 7, dtype=np.float32)},
    ),
    "Gather": (helper.make_node("Gather", ["c", "s"], ["y"], axis=1), {"s": ints(4, 0)}),
    "GatherND": (
        helper.make_node("GatherND", ["c", "s"], ["y"]),
        {"s": ints(0, 1, 1, 4).reshape(2, 2)},
    ),
    "Transpose": (helper.make_node("Transpose", ["c"], ["y"], perm=[0, 2, 3, 1]), {}),
    "GatherElements": (
        helper.make_node("GatherElements", ["c", "s"], ["y"], axis=3),
        {"s": np.full((2, 6, 8, 2), -1, np.int64)},
    ),
    "ScatterND": (
        helper.make_node("ScatterND", ["c", "s", "u"], ["y"]),
        {"s": ints(0, 1, 1, 4).reshape(2, 2), "u": np.ones((2, 8, 8), np.float32)},
    ),
    "GridSample": (
        helper.make_node("GridSample", ["c", "s"], ["y"]),
        {"s": np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 2, 3, 2)},
    ),
    "SAME ConvTranspose": (
        helper.make_node("ConvTranspose", ["c", "v"], ["y"], strides=[2, 2], auto_pad="SAME_UPPER"),
        {"v": kernel(6, 4)},
    ),
    "ConvTranspose to a size": (
        helper.make_node("ConvTranspose", ["c", "v"], ["y"], strides=[2, 2], output_shape=[16, 16]),
        {"v": kernel(6, 4)},
    ),
    "SAME AveragePool": (
        helper.make_node("AveragePool", ["c"], ["y"], kernel_shape=[3, 2], auto_pad="SAME_LOWER"),
        {},
    ),
    "Mean": (helper.make_node("Mean", ["c", "c", "c"], ["y"]), {}),
    "Selu": (helper.make_node("Selu", ["c"], ["y"], alpha=2.0, gamma=3.0), {}),
    "Shrink": (helper.make_node("Shrink", ["c"], ["y"], lambd=0.2, bias=0.1), {}),
    "Mod": (
        helper.make_node("Mod", ["c", "s"], ["y"], fmod=1),
        {"s": np.array([0.3, 0.7], np.float32).reshape(2, 1, 1, 1)},
    ),
    "Log": (helper.make_node("Log", ["c"], ["y"]), {}),
    "Trilu": (helper.make_node("Trilu", ["c"], ["y"], upper=0), {}),
    "CumSum": (helper.make_node("CumSum", ["c", "s"], ["y"]), {"s": np.int64(1)}),
    "Atan": (helper.make_node("Atan", ["c"], ["y"]), {}),
}
RESIZED = [
    ("nearest", "half_pixel", "round_prefer_floor", (1, 1, 1.5, 0.7)),
    ("nearest", "align_corners", "round_prefer_ceil", (1, 1, 2, 0.5)),
    ("nearest", "tf_half_pixel_for_nn", "ceil", (1, 1, 2, 1.3)),
    ("nearest", "asymmetric", "round_prefer_ceil", (1, 1, 3, 0.5)),
    ("linear", "asymmetric", "floor", (1, 1, 2, 0.6)),
    ("linear", "half_pixel_symmetric", "floor", (1, 1, 1.6, 2)),
]
for mode, coordinates, rounding, factors in RESIZED:
    OPERATORS[f"Resize {mode} {coordinates}"] = (
        helper.make_node(
            "Resize",
            ["c", "", "s"],
            ["y"],
            mode=mode,
            coordinate_transformation_mode=coordinates,
            nearest_mode=rounding,
        ),
        {"s": np.array(factors, np.float32)},
    )


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_compute_what_onnxruntime_computes(name: str, tmp_path: Path) -> None:
    node, constants = OPERATORS[name]
    constants = {key: np.asarray(value) for key, value in constants.items()}
    model = entrim.onnx.load(
        write(graph([CONV, node], {"w": kernel(6, 3), **constants}), tmp_path / "net.onnx")
    )
    assert model.nodes.parity < 1e-5
    assert isinstance(model.get_submodule("first_conv"), torch.nn.Conv2d)


@pytest.mark.parametrize(("operator", "inputs"), [("Less", ["s", "c"]), ("Shape", ["c"])])
def test_numbers_before_tensors_and_sizes_as_outputs_are_computed(
    operator: str, inputs: list[str], tmp_path: Path
) -> None:
    nodes = [
        helper.make_node(operator, inputs, ["b"]),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    file = write(after_conv(*nodes, s=np.asarray(np.float32(0.1))), tmp_path / "net.onnx")
    assert entrim.onnx.load(file).nodes.parity == 0


def test_a_resize_of_some_axes_is_read(tmp_path: Path) -> None:
    node = helper.make_node("Resize", ["c", "", "", "s"], ["y"], axes=[3, 2])
    model = entrim.onnx.load(
        write(after_conv(node, s=ints(20, 12), opset=18), tmp_path / "net.onnx")
    )
    assert model(torch.randn(2, 3, 8, 8)).shape == (2, 6, 12, 20)


def test_a_difference_from_onnxruntime_names_the_first_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        helper.make_node("Relu", ["c"], ["d"], name="first relu"),
        helper.make_node("Sigmoid", ["d"], ["e"], name="bad"),
        helper.make_node("Relu", ["e"], ["y"]),
    ]
    monkeypatch.setitem(operators.OPERATORS, "Sigmoid", lambda call: call.x)
    with pytest.raises(OnnxError, match=r"first at the node 'bad' \(Sigmoid\): export"):
        entrim.onnx.load(write(after_conv(*nodes), tmp_path / "net.onnx"))


def test_weights_in_constant_nodes_and_behind_transposes_are_found(tmp_path: Path) -> None:
    value = numpy_helper.from_array(kernel(6, 3).transpose(1, 0, 2, 3).copy())
    nodes = [
        helper.make_node("Constant", [], ["v"], value=value),
        helper.make_node("Transpose", ["v"], ["w"], perm=[1, 0, 2, 3]),
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Add", ["c", "b"], ["y"]),
    ]
    file = write(graph(nodes, {"b": kernel(1, 6, 1)}), tmp_path / "net.onnx")
    model = entrim.onnx.load(file)
    conv: Any = model.get_submodule("Conv_2")
    assert torch.equal(conv.weight, torch.from_numpy(kernel(6, 3)))
    assert torch.equal(conv.bias, torch.from_numpy(kernel(1, 6, 1).reshape(-1)))


REFUSED: dict[str, tuple[Any, tuple[str, ...]]] = {
    "operator": (
        after_conv(helper.make_node("Det", ["c"], ["y"], name="d")),
        ("the node 'd' (Det) is not supported", "onnx.utils.extract_model"),
    ),
    "domain": (
        after_conv(helper.make_node("Relu", ["c"], ["y"], domain="com.other")),
        ("domain 'com.other'", "standard operators"),
    ),
    "quantized": (
        after_conv(
            helper.make_node("QuantizeLinear", ["c", "s"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s"], ["y"]),
            s=np.asarray(np.float32(1)),
        ),
        ("quantized network", "quantize the result"),
    ),
    "cyclic": (
        graph(
            [
                helper.make_node("Add", ["x", "b"], ["a"]),
                helper.make_node("Relu", ["a"], ["b"]),
                helper.make_node("Relu", ["b"], ["y"]),
            ],
            {},
        ),
        ("reads 'b'", "cyclic, unsorted or incomplete"),
    ),
    "opset": (after_conv(helper.make_node("Relu", ["c"], ["y"]), opset=7), ("has opset 7",)),
    "wrong shape": (
        graph([helper.make_node("Conv", ["x", "w"], ["y"])], {"w": kernel(6, 5)}),
        ("does not run on random inputs", "pass input_shape="),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsuitable_files_are_refused_with_a_remedy(name: str, tmp_path: Path) -> None:
    model, parts = REFUSED[name]
    file = tmp_path / "net.onnx"
    file.write_bytes(model.SerializeToString())
    with pytest.raises(OnnxError) as caught:
        entrim.onnx.load(file)
    assert "\n" not in str(caught.value)
    assert all(part in str(caught.value) for part in parts), caught.value


def test_sequences_as_outputs_are_refused(tmp_path: Path) -> None:
    model = after_conv(helper.make_node("SplitToSequence", ["c"], ["y"], axis=1))
    value = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    model.graph.output[0].CopyFrom(value)
    with pytest.raises(OnnxError, match="the output 'y' is a sequence: export single tensors"):
        entrim.onnx.load(write(model, tmp_path / "net.onnx"))


def test_control_flow_is_refused(tmp_path: Path) -> None:
    branch = helper.make_graph(
        [helper.make_node("Relu", ["c"], ["r"])],
        "branch",
        [],
        [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)],
    )
    node = helper.make_node("If", ["k"], ["y"], then_branch=branch, else_branch=branch)
    model = after_conv(node, k=np.asarray(True))
    with pytest.raises(OnnxError, match="control flow"):
        entrim.onnx.load(write(model, tmp_path / "net.onnx"))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    content = after_conv(helper.make_node("Relu", ["c"], ["y"])).SerializeToString()
    file = tmp_path / "net.onnx"
    for damaged in (content[:-40], b"", b"PK\x03\x04 no model", content[: len(content) // 2]):
        file.write_bytes(damaged)
        with pytest.raises(OnnxError, match=r"net\.onnx"):
            entrim.onnx.load(file)


def test_a_tensor_that_declares_more_than_it_contains_is_refused(tmp_path: Path) -> None:
    model = after_conv(helper.make_node("Relu", ["c"], ["y"]))
    model.graph.initializer[0].dims[0] = 2**40
    with pytest.raises(OnnxError, match="another size"):
        entrim.onnx.load(write(model, tmp_path / "net.onnx"))


def test_a_huge_computed_constant_is_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["s"], ["z"]),
        helper.make_node("Add", ["c", "z"], ["y"]),
    ]
    with pytest.raises(OnnxError):
        entrim.onnx.load(write(after_conv(*nodes, s=ints(2**20, 2**20)), tmp_path / "net.onnx"))


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", ""])
def test_external_data_outside_of_the_folder_is_refused(location: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"0" * 1000)
    folder = tmp_path / "folder"
    folder.mkdir()
    model = after_conv(helper.make_node("Relu", ["c"], ["y"]))
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    file = folder / "net.onnx"
    file.write_bytes(model.SerializeToString())
    with pytest.raises(OnnxError, match="outside of its folder"):
        entrim.onnx.load(file)


def test_external_data_in_the_folder_is_read(tmp_path: Path) -> None:
    model = after_conv(helper.make_node("Relu", ["c"], ["y"]))
    file = tmp_path / "net.onnx"
    onnx.save(model, str(file), save_as_external_data=True, location="data", size_threshold=0)
    conv: Any = entrim.onnx.load(file).get_submodule("first_conv")
    assert torch.equal(conv.weight, torch.from_numpy(kernel(6, 3)))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(OnnxError, match=r"there is no file .*gone\.onnx"):
        entrim.onnx.load(tmp_path / "gone.onnx")


def test_other_networks_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OnnxError, match="to_onnx"):
        entrim.onnx.save(Residual(), tmp_path / "net.onnx")
