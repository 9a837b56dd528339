"""The folder of a run: checked before any work, and the files in it besides the network."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from entrim import onnx
from entrim.config import SIZES
from entrim.errors import CommandError, LoadError, SaveError
from entrim.onnx.writer import render, write_file
from entrim.report.assessment import next_steps
from entrim.report.page import write
from entrim.report.report_data import COMMAND, commands_in, read
from entrim.results import SparsifyResult
from entrim.storage import atomic
from entrim.storage.checkpoint import UNFINISHED
from entrim.storage.model_folder import CHECKPOINT, MANIFEST, is_free, read_manifest

IMAGE_OPTIONS = ("resize", "channels", "mean", "std", "scale")
"""How image files are converted."""
ONNX = "pruned.onnx"
"""The pruned network of a run whose MODEL is an .onnx file."""
COMPARISON = "compare.html"
"""The comparison of the runs of a command with several sizes."""
LOGS = "search-*.log"
"""The storage files of a search."""
_STRINGS, _NUMBERS = ("model", "weights", "images", "key"), ("channels", "scale")


def add_out(parser: ArgumentParser) -> None:
    """Add the arguments that name the folder of a run."""
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write")
    parser.add_argument(
        "--force", action="store_true", help="replace or discard another run in DIR"
    )


@contextmanager
def reserve(place: Path, check: Callable[[Path], None]) -> Iterator[None]:
    """Check that a folder can be written before any work; remove it if it stays empty.

    `check` is called for a folder that is not empty, and raises if it must not be written.
    """
    exists = place.exists()
    if exists and not place.is_dir():
        raise CommandError(f"{place} is a file: name another folder with --out")
    ours = not exists or (is_free(place) and any(place.iterdir()))
    if exists and any(place.iterdir()):
        check(place)
    try:
        place.mkdir(parents=True, exist_ok=True)
        probe = place / ".entrim.lock"  # the lock of save(): the folder stays free
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
            if ours and is_free(place):  # other processes of a search may hold the lock
                probe.unlink(missing_ok=True)
                place.rmdir()
        raise


@contextmanager
def explain_interruption(place: Path, pattern: str, what: str) -> Iterator[None]:
    """Explain what an interruption leaves in `place`: `what`, if a file matches `pattern`."""
    try:
        yield
    except KeyboardInterrupt:
        kept = "nothing was finished yet, and saved files are intact"
        if any(place.glob(pattern)):
            kept = f"{what} kept in {place}, and the same command continues from there"
        raise KeyboardInterrupt(kept) from None


def check_contents(place: Path, *, args: Namespace, mine: Collection[str], force: bool) -> None:
    """Refuse a folder with other files, with another run unless forced, or an unfinished run.

    `mine` are the names of the unfinished states that this command continues from.
    """
    if any((place / name).exists() for name in (CHECKPOINT, UNFINISHED) if name not in mine):
        raise CommandError(
            f"{place} contains an unfinished run: repeat its command, or name another folder"
        )
    if is_free(place):
        return
    try:
        read_manifest(place)
    except LoadError as error:
        raise CommandError(
            f"{place} contains something other than a run of entrim: name another folder with --out"
        ) from error
    if force:
        return
    *_, last = ((), *commands_in(place))
    if is_same_command(last, args):
        raise CommandError(
            f"{place} contains the finished run of this command: pass --force to run it again"
        )
    raise CommandError(
        f"{place} contains another run: name another folder, or pass --force to replace it"
    )


def split_sizes(args: Namespace) -> list[Namespace]:
    """Return the arguments of one run for each size, in a folder of its own.

    The words of each are those of a command that repeats this run alone.
    """
    kinds = [kind for kind in SIZES if isinstance(getattr(args, kind), tuple)]
    if len(kinds) > 1:
        raise CommandError(
            f"--{kinds[0]} and --{kinds[1]} have several sizes: pass several for one of them"
        )
    (kind,) = kinds
    place = _value_of(args.words, f"--{kind}")
    if not place or not _value_of(args.words, "--out"):
        raise CommandError(f"with several sizes, write --{kind} and --out in full")
    runs = []
    for number, text in enumerate(place.split(",")):
        folder = str(Path(args.out, f"{kind}-{text.strip().rstrip('%')}"))
        words = _replace_value(args.words, f"--{kind}", text.strip())
        words = _replace_value(words, "--out", folder)
        value = getattr(args, kind)[number]
        runs.append(Namespace(**{**vars(args), kind: value, "out": folder, "words": words}))
    if len({run.out for run in runs}) < len(runs):
        raise CommandError(f"--{kind} {place} contains a size twice: pass different sizes")
    return runs


def _value_of(words: Sequence[str], option: str) -> str:
    """Return the last value of an option; argparse has checked that there is one."""
    found = ""
    for word, following in pairwise((*words, "")):
        name, equals, value = word.partition("=")
        if name == option:
            found = value if equals else following
    return found


def _replace_value(words: Sequence[str], option: str, value: str) -> list[str]:
    """Return the words with another value of an option.

    >>> _replace_value(["--macs", "30%,50%", "--out=a"], "--out", "b")
    ['--macs', '30%,50%', '--out=b']
    """
    found: list[str] = []
    for word in words:
        if word.startswith(f"{option}="):
            found.append(f"{option}={value}")
        else:
            found.append(value if found and found[-1] == option else word)
    return found


def check_sizes(place: Path, *, args: Namespace, runs: Sequence[Namespace]) -> None:
    """Refuse a folder with anything other than the runs of this command."""
    names = {".entrim.lock", UNFINISHED, COMPARISON, *(Path(run.out).name for run in runs)}
    if {entry.name for entry in place.iterdir()} - names:
        raise CommandError(f"{place} contains other files: name another folder with --out")
    for run in runs if not args.force else ():
        *_, last = ((), *commands_in(Path(run.out)))
        if last and not is_same_command(last, run):
            raise CommandError(
                f"{run.out} contains another run: name another folder, or pass --force"
            )
    if (place / COMPARISON).exists() and not args.force:
        raise CommandError(
            f"{place} contains the finished runs of this command: pass --force to run it again"
        )


def next_command(place: Path) -> str:
    """Return the line that names the next command for a run: recover the network, or export it."""
    steps = (step.code or "" for step in next_steps(read(place)))
    return f"next: {next(s for s in steps if s.startswith(('entrim distill', 'entrim export')))}"


def is_same_command(words: Sequence[str], args: Namespace) -> bool:
    """Whether the words of a command give the same result as `args`."""
    return _relevant_words(words) == _relevant_words(("entrim", *args.words))


def _relevant_words(words: Sequence[str]) -> list[str]:
    return [word for word in words if word not in ("--json", "--debug", "--force", "--verbose")]


def require_run(folder: str) -> None:
    """Refuse a folder without a finished run."""
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
        raise CommandError(f"{place} contains an unfinished run: repeat its command to finish it")
    inside = sorted(file.parent for file in place.glob(f"*/{MANIFEST}"))
    if inside:
        raise CommandError(
            f"{place} is not a run but contains runs: name one of them, such as {inside[0]}"
        )
    if any(place.glob(LOGS)):
        raise CommandError(
            f"{place} contains a search without a saved network: repeat its command with --pick "
            "and the number of a trial"
        )
    raise CommandError(
        f"{place} contains no run: name a folder that sparsify, search, distill or save() wrote"
    )


def write_report(place: Path, args: Namespace, source: Path | None = None) -> Path:
    """Write the command and the report next to the network.

    The commands of the run that this one started from, in `source`, are written before its own.
    """
    before = () if source is None else commands_in(source)
    write_json(
        place / COMMAND, {**command_note(args), "before": before} if before else command_note(args)
    )
    return write(place)


def render_onnx(result: SparsifyResult, place: Path) -> tuple[SparsifyResult, bytes]:
    """Return the result and the content of its ONNX file, which is empty for other networks.

    The record contains the difference of the file in onnxruntime from the pruned network.
    """
    if not isinstance(result.model, onnx.OnnxModel):
        return result, b""
    content, written = render(result, place / ONNX)
    proof = {**result.record.proof, "onnx": written.parity}
    return replace(result, record=replace(result.record, proof=proof)), content


def write_onnx(content: bytes, place: Path) -> None:
    """Write the ONNX file of a run; remove an earlier one if there is none."""
    if content:
        write_file(content, place / ONNX)
    else:
        (place / ONNX).unlink(missing_ok=True)


def save_run(result: SparsifyResult, place: Path) -> SparsifyResult:
    """Save a network, and its ONNX file if MODEL is one; return it with the complete record."""
    result, content = render_onnx(result, place)
    result.save(place)
    write_onnx(content, place)
    return result


def saved_note(result: SparsifyResult, place: Path, page: Path) -> str:
    """Return where the network was saved."""
    saved, parity = f"saved in {place}, report {page}", result.record.proof.get("onnx")
    if parity is None:
        return saved
    return f"{saved}\n{place / ONNX} differs from the network by {parity:.0e} in onnxruntime"


def result_summary(result: SparsifyResult, place: Path, page: Path) -> dict[str, Any]:
    """Return the result of a run for JSON output."""
    record = result.record
    return {
        "folder": str(place),
        "report": str(page),
        "onnx": str(place / ONNX) if (place / ONNX).exists() else None,
        "before": asdict(record.before),
        "after": asdict(record.after),
        "score": None if record.score is None else asdict(record.score),
        "error": record.error,
        "holdout": None if record.holdout is None else asdict(record.holdout),
        "notes": list(record.notes),
    }


def command_note(args: Namespace) -> dict[str, Any]:
    """Return the words of a command and the origin of its network and images, for a file."""
    named = {name: getattr(args, name) for name in (*_STRINGS, *IMAGE_OPTIONS)}
    source = {name: value for name, value in named.items() if value is not None}
    return {"command": ["entrim", *args.words], "source": source}


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file next to a network."""
    try:
        atomic.write(file, json.dumps(content, indent=2).encode() + b"\n")
    except OSError as error:
        raise SaveError(f"{file} cannot be written ({error}): free disk space") from error


def read_source(place: Path) -> dict[str, Any]:
    """Return the origin of network and images from `command_note`, without invalid entries.

    A run that was saved from Python has none.
    """
    try:
        found: Any = json.loads((place / COMMAND).read_text(encoding="utf-8"))["source"]
        return {name: value for name, value in found.items() if _is_valid(name, value)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _is_valid(name: str, value: Any) -> bool:
    if name in _STRINGS:
        return isinstance(value, str)
    if name in _NUMBERS:
        return isinstance(value, int | float)
    return (
        name in IMAGE_OPTIONS
        and isinstance(value, list)
        and len(value) > 0
        and all(isinstance(number, int | float) for number in value)
    )
