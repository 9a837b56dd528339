"""`entrim export`: files that compute the same outputs as the network."""

import json
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import entrim
from entrim.cli.main import main
from entrim.storage.model_folder import save
from tests.cli.conftest import Command, CommandResult, assert_refused, trained_network

runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install onnxruntime")

MODEL = "MODEL: nets.py:small, from half/command.json"
STAGES = r"reading |(MODEL|export|compare|calibrate|entrim: warning): "
assert_failed = partial(assert_refused, before=STAGES)


@pytest.fixture(scope="module")
def half(half_result: CommandResult, workshop: Path) -> Path:
    """Return the folder of a run."""
    assert half_result.code == 0, half_result.err
    return workshop / "half"


def onnx_outputs(file: Path, images: torch.Tensor) -> torch.Tensor:
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["images"]
    return torch.from_numpy(session.run(["outputs"], {"images": images.numpy()})[0])


def assert_success(done: CommandResult) -> None:
    assert done.code == 0, done.err
    for line in done.err.splitlines():
        assert re.match(STAGES, line), line


def test_run_is_exported_without_naming_model_or_images(
    command: Command, workshop: Path, half: Path
) -> None:
    labels = np.arange(60) % 4
    np.savez(workshop / "listed.npz", shown=labels, other=labels)
    words = ("export", "half", "--onnx", "net.onnx", "--int8", "--json")
    done = command(*words, "--labels", "listed.npz", "--labels-key", "shown")
    assert_success(done)
    assert MODEL in done.err
    assert "calibrated on only 60 images" in done.err
    told = json.loads(done.out)
    assert (told["images"], told["source"]) == (60, "x.npy")
    plain, eight = told["files"]
    assert (plain["file"], eight["file"]) == ("net.onnx", "net.int8.onnx")
    x, network = (
        torch.from_numpy(np.load(workshop / "x.npy")),
        entrim.load(trained_network(), half).eval(),
    )
    with torch.no_grad():
        wanted = network(x)
    found = {row["file"]: onnx_outputs(workshop / row["file"], x) for row in told["files"]}
    torch.testing.assert_close(found["net.onnx"], wanted, rtol=1e-4, atol=1e-5)
    apart = (found["net.int8.onnx"] - found["net.onnx"]).double()
    assert eight["relative"] == pytest.approx(
        float(apart.norm() / found["net.onnx"].double().norm()), rel=1e-6
    )
    for row in (plain, eight):
        scores = found[row["file"]]
        assert row["bytes"] == (workshop / row["file"]).stat().st_size
        right = (scores.argmax(1) == torch.from_numpy(labels)).double().mean()
        assert row["accuracy"] == pytest.approx(100 * float(right))
    assert plain["relative"] < 1e-5
    assert plain["same"] == 60


def test_table_names_files_and_images(command: Command, workshop: Path, half: Path) -> None:
    np.save(workshop / "listed.npy", np.arange(60) % 4)
    done = command("export", "half", "--torchexport", "program.pt2", "--labels", "listed.npy")
    assert_success(done)
    rows = [line.split("  ") for line in done.out.splitlines()]
    assert [row[0] for row in rows] == ["", "before pruning", "program.pt2", "", rows[-1][0]]
    assert rows[-1][0].endswith("compared with the network in PyTorch, on 60 images of x.npy")
    assert "60 of 60" in done.out
    x, network = (
        torch.from_numpy(np.load(workshop / "x.npy")),
        entrim.load(trained_network(), half).eval(),
    )
    again = torch.export.load(workshop / "program.pt2").module()
    torch.testing.assert_close(again(x), network(x))
    plain = command("export", "half", "--torchexport", "program.pt2", "--count", "9", "--force")
    assert "accuracy" not in plain.out
    assert "on 9 images of x.npy" in plain.out


