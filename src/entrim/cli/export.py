"""`entrim export`: write a pruned network for other runtimes, verified first."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from entrim.cli.console import print_json, print_result, table
from entrim.cli.options import check_writable
from entrim.cli.saved_model import SavedModel, add_saved, read_networks, read_saved
from entrim.display.bars import ProgressDisplay
from entrim.errors import CommandError
from entrim.export.formats import TOLERANCE, Exported, to_int8, to_onnx, to_program
from entrim.export.parity import Answer, answer_of, outputs
from entrim.integrations.timm import save_timm
from entrim.integrations.transformers import save_transformers
from entrim.report.numbers import size
from entrim.storage.model_folder import read_manifest, record_in

_EXAMPLES = """\
examples:
  entrim export small --onnx small.onnx
  entrim export small --onnx small.onnx --int8             also writes small.int8.onnx
  entrim export small --onnx small.onnx --int8 --images test.npz --key x \\
      --labels test.npz --labels-key y                     with accuracies
  entrim export small --torchexport small.pt2
  entrim export small --timm small-timm                    for a network of timm
  entrim export small --model nets.py:ResNet20 --shape 3,32,32 --onnx small.onnx"""
BEFORE = "before pruning"
_GAP = "–"
Row = dict[str, Any]


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "export",
        help="write a pruned network as ONNX, int8 ONNX or torch.export program",
        description="Write the network in DIR as a file that runs without entrim, for any batch "
        "size. The file is executed and compared with the network first; a relative error above "
        f"{TOLERANCE:.0e} is refused. MODEL, images and their options are those of the command in "
        "DIR, unless given. The code of MODEL is executed: export folders that you trust, or pass "
        "--model.",
        epilog=_EXAMPLES,
    )
    file = parser.add_mutually_exclusive_group(required=True)
    file.add_argument("--onnx", metavar="FILE", help="write ONNX, verified in onnxruntime")
    file.add_argument("--torchexport", metavar="FILE", help="write a torch.export program (.pt2)")
    file.add_argument("--timm", metavar="OUT", help="write a network of timm for timm")
    file.add_argument(
        "--hf",
        metavar="OUT",
        help="write a network of transformers for from_pretrained",
    )
    parser.add_argument(
        "--int8",
        action="store_true",
        help="with --onnx: also write NAME.int8.onnx, calibrated on the same images",
    )
    parser.add_argument("--force", action="store_true", help="replace existing files")
    add_saved(parser)
    return parser


def run(args: Namespace) -> int:
    """Export, compare, write, print a summary."""
    if args.timm or args.hf:
        return _write_folder(args)
    places = _destinations(args)
    _check_destinations(places, args.force)
    saved = read_saved(args)
    before = None if saved.original is None else _accuracy(answer_of(saved.original), saved)
    with ProgressDisplay() as progress:
        files = _export(saved, args, progress)
    rows = [_row(place, network, saved) for place, network in zip(places, files, strict=True)]
    for place, network in zip(places, files, strict=True):
        network.write(place)
    if args.json:
        found = {"images": len(saved.images), "source": saved.source, "before": before}
        print_json(found | {"files": rows})
    else:
        print_result(_format_table(rows, saved, before))
    return 0


def _write_folder(args: Namespace) -> int:
    """Write a folder that another library loads."""
    for option in ("int8", "force"):
        if getattr(args, option):
            raise CommandError(f"--{option} is for files: leave it out, or pass --onnx FILE")
    folder = args.timm or args.hf
    model, small = read_networks(args)
    if args.timm:
        save_timm(small, model, folder)
    else:
        record = record_in(read_manifest(args.folder), Path(args.folder))
        save_transformers(small, folder, record=record)
    files = sorted(file.name for file in Path(folder).iterdir())
    if args.json:
        print_json({"folder": folder, "files": files})
    else:
        print_result(f"{folder}: {', '.join(files)}")
    return 0


def _destinations(args: Namespace) -> list[Path]:
    """Return the files to write, the int8 one last."""
    if args.onnx is None:
        if args.int8:
            raise CommandError("--int8 quantizes an ONNX network: pass --onnx FILE with it")
        return [Path(args.torchexport)]
    place = Path(args.onnx)
    eight = place.with_name(f"{place.name.removesuffix('.onnx')}.int8.onnx")
    return [place, eight] if args.int8 else [place]


def _check_destinations(destinations: Sequence[Path], force: bool) -> None:
    """Refuse files that cannot be written or exist, before any work."""
    for place in destinations:
        check_writable(place)
        if place.exists() and not force:
            raise CommandError(f"{place} exists: name another file, or pass --force")


def _export(saved: SavedModel, args: Namespace, progress: ProgressDisplay) -> list[Exported]:
    if args.onnx is None:
        return [to_program(saved.small, saved.images, callbacks=[progress])]
    plain = to_onnx(saved.small, saved.images, callbacks=[progress])
    return [plain, to_int8(plain, saved.images, callbacks=[progress])] if args.int8 else [plain]


def _row(place: Path, network: Exported, saved: SavedModel) -> Row:
    right = _accuracy(network.answer, saved)
    return {
        "file": str(place),
        "bytes": len(network.content),
        **asdict(network.parity),
        "accuracy": right,
    }


def _accuracy(answer: Answer, saved: SavedModel) -> float | None:
    """Return the accuracy in percent."""
    if saved.labels is None:
        return None
    like = next(saved.small.parameters(), saved.images)
    scores = outputs(answer, saved.images.to(like.device, like.dtype))[0]
    if scores.dim() != 2:
        raise CommandError(
            f"the first output has shape {tuple(scores.shape)}, and accuracies need one score per "
            "class: leave --labels out"
        )
    return 100 * float((scores.argmax(1).cpu() == saved.labels).double().mean())


def _format_table(rows: Sequence[Row], saved: SavedModel, before: float | None) -> str:
    head = ["", "bytes", "relative error", "largest difference", "same class", "accuracy, %"]
    lines = [head]
    if before is not None:
        lines.append([BEFORE, _GAP, _GAP, _GAP, _GAP, f"{before:.2f}"])
    for row in rows:
        same = _GAP if row["same"] is None else f"{row['same']} of {row['images']}"
        right = _GAP if row["accuracy"] is None else f"{row['accuracy']:.2f}"
        apart = [f"{row[name]:.2g}" for name in ("relative", "largest")]
        lines.append([row["file"], size(row["bytes"]), *apart, same, right])
    if saved.labels is None:
        lines = [line[:-1] for line in lines]
    where = "random normal images" if saved.source is None else f"images of {saved.source}"
    note = f"\n{rows[0]['file']} was compared with the network in PyTorch"
    if len(rows) > 1:
        note += f", {rows[1]['file']} with {rows[0]['file']}"
    return f"{table(lines)}\n{note}, on {len(saved.images):,} {where}"
