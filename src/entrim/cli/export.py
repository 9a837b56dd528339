"""`entrim export`: a smaller network as a file for other runtimes, compared before written."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from entrim.cli.console import Progress, print_progress, table, tell_json
from entrim.cli.options import check_writable
from entrim.cli.saved_model import SavedModel, add_saved, read_saved
from entrim.errors import CommandError
from entrim.export.formats import TOLERANCE, Exported, to_int8, to_onnx, to_program
from entrim.export.parity import Answer, answer_of, outputs
from entrim.report.numbers import size

_EXAMPLES = """\
examples:
  entrim export small --onnx small.onnx
  entrim export small --onnx small.onnx --int8             writes small.int8.onnx too
  entrim export small --onnx small.onnx --int8 --images test.npz --key x \\
      --labels test.npz --labels-key y                     tells accuracies
  entrim export small --torchexport small.pt2
  entrim export small --model nets.py:ResNet20 --shape 3,32,32 --onnx small.onnx"""
BEFORE = "before the cut"
_GAP = "–"
Row = dict[str, Any]


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "export",
        help="write a smaller network as ONNX, in eight bits, or as a torch.export program",
        description="Write the network in DIR as a file that runs without entrim, for any number "
        "of images. It is run and compared with the network itself first; a relative error above "
        f"{TOLERANCE:.0e} is refused. MODEL, images and their options are those of the command "
        "noted in DIR, unless given. The code of MODEL is run: export folders that you trust, or "
        "pass --model.",
        epilog=_EXAMPLES,
    )
    file = parser.add_mutually_exclusive_group(required=True)
    file.add_argument("--onnx", metavar="FILE", help="write ONNX, compared in onnxruntime")
    file.add_argument("--torchexport", metavar="FILE", help="write a program of torch.export, .pt2")
    parser.add_argument(
        "--int8", action="store_true", help="with --onnx: NAME.int8.onnx too, from the same images"
    )
    parser.add_argument("--force", action="store_true", help="replace files that are there")
    add_saved(parser)
    return parser


def run(args: Namespace) -> int:
    """Export, compare, write, sum up."""
    places = _destinations(args)
    _check_destinations(places, args.force)
    scene = read_saved(args)
    before = None if scene.original is None else _right(answer_of(scene.original), scene)
    made = _made(scene, args, Progress())
    rows = [_row(place, network, scene) for place, network in zip(places, made, strict=True)]
    for place, network in zip(places, made, strict=True):
        network.write(place)
    if args.json:
        told = {"images": len(scene.images), "source": scene.source, "before": before}
        tell_json(told | {"files": rows})
    else:
        print_progress(_shown(rows, scene, before))
    return 0


def _destinations(args: Namespace) -> list[Path]:
    """Return the files to write, the int8 one last."""
    if args.onnx is None:
        if args.int8:
            raise CommandError("--int8 quantises an ONNX network: pass --onnx FILE with it")
        return [Path(args.torchexport)]
    place = Path(args.onnx)
    eight = place.with_name(f"{place.name.removesuffix('.onnx')}.int8.onnx")
    return [place, eight] if args.int8 else [place]


def _check_destinations(destinations: Sequence[Path], force: bool) -> None:
    """Refuse what cannot be written, or would be lost, before any work."""
    for place in destinations:
        check_writable(place)
        if place.exists() and not force:
            raise CommandError(f"{place} is there: name another file, or pass --force")


def _made(scene: SavedModel, args: Namespace, progress: Progress) -> list[Exported]:
    if args.onnx is None:
        return [to_program(scene.small, scene.images, on_step=progress)]
    plain = to_onnx(scene.small, scene.images, on_step=progress)
    return [plain, to_int8(plain, scene.images, on_step=progress)] if args.int8 else [plain]


def _row(place: Path, network: Exported, scene: SavedModel) -> Row:
    right = _right(network.answer, scene)
    return {
        "file": str(place),
        "bytes": len(network.content),
        **asdict(network.parity),
        "accuracy": right,
    }


def _right(answer: Answer, scene: SavedModel) -> float | None:
    """Return the percentage of images whose largest output is the right class."""
    if scene.labels is None:
        return None
    like = next(scene.small.parameters(), scene.images)
    scores = outputs(answer, scene.images.to(like.device, like.dtype))[0]
    if scores.dim() != 2:
        raise CommandError(
            f"the first output has shape {tuple(scores.shape)}, and accuracies need a score for "
            "every class: leave --labels out"
        )
    return 100 * float((scores.argmax(1) == scene.labels).double().mean())


def _shown(rows: Sequence[Row], scene: SavedModel, before: float | None) -> str:
    head = ["", "bytes", "relative error", "largest difference", "same class", "accuracy, %"]
    lines = [head]
    if before is not None:
        lines.append([BEFORE, _GAP, _GAP, _GAP, _GAP, f"{before:.2f}"])
    for row in rows:
        same = _GAP if row["same"] is None else f"{row['same']} of {row['images']}"
        right = _GAP if row["accuracy"] is None else f"{row['accuracy']:.2f}"
        apart = [f"{row[name]:.2g}" for name in ("relative", "largest")]
        lines.append([row["file"], size(row["bytes"]), *apart, same, right])
    if scene.labels is None:
        lines = [line[:-1] for line in lines]
    where = "random normal images" if scene.source is None else f"images of {scene.source}"
    told = f"\n{rows[0]['file']} was compared with the network in PyTorch"
    if len(rows) > 1:
        told += f", {rows[1]['file']} with {rows[0]['file']}"
    return f"{table(lines)}\n{told}, on {len(scene.images):,} {where}"
