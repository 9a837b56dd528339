"""What a journal takes in comes back as it was."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from entrim.storage.checkpoint import CheckpointStore, CheckpointUnit


def test_a_unit_comes_back_as_it_was(tmp_path: Path) -> None:
    journal = CheckpointStore(folder=tmp_path / "journal")
    tensors = {"a": torch.randn(3, 4).T, "b": torch.tensor([1, 2]), "c": torch.tensor(True)}
    facts = {"x": 0.1 + 0.2, "none": None, "list": [1, 2], "inf": float("inf")}
    with journal.open({"who": "me"}) as finished:
        assert finished == 0
        assert journal.get("it") is None
        fresh = journal.get_or_compute("it", lambda: CheckpointUnit(facts, tensors))
        again = journal.get_or_compute("it", lambda: pytest.fail("found again"))
        assert journal.at("else").get("it") is None
    assert (fresh.restored, again.restored) == (False, True)
    assert again.values == facts
    assert all(torch.equal(again.tensors[key], value) for key, value in tensors.items())
    with journal.open({"who": "me"}) as finished:
        assert finished == 1
    file = next(journal.folder.glob("*.safetensors")) if journal.folder else Path()
    with safe_open(file, "pt") as stored:
        assert json.loads(stored.metadata()["facts"]) == facts
    assert re.fullmatch(r"[0-9a-f]{32}\.safetensors", file.name)
