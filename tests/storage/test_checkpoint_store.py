"""The checkpoint store returns units as they were put in, and never those of another run."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from entrim.errors import BadSettingError, CheckpointError, OtherRunError, SaveError
from entrim.storage.checkpoint import CheckpointStore

ME = {"who": "me"}


@dataclass(frozen=True)
class Inner:
    """A dataclass inside a unit."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True)
class Outer:
    """A unit with values of every type."""

    name: str
    parts: tuple[Inner, ...]
    numbers: list[float]
    options: dict[str, Any]


def store_in(folder: Path) -> CheckpointStore:
    return CheckpointStore(folder=folder, types={"Inner": Inner, "Outer": Outer})


def assert_equal(found: Any, expected: Any) -> None:
    """Compare two units of plain values, tensors and dataclasses."""
    assert type(found) is type(expected)
    if isinstance(expected, Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(expected, Inner | Outer):
        assert_equal(vars(found), vars(expected))
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        assert_equal(list(found.values()), list(expected.values()))
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    else:
        assert found == expected


UNITS: dict[str, Any] = {
    "a number": 0.1 + 0.2,
    "zero": 0.0,
    "an infinite number": float("inf"),
    "a list": [1, 2.5, "three", None, True],
    "an empty list": [],
    "a tuple": (1, (2, 3)),
    "a dict": {"x": None, "tensor": [1], "type": (1,), "fields": {}, "dict": {"tuple": [2]}},
    "a dict with integer keys": {0: {"step": torch.tensor(3.0)}, 1: {}},
    "a tensor": torch.randn(3, 4).T,
    "tensors": {"a": torch.tensor([1, 2]), "b": torch.tensor(True), "c": torch.zeros(0, 3)},
    "a dataclass": Outer(
        "one", (Inner(torch.randn(2, 3)), Inner(torch.ones(1), torch.zeros(2))), [1e-300], {"k": 1}
    ),
}


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_returned_as_it_was_put_in(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "checkpoints"
    with (store := store_in(folder)).open(ME) as finished:
        assert finished == 0
        assert not store.has("unit")
        assert_equal(store.get_or_compute("unit", lambda: UNITS[name]), UNITS[name])
        assert not store.restored
    with (store := store_in(folder)).open(ME) as finished:
        assert finished == 1
        assert store.has("unit")
        assert store.get("another unit") is None
        found = store.get_or_compute("unit", lambda: pytest.fail("was computed again"))
        assert_equal(found, UNITS[name])
        assert store.restored == {"unit"}


def test_a_unit_is_one_file_with_plain_values_beside_its_tensors(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with (store := store_in(folder)).open(ME):
        store.put("unit", {"x": 0.5, "y": torch.arange(3)})
        (file,) = folder.glob("*.safetensors")
    assert re.fullmatch(r"[0-9a-f]{32}\.safetensors", file.name)
    with safe_open(file, "pt") as stored:
        values = json.loads(stored.metadata()["values"])
        assert values == {"dict": [["x", 0.5], ["y", {"tensor": "0"}]]}
        assert torch.equal(stored.get_tensor("0"), torch.arange(3))


def test_a_unit_under_another_key_or_of_another_run_is_not_returned(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with (store := store_in(folder)).open(ME):
        store.put("one", 1)
        (file,) = folder.glob("*.safetensors")
        store.put("two", 2)
        (other,) = set(folder.glob("*.safetensors")) - {file}
        content = file.read_bytes()
        file.write_bytes(other.read_bytes())
        assert store.get("one") is None
        file.write_bytes(content)
        assert store.get("one") == 1
    (folder / "run.json").unlink()
    with (store := store_in(folder)).open({"who": "you"}):
        assert store.get("one") is None
        assert store.get("two") is None


@pytest.mark.parametrize(
    "spoil", [lambda b: b[:-3] + bytes([b[-3] ^ 1]) + b[-2:], lambda b: b[:-5], lambda _: b""]
)
def test_a_damaged_unit_is_computed_again(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    folder = tmp_path / "checkpoints"
    with (store := store_in(folder)).open(ME):
        store.put("unit", torch.ones(3))
        (file,) = folder.glob("*.safetensors")
        file.write_bytes(spoil(file.read_bytes()))
        assert store.get_or_compute("unit", lambda: 1) == 1
        assert store.get("unit") == 1


def test_a_unit_with_a_type_that_is_not_registered_is_computed_again(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with (store := store_in(folder)).open(ME):
        store.put("unit", Inner(torch.ones(2)))
    with (plain := CheckpointStore(folder=folder)).open(ME):
        assert plain.get("unit") is None
        assert plain.get_or_compute("unit", lambda: 3) == 3


def test_without_a_folder_nothing_is_kept() -> None:
    with (store := CheckpointStore()).open(ME) as finished:
        assert finished == 0
        assert store.get_or_compute("unit", lambda: 1) == 1
        assert store.get_or_compute("unit", lambda: 2) == 2
        assert not store.has("unit")
    store.remove()


def test_another_run_is_refused_unless_its_units_may_be_discarded(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with (store := store_in(folder)).open(ME):
        store.put("unit", 1)
    other = {"who": "you"}
    with (
        pytest.raises(OtherRunError, match=r"another run \(who differ\)"),
        store_in(folder).open(other),
    ):
        pytest.fail("the run was accepted")
    assert len(list(folder.glob("*.safetensors"))) == 1
    with CheckpointStore(folder=folder, discard=True).open(other) as finished:
        assert finished == 0
    assert not folder.exists()


def test_a_refused_run_leaves_no_folder_but_an_interrupted_one_does(tmp_path: Path) -> None:
    def fail(folder: Path, error: BaseException) -> None:
        with (store := store_in(folder)).open(ME):
            store.put("unit", 1)
            raise error

    with pytest.raises(BadSettingError):
        fail(tmp_path / "refused", BadSettingError("no"))
    with pytest.raises(KeyboardInterrupt):
        fail(tmp_path / "interrupted", KeyboardInterrupt())
    assert [entry.name for entry in tmp_path.iterdir()] == ["interrupted"]


def test_a_read_only_store_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with (store := CheckpointStore(folder=folder, read_only=True)).open(ME):
        assert store.get_or_compute("unit", lambda: 1) == 1
    assert not folder.exists()
    with (store := store_in(folder)).open(ME):
        store.put("unit", 2)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with (store := CheckpointStore(folder=folder, read_only=True)).open(ME) as finished:
        assert (finished, store.get("unit"), store.get("other")) == (1, 2, None)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_folder_with_other_files_is_refused_and_not_modified(tmp_path: Path) -> None:
    (tmp_path / "holiday.txt").write_text("sun")
    for place in (tmp_path, tmp_path / "holiday.txt"):
        with (
            pytest.raises(CheckpointError, match="choose a folder that does not exist yet"),
            CheckpointStore.at(place).open(ME),
        ):
            pytest.fail("the folder was opened")
    assert [entry.name for entry in tmp_path.iterdir()] == ["holiday.txt"]


def test_a_full_disk_is_reported_and_finished_units_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoints"
    full = Mock(side_effect=OSError(28, "No space left on device"))
    with (store := store_in(folder)).open(ME):
        store.put("one", 1)
        monkeypatch.setattr("entrim.storage.checkpoint.atomic.write", full)
        with pytest.raises(SaveError, match=r"No space left.*make room"):
            store.put("two", 2)
        assert (store.get("one"), store.get("two")) == (1, None)


def test_a_folder_is_used_by_one_store_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with (
        store_in(folder).open(ME),
        pytest.raises(CheckpointError, match="another process"),
        store_in(folder).open(ME),
    ):
        pytest.fail("the folder was opened twice")
