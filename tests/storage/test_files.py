"""A saved network is loaded as it was."""

import copy
import json
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from entrim import Plan, apply_plan, load, save
from entrim.errors import RolledBackWarning
from tests.storage.saves import IMAGES, Tied, everything, small_one
from tests.surgery.kinds import Net, conv
from tests.surgery.test_surgery import PLAN, Small, sized


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save(small_one(), PLAN, tmp_path / "small")
    return tmp_path / "small"


def test_precision_format_modes_and_gradient_flags_are_restored(
    tmp_path: Path,
) -> None:
    small = small_one().to(memory_format=torch.channels_last).bfloat16().train()  # pyright: ignore[reportCallIssue]
    small.get_submodule("norm").eval()
    small.get_parameter("b.weight").requires_grad_(False)
    save(small, PLAN, tmp_path)
    model = Small().eval()
    before = everything(model)
    back = load(model, tmp_path)
    assert everything(back) == everything(small)
    assert everything(model) == before
    weight = back.get_parameter("a.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()


def test_shared_tensors_and_buffers_outside_the_state_dict_are_restored(
    tmp_path: Path,
) -> None:
    plan = Plan({"a": [0, 2, 5]})
    small = apply_plan(Tied(), plan, torch.randn(3, 4))
    save(small, plan, tmp_path)
    back = load(Tied(), tmp_path)
    assert isinstance(back, Tied)
    assert back.c.weight is back.b.weight
    assert back.again is back.b
    assert back.get_buffer("scale") is back.get_buffer("scale_again")
    assert back.b.weight.shape == (3, 3)
    assert everything(back) == everything(small)


def test_a_network_on_the_meta_device_gets_the_saved_values(saved: Path) -> None:
    with torch.device("meta"):
        model = Small()
    assert everything(load(model, saved)) == everything(small_one())


def test_a_loaded_network_can_be_trained_saved_copied_and_pruned_again(
    saved: Path, tmp_path: Path
) -> None:
    back = copy.deepcopy(load(Small(), saved))
    torch.optim.SGD(back.parameters(), lr=0.1).zero_grad()
    back(IMAGES).sum().backward()
    torch.optim.SGD(back.parameters(), lr=0.1).step()
    save(back, PLAN, saved)
    assert everything(load(Small(), saved)) == everything(back)
    plan = Plan({"a": [0, 2]})
    twice = apply_plan(back, plan, IMAGES)
    save(twice, plan, tmp_path / "twice")
    assert everything(load(Small(), tmp_path / "twice")) == everything(twice)


def test_groups_that_were_rolled_back_are_loaded_at_full_width(tmp_path: Path) -> None:
    net = Net(sized, a=conv(3, 8), b=conv(8, 6), fc=nn.Linear(96, 4))
    plan = Plan({"a": [0, 1], "b": [0, 1]})
    with pytest.warns(RolledBackWarning):
        small = apply_plan(net, plan, IMAGES)
    save(small, plan, tmp_path)
    back = load(net, tmp_path)
    assert (back.get_submodule("a").out_channels, back.get_submodule("b").out_channels) == (2, 6)


def test_a_folder_contains_json_safetensors_and_a_loader_of_entrim(saved: Path) -> None:
    small = small_one()
    small.get_parameter("fc.bias").data.add_(1)
    save(small, PLAN, saved)
    (saved / "notes.txt").write_text("mine")
    (saved / "weights-0123456789abcdef.safetensors").write_text("of a killed save")
    (saved / f".entrim-{'0' * 32}.part").write_text("of a killed save")
    save(small_one(), PLAN, saved)
    names = sorted(entry.name for entry in saved.iterdir())
    assert names[:4] == [".entrim.lock", "entrim.json", "load_model.py", "notes.txt"]
    assert [name[:8] for name in names[4:]] == ["weights-"]
    assert json.loads((saved / "entrim.json").read_text())["plan"]["kept"]["a"] == [0, 3, 4]


def test_save_creates_parent_folders(tmp_path: Path) -> None:
    save(small_one(), PLAN, str(tmp_path / "some" / "where"))
    assert everything(load(Small(), str(tmp_path / "some" / "where"))) == everything(small_one())


def test_a_pickled_network_can_be_saved_and_does_not_refer_to_entrim(tmp_path: Path) -> None:
    pickled = pickle.dumps(small_one())
    assert b"entrim." not in pickled
    save(pickle.loads(pickled), PLAN, tmp_path)
    assert everything(load(Small(), tmp_path)) == everything(small_one())
