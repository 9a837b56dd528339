"""What a journal takes in comes back as it was."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from entrim.storage.checkpoint import Journal, Unit


def test_a_unit_comes_back_as_it_was(tmp_path: Path) -> None:
    journal = Journal(folder=tmp_path / "journal")
    tensors = {"a": torch.randn(3, 4).T, "b": torch.tensor([1, 2]), "c": torch.tensor(True)}
    facts = {"x": 0.1 + 0.2, "none": None, "list": [1, 2], "inf": float("inf")}
    with journal.opened({"who": "me"}) as finished:
        assert finished == 0
        assert journal.find("it") is None
        fresh = journal.once("it", lambda: Unit(facts, tensors))
        again = journal.once("it", lambda: pytest.fail("found again"))
        assert journal.at("else").find("it") is None
    assert (fresh.taken, again.taken) == (False, True)
    assert again.facts == facts
    assert all(torch.equal(again.tensors[key], value) for key, value in tensors.items())
    with journal.opened({"who": "me"}) as finished:
        assert finished == 1
    file = next(journal.folder.glob("*.safetensors")) if journal.folder else Path()
    with safe_open(file, "pt") as stored:
        assert json.loads(stored.metadata()["facts"]) == facts
    assert re.fullmatch(r"[0-9a-f]{32}\.safetensors", file.name)
