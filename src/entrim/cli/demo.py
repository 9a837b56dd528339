"""`entrim demo`: a small CNN for the digits that scikit-learn ships, made smaller without labels.

Trains for some seconds, then cuts it with 300 unlabelled images in three ways: by the paper's
method, by entrim's default within as many parameters, and at the same widths with channels drawn
at random, rebuilt alike. Each is tested as it is, and again after a short fine tuning with the
labels. Every cut is a run like any other: it can be reported, compared, exported and distilled.
"""

import copy
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from entrim.budget import Budget
from entrim.cli.console import Progress, print_progress, table, tell_json
from entrim.cli.run_dir import reported, reserved
from entrim.errors import CommandError, MissingExtraError, SaveError
from entrim.pipeline import sparsify
from entrim.records import ProgressEvent
from entrim.report.numbers import seconds, size
from entrim.report.report_data import commands_in
from entrim.sparsified import SparsifyResult
from entrim.surgery.measure import measure

EPS = 1e-2
"""The strength of the paper's method: a thirtieth of the parameters remains."""
EPOCHS, RATE = 30, 3e-3
TUNED, SLOWLY = 5, 1e-3
"""The epochs and the rate of the fine tuning."""
LESSON, CALIBRATION = 1200, 300
"""Images to learn from, and those of them to cut with; the others test."""
PAPER, OURS, CHANCE = "paper", "entrim", "random"
"""The cuts, which are called as their folders."""
_TITLES = {PAPER: "the paper's method", OURS: "entrim", CHANCE: "random channels, rebuilt"}
_IMAGES, _WEIGHTS = "digits.npy", "trained.safetensors"
_EXAMPLES = """\
examples:
  entrim demo
  entrim demo --out /tmp/demo --json
  entrim export entrim-demo/entrim --onnx digits.onnx"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the table tells of one network."""

    parameters: int
    macs: int
    bytes_on_disk: int
    latency: float
    accuracy: float
    fine_tuned: float | None = None


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "demo",
        help="train a small CNN on embedded digits and make it smaller, offline",
        description="Train a small CNN on scikit-learn's digits, make it smaller without labels as "
        "the paper does and as entrim does by default, fine tune it briefly, print a table, write "
        "reports. No download.",
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "--out", default="entrim-demo", metavar="DIR", help="the folder to write (entrim-demo)"
    )
    return parser


def run(args: Namespace) -> int:
    """Train, cut, fine tune, print."""
    place = Path(args.out)
    with reserved(place, check_folder), Progress() as progress:
        torch.manual_seed(0)
        x, y = _digits()
        lesson, test = (x[:LESSON], y[:LESSON]), (x[LESSON:], y[LESSON:])
        model = network()
        train(model, *lesson, progress)
        _keep(place, model, x[:CALIBRATION])
        rows, pages = {"trained": _train(model, place, test)}, {}
        for name, cut in _cuts(model, x[:CALIBRATION], progress):
            small = cut.with_scores(
                lambda net: accuracy(net, *test), on=f"{len(test[0])} digits never seen"
            )
            small.save(place / name)
            pages[name] = reported(place / name, _as_a_run(args, place))
            tuned = copy.deepcopy(small.model)
            train(tuned, *lesson, progress, stage="fine tune", epochs=TUNED, rate=SLOWLY)
            rows[name] = _row(small, place / name, accuracy(tuned, *test))
    _print_result(rows, pages, len(test[0]), args.json)
    return 0


def check_folder(place: Path) -> None:
    """Refuse a folder that holds anything else than an earlier demo."""
    known = {_IMAGES, _WEIGHTS, ".entrim.lock", *_TITLES}
    runs = [place / name for name in _TITLES if (place / name).exists()]
    ours = all(words[1:2] == ("demo",) for run in runs for words in commands_in(run) or [()])
    if not ours or {entry.name for entry in place.iterdir()} - known:
        raise CommandError(
            f"{place} holds something else than a demo: name another folder with --out"
        )


def _keep(place: Path, model: nn.Module, images: Tensor) -> None:
    """Write what later commands on the cuts ask for: the images, and the trained weights."""
    try:
        np.save(place / _IMAGES, images.numpy())
        save_file(model.state_dict(), place / _WEIGHTS)
    except OSError as error:
        raise SaveError(f"{place} cannot be written ({error}): make room") from error


