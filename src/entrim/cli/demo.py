"""`entrim demo`: train a small CNN on the digits of scikit-learn, and prune it without labels.

Training takes some seconds. The network is then pruned with 300 unlabeled images in three ways: by
the method of the paper, by entrim's default to as many parameters, and to the same widths with
random channels. All are tested as they are, and again after a short fine-tuning with labels. Each
result is a run like any other: it can be reported, compared, exported and distilled.
"""

import copy
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from entrim.callbacks import ProgressEvent
from entrim.cli.console import print_json, print_result, table
from entrim.cli.run_dir import IMAGE_OPTIONS, reserve, write_report
from entrim.config import Budget, Widths, paper_preset
from entrim.display.bars import ProgressDisplay
from entrim.errors import CommandError, MissingExtraError, SaveError
from entrim.pipeline import sparsify
from entrim.report.numbers import seconds, size
from entrim.report.report_data import commands_in
from entrim.results import SparsifyResult
from entrim.surgery.measure import interleaved_seconds, measure, speedup

EPS = 1e-2
"""Strength of the paper's method: it keeps a thirtieth of the parameters."""
EPOCHS, LEARNING_RATE = 30, 3e-3
TUNING_EPOCHS, TUNING_RATE = 5, 1e-3
TRAINING, CALIBRATION = 1200, 300
"""Training images, and those of them that are used for pruning; all others are test images."""
PAPER, OURS, RANDOM = "paper", "entrim", "random"
"""The runs, by the names of their folders."""
_TITLES = {PAPER: "the paper's method", OURS: "entrim", RANDOM: "random channels, reconstructed"}
BATCH, ROUNDS = 256, 60
"""Digits of a timed pass, and number of passes of each network."""
_IMAGES, _WEIGHTS = "digits.npy", "trained.safetensors"
_EXAMPLES = """\
examples:
  entrim demo
  entrim demo --out /tmp/demo --json
  entrim export entrim-demo/entrim --onnx digits.onnx"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One network in the table."""

    parameters: int
    macs: int
    bytes_on_disk: int
    latency: float
    """Seconds of a pass of `BATCH` digits, the median of interleaved runs."""
    speedup: tuple[float, float] | None
    """Relative to the trained network, a 95 % confidence interval; None without a difference."""
    accuracy: float
    fine_tuned: float | None = None


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "demo",
        help="train a small CNN on included images and prune it, offline",
        description="Train a small CNN on the digits of scikit-learn, prune it without labels by "
        "the method of the paper and by the default of entrim, fine-tune it briefly, print a "
        "table, and write reports. Nothing is downloaded.",
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "--out", default="entrim-demo", metavar="DIR", help="the folder (default: entrim-demo)"
    )
    return parser


def run(args: Namespace) -> int:
    """Train, prune, fine-tune, print a table."""
    place = Path(args.out)
    with reserve(place, check_folder), ProgressDisplay() as progress:
        torch.manual_seed(0)
        x, y = digits()
        training, test = (x[:TRAINING], y[:TRAINING]), (x[TRAINING:], y[TRAINING:])
        model = network()
        train(model, *training, progress)
        _save_inputs(place, model, x[:CALIBRATION])
        networks: dict[str, nn.Module] = {"trained": model}
        sizes, scores, pages = {"trained": (place / _WEIGHTS).stat().st_size}, {}, {}
        scores["trained"] = accuracy(model, *test), None
        for name, small in _prune_all(model, x[:CALIBRATION], progress):
            scored = small.with_scores(
                lambda net: accuracy(net, *test), on=f"{len(test[0])} test digits"
            )
            scored.save(place / name)
            pages[name] = write_report(place / name, _run_arguments(args, place))
            tuned = copy.deepcopy(small.model)
            options = {"epochs": TUNING_EPOCHS, "rate": TUNING_RATE}
            train(tuned, *training, progress, stage="fine-tune", **options)
            networks[name] = small.model
            sizes[name] = sum(f.stat().st_size for f in (place / name).glob("*.safetensors"))
            scores[name] = accuracy(small.model, *test), accuracy(tuned, *test)
    rows = _rows(networks, test[0][:BATCH], sizes, scores)
    _print_table(rows, pages, len(test[0]), args.json)
    return 0


def check_folder(place: Path) -> None:
    """Refuse a folder that contains anything other than an earlier demo."""
    known = {_IMAGES, _WEIGHTS, ".entrim.lock", *_TITLES}
    runs = [place / name for name in _TITLES if (place / name).exists()]
    ours = all(words[1:2] == ("demo",) for run in runs for words in commands_in(run) or [()])
    if not ours or {entry.name for entry in place.iterdir()} - known:
        raise CommandError(
            f"{place} contains something other than a demo: name another folder with --out"
        )


