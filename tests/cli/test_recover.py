"""`entrim sparsify --recover`: pruning and training in one command."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import entrim
from entrim import config
from entrim.callbacks import ProgressEvent
from entrim.cli import sparsify as sparsify_command
from entrim.cli.main import main
from entrim.display.bars import ProgressDisplay
from entrim.report.report_data import read
from entrim.storage.checkpoint import UNFINISHED
from entrim.storage.model_folder import CHECKPOINT
from tests.cli.conftest import trained_network

WORDS = ["sparsify", "nets.py:small", "--weights", "w.pt", "--images", "x.npy", "--width", "0.25"]
WORDS += ["--recover", "--out"]


@pytest.fixture
def place(workshop: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder; a training has few steps."""
    monkeypatch.chdir(workshop)
    monkeypatch.setattr(config, "STEPS", 30)
    for name in ("recovered", "whole", "halted"):
        shutil.rmtree(name, ignore_errors=True)
    return workshop


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    (file,) = folder.glob("weights-*.safetensors")
    return load_file(file)


def test_the_command_equals_both_functions(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "recovered"]) == 0
    shown = capsys.readouterr()
    x = torch.from_numpy(np.load(place / "x.npy"))
    small = entrim.sparsify(trained_network(), x, entrim.Widths(0.25))
    better = entrim.distill(small)
    found = tensors(place / "recovered")
    for name, tensor in better.model.state_dict().items():
        torch.testing.assert_close(found[name], tensor)
    record = read(place / "recovered").record
    assert record.distilled is not None
    assert record.holdout is not None
    assert better.record.holdout is not None
    assert record.holdout.images == better.record.holdout.images
    assert "distill" in record.seconds
    assert re.search(r"distill: 0 of 30  \d+ s left  30 epochs of", shown.err)
    assert str(record.distilled) in shown.out
    assert "in recovered, report recovered/report.html" in shown.out
    page = (place / "recovered" / "report.html").read_text()
    assert "--recover" in page
    assert "entrim.distill(small" in page
    assert not (place / "recovered" / CHECKPOINT).exists()


def test_an_interrupted_training_continues_bit_by_bit(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stopping(ProgressDisplay):
        def on_step(self, event: ProgressEvent) -> None:
            if (event.stage, event.done) == ("distill", 9):
                raise KeyboardInterrupt

    assert main([*WORDS, "whole"]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(sparsify_command, "ProgressDisplay", Stopping)
        assert main([*WORDS, "halted"]) == 1
    assert "the same command continues from there" in capsys.readouterr().err
    assert (place / "halted" / CHECKPOINT).is_dir()
    assert (place / "halted" / UNFINISHED).is_dir()
    assert main(["distill", "whole", "--out", "halted"]) == 1
    assert "halted contains an unfinished run: repeat its command" in capsys.readouterr().err
    assert main([*WORDS, "halted", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["distilled"]["epochs"] == 30
    expected, halted = tensors(place / "whole"), tensors(place / "halted")
    assert all(torch.equal(tensor, halted[name]) for name, tensor in expected.items())
    assert not (place / "halted" / CHECKPOINT).exists()
    assert not (place / "halted" / UNFINISHED).exists()


def test_a_guaranteed_agreement_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in WORDS if word not in ("--width", "0.25")]
    assert main([*words, "recovered", "--agreement", "0.9"]) == 1
    message = capsys.readouterr().err
    assert "--agreement guarantees the network before the training" in message
    assert not (place / "recovered").exists()
