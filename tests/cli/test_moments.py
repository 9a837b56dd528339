"""`collect`, `merge` and `sparsify --moments`."""

import json
from pathlib import Path

import numpy as np

import entrim
from entrim.report.numbers import percent
from entrim.report.report_data import read
from tests.cli.conftest import Command, assert_refused, trained_network

NET = ("nets.py:small", "--weights", "w.pt")


def test_network_is_pruned_from_merged_moments(
    command: Command, workshop: Path, part: Path
) -> None:
    merged = command("merge", part.name, "--out", "once.safetensors", "--json")
    assert merged.code == 0, merged.err
    content = json.loads(merged.out)
    assert (content["layers"], content["images"], content["holdout"]) == (1, 60, 0)
    assert len(content["sets"]) == 1
    words = ("--width", "0.5", "--out", "summed", "--json")
    done = command("sparsify", *NET, "--moments", "once.safetensors", *words)
    assert done.code == 0, done.err
    moments = entrim.NetworkMoments.load(workshop / "once.safetensors")
    expected = entrim.sparsify(trained_network(), moments, entrim.Widths(0.5))
    assert json.loads(done.out)["kept"] == {"0": list(expected.plan.kept["0"])}
    assert any("without images" in note for note in json.loads(done.out)["notes"])
    story = read(workshop / "summed")
    assert story.command is not None
    assert "--moments" in story.command


def test_largest_hold_out_error_is_printed(command: Command, workshop: Path) -> None:
    np.save(workshop / "many.npy", np.random.default_rng(1).normal(size=(100, 1, 8, 8)))
    words = ("--images", "many.npy", "--holdout", "50%", "--out", "half.safetensors")
    found = command("collect", *NET, *words)
    assert found.code == 0, found.err
    assert found.out.splitlines()[1] == "1 layer, 50 images and 50 hold-out images in 1 set"
    words = ("--moments", "half.safetensors", "--width", "0.5", "--out", "judged")
    done = command("sparsify", *NET, *words)
    assert done.code == 0, done.err
    worst = read(workshop / "judged").record.worst_layer
    assert worst is not None
    assert f"largest error of a layer on hold-out images: {percent(worst[1])} (4)" in done.out
    assert '<th scope="col">hold-out images</th>' in (workshop / "judged/report.html").read_text()


def test_options_that_need_images_are_refused(command: Command, workshop: Path, part: Path) -> None:
    words = ("sparsify", *NET, "--moments", part.name, "--out", "never")
    for more, option in (
        (("--macs", "50%"), "--macs"),
        (("--macs", "50%,30%"), "--macs"),
        (("--width", "0.5", "--recover"), "--recover"),
        (("--width", "0.5", "--dry-run"), "--dry-run"),
        (("--width", "0.5", "--holdout", "9"), "--holdout"),
    ):
        assert_refused(command(*words, *more), f"{option} needs images")
    assert_refused(command(*words), "a budget", "needs images")
    labels = command(*words, "--width", "0.5", "--labels", "x.npy")
    assert_refused(labels, "--labels needs images: pass --test-images too")
    both = command(*words, "--images", "x.npy", "--width", "0.5")
    assert (both.code, both.out) == (2, "")
    assert not (workshop / "never").exists()


def test_files_are_kept_without_force_and_parts_are_counted_once(
    command: Command, workshop: Path, part: Path
) -> None:
    before = part.read_bytes()
    again = ("collect", *NET, "--images", "x.npy", "--holdout", "0", "--out", part.name)
    assert_refused(command(*again), f"{part.name} exists", "--force")
    twice = command("merge", part.name, part.name, "--out", "twice.safetensors")
    assert_refused(twice, "would be counted twice")
    few = command("collect", *NET, "--images", "x.npy", "--out", "few.safetensors")
    assert_refused(few, "a sum over a few images can reveal them", "--holdout")
    other = command("sparsify", "nets.py:wide", "--moments", part.name, "--out", "never")
    assert other.code == 1
    assert part.read_bytes() == before
    assert not (workshop / "twice.safetensors").exists()
