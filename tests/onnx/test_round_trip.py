"""Pruning the ONNX export of a network gives the same network, and the file is edited in place."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import entrim
import entrim.onnx
from entrim.errors import NothingToCutError, OnnxError, SaveError
from entrim.graph.eager import arguments
from entrim.surgery.plan import Plan
from entrim.surgery.prune import prune
from entrim.surgery.trace import trace
from tests.onnx.files import export, graph, kernel, write
from tests.surgery.kinds import KINDS, shaken
from tests.surgery.oracle import flat, random_plan

NOT_EXPORTED = ("channel shuffle", "RMSNorm, shared by two calls", "permute and flip")
NOT_EXPORTED += ("dict in, dict out",)
"""torch.onnx has no operator for the first two, writes an invalid Transpose for the third, and
passes no keyword arguments to the fourth."""
REFUSED = {"BatchNorm of the batch at hand": "training mode"}
NOTHING_TO_CUT = dict.fromkeys(
    ("attention", "attention with a bias for each head"), "split_with_sizes"
) | {"writing into slices": "index_put"}
"""A token and the places of the positions, which freeze channels, are constants in the file; the
split into queries, keys and values is a Split without heads in it."""
OTHER_GROUPS = ("sizes in the code", "split at a number in the code", "computed weights")
OTHER_GROUPS += ("weight_norm", "a tensor made in forward", "a tensor kept beside the parameters")
OTHER_GROUPS += ("GroupNorm", "a GroupNorm without parameters, used twice")
OTHER_GROUPS += ("GroupNorm of one group", "LayerNorm without a weight")
OTHER_GROUPS += ("attention by products", "attention by products with a bias")
"""Numbers in the code and computed weights, which freeze channels, are constants in the file; a
GroupNorm is a sequence of reshapes in it. A LayerNorm without a weight has a weight of ones in the
file, so it can be pruned. The token of an attention is a constant that freezes channels."""
NOT_PRUNED = (*NOT_EXPORTED, *REFUSED, *NOTHING_TO_CUT)
EXPORTED = [name for name in KINDS if name not in NOT_PRUNED]
ASYMMETRIC = {"coordinate_transformation_mode": "asymmetric"}
SELECTED = ("residual", "concat", "depthwise", "grouped", "transposed", "chunk", "slice", "Conv1d")
SELECTED += ("squeeze and excite", "learned scales", "BatchNorm without bias", "LayerNorm", "PReLU")
SELECTED += ("Linear behind Flatten", "pixel shuffle", "padded shortcut", "shared weights")


def run(file: Path, *inputs: Tensor) -> list[Tensor]:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    given = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
    return [torch.from_numpy(np.asarray(y)) for y in session.run(None, given)]


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().norm() / b.detach().norm())


def imported(name: str, folder: Path) -> tuple[nn.Module, entrim.onnx.OnnxModel, Any]:
    """Return a network of the zoo, its export, and its example inputs."""
    torch.manual_seed(0)
    case = KINDS[name]
    model, x = shaken(case.build()), case.example_inputs()
    return model, entrim.onnx.load(export(model, x, folder / "net.onnx")), x


def tensors(inputs: Any) -> tuple[Tensor, ...]:
    """Return the inputs of the file; numbers are inputs in double precision."""
    leaves = tree_leaves(inputs)
    return tuple(x if isinstance(x, Tensor) else torch.tensor(x).double() for x in leaves)


def assert_same_outputs(a: list[Tensor], b: list[Tensor]) -> None:
    for one, other in zip(a, b, strict=True):
        assert relative(one, other) < 1e-4


@pytest.mark.parametrize("name", EXPORTED)
def test_every_kind_of_network_is_pruned_like_its_export_and_written(
    name: str, tmp_path: Path
) -> None:
    model, exported, x = imported(name, tmp_path)
    own, given = trace(model, x), tensors(x)
    found = trace(exported, given)
    if name in OTHER_GROUPS:
        assert [g.channels for g in found.groups] != [g.channels for g in own.groups]
        plan = random_plan(found, 0)
        small = prune(exported, Plan(plan.kept), given, graph=found).model
    else:
        assert [g.channels for g in found.groups] == [g.channels for g in own.groups]
        kept = random_plan(own, 0).kept
        names = {a.name: b.name for a, b in zip(own.groups, found.groups, strict=True)}
        plan = Plan({names[group]: channels for group, channels in kept.items()})
        small = prune(exported, plan, given, graph=found).model
        wanted = prune(model, Plan(kept), x, graph=own).model
        args, kwargs = arguments(x)
        floats = [y for y in flat(wanted(*args, **kwargs)) if y.is_floating_point()]
        assert_same_outputs(flat(small(*given)), floats)
    written = entrim.onnx.save(small, tmp_path / "small.onnx")
    assert written.parity < 1e-5
    assert_same_outputs(run(written.file, *given), flat(small(*given)))
    onnx.checker.check_model(onnx.load(str(written.file)), full_check=True)


class TwoInputs(nn.Module):
    """A network with two inputs and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Conv2d(3, 6, 3), nn.Linear(4, 5), nn.Linear(11, 4)

    def forward(self, image: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        seen = torch.relu(self.a(image)).mean((2, 3))
        return self.fc(torch.cat([seen, torch.relu(self.b(extra))], 1)), extra.sum(1)


def test_networks_with_several_inputs_and_outputs_are_pruned_and_written(tmp_path: Path) -> None:
    inputs = (torch.randn(2, 3, 8, 8), torch.randn(2, 4))
    names = {"input_names": ["image", "extra"], "output_names": ["scores", "sums"]}
    model = entrim.onnx.load(export(TwoInputs(), inputs, tmp_path / "net.onnx", **names))
    found = trace(model, inputs)
    assert [g.channels for g in found.groups] == [6, 5]
    small = prune(model, Plan(random_plan(found, 0).kept), inputs, graph=found).model
    written = entrim.onnx.save(small, tmp_path / "small.onnx")
    assert_same_outputs(run(written.file, *inputs), flat(small(*inputs)))


@pytest.mark.parametrize("name", REFUSED)
def test_networks_that_entrim_does_not_import_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(OnnxError, match=REFUSED[name]):
        imported(name, tmp_path)


@pytest.mark.parametrize("name", NOTHING_TO_CUT)
def test_networks_that_are_frozen_in_an_export_are_imported(name: str, tmp_path: Path) -> None:
    _, exported, x = imported(name, tmp_path)
    with pytest.raises(NothingToCutError, match=NOTHING_TO_CUT[name]):
        trace(exported, tensors(x))


@pytest.mark.parametrize("name", NOT_EXPORTED)
def test_networks_that_pytorch_does_not_export_are_known(name: str, tmp_path: Path) -> None:
    with pytest.raises((OnnxError, TypeError, torch.onnx.errors.UnsupportedOperatorError)):
        imported(name, tmp_path)


@pytest.mark.filterwarnings("ignore::entrim.errors.CalibrationWarning")
@pytest.mark.parametrize("name", SELECTED)
def test_the_same_channels_are_selected_and_the_same_weights_result(
    name: str, tmp_path: Path
) -> None:
    model, exported, x = imported(name, tmp_path)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(20, *x.shape[1:], generator=generator)
    every = entrim.Calibration(holdout=0, n_positions=None)
    pruned = []
    for network in (model, exported):
        with entrim.Pruner(network, images, calibration=every, example_inputs=x) as pruner:
            pruned.append(pruner.apply(pruner.select(entrim.Widths(0.5))))
    own, found = pruned
    assert list(found.plan.kept.values()) == list(own.plan.kept.values())
    assert_same_outputs(flat(found.model(images)), flat(own.model(images)))
    others = [weight for weight in found.model.parameters() if weight.dim() > 1]
    for weight in (p for p in own.model.parameters() if p.dim() > 1):
        assert any(o.numel() == weight.numel() and same_matrix(o, weight) for o in others)


def same_matrix(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and relative(a, b) < 1e-4


class Network(nn.Module):
    """A residual network with a split, a shuffle and two BatchNorms with equal scales."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.na = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.b, self.nb = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.c = nn.Conv2d(12, 6, 3, padding=1)
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        a = torch.relu(self.na(self.a(x)))
        b = torch.relu(self.nb(self.b(a)))
        half = b.shape[1] // 2
        first, second = b[:, :half], b[:, half:]
        return self.fc(torch.relu(self.c(torch.cat([a, first * second], 1))).mean((2, 3)))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    model = Network().eval()
    axes = {"images": {0: "n", 2: "h", 3: "w"}}
    file = tmp_path_factory.mktemp("onnx") / "net.onnx"
    export(model, torch.randn(2, 3, 8, 8), file, dynamic_axes=axes)
    proto = onnx.load(str(file))
    helper.set_model_props(proto, {"stride": "8", "names": "{0: 'cat'}"})
    proto.model_version, proto.domain, proto.doc_string = 3, "org.example", "a test"
    return model, write(proto, file)


def test_the_same_channels_and_weights_result(files: tuple[nn.Module, Path]) -> None:
    model, file = files
    x = torch.randn(200, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    imported = entrim.onnx.load(file)
    every = entrim.Calibration(n_positions=None)  # a sample depends on the names of the layers
    half = entrim.Budget(params=0.5)
    with pytest.warns(entrim.errors.CalibrationWarning):
        a = entrim.sparsify(model, x, half, calibration=every, callbacks=())
    with pytest.warns(entrim.errors.CalibrationWarning):
        b = entrim.sparsify(imported, x, half, calibration=every, callbacks=())
    assert list(a.plan.kept.values()) == list(b.plan.kept.values())
    assert relative(b.model(x), a.model(x)) < 1e-4
    others = [p for p in b.model.parameters() if p.dim() > 1]
    for weight in (p for p in a.model.parameters() if p.dim() > 1):
        assert any(p.shape == weight.shape and relative(p, weight) < 1e-4 for p in others)
    small = entrim.onnx.save(b, file.with_name("small.onnx"))
    assert small.parity < 1e-4
    assert relative(run(small.file, x)[0], a.model(x)) < 1e-4
    assert small.bytes_after < small.bytes_before


def test_only_constants_differ_and_sizes_stay_dynamic(files: tuple[nn.Module, Path]) -> None:
    _, file = files
    imported = entrim.onnx.load(file)
    x = torch.randn(2, 3, 8, 8)
    found = trace(imported, x)
    small = prune(imported, Plan(random_plan(found, 1).kept), x, graph=found).model
    written = entrim.onnx.save(small, file.with_name("dynamic.onnx"))
    before, after = onnx.load(str(file)), onnx.load(str(written.file))
    assert [n.name for n in before.graph.node] == [n.name for n in after.graph.node]
    assert [list(n.output) for n in before.graph.node] == [list(n.output) for n in after.graph.node]
    for part in ("name", "input", "output"):
        assert getattr(before.graph, part) == getattr(after.graph, part)
    names = [[t.name for t in proto.graph.initializer] for proto in (before, after)]
    assert names[1][: len(names[0])] == names[0]
    assert all(name.endswith("_pruned") for name in names[1][len(names[0]) :])
    kept = {field.name for field, _ in before.ListFields()} - {"graph"}
    assert {"opset_import", "metadata_props", "producer_name", "ir_version", "doc_string"} <= kept
    for field in kept:
        assert getattr(before, field) == getattr(after, field)
    other = torch.randn(5, 3, 12, 20)
    assert relative(run(written.file, other)[0], small(other)) < 1e-4


def test_a_network_as_tensorflow_exports_it_is_pruned_and_written(tmp_path: Path) -> None:
    same: dict[str, Any] = {"auto_pad": "SAME_UPPER", "strides": [2, 2]}
    nearest = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "floor"}
    nodes: list[Any] = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["t", "w"], ["c"], **same),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("AveragePool", ["r"], ["p"], kernel_shape=[3, 3], **same),
        helper.make_node("ConvTranspose", ["p", "v"], ["q"], **same),
        helper.make_node("Relu", ["q"], ["s"]),
        helper.make_node("Resize", ["s", "", "f"], ["u"], **nearest),
        helper.make_node("Resize", ["u", "", "f"], ["l"], mode="linear", **ASYMMETRIC),
        helper.make_node("Conv", ["l", "z"], ["o"]),
        helper.make_node("Transpose", ["o"], ["y"], perm=[0, 2, 3, 1]),
    ]
    constants = {"w": kernel(6, 3), "v": kernel(6, 4), "z": kernel(5, 4)}
    constants["f"] = np.array([1, 1, 1.5, 2], np.float32)
    file = write(graph(nodes, constants, shape=("n", "h", "w", 3)), tmp_path / "net.onnx")
    model = entrim.onnx.load(file)
    x = torch.randn(model.nodes.shapes[0])
    small = prune(model, Plan({"Conv_1": [0, 4], "ConvTranspose_4": [1, 2]}), x).model
    written = entrim.onnx.save(small, tmp_path / "small.onnx")
    found = {t.name: list(t.dims)[:2] for t in onnx.load(str(written.file)).graph.initializer}
    assert found == {"w": [2, 3], "v": [2, 2], "z": [5, 2], "f": [4]}


def test_a_fixed_batch_follows_the_images_and_stays_in_the_file(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Reshape", ["c", "s"], ["r"]),
        helper.make_node("MatMul", ["r", "m"], ["y"]),
    ]
    constants = {
        "w": kernel(6, 3),
        "s": np.array([1, 216], dtype=np.int64),
        "m": kernel(1, 216, 4).reshape(216, 16)[:, :5].copy(),
    }
    file = write(graph(nodes, constants, shape=(1, 3, 8, 8)), tmp_path / "net.onnx")
    model, x = entrim.onnx.load(file), torch.randn(4, 3, 8, 8)
    assert relative(model(x), torch.cat([model(one[None]) for one in x])) < 1e-5
    small = prune(model, Plan({"Conv_0": [0, 3, 5]}), x).model
    written = entrim.onnx.save(small, tmp_path / "small.onnx")
    sizes = {t.name: t for t in onnx.load(str(written.file)).graph.initializer}
    assert onnx.numpy_helper.to_array(sizes["s"]).tolist() == [1, 108]
    assert relative(run(written.file, x[:1])[0], small(x[:1])) < 1e-4


def test_shared_constants_are_separated_only_where_they_differ(tmp_path: Path) -> None:
    nodes: list[Any] = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("Conv", ["d", "v", "b"], ["y"], pads=[1, 1, 1, 1]),
    ]
    constants = {"w": kernel(6, 3), "v": kernel(6, 6), "b": np.arange(6, dtype=np.float32)}
    file = write(graph(nodes, constants), tmp_path / "net.onnx")
    model, x = entrim.onnx.load(file), torch.randn(2, 3, 8, 8)
    small = prune(model, Plan({"Conv_0": [1, 4]}), x).model
    written = entrim.onnx.save(small, tmp_path / "small.onnx")
    found = {t.name: list(t.dims) for t in onnx.load(str(written.file)).graph.initializer}
    assert found == {"w": [2, 3, 3, 3], "v": [6, 2, 3, 3], "b": [6], "b_pruned": [2]}


def test_the_original_is_never_overwritten(files: tuple[nn.Module, Path], tmp_path: Path) -> None:
    _, file = files
    copy = tmp_path / "net.onnx"
    copy.write_bytes(file.read_bytes())
    model = entrim.onnx.load(copy)
    with pytest.raises(SaveError, match="name another file"):
        entrim.onnx.save(model, copy)
    copy.write_bytes(file.read_bytes() + b"\x00")
    with pytest.raises(OnnxError, match="changed after it was loaded"):
        entrim.onnx.save(model, tmp_path / "small.onnx")
