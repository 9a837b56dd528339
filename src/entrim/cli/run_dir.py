"""The folder of a run: reserved before any work, and what is noted in it beside the network."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from entrim.errors import CommandError, LoadError, SaveError
from entrim.report.page import write
from entrim.report.report_data import COMMAND, commands_in
from entrim.sparsified import SparsifyResult
from entrim.storage import atomic
from entrim.storage.checkpoint import UNFINISHED
from entrim.storage.model_folder import CHECKPOINT, MANIFEST, is_free, read_manifest

SIGHT = ("resize", "channels", "mean", "std", "scale")
"""How image files become what the network reads."""
LOGS = "search-*.log"
"""The notebooks of a search in its folder."""
_LINES, _NUMBERS = ("model", "weights", "images", "key"), ("channels", "scale")


def add_out(parser: ArgumentParser) -> None:
    """Add the arguments that name the folder of a run."""
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write")
    parser.add_argument(
        "--force", action="store_true", help="replace or discard what DIR holds of another run"
    )


@contextmanager
def reserved(place: Path, refuse: Callable[[Path], None]) -> Iterator[None]:
    """Refuse a folder that cannot be written before any work; leave none behind that is empty.

    `refuse` raises where a folder that holds something shall not be written to.
    """
    there = place.exists()
    if there and not place.is_dir():
        raise CommandError(f"{place} is a file: name another folder with --out")
    ours = not there or (is_free(place) and any(place.iterdir()))
    if there and any(place.iterdir()):
        refuse(place)
    try:
        place.mkdir(parents=True, exist_ok=True)
        probe = place / ".entrim.lock"  # what save() locks: the folder stays one of ours
        with probe.open("ab"), TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise SaveError(
            f"{place} cannot be written ({error.strerror}): name another folder with --out"
        ) from error
    try:
        yield
    except BaseException:
        with suppress(OSError):
            if ours and is_free(place):  # of a search others may still hold the lock
                probe.unlink(missing_ok=True)
                place.rmdir()
        raise


@contextmanager
def keeping(place: Path, mark: str, what: str) -> Iterator[None]:
    """Say of an interruption what is kept of the run in `place`, where there is a file `mark`."""
    try:
        yield
    except KeyboardInterrupt:
        kept = "nothing was finished yet, and what was saved before is intact"
        if any(place.glob(mark)):
            kept = f"{what} kept in {place}, and the same command goes on from there"
        raise KeyboardInterrupt(kept) from None


def check_held(place: Path, *, args: Namespace, mine: str, force: bool) -> None:
    """Refuse a folder of something else, of another run unless forced, or of one not finished.

    `mine` is what this command leaves of a run that was not finished, and takes up again.
    """
    if any((place / name).exists() for name in (CHECKPOINT, UNFINISHED) if name != mine):
        raise CommandError(
            f"{place} holds a run that was not finished: go on with its command, or name another "
            "folder"
        )
    if is_free(place):
        return
    try:
        read_manifest(place)
    except LoadError as error:
        raise CommandError(
            f"{place} holds something else than a run of entrim: name another folder with --out"
        ) from error
    if force:
        return
    *_, last = ((), *commands_in(place))
    if _plain_words(last) == _plain_words(("entrim", *args.words)):
        raise CommandError(
            f"{place} holds the run of this command, and it is finished: pass --force to do it anew"
        )
    raise CommandError(
        f"{place} holds another run: name another folder, or pass --force to replace it"
    )


def _plain_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command that decide on its result."""
    return [word for word in words if word not in ("--json", "--debug", "--force")]


def require_run(folder: str) -> None:
    """Refuse a folder without a finished run, each kind with its own remedy."""
    place = Path(folder)
    if (place / MANIFEST).exists():
        read_manifest(place)
        return
    if not place.exists():
        raise CommandError(
            f"there is no folder {place}: name one that sparsify, search, distill or save() wrote"
        )
    if not place.is_dir():
        raise CommandError(f"{place} is a file: name the folder of a run")
    if any((place / name).exists() for name in (CHECKPOINT, UNFINISHED)):
        raise CommandError(
            f"{place} holds a run that was not finished: give the same command again to finish it"
        )
    inside = sorted(file.parent for file in place.glob(f"*/{MANIFEST}"))
    if inside:
        raise CommandError(
            f"{place} is no run itself but holds some: name one of them, such as {inside[0]}"
        )
    if any(place.glob(LOGS)):
        raise CommandError(
            f"{place} holds a search of which no network is saved: give its command again with "
            "--pick and the number of a trial"
        )
    raise CommandError(
        f"{place} holds no run: name a folder that sparsify, search, distill or save() wrote"
    )


def reported(place: Path, args: Namespace, taken_up: Path | None = None) -> Path:
    """Note the command and what it read beside the network, and write the page.

    The commands of a run that was `taken_up` are noted before this one.
    """
    before = () if taken_up is None else commands_in(taken_up)
    note(place / COMMAND, {**noted(args), "before": before} if before else noted(args))
    return write(place)


def plain(result: SparsifyResult, place: Path, page: Path) -> dict[str, Any]:
    """Return what every run tells a machine."""
    record = result.record
    return {
        "folder": str(place),
        "report": str(page),
        "before": asdict(record.before),
        "after": asdict(record.after),
        "score": None if record.score is None else asdict(record.score),
        "error": record.error,
        "notes": list(record.notes),
    }


def noted(args: Namespace) -> dict[str, Any]:
    """Return what is noted of a command: its words, and where network and images come from."""
    named = {name: getattr(args, name) for name in (*_LINES, *SIGHT)}
    source = {name: value for name, value in named.items() if value is not None}
    return {"command": ["entrim", *args.words], "source": source}


def note(file: Path, content: Mapping[str, Any]) -> None:
    """Write JSON beside a network."""
    try:
        atomic.write(file, json.dumps(content, indent=2).encode() + b"\n")
    except OSError as error:
        raise SaveError(f"{file} cannot be written ({error}): make room") from error


def read_source(place: Path) -> dict[str, Any]:
    """Return what `noted` said about network and images; what is not of its kind is left out.

    A run that was saved from Python has no such note.
    """
    try:
        held: Any = json.loads((place / COMMAND).read_text(encoding="utf-8"))["source"]
        return {name: value for name, value in held.items() if _fits(name, value)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _fits(name: str, value: Any) -> bool:
    if name in _LINES:
        return isinstance(value, str)
    if name in _NUMBERS:
        return isinstance(value, int | float)
    return (
        name in SIGHT
        and isinstance(value, list)
        and len(value) > 0
        and all(isinstance(number, int | float) for number in value)
    )
