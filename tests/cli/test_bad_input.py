"""Every mistake ends in one sentence and exit code 1, and leaves no files."""

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from entrim.storage.checkpoint import UNFINISHED
from entrim.storage.model_folder import CHECKPOINT
from tests.cli.conftest import Command, CommandResult, assert_refused

SPARSIFY = ("sparsify", "nets.py:small", "--out", "never")


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("nowhere.at.all:net", ("no module 'nowhere'", "install it")),
        ("nets.py", ("write package.module:factory",)),
        ("gone.py:small", ("no file gone.py",)),
        ("nets.py:large", ("no 'large'", "broken, fewer, fixed, heavy, kill")),
        ("nets:broken", ("RuntimeError: no such width", "correct the code")),
        ("nets:wrong", ("returned a int", "torch.nn.Module")),
        ("nets:number", ("name a function",)),
    ],
)
def test_invalid_models_are_refused(command: Command, model: str, parts: tuple[str, ...]) -> None:
    assert_refused(command("inspect", model, "--shape", "1,8,8"), *parts)


def test_debug_shows_the_traceback(command: Command) -> None:
    done = command("inspect", "nets.py:broken", "--shape", "1,8,8", "--debug")
    assert done.code == 1
    assert "Traceback" in done.err
    assert done.err.splitlines()[-1].startswith("entrim: nets.py:broken() raised")


def test_wrong_shape_is_refused(command: Command) -> None:
    assert_refused(command("inspect", "nets.py:small", "--shape", "3,8,8"), "(3, 8, 8)", "--shape")


def test_mismatched_weights_are_named(command: Command, workshop: Path) -> None:
    tensors = {"0.weight": torch.zeros(8, 3, 3, 3), "0.bias": torch.zeros(8), "x": torch.zeros(1)}
    save_file(tensors, workshop / "odd.safetensors")
    torch.save({"state_dict": tensors}, workshop / "odd.pt")
    for name in ("odd.safetensors", "odd.pt"):
        assert_refused(
            command("inspect", "nets.py:small", "--weights", name, "--shape", "1,8,8"),
            "missing: 4.weight, 4.bias",
            "not in the network: x",
            "0.weight [8, 3, 3, 3] instead of [8, 1, 3, 3]",
        )


def test_nan_weights_are_named(command: Command, workshop: Path) -> None:
    held = torch.load(workshop / "w.pt")
    held["4.bias"][2] = torch.nan
    torch.save(held, workshop / "nan.pt")
    words = ("nets.py:small", "--weights", "nan.pt")
    for done in (
        command("inspect", *words, "--shape", "1,8,8"),
        command("sparsify", *words, "--images", "x.npy", "--out", "never"),
    ):
        assert_refused(done, "returns NaN, because 4.bias contains NaN: load finite weights")


