"""Accuracy before and after pruning: in the record, the summary and the JSON."""

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import entrim
from entrim.cli.scores import Accuracy
from entrim.records import Score
from entrim.report.report_data import read
from entrim.storage.checkpoint import UNFINISHED
from entrim.storage.model_folder import CHECKPOINT
from tests.cli.conftest import Command, assert_refused, trained_network

WORDS = ("sparsify", "nets.py:small", "--weights", "w.pt", "--images", "x.npy", "--width", "0.25")


@pytest.fixture(scope="session")
def accuracy(workshop: Path) -> Accuracy:
    """Write labels of which the network predicts all but every fifth, and return the metric."""
    x = torch.from_numpy(np.load(workshop / "x.npy"))
    with torch.no_grad():
        y = trained_network()(x).argmax(1)
    y[::5] = (y[::5] + 1) % 4
    np.savez(workshop / "test.npz", images=x.numpy(), classes=y.numpy())
    np.save(workshop / "classes.npy", y.numpy())
    return Accuracy(x, y)


LABELLED = ("--test-images", "test.npz", "--test-key", "images", "--labels-key", "classes")


def test_accuracy_is_printed_and_recorded(
    command: Command, workshop: Path, accuracy: Accuracy
) -> None:
    done = command(*WORDS, *LABELLED, "--out", "scored")
    assert done.code == 0, done.err
    small = entrim.load(trained_network(), workshop / "scored")
    score = Score(
        name="accuracy, %",
        before=accuracy(trained_network()),
        after=accuracy(small),
        on="60 images of test.npz",
    )
    assert score.before == 80
    assert read(workshop / "scored").record.score == score
    assert f"{score}\n" in done.out
    told = json.loads(command(*WORDS, *LABELLED, "--out", "scored", "--force", "--json").out)
    assert told["score"] == {"name": score.name, "on": score.on, "before": 80, "after": score.after}


def test_distilled_run_does_not_inherit_the_score(
    command: Command, workshop: Path, accuracy: Accuracy
) -> None:
    assert command(*WORDS, "--labels", "classes.npy", "--out", "marked").code == 0
    assert read(workshop / "marked").record.score is not None
    words = ("distill", "marked", "--epochs", "1", "--json", "--out")
    told: list[Any] = []
    for more in (("unmarked",), ("remarked", "--labels", "classes.npy")):
        done = command(*words, *more)
        assert done.code == 0, done.err
        told.append(json.loads(done.out)["score"])
    small = entrim.load(trained_network(), workshop / "remarked")
    assert told[0] is None
    assert (told[1]["before"], told[1]["after"]) == (80, accuracy(small))


def test_custom_metric_is_recorded_under_its_name(command: Command, workshop: Path) -> None:
    done = command(*WORDS, "--metric", "nets.py:more", "--out", "own-metric")
    assert done.code == 0, done.err
    record = read(workshop / "own-metric").record
    before, after = float(record.before.params), float(record.after.params)
    assert record.score == Score(name="nets.py:more", before=before, after=after)


def test_no_score_without_labels(pruned: Path) -> None:
    assert read(pruned).record.score is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--labels", "gone.npy"), "there is no file gone.npy"),
        (("--test-images", "x.npy"), "the classes of the images in x.npy are unknown"),
        (
            ("--metric", "nets.py:more", "--labels", "w.pt"),
            "leave out the options of labeled images",
        ),
    ],
)
def test_missing_labels_are_refused_before_any_work(
    command: Command, workshop: Path, words: tuple[str, ...], sentence: str
) -> None:
    assert_refused(command(*WORDS, *words, "--out", "unlabeled"), sentence)
    assert not (workshop / "unlabeled").exists()


def test_failing_metric_loses_no_work(command: Command, workshop: Path) -> None:
    words = (*WORDS, "--out", "failing")
    done = command(*words, "--metric", "nets.py:broken")
    assert done.code == 1
    assert "nets.py:broken failed (TypeError" in done.err
    assert (workshop / "failing" / UNFINISHED).is_dir()
    again = command(*words)
    assert again.code == 0, again.err
    assert "resume: " in again.err
    words = ("distill", "failing", "--epochs", "1", "--out", "failing-better")
    assert command(*words, "--metric", "nets.py:broken").code == 1
    assert (workshop / "failing-better" / CHECKPOINT).is_dir()
    assert command(*words).code == 0


def test_interrupted_run_can_be_scored_when_it_resumes(
    command: Command, workshop: Path, accuracy: Accuracy
) -> None:
    words = (*WORDS, "--out", "late")
    assert command(*words, stop=(signal.SIGINT, 4)).code == 1
    assert (workshop / "late" / UNFINISHED).is_dir()
    done = command(*words, "--labels", "classes.npy")
    assert done.code == 0, done.err
    assert "resume: " in done.err
    assert read(workshop / "late").record.score is not None
