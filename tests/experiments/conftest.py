import functools
import http.server
import os
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.experiments.tiny import LABELS, PIXELS


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what is fetched in a folder of this test."""
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