def test_folder_without_a_command_needs_model_and_images(
    command: Command, workshop: Path, half: Path
) -> None:
    bare = workshop / "bare"
    shutil.copytree(half, bare, dirs_exist_ok=True)
    (bare / "command.json").unlink()
    words = ("export", "bare", "--torchexport", "bare.pt2")
    assert_refused(command(*words), "does not name the original network", "--model")
    words += ("--model", "nets.py:small")
    assert_refused(command(*words), "--images PATH, or --shape C,H,W")
    assert_refused(command(*words, "--shape", "3,8,8"), "cannot read images of shape (3, 8, 8)")
    done = command(*words, "--shape", "1,8,8")
    assert_success(done)
    assert "on 64 random normal images" in done.out
    (bare / "command.json").write_text('{"command": ["entrim", "--help"], "source": {"model": 3}}')
    assert_refused(
        command("export", "bare", "--torchexport", "b.pt2"), "does not name the original network"
    )


def test_network_saved_from_python_is_exported(command: Command, workshop: Path) -> None:
    plan = entrim.Plan({"0": [1, 6]})
    save(
        entrim.apply_plan(trained_network(), plan, torch.randn(3, 1, 8, 8)),
        plan,
        workshop / "library",
    )
    words = ("--model", "nets:small", "--shape", "1,8,8", "--json")
    done = command("export", "library", "--torchexport", "library.pt2", *words)
    assert_success(done)
    assert json.loads(done.out)["source"] is None


@pytest.mark.parametrize("words", [("--onnx", "odd.onnx"), ("--torchexport", "odd.pt2")])
def test_failed_export_leaves_no_file(
    command: Command, workshop: Path, half: Path, words: tuple[str, str]
) -> None:
    export, file = ("export", "half", *words), words[1]
    assert_refused(
        command(*export, "--model", "nets.py:wide"),
        "0.weight is float32[9, 1, 3, 3], but float32[8, 1, 3, 3] was saved",
    )
    assert_failed(command(*export, "--images", "gone.npy"), "there is no gone.npy")
    assert_failed(
        command(*export, limit=1000), file, "cannot be written (File too large): free space"
    )
    assert_refused(command("export", "half", words[0], f"gone/{file}"), "no folder gone: create it")
    assert_refused(command("export", "half", words[0], "half"), "half is a folder")
    locked = workshop / "sealed"
    locked.mkdir(exist_ok=True)
    locked.chmod(0o500)
    place = "/proc" if os.geteuid() == 0 else "sealed"  # root may write everywhere else
    done = command("export", "half", words[0], f"{place}/{file}")
    assert_refused(done, f"{place} cannot be written")
    locked.chmod(0o700)
    ours = ("odd.onnx", "odd.int8", "odd.pt2", ".entrim")
    left = [entry.name for entry in workshop.iterdir() if entry.name.startswith(ours)]
    assert left == []


def test_outdated_command_file_is_explained(
    command: Command, workshop: Path, half: Path, tmp_path: Path
) -> None:
    words = ("export", half, "--torchexport", "moved.pt2")
    assert_failed(
        command(*words, cwd=tmp_path), "no file nets.py", "run in the folder of that command"
    )
    shutil.copy(workshop / "nets.py", tmp_path)
    assert_failed(command(*words, cwd=tmp_path), "x.npy of the run does not exist", "--shape C,H,W")
    done = command(*words, "--shape", "1,8,8", cwd=tmp_path)
    assert_success(done)
    assert "random normal images" in done.out


def test_existing_files_are_kept_without_force(
    command: Command, workshop: Path, half: Path
) -> None:
    (workshop / "mine.int8.onnx").write_text("mine")
    words = ("export", "half", "--onnx", "mine.onnx", "--int8", "--count", "20")
    assert_refused(command(*words), "mine.int8.onnx exists", "--force")
    assert (workshop / "mine.int8.onnx").read_text() == "mine"
    assert not (workshop / "mine.onnx").exists()
    assert_success(command(*words, "--force"))
    assert (workshop / "mine.onnx").exists()
    assert (workshop / "mine.int8.onnx").read_bytes() != b"mine"


