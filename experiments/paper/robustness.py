"""Robustness of pruned networks: accuracy under white-box attacks."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import entrim
from entrim.errors import DataError
from entrim.storage.checkpoint import fingerprint
from experiments import models
from experiments.datasets import Dataset
from experiments.errors import MissingPackageError
from experiments.models import TrainedModel
from experiments.normalization import Normalization
from experiments.paper.panels import (
    Panel,
    half_resnet_panel,
    last_row_panel,
    lenet_panel,
    load_models,
    requested_panels,
    same_size_options,
)
from experiments.paper.pruning import SparsifyOptions, Training, prune_row, sparsify_options
from experiments.paper.records import NO_RECORD, Point, PreviousRecord, label, position_in
from experiments.paper.report import Line, Report
from experiments.paper.reproduce import Options, images_per_epoch, quick_notes
from experiments.paper.rows import Row
from experiments.paper.timing import describe_duration, measure_seconds_per_image
from experiments.storage import model_fingerprint
from experiments.work import NotFinishedError, Work

IMAGES = 1000
"""Test images that are attacked."""
STEPS = 10
"""Of PGD, each a quarter of the strength."""
_BATCH = 250
_SMALL = (0.5 / 255, 1 / 255, 2 / 255, 4 / 255)
STRENGTHS: dict[str, tuple[float, ...]] = {
    "LeNet": (0.05, 0.1, 0.2, 0.3),
    "ResNet-20": _SMALL,
    "ResNet18": _SMALL,
}
"""The largest change of a pixel between 0 and 1."""
ATTACKS = ("FGSM", "PGD")
PRUNINGS: dict[str, Callable[[TrainedModel, Row], SparsifyOptions]] = {
    "pruned as in the paper": lambda trained, row: sparsify_options(trained, row, "widths"),
    "pruned by entrim": same_size_options,
}


class FromPixels(nn.Module):
    """A network that takes pixels between 0 and 1, and normalizes them itself."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, normalization: Normalization) -> None:
        super().__init__()
        self.model, self.bgr = model, normalization.bgr
        scale = 255 / normalization.scale
        for name in ("mean", "std"):
            values = torch.tensor(getattr(normalization, name)).view(-1, 1, 1) / scale
            self.register_buffer(name, values)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the outputs for pixels between 0 and 1."""
        pixels = pixels.flip(1) if self.bgr else pixels
        return self.model((pixels - self.mean) / self.std)


def accuracy_under(
    model: nn.Module,
    normalization: Normalization,
    data: Dataset,
    attack: str,
    strength: float,
    seed: int,
) -> float:
    """Return the percentage of images that `model` classifies correctly under an attack on it.

    `model` is in eval mode and is not modified; with a strength of 0 nothing is attacked.
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
        model=FromPixels(copy.deepcopy(model), normalization),
        loss=nn.CrossEntropyLoss(),
        input_shape=pixels.shape[1:],
        nb_classes=10,
        clip_values=(0.0, 1.0),
        device_type="cpu",
    )
    if strength:
        common: dict[str, Any] = {"norm": np.inf, "eps": strength, "batch_size": _BATCH}
        if attack == "PGD":
            steps = {"eps_step": strength / 4, "max_iter": STEPS, "num_random_init": 1}
            attacker = ProjectedGradientDescent(network, **common, **steps, verbose=False)
        else:
            attacker = FastGradientMethod(network, **common)
        with _seed_numpy(seed):
            pixels = attacker.generate(x=pixels, y=labels)
    answers = network.predict(pixels, batch_size=_BATCH).argmax(1)
    return 100 * float((answers == labels).mean())