def _save_inputs(place: Path, model: nn.Module, images: Tensor) -> None:
    """Write the images and the trained weights, which later commands on the runs need."""
    try:
        np.save(place / _IMAGES, images.numpy())
        save_file(model.state_dict(), place / _WEIGHTS)
    except OSError as error:
        raise SaveError(f"{place} cannot be written ({error}): free disk space") from error


def _run_arguments(args: Namespace, place: Path) -> Namespace:
    """Return the arguments of a command that prunes this network with these images."""
    model = f"{__name__}:{network.__name__}"
    files = {"weights": str(place / _WEIGHTS), "images": str(place / _IMAGES)}
    options = {**dict.fromkeys(("key", *IMAGE_OPTIONS)), "scale": 255.0}
    return Namespace(words=args.words, model=model, **files, **options)


def _prune_all(
    model: nn.Module, images: Tensor, progress: ProgressDisplay
) -> Iterator[tuple[str, SparsifyResult]]:
    """Yield the three pruned networks."""

    def prune(name: str, **options: Any) -> SparsifyResult:
        progress.print_heading(_TITLES[name])
        return sparsify(model, images, callbacks=[progress], **options)

    paper = prune(PAPER, **paper_preset(-EPS, EPS))
    yield PAPER, paper
    ours = prune(OURS, budget=Budget(params=paper.record.after.params))
    yield OURS, ours
    widths = Widths({group.name: len(group.kept) for group in ours.record.groups})
    yield RANDOM, prune(RANDOM, budget=widths, selector="random")


def _rows(
    networks: Mapping[str, nn.Module],
    images: Tensor,
    sizes: Mapping[str, int],
    scores: Mapping[str, tuple[float, float | None]],
) -> dict[str, Row]:
    """Return the row of every network; their passes are timed in turns."""
    times = interleaved_seconds(list(networks.values()), images, repeats=ROUNDS)
    rows = {}
    for (name, model), seconds_taken in zip(networks.items(), times, strict=True):
        cost, (pruned, tuned) = measure(model, images[:4], repeats=2), scores[name]
        rows[name] = Row(
            parameters=cost.params,
            macs=cost.macs,
            bytes_on_disk=sizes[name],
            latency=median(seconds_taken),
            speedup=speedup(times[0], seconds_taken),
            accuracy=pruned,
            fine_tuned=tuned,
        )
    return rows


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
    progress: ProgressDisplay | None = None,
    *,
    stage: str = "train",
    epochs: int = EPOCHS,
    rate: float = LEARNING_RATE,
) -> None:
    """Train `model` on labeled images."""
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for epoch in range(1, epochs + 1):
        for rows in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        if progress is not None:
            name = f"epoch {epoch}"
            progress.on_step(ProgressEvent(stage=stage, name=name, done=epoch, total=epochs))
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the accuracy in percent."""
    return 100 * float((model(x).argmax(1) == y).double().mean())


def digits() -> tuple[Tensor, Tensor]:
    """Return the images of scikit-learn between 0 and 1, in random order, and their classes."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtraError("the demo", "scikit-learn", "cli") from error
    pixels, classes = load_digits(return_X_y=True)
    order = torch.randperm(len(classes))
    x = torch.as_tensor(pixels).float().view(-1, 1, 8, 8)[order] / 16
    return x, torch.as_tensor(classes)[order]


def _print_table(
    rows: Mapping[str, Row], pages: Mapping[str, Path], images: int, as_json: bool
) -> None:
    if as_json:
        found = {name: asdict(row) for name, row in rows.items()}
        reports = {name: str(page) for name, page in pages.items()}
        print_json({"rows": found, "images": images, "reports": reports})
        return
    head = ["", "parameters", "MACs", "on disk", "latency", "", "accuracy, %", "fine-tuned, %"]
    lines = [
        [
            _TITLES.get(name, name),
            f"{row.parameters:,}",
            f"{row.macs:,}",
            size(row.bytes_on_disk),
            seconds(row.latency),
            _compare_latency(name, row.speedup),
            f"{row.accuracy:.1f}",
            "" if row.fine_tuned is None else f"{row.fine_tuned:.1f}",
        ]
        for name, row in rows.items()
    ]
    print_result(
        f"latency of {BATCH} digits, median of {ROUNDS} passes in turns\n"
        f"accuracy on {images} test digits: pruned without labels, and after {TUNING_EPOCHS} "
        "epochs of fine-tuning with labels"
    )
    print_result(table([head, *lines]))
    print_result(
        f"\nreports: {pages[OURS]}, and for the paper's method {pages[PAPER]}\n"
        f"next: entrim compare {' '.join(str(page.parent) for page in pages.values())}"
    )


def _compare_latency(name: str, faster: tuple[float, float] | None) -> str:
    """Return by how many times a network is faster than the trained one, if it differs."""
    if name == "trained":
        return ""
    if faster is None:
        return "no difference"
    low, high = sorted(faster if faster[0] > 1 else (1 / faster[1], 1 / faster[0]))
    return f"{low:.2g} to {high:.2g} times {'faster' if faster[0] > 1 else 'slower'}"
