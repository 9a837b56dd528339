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

import entrim
import entrim.onnx
from entrim.errors import OnnxError, SaveError
from entrim.surgery.plan import Plan
from entrim.surgery.prune import prune
from entrim.surgery.trace import trace
from tests.onnx.files import export, graph, kernel, write
from tests.surgery.kinds import KINDS, shaken
from tests.surgery.oracle import random_plan

SAME = ("residual", "concat", "depthwise", "grouped", "transposed", "chunk", "slice")
SAME += ("squeeze and excite", "learned scales", "BatchNorm without bias", "InstanceNorm", "PReLU")
SAME += ("Linear behind Flatten", "pixel shuffle", "padded shortcut", "shared weights")
EVERY = pytest.mark.parametrize("name", SAME)


def run(file: Path, x: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().norm() / b.detach().norm())


@EVERY
def test_the_export_has_the_groups_of_the_network_and_is_pruned_alike(
    name: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    case = KINDS[name]
    model, x = shaken(case.build()), case.example_inputs()
    assert isinstance(x, Tensor)
    imported = entrim.onnx.load(export(model, x, tmp_path / "net.onnx"))
    wanted, found = trace(model, x), trace(imported, x)
    assert [g.channels for g in found.groups] == [g.channels for g in wanted.groups]
    plan = random_plan(wanted, 0)
    names = {a.name: b.name for a, b in zip(wanted.groups, found.groups, strict=True)}
    own = Plan({names[group]: kept for group, kept in plan.kept.items()})
    small = prune(imported, own, x, graph=found).model
    assert relative(small(x), prune(model, Plan(plan.kept), x, graph=wanted).model(x)) < 1e-4
    written = entrim.onnx.save(small, tmp_path / "small.onnx")
    assert written.parity < 1e-5
    assert relative(run(written.file, x), small(x)) < 1e-4
    onnx.checker.check_model(onnx.load(str(written.file)), full_check=True)


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
    return model, export(model, torch.randn(2, 3, 8, 8), file, dynamic_axes=axes)


def test_the_same_channels_and_weights_result(files: tuple[nn.Module, Path]) -> None:
    model, file = files
    x = torch.randn(200, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    imported = entrim.onnx.load(file)
    with pytest.warns(entrim.errors.CalibrationWarning):
        a = entrim.sparsify(model, x, entrim.Budget(params=0.5), callbacks=())
    with pytest.warns(entrim.errors.CalibrationWarning):
        b = entrim.sparsify(imported, x, entrim.Budget(params=0.5), callbacks=())
    assert list(a.plan.kept.values()) == list(b.plan.kept.values())
    assert relative(b.model(x), a.model(x)) < 1e-4
    others = [p for p in b.model.parameters() if p.dim() > 1]
    for weight in (p for p in a.model.parameters() if p.dim() > 1):
        assert any(p.shape == weight.shape and relative(p, weight) < 1e-4 for p in others)
    small = entrim.onnx.save(b, file.with_name("small.onnx"))
    assert small.parity < 1e-4
    assert relative(run(small.file, x), a.model(x)) < 1e-4
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
    for part in ("input", "output"):
        assert getattr(before.graph, part) == getattr(after.graph, part)
    assert before.opset_import == after.opset_import
    assert before.producer_name == after.producer_name
    other = torch.randn(5, 3, 12, 20)
    assert relative(run(written.file, other), small(other)) < 1e-4


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
    assert relative(run(written.file, x[:1]), small(x[:1])) < 1e-4


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