@contextmanager
def _seed_numpy(seed: int) -> Iterator[None]:
    """Seed NumPy's global generator, which the attacks use, and restore it afterwards."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002


@dataclass(frozen=True, slots=True, kw_only=True)
class Robustness:
    """White-box attacks on networks as trained, pruned, and fine tuned."""

    name: str = "robustness"
    title: str = "accuracy under attack, in percent"
    panels: tuple[Panel, ...]
    """With one row each."""

    def plan(self, options: Options) -> str:
        """Return what will be run."""
        seconds = 0.0
        panels = requested_panels(self.panels, options)
        for panel in panels:
            epochs = max(panel.tuning_epochs(options), default=0)
            passes = len(_columns()) * len(STRENGTHS[panel.network]) * (1 + STEPS) * IMAGES
            images = len(options.seeds) * (
                passes + len(PRUNINGS) * epochs * images_per_epoch(options)
            )
            seconds += images * measure_seconds_per_image(panel.network)
        return (
            f"{self.name}: {', '.join(panel.network for panel in panels)}; as trained and "
            f"{len(PRUNINGS)} prunings, raw and fine tuned, seeds "
            f"{', '.join(map(str, options.seeds))}; attacks on each with {IMAGES:,} test images; "
            f"{describe_duration(seconds)}, and the pruning itself"
        )

    def run(self, work: Work, options: Options, previous: PreviousRecord = NO_RECORD) -> Report:
        """Return the accuracies by attack and network, after running what is not finished yet."""
        new: list[Point] = []
        notes, run = quick_notes(options), set()
        for panel, trained, described in load_models(self.panels, work, options, previous, notes):
            run.add(label(panel.network, trained.seed))
            (row,), epochs = panel.rows, panel.tuning_epochs(options)
            settings = {**described, "row": row.name, "epochs": max(epochs, default=0)}
            _check_epochs(previous, settings)
            points = _Trial(work, trained, row, epochs).attack()
            new += [{**point, **settings} for point in points]
        names = ("network", "seed", "state", "attack", "strength")
        measured = previous.merge(new, names, self._order)
        rows = {(p["network"], p["row"], p["epochs"]) for p in measured}
        notes += [*previous.notes(run), *(_describe_row(*row) for row in sorted(rows))]
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
        return position_in([p.network for p in self.panels], point["network"]), point["seed"]


def _check_epochs(previous: PreviousRecord, described: Point) -> None:
    """Raise an error if the record has the network fine tuned for other epochs."""
    for point in previous.matching(network=described["network"], seed=described["seed"]):
        if point["epochs"] != described["epochs"]:
            raise DataError(
                f"in the record {label(described['network'], described['seed'])} is fine tuned for "
                f"{point['epochs']} epochs, here for {described['epochs']}: name another with "
                "--record"
            )


def _describe_row(network: str, row: str, epochs: int) -> str:
    tuning = f"fine tuned {epochs} epoch{'s' * (epochs > 1)}" if epochs else "not fine tuned"
    return f"{network} is pruned as in {row}, {tuning}"


@dataclass(frozen=True, slots=True)
class _Trial:
    """One network of one seed, pruned in one row."""

    work: Work
    trained: TrainedModel
    row: Row
    epochs: tuple[int, ...]

    def attack(self) -> list[dict[str, Any]]:
        """Return the accuracy of every network under every attack, as far as it was run."""
        found = []
        for state, model in self._networks().items():
            for attack, strength in _attacks(self.trained.network):
                try:
                    accuracy = self._accuracy(model, attack, strength)
                except NotFinishedError:
                    continue
                point = {"network": self.trained.network, "seed": self.trained.seed}
                point |= {"state": state, "attack": attack, "strength": strength}
                found.append({**point, "accuracy": accuracy})
        return found

    def _networks(self) -> dict[str, nn.Module]:
        networks = {"as trained": self.trained.model}
        training = Training(self.work, self.trained)
        for pruning, options in PRUNINGS.items():
            name = f"{self.trained.network} seed {self.trained.seed} {self.row.name} {pruning}"
            try:
                chosen = options(self.trained, self.row)
                path = prune_row(self.work, self.trained, self.row, name, chosen)[1]
                small = entrim.load(self.trained.model, path)
                networks[pruning] = small.eval()
                if self.epochs:
                    config = self.trained.fine_tuning(max(self.epochs), self.trained.seed)
                    tuned = training.train(f"{name} fine tuning", small, config)
                    networks[f"{pruning}, fine tuned"] = tuned
            except NotFinishedError:
                continue
        return networks

    def _accuracy(self, model: nn.Module, attack: str, strength: float) -> float:
        data, seed = self.trained.test_set[:IMAGES], self.trained.seed
        settings = {
            "weights": model_fingerprint(model),
            "attack": [attack, strength, STEPS, seed],
            "images": fingerprint([data.images, data.labels]),
        }
        name = f"{self.trained.network} seed {seed} {attack} {strength:.4f}"
        found = self.work.point(
            name,
            settings,
            lambda: {
                "accuracy": accuracy_under(
                    model, self.trained.normalization, data, attack, strength, seed
                )
            },
        )
        return found["accuracy"]


def _attacks(network: str) -> list[tuple[str, float]]:
    some = [(attack, strength) for attack in ATTACKS for strength in STRENGTHS[network]]
    return [("nothing", 0.0), *some]


def _columns() -> tuple[str, ...]:
    return ("as trained", *(c for name in PRUNINGS for c in (name, f"{name}, fine tuned")))


def _lines(panel: Panel, measured: Sequence[Point]) -> list[Line]:
    def accuracies(attack: str, strength: float) -> Mapping[str, list[float]]:
        key = (panel.network, attack, strength)
        return {
            column: [
                one["accuracy"]
                for one in measured
                if (one["network"], one["attack"], one["strength"], one["state"]) == (*key, column)
            ]
            for column in _columns()
        }

    return [
        Line(
            row=panel.network,
            quantity=f"{attack}, {strength:.4f}" if strength else "no attack",
            ours=accuracies(attack, strength),
        )
        for attack, strength in _attacks(panel.network)
    ]


ROBUSTNESS = Robustness(
    panels=(
        lenet_panel("E1+fc-v2", epochs=10),
        half_resnet_panel("ResNet-20", models.resnet20),
        replace(last_row_panel("ResNet18", "resnet18", models.resnet18), epochs=1),
    )
)
