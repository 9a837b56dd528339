"""`entrim search`: the front, the saved network, and the metric."""

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import entrim
from entrim.cli import search as search_command
from entrim.cli.scores import Accuracy, Metric, read_metric
from entrim.errors import CommandError
from entrim.report.report_data import read
from tests.cli.conftest import Command, trained_network

WORDS = ("search", "nets.py:small", "--weights", "w.pt", "--images", "x.npy")
RANGES = ("--eps-w", "1e-3,1e-1", "--eps-l2", "1e-4,1e-2")


@pytest.fixture(scope="session")
def labels_file(workshop: Path) -> Path:
    """Write labels of which the network predicts three quarters."""
    x = np.load(workshop / "x.npy")
    with torch.no_grad():
        y = trained_network()(torch.from_numpy(x)).argmax(1).numpy()
    y[::4] = (y[::4] + 1) % 4
    np.save(workshop / "y.npy", y)
    np.savez(workshop / "both.npz", x=x, y=y)
    torch.save((torch.from_numpy(x), torch.from_numpy(y)), workshop / "both.pt")
    return workshop / "y.npy"


def search_json(command: Command, *words: str) -> dict[str, Any]:
    done = command(*WORDS, *RANGES, *words, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_command_finds_the_front_of_the_function(
    command: Command, workshop: Path, labels_file: Path
) -> None:
    words = (
        "--labels",
        "y.npy",
        "--trials",
        "5",
        "--no-early-stop",
        "--pick",
        "80%",
        "--out",
        "found",
    )
    done = command(*WORDS, *RANGES, *words)
    assert done.code == 0, done.err
    x, y = (torch.from_numpy(np.load(workshop / name)) for name in ("x.npy", "y.npy"))
    score = Accuracy(x, y)
    ranges: dict[str, Any] = {"eps_w": (1e-3, 1e-1), "eps_l2": (1e-4, 1e-2)}
    wanted = entrim.search(trained_network(), x, score, trials=5, early_stop=None, **ranges)
    rows = [line.split() for line in done.out.splitlines()]
    assert f"accuracy, % of the original: {wanted.record.intact:.4g}" in done.out
    for trial in wanted.front:
        (row,) = [row for row in rows if row[:1] == [str(trial.number)]]
        assert f"{trial.score:.4g}" in row
        assert f"{trial.eps['0'][0]:.1e}," in row
    for number in range(1, 6):
        assert f"search: {number} of 5  " in done.err
    best = wanted.smallest(0.8 * wanted.record.intact)
    data = read(workshop / "found" / f"trial-{best.number}")
    assert {group.name: len(group.kept) for group in data.record.groups} == best.widths
    loaded = entrim.load(trained_network(), data.folder)
    assert score(loaded) == best.score
    recorded = data.record.score
    assert recorded is not None
    assert (recorded.name, recorded.before, recorded.after) == (
        "accuracy, %",
        score(trained_network()),
        score(loaded),
    )
    assert recorded.on == "60 images of x.npy, which the search used"
    assert f"trial {best.number}:\n" in done.err
    assert data.command is not None
    assert data.command[:3] == ("entrim", "search", "nets.py:small")
    assert json.loads((workshop / "found" / "search.json").read_text())["intact"] == score(
        trained_network()
    )


def test_same_command_continues_and_picks_again(
    command: Command, workshop: Path, labels_file: Path
) -> None:
    words = ("--labels", "y.npy", "--out", "more", "--pick", "1")
    first = search_json(command, *words, "--trials", "2")
    again = search_json(command, *words, "--trials", "4", "--pick", "2")
    assert (first["trials"], again["trials"]) == (2, 4)
    assert first["picked"]["trial"] == 1
    assert again["picked"]["trial"] == 2
    known = {trial["number"]: trial for trial in first["front"] + again["front"]}
    assert all(trial == known[trial["number"]] for trial in first["front"])
    assert {place.name for place in (workshop / "more").glob("trial-*")} == {"trial-1", "trial-2"}
    done = command("compare", "more/trial-1", "more/trial-2")
    assert done.code == 0, done.err
    better = command("distill", "more/trial-1", "--epochs", "1", "--force", "--out", "more-better")
    assert better.code == 0, better.err


def test_record_with_fewer_trials_does_not_replace_a_longer_one(
    tmp_path: Path,
) -> None:
    trial = entrim.Trial(
        number=0, eps={}, widths={}, params=1.0, macs=1.0, lost=0.0, score=1.0, reason="scored",
        seconds=0.0, digest="",
    )  # fmt: skip
    none = entrim.SearchRecord(
        model="Net", images=1, cost="params", intact=1.0, settings={}, versions={}, front=(),
        trials=(), seconds={},
    )  # fmt: skip
    metric = Metric(lambda _: 1.0, "accuracy", "0")
    for known, expected in ((1, 1), (3, 3), (2, 3), (4, 4)):
        search_command._write_record(tmp_path, replace(none, trials=(trial,) * known), metric)
        assert len(json.loads((tmp_path / "search.json").read_text())["trials"]) == expected


def test_options_are_passed_on(command: Command, workshop: Path, labels_file: Path) -> None:
    words = ("--test-images", "both.npz", "--test-key", "x", "--labels-key", "y", "--out", "told")
    more = ("--trials", "2", "--timeout", "1h", "--part", "all=0", "--cost", "macs", "--pick", "1")
    method = ("--cost-range", "0%,99%", "--early-stop", "3", "--sampler", "random", "--seed", "2")
    search_json(command, *words, *more, *method, "--round-to", "2", "--order", "independent")
    settings = json.loads((workshop / "told" / "search.json").read_text())["settings"]
    wanted = {
        "parts": {"all": ["0"]},
        "trials": 2,
        "timeout": 3600.0,
        "cost": "macs",
        "eps_w": [1e-3, 1e-1],
        "eps_l2": [1e-4, 1e-2],
        "cost_range": [0.0, 0.99],
        "early_stop": 3.0,
        "sampler": "random",
        "seed": 2,
    }
    assert settings["budget"]["round_to"] == 2
    assert settings["reconstruction"]["order"] == "independent"
    assert {name: settings[name] for name in wanted} == wanted


def test_custom_metric_needs_no_labels(command: Command, workshop: Path) -> None:
    words = ("--metric", "nets.py:fewer", "--trials", "2", "--out", "own")
    done = command(*WORDS, *RANGES, *words)
    assert done.code == 1  # a fraction of a negative metric is meaningless; the front is printed
    assert "nets.py:fewer" in done.out
    assert "is meaningless: pass --pick with the number of a trial" in done.err
    assert not list((workshop / "own").glob("trial-*"))
    found = search_json(command, *words, "--pick", "1")
    params = sum(parameter.numel() for parameter in trained_network().parameters())
    assert found["intact"] == -params
    assert found["picked"]["before"]["params"] == params


def test_unreachable_pick_shows_the_front_and_fails(command: Command) -> None:
    words = (*RANGES, "--metric", "nets.py:more", "--trials", "1", "--out", "poor", "--json")
    done = command(*WORDS, *words, "--pick", "100%")
    assert done.code == 1
    shown = json.loads(done.out)
    assert shown["picked"] is None
    assert f"the best is trial 1 with {shown['front'][0]['score']:.4g}" in done.err
    other = command(*WORDS, *words, "--pick", "7")
    assert "trial 7 was not scored: pass --pick with a trial of the front, 1" in other.err


@pytest.mark.parametrize(
    "words",
    [
        {"labels": "y.npy"},
        {"images": "both.npz", "key": "x", "labels_key": "y"},
        {"images": "both.npz", "key": "x", "labels": "both.npz", "labels_key": "y"},
        {"images": "both.pt"},
        {"test_images": "both.pt"},
    ],
)
def test_labels_are_read_from_any_file(
    workshop: Path, labels_file: Path, words: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workshop)
    metric = read_metric(make_args(**words), trained_network())
    assert metric.score(trained_network()) == pytest.approx(75)
    assert metric.identity == read_metric(make_args(labels="y.npy"), trained_network()).identity
    some = read_metric(
        make_args(**{**words, "test_count": 15}), trained_network()
    )  # every fourth is wrong
    assert some.score(trained_network()) == 0
    assert some.identity != metric.identity


def make_args(**words: Any) -> Namespace:
    usual: dict[str, Any] = {
        "images": "x.npy", "key": None, "count": 500, "resize": None, "channels": None,
        "mean": None, "std": None, "scale": 255.0, "test_images": None, "test_key": None,
        "test_count": 5000, "labels": None, "labels_key": None, "metric": None,
    }  # fmt: skip
    return Namespace(**{**usual, **words})


@pytest.mark.parametrize(("names", "numbers"), [(("a", "b"), (0, 1)), (("3", "10"), (3, 10))])
def test_folders_are_classes(tmp_path: Path, names: tuple[str, ...], numbers: list[int]) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs Pillow: pip install pillow")
    wanted = []
    for name, number in zip(names, numbers, strict=True):
        (tmp_path / name / "inner").mkdir(parents=True)
        for k in range(3):
            image.new("L", (8, 8), 20 * number + k).save(tmp_path / name / "inner" / f"{k}.png")
            wanted.append((20 * number + k, number))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 11))
    score = read_metric(make_args(images=str(tmp_path), channels=1), model).score
    assert isinstance(score, Accuracy)
    pixels = (score.images[:, 0, 0, 0] * 255).round().int().tolist()
    assert sorted(zip(pixels, score.labels.tolist(), strict=True)) == sorted(wanted)
    image.new("L", (8, 8)).save(tmp_path / "alone.png")
    with pytest.raises(CommandError, match="outside of folders named by class: pass --labels"):
        read_metric(make_args(images=str(tmp_path), channels=1), model)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "the classes of the images in x.npy are unknown: pass --labels FILE"),
        (("--labels", "gone.npy"), "there is no file gone.npy"),
        (("--labels", "x.npy"), "are float32 of shape (60, 1, 8, 8): save one integer per image"),
        (("--labels", "few.npy"), "there are 3 labels for the 60 images in x.npy"),
        (
            ("--labels", "nine.npy"),
            "the labels are 9 to 9 and the network has classes 0 to 3",
        ),
        (("--labels", "both.npz"), "contains x, y: name one with --labels-key"),
        (("--metric", "nets.py:gone"), "nets.py has no 'gone'"),
        (("--metric", "nets.py:number"), "nets.py:number is a int: name a function"),
        (("--metric", "nets.py:fewer", "--labels", "y.npy"), "has its own images and labels"),
        (("--labels", "y.npy", "--early-stop", "2", "--no-early-stop"), "contradict each other"),
        (("--labels", "y.npy", "--exclude", "*"), "no group is left"),
    ],
)
def test_invalid_search_is_refused(
    command: Command, workshop: Path, labels_file: Path, words: tuple[str, ...], sentence: str
) -> None:
    np.save(workshop / "few.npy", np.zeros(3, int))
    np.save(workshop / "nine.npy", np.full(60, 9))
    done = command(*WORDS, *words, "--out", "never")
    assert (done.code, done.out) == (1, "")
    assert sentence in done.err.splitlines()[-1]


def test_folder_of_another_search_is_refused(
    command: Command, workshop: Path, labels_file: Path, pruned: Path
) -> None:
    scored = ("--labels", "y.npy", "--trials", "1", "--pick", "1")
    assert (
        "contains something other than a search" in command(*WORDS, *scored, "--out", "pruned").err
    )
    assert command(*WORDS, *RANGES, *scored, "--out", "one").code == 0
    before = sorted(entry.name for entry in (workshop / "one").rglob("*"))
    other = command(*WORDS, *RANGES, "--metric", "nets.py:fewer", "--out", "one")
    assert "contains a search by another metric" in other.err
    images = command(*WORDS, *RANGES, *scored, "--count", "30", "--out", "one")
    assert "with other images" in images.err.splitlines()[-1]
    assert "name another folder with --out" in images.err.splitlines()[-1]
    assert sorted(entry.name for entry in (workshop / "one").rglob("*")) == before
