"""Damaged saves and saves of other networks are refused; other files are not modified."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from entrim import Plan, load, save
from entrim.errors import LoadError, SaveError
from tests.storage.saves import small_one
from tests.surgery.kinds import conv
from tests.surgery.test_surgery import PLAN, Small


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save(small_one(), PLAN, tmp_path / "small")
    return tmp_path / "small"


def weights_file(folder: Path) -> Path:
    (file,) = folder.glob("weights-*.safetensors")
    return file


def flip(folder: Path) -> None:
    data = bytearray(weights_file(folder).read_bytes())
    data[-1] ^= 1
    weights_file(folder).write_bytes(data)


def shorten(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def edit(folder: Path, change: Callable[[dict[str, Any]], Any], seal: bool = False) -> None:
    file = folder / "entrim.json"
    manifest = json.loads(file.read_text())
    change(manifest)
    if seal:
        del manifest["sha256"]
        text = json.dumps(manifest, sort_keys=True)
        manifest["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    file.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (flip, "was modified, its checksum differs"),
        (lambda f: shorten(weights_file(f)), r"has \d+ of \d+ bytes"),
        (lambda f: weights_file(f).unlink(), r"weights-.* is missing"),
        (lambda f: shorten(f / "entrim.json"), "is truncated or modified"),
        (lambda f: (f / "entrim.json").unlink(), "contains no complete network"),
        (lambda f: (f / "entrim.json").write_text("[]"), "was not written by entrim"),
        (lambda f: (f / "entrim.json").write_bytes(b"\xff"), "cannot be read"),
        (lambda f: edit(f, lambda m: m.update(format=3)), "format 3, this .* up to 2: update"),
        (lambda f: edit(f, lambda m: m["plan"]["kept"].update(a=[0])), "entrim.json was modified"),
        (lambda f: edit(f, lambda m: m.pop("small"), seal=True), "is damaged"),
        (lambda f: edit(f, lambda m: m.pop("weights"), seal=True), "is damaged"),
        (lambda f: edit(f, lambda m: m["plan"].update(kept=3), seal=True), "is damaged"),
        (lambda f: edit(f, lambda m: m["small"]["counts"].update(forward=3), seal=True), "forward"),
    ],
)
def test_a_damaged_or_newer_save_is_refused(
    saved: Path, spoil: Callable[[Path], Any], message: str
) -> None:
    spoil(saved)
    with pytest.raises(LoadError, match=message):
        load(Small(), saved)


def test_a_file_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="does not exist"):
        load(Small(), tmp_path / "nowhere")
    (tmp_path / "file").write_text("text")
    with pytest.raises(LoadError, match="is not a folder"):
        load(Small(), tmp_path / "file")


class Wider(Small):
    pass


def wider() -> nn.Module:
    net = Small()
    net.a, net.b = conv(3, 9), conv(9, 8, bias=False)
    return net


def longer() -> nn.Module:
    net = Small()
    net.more = conv(6, 6)
    return net


def shorter() -> nn.Module:
    net = Small()
    del net.fc
    return net


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (Wider, "a Small was saved, not a Wider"),
        (wider, r"a.weight is float32\[9, 3, 3, 3\], but float32\[8, 3, 3, 3\] was saved"),
        (longer, "only this network has more.bias"),
        (shorter, "only the saved network has fc.bias"),
        (lambda: Small().half(), r"a.weight is float16.*, but float32"),
        (small_one, r"a.weight is float32\[3.*, but .* at its full width"),
    ],
)
def test_another_network_is_refused_with_the_difference(
    saved: Path, build: Callable[[], nn.Module], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        load(build(), saved)


def test_save_refuses_networks_that_load_could_not_restore(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="Small was not pruned by entrim"):
        save(Small(), PLAN, tmp_path)
    with pytest.raises(SaveError, match="Sequential was not pruned by entrim"):
        save(nn.Sequential(small_one()), PLAN, tmp_path)
    with pytest.raises(SaveError, match="a was not pruned by this plan"):
        save(small_one(), Plan({"a": [0, 3, 5], "c": [1, 5]}), tmp_path)
    changed = small_one()
    changed.register_buffer("later", torch.ones(1))
    with pytest.raises(SaveError, match="later was added or removed after pruning"):
        save(changed, PLAN, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["thesis.tex", "entrim.json"])
def test_save_does_not_modify_a_folder_with_other_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("years of work")
    with pytest.raises(SaveError, match=r"contains other files .* choose another folder"):
        save(small_one(), PLAN, tmp_path)
    with pytest.raises(SaveError, match="is not a folder"):
        save(small_one(), PLAN, tmp_path / name)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "years of work"
