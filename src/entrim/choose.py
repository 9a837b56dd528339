"""From the moments of a group of channels to those that stay, as asked."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from entrim.entropic.moments import Moments
from entrim.entropic.solution import JointSolution, Solution
from entrim.entropic.solve import live_channels, solve, solve_for
from entrim.errors import DeadInputError
from entrim.reconstruction.layer import Part
from entrim.selection.baselines import Selector, select
from entrim.storage.checkpoint import Unit

SELECTORS = ("entropic", "greedy", "lasso", "magnitude", "random", "exhaustive")
COUPLINGS = ("joint", "max")
_ALTERNATIONS = 4000
_FACTS = ("kept", "how", "loss", "certificate", "trace", "ridge_solves")
_PART = ("kept", "weight", "bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is wanted of one group: a width, or the strengths that decide on one."""

    channels: int
    width: int | None = None
    eps_w: float = -1e-4
    eps_l2: float = 1e-4
    selector: Selector = "entropic"
    scores: tuple[float, ...] | None = None
    """The user's own importance of every channel, instead of a selector."""
    coupling: str = "joint"
    round_to: int = 1
    alternation: float | None = None
    """The paper's own method, stopped where a step lowers the loss by less than this."""
    raw: bool = False
    """Whether the weights of the solve itself are wanted, not those of a refit."""

    @property
    def by(self) -> str:
        """What chooses among channels."""
        return self.selector if self.scores is None else "the scores handed over"

    def rounded(self, width: int) -> int:
        """Return `width` as the next multiple of `round_to`, at most all channels."""
        return min(self.channels, -(-width // self.round_to) * self.round_to)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chosen:
    """The channels of a group that stay."""

    kept: tuple[int, ...]
    how: str
    w: Tensor | None = None
    loss: float | None = None
    certificate: float | None = None
    trace: tuple[float, ...] = ()
    ridge_solves: int = 0
    parts: tuple[Part, ...] = ()
    """The weights for each consumer, where those of the solve itself are wanted."""

    @classmethod
    def by(cls, found: JointSolution, how: str, raw: bool) -> "Chosen":
        """Return the choice that a solve made, with its weights if they are wanted `raw`."""
        return cls(
            kept=tuple(found.kept.tolist()),
            how=how,
            w=found.w,
            loss=found.loss,
            certificate=found.certificate,
            trace=found.trace,
            ridge_solves=found.ridge_solves,
            parts=tuple(Part(p.kept, p.weight, p.bias) for p in found.parts if raw),
        )

    @property
    def unit(self) -> Unit:
        """The choice as a unit of work."""
        tensors = {
            f"{number} {key}": getattr(part, key)
            for number, part in enumerate(self.parts)
            for key in _PART
        }
        facts = {key: getattr(self, key) for key in _FACTS}
        return Unit(facts, tensors if self.w is None else {**tensors, "w": self.w})

    @classmethod
    def of(cls, unit: Unit) -> "Chosen":
        """Return the choice in a unit of work."""
        numbers = range(sum(key.endswith(" kept") for key in unit.tensors))
        facts = dict(unit.facts)
        return cls(
            kept=tuple(facts.pop("kept")),
            trace=tuple(facts.pop("trace")),
            **facts,
            w=unit.tensors.get("w"),
            parts=tuple(Part(*(unit.tensors[f"{n} {key}"] for key in _PART)) for n in numbers),
        )


def choose(
    ask: Ask,
    moments: Sequence[Moments],
    weights: Sequence[Tensor],
    generator: torch.Generator | None = None,
) -> Chosen:
    """Return the channels of one group that stay, for all its consumers together."""
    try:
        found = _by_width(ask, moments, weights, generator) if ask.width else _by_eps(ask, moments)
        width = ask.rounded(len(found.kept))
        return found if width == len(found.kept) else _filled(ask, found, moments, width)
    except DeadInputError:
        kept = tuple(range(ask.rounded(1)))
        return Chosen(kept=kept, how="all its channels are zero on these images")


def _by_eps(ask: Ask, moments: Sequence[Moments]) -> Chosen:
    alive = _alive(moments)
    if ask.coupling == "max" and len(alive) > 1:
        return _by_maximum([solve(m, **_how(ask)) for m in alive], ask.channels)
    found = solve(list(moments), **_how(ask))
    return Chosen.by(found, str(found.status), ask.raw)


def _how(ask: Ask) -> dict[str, Any]:
    """Return what `solve` is told."""
    eps: dict[str, Any] = {"eps_w": ask.eps_w, "eps_l2": ask.eps_l2}
    if ask.alternation is None:
        return eps
    return {**eps, "method": "reference", "fall": ask.alternation, "max_solves": _ALTERNATIONS}


def _by_width(
    ask: Ask,
    moments: Sequence[Moments],
    weights: Sequence[Tensor],
    generator: torch.Generator | None,
) -> Chosen:
    width = ask.rounded(ask.width or ask.channels)
    if width == ask.channels:
        return Chosen(kept=tuple(range(ask.channels)), how="whole, as asked")
    if ask.scores is not None:
        best = torch.tensor(ask.scores).sort(descending=True, stable=True).indices[:width]
        return Chosen(kept=tuple(sorted(best.tolist())), how=f"{ask.by}, at this width")
    if ask.selector == "entropic":
        width = min(width, live_channels(moments))
        alive = _alive(moments)
        if ask.coupling == "max" and len(alive) > 1:
            parts = [solve_for(m, channels=min(width, live_channels([m]))) for m in alive]
            return _by_maximum(parts, width)
        if ask.raw:
            found = solve_for(list(moments), channels=width)
            return Chosen.by(found, "the largest w, held at this width", ask.raw)
    kept = select(
        list(moments),
        channels=width,
        method=ask.selector,
        weight=list(weights),
        generator=generator,
    )
    return Chosen(kept=tuple(kept.tolist()), how=f"{ask.by}, at this width")


def _alive(moments: Sequence[Moments]) -> list[Moments]:
    """Return the consumers that see anything at all."""
    return [m for m in moments if bool((m.gram_sum.diagonal()[1:] > 0).any())]


def _by_maximum(parts: Sequence[Solution], most: int) -> Chosen:
    """Return the channels that matter to any consumer, the `most` important ones of them."""
    w = torch.stack([part.w for part in parts]).amax(0)
    kept = w.topk(min(most, int((w > 0).sum()))).indices.sort().values
    return Chosen(
        kept=tuple(kept.tolist()),
        how="the largest w of any consumer",
        w=w,
        ridge_solves=sum(part.ridge_solves for part in parts),
    )


def _filled(ask: Ask, found: Chosen, moments: Sequence[Moments], width: int) -> Chosen:
    """Return the choice with more channels, up to a round number: the next by w, then by index."""
    more: Int[Tensor, " k"] = torch.tensor([], dtype=torch.int64)
    live = live_channels(moments)
    if found.parts and live > len(found.kept):
        found = _by_width(replace(ask, width=width), moments, [], None)
    elif ask.selector == "entropic" and live > len(found.kept):
        more = solve_for(list(moments), channels=min(width, live)).kept
    wanted = [*found.kept, *more.tolist(), *range(ask.channels)]
    kept = tuple(sorted(list(dict.fromkeys(wanted))[:width]))
    return replace(found, kept=kept, how=f"{found.how}; rounded up to {width}")
