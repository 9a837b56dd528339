"""Are smaller networks easier to fool: accuracy under attacks that know the network."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import entrim
from entrim.errors import DataError
from experiments import models
from experiments.datasets import Dataset
from experiments.errors import MissingPackageError
from experiments.models import Subject
from experiments.normalization import Normalization
from experiments.paper.cutting import Lessons, cut_row
from experiments.paper.earlier import NOTHING, Earlier, Point, named, place_in
from experiments.paper.panels import Panel, asked_for, at_hand, halved_resnet, lenet, within
from experiments.paper.planning import about, seconds_per_image
from experiments.paper.report import Line, Report
from experiments.paper.reproduce import Options, lesson_of, shrunk
from experiments.paper.rows import Row
from experiments.storage import fingerprint, fingerprint_of
from experiments.work import NotFinishedError, Work

ATTACKED = 1000
"""Test images that are attacked."""
STEPS = 10
"""Of PGD, each a quarter of the strength."""
_BATCH = 250
STRENGTHS: dict[str, tuple[float, ...]] = {
    "LeNet": (0.05, 0.1, 0.2, 0.3),
    "ResNet-20": (0.5 / 255, 1 / 255, 2 / 255, 4 / 255),
}
"""The largest change of a pixel between 0 and 1."""
ATTACKS = ("FGSM", "PGD")
CUTS = {
    "cut as in the paper": lambda _, row: {
        "preset": "paper", "layers": list(row.eps), "widths": dict(row.widths)
    },
    "cut by entrim": within,
}  # fmt: skip


class FromPixels(nn.Module):
    """A network that takes pixels between 0 and 1, and normalises them itself."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, how: Normalization) -> None:
        super().__init__()
        self.model, self.bgr = model, how.bgr
        scale = 255 / how.scale
        for name in ("mean", "std"):
            values = torch.tensor(getattr(how, name)).view(-1, 1, 1) / scale
            self.register_buffer(name, values)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return what the network says of pixels between 0 and 1."""
        pixels = pixels.flip(1) if self.bgr else pixels
        return self.model((pixels - self.mean) / self.std)


def right_under(
    model: nn.Module, how: Normalization, data: Dataset, attack: str, strength: float, seed: int
) -> float:
    """Return the percentage of images that `model` still names right under an attack on it.

    `model` is in eval mode and is not touched; with a strength of 0 nothing is attacked.
    """
    try:
        from art.attacks.evasion import FastGradientMethod, ProjectedGradientDescent
        from art.estimators.classification import PyTorchClassifier
    except ImportError as error:
        package = "adversarial-robustness-toolbox"
        raise MissingPackageError("attacks on networks", package) from error

    pixels = data.images.numpy().astype(np.float32) / 255
    labels = data.labels.numpy()
    network = PyTorchClassifier(
        model=FromPixels(copy.deepcopy(model), how),
        loss=nn.CrossEntropyLoss(),
        input_shape=pixels.shape[1:],
        nb_classes=10,
        clip_values=(0.0, 1.0),
        device_type="cpu",
    )
    if strength:
        common: dict[str, Any] = {"norm": np.inf, "eps": strength, "batch_size": _BATCH}
        if attack == "PGD":
            how_far = {"eps_step": strength / 4, "max_iter": STEPS, "num_random_init": 1}
            fool = ProjectedGradientDescent(network, **common, **how_far, verbose=False)
        else:
            fool = FastGradientMethod(network, **common)
        with _numpy_drawn_by(seed):
            pixels = fool.generate(x=pixels, y=labels)
    answers = network.predict(pixels, batch_size=_BATCH).argmax(1)
    return 100 * float((answers == labels).mean())


@contextmanager
def _numpy_drawn_by(seed: int) -> Iterator[None]:
    """Seed NumPy's global generator, which the attacks draw from, and give it back as it was."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002


@dataclass(frozen=True, slots=True, kw_only=True)
class Robustness:
    """Networks as trained, cut, and fine tuned, each attacked by someone who knows it."""

    name: str = "robustness"
    title: str = "accuracy under attack, in percent"
    panels: tuple[Panel, ...]
    """Of one row each."""

    def plan(self, options: Options) -> str:
        """Return what will be run."""
        seconds = 0.0
        panels = asked_for(self.panels, options)
        for panel in panels:
            epochs = max(panel.taught(options), default=0)
            passes = len(_columns()) * len(STRENGTHS[panel.network]) * (1 + STEPS) * ATTACKED
            images = len(options.seeds) * (passes + len(CUTS) * epochs * lesson_of(options))
            seconds += images * seconds_per_image(panel.network)
        return (
            f"{self.name}: {', '.join(panel.network for panel in panels)}; as trained and "
            f"{len(CUTS)} cuts, raw and fine tuned, seeds {', '.join(map(str, options.seeds))}; "
            f"attacks on each with {ATTACKED:,} test images; {about(seconds)}, and the cuts "
            "themselves"
        )

    def run(self, work: Work, options: Options, earlier: Earlier = NOTHING) -> Report:
        """Return the accuracies by attack and network, after running what is not finished yet."""
        new: list[Point] = []
        notes, run = shrunk(options), set()
        for panel, subject, told in at_hand(self.panels, work, options, earlier, notes):
            run.add(named(panel.network, subject.seed))
            (row,), epochs = panel.rows, panel.taught(options)
            how = {**told, "row": row.name, "epochs": max(epochs, default=0)}
            _refuse_other_epochs(earlier, how)
            points = _Trial(work, subject, row, epochs).attacked()
            new += [{**point, **how} for point in points]
        names = ("network", "seed", "state", "attack", "strength")
        measured = earlier.beside(new, names, self._order)
        cuts = {(p["network"], p["row"], p["epochs"]) for p in measured}
        notes += [*earlier.notes(run), *(_cut_as(*cut) for cut in sorted(cuts))]
        return Report(
            experiment=self.name,
            title=self.title,
            columns=_columns(),
            lines=tuple(line for panel in self.panels for line in _lines(panel, measured)),
            notes=tuple(notes),
            measured=measured,
            quick=options.quick,
        )

    def _order(self, point: Point) -> tuple[int, int]:
        return place_in([p.network for p in self.panels], point["network"]), point["seed"]


