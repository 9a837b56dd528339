"""One trial of a search: choose from moments that lie ready, look at the price, rebuild, score."""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from entrim.choose import Chosen
from entrim.deciding import Scene, choose_in
from entrim.errors import BadSettingError, CalibrationWarning, RolledBackWarning
from entrim.graph import Group
from entrim.moments import Moments
from entrim.network import measure
from entrim.network.eager import Example
from entrim.network.shelf import Shelf
from entrim.network.surgery import sliced
from entrim.pipeline import build
from entrim.randomness import own_randomness
from entrim.rebuilding import cut_in
from entrim.run import Run
from entrim.scoring import Metric, score_of
from entrim.settings import Settings
from entrim.solver import refit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """The channels that one setting chooses, what they cost, and how well they fit."""

    settings: Settings
    chosen: Mapping[str, Chosen]
    kept: Mapping[str, tuple[int, ...]]
    params: float
    macs: float
    lost: float
    """What the readers lose by a refit on the kept channels, relative to their variance."""

    @property
    def widths(self) -> dict[str, int]:
        """Channels that stay in every group."""
        return {name: len(found.kept) for name, found in self.chosen.items()}

    @property
    def digest(self) -> str:
        """What tells this network from others: the channels, where these decide on the weights."""
        told = (sorted(self.kept.items()), None if self.settings.refits else self.settings.eps)
        return hashlib.sha256(repr(told).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ground:
    """What all trials of one process stand on: the network, its moments collected once."""

    run: Run
    scene: Scene
    groups: Sequence[Group]
    grams: Shelf
    example: Example
    params: int
    macs: int

    @classmethod
    def of(
        cls, run: Run, scene: Scene, groups: Sequence[Group], grams: Shelf, example: Example
    ) -> "Ground":
        """Return the ground of a run whose moments lie on `grams`."""
        whole = measure(run.model, example, repeats=2)
        return cls(
            run=run,
            scene=scene,
            groups=groups,
            grams=grams,
            example=example,
            params=whole.params,
            macs=whole.macs,
        )

    def choose(self, settings: Settings) -> Choice:
        """Return what `settings` choose, without touching a weight."""
        asks = settings.asks(self.scene.graph, self.scene.alone)
        chosen = choose_in(self.groups, self.run, self.scene, asks, self.grams, quiet=True)
        kept = cut_in(self.scene, chosen)
        with self.run.stage("choose"):
            params, macs = self.cost(sliced(self.run.model, self.scene.graph, kept))
            lost = sum(
                _error(self.scene.moments(group, self.grams), chosen[group.name].kept)
                for group in self.groups
            )
        return Choice(
            settings=settings, chosen=chosen, kept=kept, params=params, macs=macs, lost=lost
        )

    def cost(self, model: nn.Module) -> tuple[float, float]:
        """Return the fractions of parameters and MACs that `model` has of the original."""
        size = measure(model, self.example, repeats=2)
        return size.params / self.params, size.macs / max(self.macs, 1)

    def built(self, choice: Choice) -> nn.Module:
        """Return the smaller network in eval mode.

        Its warnings are not passed on: there would be some for every trial, and whoever takes one
        of them up hears them from `sparsify`.
        """
        run = Run(self.run.model, choice.settings, self.run.images, None, lambda _: None)
        with warnings.catch_warnings(), own_randomness():
            for category in (CalibrationWarning, RolledBackWarning):
                warnings.simplefilter("ignore", category)
            done = build(run, self.scene, choice.chosen, self.grams, self.example)
        for stage, seconds in run.seconds.items():
            self.run.seconds[stage] = self.run.seconds.get(stage, 0.0) + seconds
        return done.model.eval()


def scored(score: Metric, model: nn.Module) -> tuple[float | None, str]:
    """Return what `score` says of `model`, or None and what went wrong."""
    try:
        return score_of(score, model, "score"), "scored"
    except BadSettingError as error:
        return None, f"failed: {error}"
    except Exception as error:  # whatever a user's function may raise
        return None, f"failed: score raised {type(error).__name__}: {error}"


def _error(moments: Sequence[Moments], kept: Sequence[int]) -> float:
    """Return the squared error of a refit on `kept`, relative to the variance, over all readers."""
    parts = []
    for m in moments:
        mean = m.cross_sum[0] / m.count
        variance = (m.target_sum_sq / m.count - float(mean.square().sum())) / m.outputs
        parts.append(refit(m, kept).mse / variance if variance > 0 else 0.0)
    return sum(parts) / len(parts)
