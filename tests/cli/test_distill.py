"""`entrim distill`: from a saved run to a better one, also after interruptions."""

import json
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import entrim
from entrim.callbacks import ProgressEvent
from entrim.cli import distill as distill_command
from entrim.cli.main import main
from entrim.cli.run_dir import read_source
from entrim.display.bars import ProgressDisplay
from entrim.report.report_data import read
from entrim.storage.model_folder import CHECKPOINT
from tests.cli.conftest import Command, trained_network
from tests.report.runs import visible_text

FEW = ("--epochs", "2", "--batch-size", "9", "--shift", "0", "--no-mix", "--warmup", "0")


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    (file,) = folder.glob("weights-*.safetensors")
    return load_file(file)


def test_command_equals_the_function(command: Command, workshop: Path, pruned: Path) -> None:
    done = command("distill", "pruned", *FEW, "--no-flip", "--seed", "3", "--out", "better")
    assert done.code == 0, done.err
    assert "model: nets.py:small, from pruned" in done.err
    assert re.search(r"distill: 0 of 10  \d+ s left  2 epochs of 43 images", done.err)
    assert "distill: 10 of 10  loss" in done.err
    x = torch.from_numpy(np.load(workshop / "x.npy"))
    loaded = entrim.SparsifyResult.load(trained_network(), pruned)
    distillation = entrim.Distillation(
        epochs=2, batch_size=9, shift=0.0, mix=False, flip=False, warmup=0, seed=3
    )
    wanted = entrim.distill(loaded, x, distillation)
    found = tensors(workshop / "better")
    for name, tensor in wanted.model.state_dict().items():
        torch.testing.assert_close(found[name], tensor)
    record = read(workshop / "better").record
    assert record.distilled is not None
    assert wanted.record.distilled is not None
    assert record.distilled.after == pytest.approx(wanted.record.distilled.after)
    assert f"{record.distilled}" in done.out
    assert "saved in better, report better/report.html" in done.out
    assert sorted(entry.name for entry in (workshop / "better").iterdir())[:2] == [
        ".entrim.lock",
        "command.json",
    ]


def test_distilled_run_can_be_compared_and_distilled_again(
    command: Command, workshop: Path, pruned: Path
) -> None:
    assert command("distill", "pruned", *FEW, "--force", "--out", "first").code == 0
    told = json.loads(command("compare", "pruned", "first", "--json").out)
    assert told[0]["distilled"] is None
    assert told[1]["distilled"]["epochs"] == 2
    assert told[0]["widths"] == told[1]["widths"]
    assert "distillation loss" in command("compare", "first").out
    assert command("report", "first").code == 0
    page = (workshop / "first" / "report.html").read_text()
    assert "entrim distill pruned --epochs 2" in visible_text(page)
    settings = "epochs=2, warmup=0, batch_size=9, mix=False, shift=0.0, seed=0"
    assert f"entrim.Distillation({settings})" in page
    again = command("distill", "first", "--epochs", "1", "--out", "second")
    assert again.code == 0, again.err
    assert read_source(workshop / "second") == read_source(pruned)
    chain = read(workshop / "second").commands
    assert [words[1:3] for words in chain] == [
        ("sparsify", "nets.py:small"),
        ("distill", "pruned"),
        ("distill", "first"),
    ]
    page = (workshop / "second" / "report.html").read_text()
    assert page.index("entrim sparsify nets.py:small") < page.index("entrim distill first")
    shown = command("compare", "first").out
    assert "\nfirst:\n  entrim sparsify nets.py:small" in shown
    assert "\n  entrim distill pruned --epochs 2" in shown


def test_other_images_keep_the_normalization_of_the_run(command: Command, workshop: Path) -> None:
    sight = ("--mean", "0.5", "--std", "2", "--scale", "100")
    words = ("--weights", "w.pt", "--images", "x.npy", "--width", "0.5", "--out", "scaled")
    assert command("sparsify", "nets.py:small", *words, *sight).code == 0
    np.savez(workshop / "more.npz", x=np.load(workshop / "x.npy")[:30])
    words = ("distill", "scaled", "--images", "more.npz", "--epochs", "1", "--json")
    done = command(*words, "--out", "scaled-better")
    assert done.code == 0, done.err
    assert "images:" not in done.err
    assert json.loads(done.out)["distilled"]["images"] == 21  # without hold-out images
    source = read_source(workshop / "scaled-better")
    assert source["images"] == "more.npz"
    assert (source["mean"], source["std"], source["scale"]) == ([0.5], [2.0], 100.0)


def test_another_teacher_is_used(command: Command, workshop: Path, pruned: Path) -> None:
    torch.save(
        {name: -tensor for name, tensor in trained_network().state_dict().items()},
        workshop / "minus.pt",
    )
    teacher = ("--teacher", "nets.py:small", "--teacher-weights", "minus.pt", "--json")
    found = [
        json.loads(command("distill", "pruned", *FEW, *more, "--force", "--out", "pupil").out)
        for more in (("--json",), teacher)
    ]
    own, other = (told["distilled"]["before"] for told in found)
    assert other > 10 * own


def make_stopping_display(at: int, seen: list[int]) -> type[ProgressDisplay]:
    class Stopping(ProgressDisplay):
        def on_step(self, event: ProgressEvent) -> None:
            seen.append(event.done)
            if event.done == at:
                raise KeyboardInterrupt

    return Stopping


