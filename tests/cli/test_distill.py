"""`entrim distill`: from a saved run to a better one, stopped and gone on with."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import entrim
from entrim.cli import distill as distilling
from entrim.cli.console import Progress
from entrim.cli.main import main
from entrim.cli.run_dir import read_source
from entrim.records import ProgressEvent
from entrim.report.report_data import read
from entrim.storage.model_folder import CHECKPOINT
from tests.cli.conftest import Command, taught

FEW = ("--epochs", "2", "--batch", "9", "--shift", "0")


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    (file,) = folder.glob("weights-*.safetensors")
    return load_file(file)


def test_what_the_command_does_is_what_the_function_does(
    command: Command, workshop: Path, cut: Path
) -> None:
    done = command("distill", "cut", *FEW, "--no-patience", "--seed", "3", "--out", "better")
    assert done.code == 0, done.err
    assert "model: nets.py:small, as noted in cut" in done.err
    assert "distill: 12 of 12  loss" in done.err
    x = torch.from_numpy(np.load(workshop / "x.npy"))
    loaded = entrim.SparsifyResult.load(taught(), cut)
    options: dict[str, Any] = {"epochs": 2, "batch": 9, "shift": 0.0, "patience": None, "seed": 3}
    wanted = entrim.distill(loaded, x, **options)
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


def test_a_distilled_run_is_compared_reported_and_distilled_again(
    command: Command, workshop: Path, cut: Path
) -> None:
    assert command("distill", "cut", *FEW, "--force", "--out", "first").code == 0
    told = json.loads(command("compare", "cut", "first", "--json").out)
    assert told[0]["distilled"] is None
    assert told[1]["distilled"]["epochs"] == 2
    assert told[0]["widths"] == told[1]["widths"]
    assert "loss by distillation" in command("compare", "first").out
    assert command("report", "first").code == 0
    page = (workshop / "first" / "report.html").read_text()
    assert "entrim distill cut --epochs 2" in page
    assert "entrim.distill(small, images, epochs=2, batch=9, seed=0, shift=0.0)" in page
    again = command("distill", "first", "--epochs", "1", "--out", "second")
    assert again.code == 0, again.err
    assert read_source(workshop / "second") == read_source(cut)
    chain = read(workshop / "second").commands
    assert [words[1:3] for words in chain] == [
        ("sparsify", "nets.py:small"),
        ("distill", "cut"),
        ("distill", "first"),
    ]
    page = (workshop / "second" / "report.html").read_text()
    assert page.index("entrim sparsify nets.py:small") < page.index("entrim distill first")
    shown = command("compare", "first").out
    assert "\nfirst:\n  entrim sparsify nets.py:small" in shown
    assert "\n  entrim distill cut --epochs 2" in shown


def test_other_images_keep_the_normalisation_of_the_cut(command: Command, workshop: Path) -> None:
    sight = ("--mean", "0.5", "--std", "2", "--scale", "100")
    words = ("--weights", "w.pt", "--images", "x.npy", "--width", "0.5", "--out", "scaled")
    assert command("sparsify", "nets.py:small", *words, *sight).code == 0
    np.savez(workshop / "more.npz", x=np.load(workshop / "x.npy")[:30])
    words = ("distill", "scaled", "--images", "more.npz", "--epochs", "1", "--json")
    done = command(*words, "--out", "scaled-better")
    assert done.code == 0, done.err
    assert "images:" not in done.err
    assert json.loads(done.out)["distilled"]["images"] == 27
    noted = read_source(workshop / "scaled-better")
    assert noted["images"] == "more.npz"
    assert (noted["mean"], noted["std"], noted["scale"]) == ([0.5], [2.0], 100.0)


def test_another_teacher_is_learned_from(command: Command, workshop: Path, cut: Path) -> None:
    torch.save(
        {name: -tensor for name, tensor in taught().state_dict().items()}, workshop / "minus.pt"
    )
    teacher = ("--teacher", "nets.py:small", "--teacher-weights", "minus.pt", "--json")
    found = [
        json.loads(command("distill", "cut", *FEW, *more, "--force", "--out", "pupil").out)
        for more in (("--json",), teacher)
    ]
    own, other = (told["distilled"]["before"] for told in found)
    assert other > 10 * own


def stopping(at: int, seen: list[int]) -> type[Progress]:
    class Stopping(Progress):
        def __call__(self, step: ProgressEvent) -> None:
            seen.append(step.done)
            if step.done == at:
                raise KeyboardInterrupt

    return Stopping


def test_the_same_command_goes_on_to_the_same_bits(
    workshop: Path, cut: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workshop)
    for name in ("undisturbed", "halted"):
        shutil.rmtree(name, ignore_errors=True)
    assert main(["distill", "cut", *FEW, "--out", "undisturbed"]) == 0
    words = ["distill", "cut", *FEW, "--out", "halted"]
    seen: list[int] = []
    monkeypatch.setattr(distilling, "Progress", stopping(7, seen))
    assert main(words) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "entrim: interrupted: the state of the training is kept in halted, and the same command "
        "goes on from there"
    )
    assert (workshop / "halted" / CHECKPOINT).is_file()
    assert not (workshop / "halted" / "entrim.json").exists()
    assert main(["sparsify", "nets.py:small", "--images", "x.npy", "--out", "halted"]) == 1
    assert "halted holds a run that was not finished: go on" in capsys.readouterr().err
    seen.clear()
    monkeypatch.setattr(distilling, "Progress", stopping(-1, seen))
    assert main(words) == 0
    assert seen == [8, 9, 10, 11, 12]
    assert not (workshop / "halted" / CHECKPOINT).exists()
    whole, halted = tensors(workshop / "undisturbed"), tensors(workshop / "halted")
    assert all(torch.equal(tensor, halted[name]) for name, tensor in whole.items())


def test_a_distillation_killed_before_every_write_in_turn_ends_with_the_same_bits(
    command: Command, workshop: Path, cut: Path
) -> None:
    words = ("distill", "cut", *FEW, "--out")
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
    whole, killed = tensors(workshop / "unharmed"), tensors(workshop / "struck")
    assert all(torch.equal(tensor, killed[name]) for name, tensor in whole.items())
    assert not (workshop / "struck" / CHECKPOINT).exists()


def test_other_options_do_not_go_on_with_a_run(
    workshop: Path, cut: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workshop)
    words = ["distill", "cut", *FEW, "--out", "others"]
    with monkeypatch.context() as patch:
        patch.setattr(distilling, "Progress", stopping(3, []))
        assert main(words) == 1
    before = (workshop / "others" / CHECKPOINT).read_bytes()
    other = [*words, "--learning-rate", "0.1"]
    assert main(other) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "others/.entrim.checkpoint belongs to another run (settings differ): give the" in last
    assert last.endswith("name another folder with --out, or pass --force to discard it")
    assert (workshop / "others" / CHECKPOINT).read_bytes() == before
    assert main([*other, "--force"]) == 0
    assert read(workshop / "others").record.distilled is not None
    assert not (workshop / "others" / CHECKPOINT).exists()


def test_a_distillation_stopped_before_its_first_step_keeps_nothing(
    command: Command, workshop: Path, cut: Path
) -> None:
    (workshop / "slow.py").write_text(
        "import os, signal\n"
        "from nets import small\n"
        "def stopped():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    done = command("distill", "cut", "--teacher", "slow.py:stopped", "--out", "unbegun")
    assert done.code == 1
    assert done.err.splitlines()[-1] == (
        "entrim: interrupted: nothing was finished yet, and what was saved before is intact"
    )
    assert not (workshop / "unbegun").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nowhere",), "there is no folder nowhere: name one that sparsify"),
        (("cut", "--model", "nets.py:small"), "with other weights: give the network the weights"),
        (("cut", "--model", "nets.py:gone"), "nets.py has no 'gone'"),
        (("cut", "--images", "colour.npy"), "have 3 channels"),
        (("cut", "--patience", "1", "--no-patience"), "contradict each other"),
        (("cut", "--teacher-weights", "w.pt"), "pass --teacher MODEL too"),
        (("cut", "--held-out", "1"), "--held-out is 1.0"),
        (("cut", "--count", "3"), "3 images leave 0 to hold out"),
    ],
)
def test_what_cannot_be_distilled_is_refused_and_leaves_no_folder(
    command: Command, workshop: Path, cut: Path, words: tuple[str, ...], sentence: str
) -> None:
    done = command("distill", *words, "--out", "never")
    assert (done.code, done.out) == (1, "")
    assert sentence in done.err.splitlines()[-1]
    assert not (workshop / "never").exists()


@pytest.mark.parametrize("note", [None, "[", "{}", '{"source": 3}', '{"source": {"model": 3}}'])
def test_a_run_that_does_not_tell_its_network_asks_for_it(
    command: Command, workshop: Path, cut: Path, note: str | None
) -> None:
    place = workshop / "silent"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(cut, place)
    (place / "command.json").unlink()
    if note is not None:
        (place / "command.json").write_text(note)
    done = command("distill", "silent", "--out", "never")
    assert done.err == "entrim: silent does not tell its model: pass --model\n"


def test_another_run_is_kept_unless_forced(command: Command, workshop: Path, cut: Path) -> None:
    before = {entry.name: entry.read_bytes() for entry in cut.iterdir()}
    done = command("distill", "cut", "--out", "cut")
    assert done.code == 1
    assert "holds another run" in done.err
    assert command("distill", "cut", *FEW, "--out", "taught").code == 0
    again = command("distill", "cut", *FEW, "--out", "taught", "--json")
    assert "taught holds the run of this command, and it is finished: pass --force" in again.err
    assert before == {entry.name: entry.read_bytes() for entry in cut.iterdir()}