def test_int8_and_labels_need_images(command: Command, workshop: Path, half: Path) -> None:
    pt2, onnx = ("export", "half", "--torchexport", "i.pt2"), ("export", "half", "--onnx", "i.onnx")
    assert_refused(command(*pt2, "--int8"), "pass --onnx FILE")
    assert_failed(command(*onnx, "--int8", "--shape", "1,8,8"), "--int8 needs images", "--images")
    np.save(workshop / "labels.npy", np.zeros(60, int))
    words = (*pt2, "--labels", "labels.npy")
    assert_failed(command(*words, "--shape", "1,8,8"), "--labels needs images", "--images")
    for name, odd, sentence in (
        ("short", np.zeros(59, int), "there are 59 labels for the 60 images in x.npy"),
        ("float", np.zeros(60), "are float64 of shape (60,): save one integer per image"),
    ):
        np.save(workshop / f"{name}.npy", odd)
        assert_failed(command(*pt2, "--labels", f"{name}.npy"), sentence)
    np.savez(workshop / "pair.npz", a=np.zeros(60, int), b=np.zeros(60, int))
    assert_failed(
        command(*pt2, "--labels", "pair.npz"), "contains a, b: name one with --labels-key"
    )
    assert_failed(
        command(*onnx, "--int8", limit=1500), "cannot be written (File too large)", "TMPDIR"
    )
    assert not list(workshop.glob("i.*"))


def test_labels_follow_the_sampled_images(command: Command, workshop: Path, half: Path) -> None:
    x = torch.from_numpy(np.load(workshop / "x.npy"))
    network = entrim.load(trained_network(), half).eval()
    labels = network(x).argmax(1)
    torch.save((x, labels), workshop / "labels_file.pt")
    words = ("--labels", "labels_file.pt", "--count", "7", "--json")
    done = command("export", "half", "--torchexport", "labels_file.pt2", *words)
    assert_success(done)
    told = json.loads(done.out)
    assert told["images"] == 7
    assert told["files"][0]["accuracy"] == 100


def test_original_accuracy_needs_the_original_weights(
    command: Command, workshop: Path, half: Path
) -> None:
    x, model = torch.from_numpy(np.load(workshop / "x.npy")), trained_network()
    save_file(model.state_dict(), workshop / "before.safetensors")
    with torch.no_grad():
        np.save(workshop / "truth.npy", model(x).argmax(1).numpy())
    words = ("export", "half", "--torchexport", "b.pt2", "--labels", "truth.npy", "--json")
    words += ("--force", "--model", "nets.py:small")
    assert json.loads(command(*words).out)["before"] is None
    told = json.loads(command(*words, "--weights", "before.safetensors").out)
    assert told["before"] == 100


def test_output_of_user_code_goes_to_stderr(command: Command, workshop: Path, half: Path) -> None:
    loud = "from nets import small as quiet\ndef small():\n    print('hello')\n    return quiet()\n"
    (workshop / "loud.py").write_text(loud)
    words = ("export", "half", "--torchexport", "loud.pt2", "--model", "loud.py:small", "--json")
    done = command(*words)
    assert done.code == 0, done.err
    assert json.loads(done.out)["images"] == 60
    assert "hello" in done.err


def test_exactly_one_format_is_required(command: Command) -> None:
    for words in ((), ("--onnx", "a.onnx", "--torchexport", "a.pt2")):
        done = command("export", "half", *words)
        assert (done.code, done.out) == (2, "")
        assert "--torchexport" in done.err


def test_missing_package_is_one_sentence(
    half: Path,
    workshop: Path,
    uninstall: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(workshop)
    uninstall("onnxruntime")
    assert main(["export", "half", "--onnx", "missing.onnx"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "needs onnx, onnxscript and onnxruntime: pip install onnx onnxscript" in told.err
    assert not (workshop / "missing.onnx").exists()
