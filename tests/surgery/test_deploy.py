"""A pruned network is an ordinary network: it can be compiled, exported and trained."""

import importlib.util
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from entrim import Plan, apply_plan
from tests.surgery.kinds import shaken
from tests.surgery.test_surgery import PLAN, Small


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def small(images: Tensor) -> nn.Module:
    torch.manual_seed(0)
    return apply_plan(shaken(Small()).eval(), PLAN, images)


COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs g++")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "backend", ["eager", pytest.param("inductor", marks=[COMPILER, pytest.mark.slow])]
)
def test_it_can_be_compiled(small: nn.Module, images: Tensor, backend: str) -> None:
    with torch.no_grad():
        compiled = torch.compile(small, backend=backend, fullgraph=True)
        torch.testing.assert_close(compiled(images), small(images), rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


def test_it_can_be_exported(small: nn.Module, images: Tensor) -> None:
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(small, (images,), dynamic_shapes=({0: batch},))
    more = torch.randn(7, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(more), small(more))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not importlib.util.find_spec("onnxruntime"), reason="needs onnxruntime")
def test_its_onnx_file_computes_the_same_outputs(
    small: nn.Module, images: Tensor, tmp_path: Path
) -> None:
    import onnxruntime

    path = tmp_path / "small.onnx"
    torch.onnx.export(small, (images,), str(path), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(found), small(images), rtol=1e-4, atol=1e-5)


def test_it_can_be_trained_with_a_new_optimizer(images: Tensor) -> None:
    torch.manual_seed(0)
    small = apply_plan(Small(), Plan({"a": [0, 1, 2, 5], "c": [0, 3]}), images).train()
    optimizer = torch.optim.Adam(small.parameters(), lr=1e-2)
    target = torch.tensor([0, 1, 2, 3])
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(small(images), target)
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.shape == p.shape for p in small.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4
