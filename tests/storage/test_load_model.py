"""A saved network is loaded by its `load_model.py`, without entrim."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import nn
from torch.utils import _pytree as pytree

from entrim import Plan, apply_plan, load, save, trace
from entrim.errors import SaveError
from entrim.graph.eager import arguments
from tests.storage.saves import IMAGES, Tied, everything, small_one
from tests.storage.without_entrim import loader_in
from tests.surgery.kinds import KINDS, shaken
from tests.surgery.oracle import random_plan
from tests.surgery.test_residual_blocks import BasicBlock, network
from tests.surgery.test_surgery import PLAN, Small

ROOT = Path(__file__).parents[2]
HIDE = "import sys; sys.modules['entrim'] = None; from tests.storage.without_entrim import main"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save(small_one(), PLAN, tmp_path / "small")
    return tmp_path / "small"


def weights_of(folder: Path) -> Path:
    (file,) = folder.glob("weights-*.safetensors")
    return file


def without_origin(model: nn.Module) -> dict[str, Any]:
    """Return everything about a network except what entrim notes to prune it again."""
    found = everything(model)
    found["/"].pop("_entrim_origin", None)
    return found


def test_every_kind_of_network_is_loaded_bit_for_bit_with_and_without_entrim(
    tmp_path: Path,
) -> None:
    expected: dict[Path, list[Any]] = {}
    for number, (name, case) in enumerate(KINDS.items()):
        if not case.groups:
            continue
        torch.manual_seed(0)
        model, example = shaken(case.build()), case.example_inputs()
        plan = random_plan(trace(model, example), 1)
        small, folder = apply_plan(model, plan, example).eval(), tmp_path / str(number)
        save(small, plan, folder)
        assert everything(load(model, folder)) == everything(small), name
        assert without_origin(loader_in(folder).load(model)) == without_origin(small), name
        args, kwargs = arguments(example)
        torch.save((args, kwargs), folder / "inputs.pt")
        with torch.no_grad():
            expected[folder] = pytree.tree_leaves(small(*args, **kwargs))
    command = [sys.executable, "-c", f"{HIDE}; main()", *map(str, expected)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": "."}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for folder, outputs in expected.items():
        found, name = torch.load(folder / "outputs.pt"), list(KINDS)[int(folder.name)]
        assert len(found) == len(outputs) > 0
        for here, there in zip(found, outputs, strict=True):
            same = torch.equal(here, there) if isinstance(there, torch.Tensor) else here == there
            assert same, name


def test_shared_tensors_are_loaded_as_one(tmp_path: Path) -> None:
    plan = Plan({"a": [0, 2, 5]})
    small = apply_plan(Tied(), plan, torch.randn(3, 4))
    save(small, plan, tmp_path)
    back = loader_in(tmp_path).load(Tied())
    assert back.c.weight is back.b.weight
    assert back.get_buffer("scale") is back.get_buffer("scale_again")
    assert without_origin(back) == without_origin(small)


def test_removed_blocks_are_loaded_as_an_identity(tmp_path: Path) -> None:
    def build() -> nn.Module:
        return network(BasicBlock(6, 6), BasicBlock(6, 6))

    plan = Plan({"4.conv1": [0, 3]}, removed_blocks=["3"])
    small = apply_plan(build(), plan, IMAGES)
    save(small, plan, tmp_path)
    back = loader_in(tmp_path).load(build())
    assert isinstance(back.get_submodule("3"), nn.Identity)
    assert torch.equal(back(IMAGES), small(IMAGES))


def test_precision_modes_and_the_network_of_the_caller_are_as_with_entrim(tmp_path: Path) -> None:
    small = small_one().to(memory_format=torch.channels_last).bfloat16().train()  # pyright: ignore[reportCallIssue]
    small.get_parameter("b.weight").requires_grad_(False)
    save(small, PLAN, tmp_path)
    with torch.device("meta"):
        model = Small().eval()
    before = [(name, p.shape) for name, p in model.named_parameters()]
    back = loader_in(tmp_path).load(model)
    assert without_origin(back) == without_origin(load(model, tmp_path))
    assert [(name, p.shape) for name, p in model.named_parameters()] == before


def test_the_weights_alone_are_enough(saved: Path, tmp_path: Path) -> None:
    weights_of(saved).rename(tmp_path / "net.safetensors")
    loader = loader_in(saved)
    for other in ("entrim.json", ".entrim.lock"):
        (saved / other).unlink()
    back = loader.load(Small(), tmp_path / "net.safetensors")
    assert without_origin(back) == without_origin(small_one())
    with pytest.raises(ValueError, match=r"does not name the weights .*: pass the \.safetensors"):
        loader.load(Small())


class Wider(Small):
    pass


def longer() -> nn.Module:
    net = Small()
    net.more = nn.Linear(2, 2)
    return net


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (Wider, "a Small was saved, not a Wider: pass the class that was pruned"),
        (longer, r"only this network has more\.bias: pass the Small before pruning"),
        (small_one, r"a.weight is float32\[3, 3, 3, 3\], but float32\[8, 3, 3, 3\] was saved"),
    ],
)
def test_another_network_is_refused_in_one_sentence(
    saved: Path, build: Callable[[], nn.Module], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        loader_in(saved).load(build())
    assert "\n" not in str(caught.value)


def change(folder: Path, edit: Callable[[dict[str, Any], dict[str, Any]], Any]) -> None:
    """Edit the header entry and the tensors of the weights in a folder."""
    with safe_open(weights_of(folder), framework="pt") as stream:
        note = json.loads(stream.metadata()["entrim"])
    tensors = safetensors.torch.load(weights_of(folder).read_bytes())
    edit(note, tensors)
    safetensors.torch.save_file(tensors, weights_of(folder), {"entrim": json.dumps(note)})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: weights_of(f).unlink(), "cannot be read"),
        (lambda f: weights_of(f).write_bytes(b"text"), "is damaged, or was not written by entrim"),
        (lambda f: safetensors.torch.save_file({}, weights_of(f)), "was not written by entrim"),
        (lambda f: change(f, lambda note, _: note.pop("structure")), "KeyError.'structure'"),
        (lambda f: change(f, lambda note, _: note["structure"].pop("fixed")), "'fixed'"),
        (lambda f: change(f, lambda _, tensors: tensors.pop("a.bias")), r"KeyError.'a\.bias'"),
        (
            lambda f: change(f, lambda note, _: note["structure"]["counts"].update(forward=3)),
            "forward is not an integer attribute",
        ),
    ],
)
def test_damaged_or_hostile_weights_are_refused_in_one_sentence(
    saved: Path, spoil: Callable[[Path], Any], message: str
) -> None:
    spoil(saved)
    with pytest.raises(ValueError, match=message) as caught:
        loader_in(saved).load(Small())
    assert "\n" not in str(caught.value)


def test_a_loader_of_the_user_is_not_replaced(tmp_path: Path) -> None:
    for first in ("empty", "saved"):
        folder = tmp_path / first
        if first == "saved":
            save(small_one(), PLAN, folder)
        folder.mkdir(exist_ok=True)
        (folder / "load_model.py").write_text("mine")
        with pytest.raises(SaveError, match=r"contains another load_model\.py: rename it"):
            save(small_one(), PLAN, folder)
        assert (folder / "load_model.py").read_text() == "mine"


def test_a_folder_of_an_interrupted_save_with_its_loader_is_used_again(saved: Path) -> None:
    (saved / "entrim.json").unlink()
    save(small_one(), PLAN, saved)
    assert everything(load(Small(), saved)) == everything(small_one())