class Evil:
    """Executes code when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.file),)


def test_pickled_code_is_refused_and_not_executed(command: Command, workshop: Path) -> None:
    sign = workshop / "it-ran"
    torch.save({"state_dict": Evil(sign)}, workshop / "evil.pt")
    (workshop / "plain.pt").write_bytes(pickle.dumps(Evil(sign)))
    np.save(workshop / "evil.npy", np.array([Evil(sign)], object), allow_pickle=True)
    for name in ("evil.pt", "plain.pt"):
        words = ("inspect", "nets.py:small", "--shape", "1,8,8", "--weights", name)
        assert_refused(command(*words), name, "save model.state_dict()")
        assert_refused(command(*SPARSIFY, "--images", name), name, "a tensor of images")
    assert_refused(command(*SPARSIFY, "--images", "evil.npy"), "evil.npy", "numpy.save")
    assert not sign.exists()


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("gone.pt", None, "there is no file gone.pt: name the weights with --weights"),
        ("short.safetensors", b"PK", "cannot be read"),
        ("none.pt", b"", "was not written by torch.save: save model.state_dict()"),
        ("short.pt", b"PK", "was not written by torch.save"),
        ("archive.pt", b"PK\x03\x04", "cannot be read (PytorchStreamReader failed"),
        ("pickle.pt", b"\x80\x02.", "pickle.pt"),
        ("stack.pt", b"\x80\x02(.", "cannot be read"),
        ("old.pt", b"\x80", "cannot be read"),
        ("x.npy", None, "save model.state_dict() as .safetensors or .pt"),
    ],
)
def test_damaged_or_missing_weights_are_refused(
    command: Command, workshop: Path, name: str, content: bytes | None, part: str
) -> None:
    if content is not None:
        (workshop / name).write_bytes(content)
    words = ("inspect", "nets.py:small", "--shape", "1,8,8", "--weights", name)
    done = command(*words)
    assert_refused(done, name, part)
    assert "unexpected" not in done.err


def test_common_prefix_of_weights_is_reported(command: Command, workshop: Path) -> None:
    held = {f"module.{name}": tensor for name, tensor in torch.load(workshop / "w.pt").items()}
    torch.save(held, workshop / "parallel.pt")
    words = ("inspect", "nets.py:small", "--shape", "1,8,8", "--weights", "parallel.pt")
    assert_refused(
        command(*words),
        "all its names begin with 'module.': save {name.removeprefix('module.'): tensor for name",
    )


def test_long_lists_are_shortened(command: Command, workshop: Path) -> None:
    (workshop / "many.py").write_text("".join(f"def f{k:02}(): ...\n" for k in range(15)))
    done = command("inspect", "many.py:net", "--shape", "1,8,8")
    assert_refused(done, "name one of f00, f01,", "f11 and 3 more")


def test_several_arrays_need_a_key(command: Command, workshop: Path) -> None:
    np.savez(workshop / "two.npz", a=np.zeros(3), b=np.zeros(3))
    assert_refused(command(*SPARSIFY, "--images", "two.npz"), "contains a, b", "--key")
    assert_refused(command(*SPARSIFY, "--images", "two.npz", "--key", "a"), "has shape (3,)")


def test_refused_run_leaves_no_folder(command: Command, workshop: Path) -> None:
    assert_refused(command(*SPARSIFY, "--images", "color.npy"))
    assert not (workshop / "never").exists()


def test_unknown_pattern_is_refused(command: Command) -> None:
    words = (*SPARSIFY, "--images", "x.npy", "--exclude", "nothing*")
    done = command(*words)
    assert done.code == 1
    assert "no group matches 'nothing*'" in done.err.splitlines()[-1]


def test_folder_with_other_files_is_never_written(command: Command, workshop: Path) -> None:
    place = workshop / "photos"
    place.mkdir(exist_ok=True)
    (place / "holiday.txt").write_text("sun")
    words = ("sparsify", "nets.py:small", "--images", "x.npy", "--out", "photos")
    for more in ((), ("--force",)):
        assert_refused(command(*words, *more), "something other than a run", "--out")
    assert [entry.name for entry in place.iterdir()] == ["holiday.txt"]
    assert_refused(command(*words[:-1], "nets.py"), "is a file")


def test_existing_run_is_kept_without_force(
    command: Command, workshop: Path, half_result: CommandResult
) -> None:
    before = {entry.name: entry.read_bytes() for entry in (workshop / "half").iterdir()}
    words = ("sparsify", "nets.py:small", "--images", "x.npy", "--out", "half")
    assert_refused(command(*words), "contains another run", "--force")
    same = command(*words, "--params", "50%")
    assert_refused(same, "half contains another run")  # the same words in another order
    again = (*words[:-2], "--params", "50%", "--out", "half")
    assert_refused(command(*again), "contains the finished run of this command", "--force")
    assert before == {entry.name: entry.read_bytes() for entry in (workshop / "half").iterdir()}


def test_unwritable_folder_is_refused(command: Command, workshop: Path) -> None:
    locked = workshop / "locked"
    locked.mkdir(exist_ok=True)
    locked.chmod(0o500)
    place = "/proc/entrim" if os.geteuid() == 0 else "locked/run"  # root may write everywhere else
    words = ("sparsify", "nets.py:small", "--images", "x.npy", "--out", place)
    assert_refused(command(*words), place, "cannot be written")
    locked.chmod(0o700)


NO_RUNS = {
    "nowhere": "there is no folder nowhere: name one that sparsify, search, distill or save()",
    "x.npy": "x.npy is a file: name the folder of a run",
    "empty": "empty contains no run: name a folder that sparsify, search, distill or save() wrote",
    "broken-off": "contains an unfinished run: repeat its command to finish it",
    "begun": "contains an unfinished run: repeat its command to finish it",
    "sought": "is not a run but contains runs: name one of them, such as sought/trial-3",
    "unpicked": "contains a search without a saved network: repeat its command with --pick",
}


@pytest.mark.parametrize("name", NO_RUNS)
def test_folder_without_a_run_is_explained(
    command: Command, workshop: Path, pruned: Path, name: str
) -> None:
    if name not in ("nowhere", "x.npy"):
        (workshop / name).mkdir(exist_ok=True)
    if name == "broken-off":
        (workshop / name / UNFINISHED).mkdir(exist_ok=True)
    if name == "begun":
        (workshop / name / CHECKPOINT).touch()
    if name in ("sought", "unpicked"):
        (workshop / name / "search-0123.log").touch()
    if name == "sought":
        shutil.copytree(pruned, workshop / name / "trial-3", dirs_exist_ok=True)
    commands = {
        "report": (),
        "compare": (),
        "distill": ("--out", "never"),
        "export": ("--torchexport", "x.pt2"),
    }
    for word, more in commands.items():
        assert_refused(command(word, name, *more), NO_RUNS[name])


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("paint",), "invalid choice"),
        (("inspect", "nets.py:small"), "--shape"),
        (("inspect", "nets.py:small", "--shape", "1,0"), "positive integers"),
        ((*SPARSIFY, "--images", "x.npy", "--params", "30kg"), "unknown unit"),
        ((*SPARSIFY, "--images", "x.npy", "--params", "130%"), "at most 100%"),
        ((*SPARSIFY, "--images", "x.npy", "--latency", "5"), "has no unit"),
        ((*SPARSIFY, "--images", "x.npy", "--eps", "conv=1"), "PATTERN=EPS_W,EPS_L2"),
    ],
)
def test_wrong_usage_exits_with_2(command: Command, words: tuple[str, ...], part: str) -> None:
    done = command(*words)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert part in done.err