def _refuse_other_epochs(earlier: Earlier, told: Point) -> None:
    """Raise where the record has the same network fine tuned for longer or shorter."""
    for point in earlier.telling(network=told["network"], seed=told["seed"]):
        if point["epochs"] != told["epochs"]:
            raise DataError(
                f"in the record {named(told['network'], told['seed'])} is fine tuned for "
                f"{point['epochs']} epochs, here for {told['epochs']}: name another with --record"
            )


def _cut_as(network: str, row: str, epochs: int) -> str:
    told = f"fine tuned {epochs} epoch{'s' * (epochs > 1)}" if epochs else "not fine tuned"
    return f"{network} is cut as in {row}, {told}"


@dataclass(frozen=True, slots=True)
class _Trial:
    """One network of one seed, cut in one row."""

    work: Work
    subject: Subject
    row: Row
    epochs: tuple[int, ...]

    def attacked(self) -> list[dict[str, Any]]:
        """Return the accuracy of every network under every attack, as far as it was run."""
        found = []
        for state, model in self._networks().items():
            for attack, strength in _attacks(self.subject.network):
                try:
                    right = self._right(model, attack, strength)
                except NotFinishedError:
                    continue
                told = {"network": self.subject.network, "seed": self.subject.seed}
                told |= {"state": state, "attack": attack, "strength": strength}
                found.append({**told, "accuracy": right})
        return found

    def _networks(self) -> dict[str, nn.Module]:
        networks = {"as trained": self.subject.model}
        lessons = Lessons(self.work, self.subject)
        for cut, options in CUTS.items():
            name = f"{self.subject.network} seed {self.subject.seed} {self.row.name} {cut}"
            try:
                told = options(self.subject, self.row)
                place = cut_row(self.work, self.subject, self.row, name, told)[1]
                small = entrim.load(self.subject.model, place)
                networks[cut] = small.eval()
                if self.epochs:
                    recipe = self.subject.fine_tuning(max(self.epochs), self.subject.seed)
                    tuned = lessons.taught(f"{name} fine tuning", small, recipe)
                    networks[f"{cut}, fine tuned"] = tuned
            except NotFinishedError:
                continue
        return networks

    def _right(self, model: nn.Module, attack: str, strength: float) -> float:
        data, seed = self.subject.test[:ATTACKED], self.subject.seed
        settings = {
            "weights": fingerprint_of(model),
            "attack": [attack, strength, STEPS, seed],
            "images": fingerprint([data.images, data.labels]),
        }
        name = f"{self.subject.network} seed {seed} {attack} {strength:.4f}"
        found = self.work.point(
            name,
            settings,
            lambda: {
                "accuracy": right_under(model, self.subject.how, data, attack, strength, seed)
            },
        )
        return found["accuracy"]


def _attacks(network: str) -> list[tuple[str, float]]:
    some = [(attack, strength) for attack in ATTACKS for strength in STRENGTHS[network]]
    return [("nothing", 0.0), *some]


def _columns() -> tuple[str, ...]:
    return ("as trained", *(c for cut in CUTS for c in (cut, f"{cut}, fine tuned")))


def _lines(panel: Panel, measured: Sequence[Point]) -> list[Line]:
    def right(attack: str, strength: float) -> Mapping[str, list[float]]:
        asked = (panel.network, attack, strength)
        return {
            column: [
                one["accuracy"]
                for one in measured
                if (one["network"], one["attack"], one["strength"], one["state"])
                == (*asked, column)
            ]
            for column in _columns()
        }

    return [
        Line(
            row=panel.network,
            quantity=f"{attack}, {strength:.4f}" if strength else "no attack",
            ours=right(attack, strength),
        )
        for attack, strength in _attacks(panel.network)
    ]


ROBUSTNESS = Robustness(
    panels=(
        lenet("E1+fc-v2", epochs=10),
        halved_resnet("ResNet-20", models.resnet20),
    )
)
