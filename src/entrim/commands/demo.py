"""`entrim demo`: a small CNN for the digits that scikit-learn ships, made smaller without labels.

Trains for some seconds, then cuts every layer to a quarter of its channels with 300 unlabelled
images: by the paper's method, by entrim's default, and by the same rebuild on random channels.
Each is tested as it is, and again after a short fine tuning with the labels.
"""

import copy
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from entrim.commands.showing import Progress, table, tell, tell_json
from entrim.errors import CommandError, MissingExtraError
from entrim.network import measure
from entrim.pipeline import sparsify
from entrim.records import Step
from entrim.report import write
from entrim.report.numbers import seconds, size

WIDTHS = {"*": 0.25}
METHODS: dict[str, dict[str, Any]] = {
    "as in the paper": {"mode": "independent", "refit": False},
    "entrim": {},
    "random channels": {"selector": "random"},
}
EPOCHS, RATE = 30, 3e-3
TUNED, SLOWLY = 5, 1e-3
"""The epochs and the rate of the fine tuning."""
Row = tuple[int, int, int, float, float, float | None]
"""Parameters, MACs, bytes, latency, accuracy as cut, accuracy fine tuned."""
_EXAMPLES = """\
examples:
  entrim demo
  entrim demo --out /tmp/demo --json"""


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "demo",
        help="train a small CNN on embedded digits and make it smaller, offline",
        description="Train a small CNN on scikit-learn's digits, cut it to a quarter of its "
        "channels without labels, fine tune it briefly, print a table, write the report. No "
        "download.",
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "--out", default="entrim-demo", metavar="DIR", help="the folder to write (entrim-demo)"
    )
    return parser


def run(args: Namespace) -> int:
    """Train, cut, fine tune, print."""
    if Path(args.out).is_file():
        raise CommandError(f"{args.out} is a file: name another folder with --out")
    torch.manual_seed(0)
    x, y = _digits()
    model, progress = network(), Progress()
    train(model, x[:1200], y[:1200], progress)
    test, cost = (x[1200:], y[1200:]), measure(model, x[:4])
    latency = cost.latency.median
    right = accuracy(model, *test)
    rows: dict[str, Row] = {"trained": (cost.params, cost.macs, cost.bytes, latency, right, None)}
    page = Path()
    for name, how in METHODS.items():
        generator = torch.Generator().manual_seed(0)
        small = sparsify(
            model, x[:300], widths=WIDTHS, generator=generator, on_step=progress, **how
        )
        after = small.record.after
        right = accuracy(small.model, *test)
        tuned = copy.deepcopy(small.model)
        train(tuned, x[:1200], y[:1200], progress, stage="fine tune", epochs=TUNED, rate=SLOWLY)
        sizes = after.params, after.macs, after.bytes, after.latency
        rows[name] = (*sizes, right, accuracy(tuned, *test))
        small.save(Path(args.out, name.replace(" ", "-")))
        if not how:
            page = write(Path(args.out, name))
    _tell(rows, page, len(test[0]), args.json)
    return 0


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
    optimiser = torch.optim.Adam(model.parameters(), rate)
    for epoch in range(1, epochs + 1):
        for rows in torch.randperm(len(x)).split(100):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()
        if progress is not None:
            progress(Step(stage=stage, name=f"epoch {epoch}", done=epoch, total=epochs))
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


def _share(tuned: float | None) -> str:
    return "" if tuned is None else f"{tuned:.1f}"


def _tell(rows: dict[str, Row], page: Path, images: int, as_json: bool) -> None:
    names = ["parameters", "MACs", "bytes", "latency", "accuracy, %", "fine tuned, %"]
    if as_json:
        found = {name: dict(zip(names, row, strict=True)) for name, row in rows.items()}
        tell_json({"rows": found, "images": images, "report": str(page)})
        return
    shown = [
        [name, f"{params:,}", f"{macs:,}", size(held), seconds(took), f"{right:.1f}", _share(tuned)]
        for name, (params, macs, held, took, right, tuned) in rows.items()
    ]
    tell(
        f"accuracy on {images} images never seen, as cut without labels, and after {TUNED} epochs "
        "of fine tuning with labels"
    )
    tell(table([["", *names], *shown]))
    tell(f"report: {page}")