def test_interrupted_distillation_continues_bit_by_bit(
    workshop: Path,
    pruned: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(workshop)
    for name in ("undisturbed", "halted"):
        shutil.rmtree(name, ignore_errors=True)
    assert main(["distill", "pruned", *FEW, "--out", "undisturbed"]) == 0
    words = ["distill", "pruned", *FEW, "--out", "halted"]
    seen: list[int] = []
    monkeypatch.setattr(distill_command, "ProgressDisplay", make_stopping_display(7, seen))
    assert main(words) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "entrim: interrupted: finished epochs are kept in halted, and the same command continues "
        "from there"
    )
    assert (workshop / "halted" / CHECKPOINT).is_dir()
    assert not (workshop / "halted" / "entrim.json").exists()
    assert main(["sparsify", "nets.py:small", "--images", "x.npy", "--out", "halted"]) == 1
    assert "halted contains an unfinished run: repeat its command" in capsys.readouterr().err
    seen.clear()
    monkeypatch.setattr(distill_command, "ProgressDisplay", make_stopping_display(-1, seen))
    assert main(words) == 0
    assert seen == [0, 6, 7, 8, 9, 10]
    assert not (workshop / "halted" / CHECKPOINT).exists()
    expected, halted = tensors(workshop / "undisturbed"), tensors(workshop / "halted")
    assert all(torch.equal(tensor, halted[name]) for name, tensor in expected.items())


def test_killed_distillation_continues_bit_by_bit(
    command: Command, workshop: Path, pruned: Path
) -> None:
    words = ("distill", "pruned", *FEW, "--out")
    assert command(*words, "unharmed").code == 0
    codes = []
    for count in range(1, 12):
        codes.append(command(*words, "struck", stop=(signal.SIGKILL, count)).code)
        if codes[-1] != -signal.SIGKILL:
            break
        if (workshop / "struck" / "entrim.json").exists():  # saved: only its report is missing
            codes.append(command(*words, "struck", "--force").code)
            break
    assert len(codes) >= 3
    assert codes[-1] == 0
    expected, killed = tensors(workshop / "unharmed"), tensors(workshop / "struck")
    assert all(torch.equal(tensor, killed[name]) for name, tensor in expected.items())
    assert not (workshop / "struck" / CHECKPOINT).exists()


def test_other_options_do_not_continue_a_run(
    workshop: Path,
    pruned: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(workshop)
    words = ["distill", "pruned", *FEW, "--out", "others"]
    with monkeypatch.context() as patch:
        patch.setattr(distill_command, "ProgressDisplay", make_stopping_display(7, []))
        assert main(words) == 1
    folder = workshop / "others" / CHECKPOINT
    before = {entry.name: entry.read_bytes() for entry in folder.iterdir()}
    other = [*words, "--learning-rate", "0.1"]
    assert main(other) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "others/.entrim.checkpoint belongs to another run (settings differ): repeat the" in last
    assert last.endswith("name another folder with --out, or pass --force to discard it")
    assert {entry.name: entry.read_bytes() for entry in folder.iterdir()} == before
    assert main([*other, "--force"]) == 0
    assert read(workshop / "others").record.distilled is not None
    assert not folder.exists()


def test_distillation_stopped_before_its_first_step_keeps_nothing(
    command: Command, workshop: Path, pruned: Path
) -> None:
    (workshop / "slow.py").write_text(
        "import os, signal\n"
        "from nets import small\n"
        "def stopped():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    done = command("distill", "pruned", "--teacher", "slow.py:stopped", "--out", "unbegun")
    assert done.code == 1
    assert done.err.splitlines()[-1] == (
        "entrim: interrupted: nothing was finished yet, and saved files are intact"
    )
    assert not (workshop / "unbegun").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nowhere",), "there is no folder nowhere: name one that sparsify"),
        (
            ("pruned", "--model", "nets.py:small"),
            "with other weights: load the original weights",
        ),
        (("pruned", "--model", "nets.py:gone"), "nets.py has no 'gone'"),
        (("pruned", "--images", "color.npy"), "have 3 channels"),
        (("pruned", "--teacher-weights", "w.pt"), "pass --teacher MODEL too"),
        (("pruned", "--holdout", "1"), "--holdout must be a fraction such as 0.1, got 1.0"),
        (("pruned", "--count", "3"), "3 images leave 0 to hold out"),
    ],
)
def test_invalid_distillation_is_refused_and_leaves_no_folder(
    command: Command, workshop: Path, pruned: Path, words: tuple[str, ...], sentence: str
) -> None:
    done = command("distill", *words, "--out", "never")
    assert (done.code, done.out) == (1, "")
    assert sentence in done.err.splitlines()[-1]
    assert not (workshop / "never").exists()


@pytest.mark.parametrize("note", [None, "[", "{}", '{"source": 3}', '{"source": {"model": 3}}'])
def test_run_without_its_network_asks_for_it(
    command: Command, workshop: Path, pruned: Path, note: str | None
) -> None:
    place = workshop / "silent"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(pruned, place)
    (place / "command.json").unlink()
    if note is not None:
        (place / "command.json").write_text(note)
    done = command("distill", "silent", "--out", "never")
    assert done.err == "entrim: silent does not name its model: pass --model\n"


def test_existing_run_is_kept_without_force(command: Command, workshop: Path, pruned: Path) -> None:
    before = {entry.name: entry.read_bytes() for entry in pruned.iterdir()}
    done = command("distill", "pruned", "--out", "pruned")
    assert done.code == 1
    assert "contains another run" in done.err
    assert command("distill", "pruned", *FEW, "--out", "distilled").code == 0
    again = command("distill", "pruned", *FEW, "--out", "distilled", "--json")
    assert "distilled contains the finished run of this command: pass --force" in again.err
    assert before == {entry.name: entry.read_bytes() for entry in pruned.iterdir()}