def _as_a_run(args: Namespace, place: Path) -> Namespace:
    """Return the arguments with network and images, as those of a run on files have them."""
    seen = dict.fromkeys(("key", "resize", "channels", "mean", "std"))
    model = f"{__name__}:{network.__name__}"
    files = {"weights": str(place / _WEIGHTS), "images": str(place / _IMAGES)}
    return Namespace(words=args.words, model=model, **files, **seen, scale=255.0)


def _cuts(
    model: nn.Module, images: Tensor, progress: Progress
) -> Iterator[tuple[str, SparsifyResult]]:
    """Yield the cuts one after the other."""

    def cut(name: str, **options: Any) -> SparsifyResult:
        progress.head(_TITLES[name])
        generator = torch.Generator().manual_seed(0)
        return sparsify(model, images, generator=generator, on_step=progress, **options)

    paper = cut(PAPER, preset="paper", eps_w=-EPS, eps_l2=EPS)
    yield PAPER, paper
    ours = cut(OURS, budget=Budget(params=paper.record.after.params))
    yield OURS, ours
    widths = {group.name: len(group.kept) for group in ours.record.groups}
    yield CHANCE, cut(CHANCE, widths=widths, selector="random")


def _train(model: nn.Module, place: Path, test: tuple[Tensor, Tensor]) -> Row:
    cost = measure(model, test[0][:4])
    return Row(
        parameters=cost.params,
        macs=cost.macs,
        bytes_on_disk=(place / _WEIGHTS).stat().st_size,
        latency=cost.latency.median,
        accuracy=accuracy(model, *test),
    )


def _row(small: SparsifyResult, folder: Path, tuned: float) -> Row:
    after, score = small.record.after, small.record.score
    assert score is not None
    return Row(
        parameters=after.params,
        macs=after.macs,
        bytes_on_disk=sum(file.stat().st_size for file in folder.glob("*.safetensors")),
        latency=after.latency,
        accuracy=score.after,
        fine_tuned=tuned,
    )


def network() -> nn.Sequential:
    """Return an untrained LeNet-like network for 8x8 images."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def train(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    progress: Progress | None = None,
    *,
    stage: str = "train",
    epochs: int = EPOCHS,
    rate: float = RATE,
) -> None:
    """Fit `model` to the labelled images."""
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for epoch in range(1, epochs + 1):
        for rows in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        if progress is not None:
            progress(ProgressEvent(stage=stage, name=f"epoch {epoch}", done=epoch, total=epochs))
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the percentage of images whose largest output is the right class."""
    return 100 * float((model(x).argmax(1) == y).double().mean())


def _digits() -> tuple[Tensor, Tensor]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtraError("the demo", "scikit-learn", "cli") from error
    pixels, classes = load_digits(return_X_y=True)
    order = torch.randperm(len(classes))
    x = torch.as_tensor(pixels).float().view(-1, 1, 8, 8)[order] / 16
    return x, torch.as_tensor(classes)[order]


def _print_result(
    rows: Mapping[str, Row], pages: Mapping[str, Path], images: int, as_json: bool
) -> None:
    if as_json:
        found = {name: asdict(row) for name, row in rows.items()}
        reports = {name: str(page) for name, page in pages.items()}
        tell_json({"rows": found, "images": images, "reports": reports})
        return
    head = ["", "parameters", "MACs", "on disk", "latency", "accuracy, %", "fine tuned, %"]
    shown = [
        [
            _TITLES.get(name, name),
            f"{row.parameters:,}",
            f"{row.macs:,}",
            size(row.bytes_on_disk),
            seconds(row.latency),
            f"{row.accuracy:.1f}",
            "" if row.fine_tuned is None else f"{row.fine_tuned:.1f}",
        ]
        for name, row in rows.items()
    ]
    print_progress(
        f"accuracy on {images} digits never seen, as cut without labels, and after {TUNED} epochs "
        "of fine tuning with labels"
    )
    print_progress(table([head, *shown]))
    print_progress(f"reports: {pages[OURS]}, and of the paper's method {pages[PAPER]}")
