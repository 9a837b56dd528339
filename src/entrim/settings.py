"""What `sparsify` may be told, checked before anything runs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from entrim.budget import Budget
from entrim.choose import COUPLINGS, SELECTORS, Ask
from entrim.entropic.moments import MEMORY_LIMIT
from entrim.entropic.solve import Settings as SolveSettings
from entrim.errors import BadSettingError
from entrim.graph.channel_graph import ChannelGraph, Group

Patterns = str | Sequence[str]
EPS = (-1e-4, 1e-4)
RIDGE = 1e-4
PAPER = {"mode": "independent", "refit": False, "correct": False}
OURS = {"mode": "sequential", "refit": True, "correct": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All options of one run; None means that the preset decides."""

    eps_w: float | None = None
    eps_l2: float | None = None
    preset: str | None = None
    mode: str | None = None
    refit: bool | None = None
    correct: bool | None = None
    coupling: str = "joint"
    batchnorm: str = "keep"
    layers: Patterns | None = None
    skip: Patterns = ()
    eps: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    widths: Mapping[str, int | float] | None = None
    budget: Budget | None = None
    selector: str | None = None
    scores: Mapping[str, Sequence[float]] | None = None
    alternation: int | float | None = None
    round_to: int = 1
    ridge: float = RIDGE
    positions: int | None = None
    resamples: int = 0
    memory_limit: int = MEMORY_LIMIT

    def __post_init__(self) -> None:
        _one_of("preset", self.preset, (None, "paper"))
        _one_of("mode", self.mode, (None, "sequential", "independent"))
        _one_of("coupling", self.coupling, COUPLINGS)
        _one_of("batchnorm", self.batchnorm, ("keep", "reestimate"))
        _one_of("selector", self.selector, (None, *SELECTORS))
        for name in ("round_to", "positions", "memory_limit"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise BadSettingError(f"{name} is {value!r}: hand over a whole number from 1")
        if not isinstance(self.resamples, int) or self.resamples < 0:
            raise BadSettingError(f"resamples is {self.resamples!r}: hand over 0 or more")
        if not 0 <= self.ridge < math.inf:
            raise BadSettingError(f"ridge is {self.ridge}: it must be 0 or positive")
        if self.selector not in (None, "entropic") and not self.widths and not self.allocates:
            raise BadSettingError(
                f'selector="{self.selector}" chooses at given widths: pass widths={{"*": 0.5}} or '
                "a budget="
            )
        if self.scores and (self.selector is not None or not (self.widths or self.allocates)):
            raise BadSettingError(
                "scores choose at given widths, instead of a selector: pass widths= or budget=, "
                "and no selector="
            )
        if self.alternation is not None:
            SolveSettings(fall=self.alternation)
            if self.allocates or (self.widths and not self._by_eps):
                raise BadSettingError(
                    "alternation= is a way to choose by eps: pass eps_w= and eps_l2=, or leave it "
                    "out"
                )
        for name in ("eps", "widths", "scores"):
            if not isinstance(getattr(self, name) or {}, Mapping):
                raise BadSettingError(
                    f'{name} is {getattr(self, name)!r}: hand over a dict, {{"*": ...}} for all'
                )
        for pattern, pair in self.eps.items():
            if not isinstance(pair, Sequence) or len(pair) != 2:
                raise BadSettingError(f"eps of {pattern!r} is {pair!r}: hand over (eps_w, eps_l2)")
            _check_eps(*pair)
        _check_eps(*self.global_eps)
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise BadSettingError(
                f"budget is {self.budget!r}: hand over entrim.Budget(params=0.3) or the like"
            )
        if self.budget is not None and (self._given or not self.refits):
            what = f"{self._given[0]}=" if self._given else "refit=False and the paper's preset"
            raise BadSettingError(f"a budget decides on the widths itself: leave {what} out")
        if self.sequential and not self.refits:
            raise BadSettingError(
                'mode="sequential" is a refit in order: leave refit=True, or pass '
                'mode="independent"'
            )

    @property
    def _given(self) -> list[str]:
        """The options that decide on widths, as far as they are given."""
        names = ("eps_w", "eps_l2", "eps", "widths")
        return [name for name in names if getattr(self, name) not in (None, {})]

    @property
    def _by_eps(self) -> bool:
        """Whether groups that no pattern names are cut by eps."""
        return self.widths is None or self.eps_w is not None or self.eps_l2 is not None

    @property
    def allocates(self) -> bool:
        """Whether the widths follow from what cuts do to the outputs."""
        return self.budget is not None or (not self._given and self.refits)

    @property
    def draws(self) -> bool:
        """Whether anything is random."""
        return draws_in(
            {"positions": self.positions, "resamples": self.resamples, "selector": self.selector}
        )

    @property
    def global_eps(self) -> tuple[float, float]:
        """The strengths where no pattern says otherwise."""
        return (
            EPS[0] if self.eps_w is None else self.eps_w,
            EPS[1] if self.eps_l2 is None else self.eps_l2,
        )

    @property
    def sequential(self) -> bool:
        """Whether layers are rebuilt in order."""
        return self._decided("mode") == "sequential"

    @property
    def refits(self) -> bool:
        """Whether the weights are solved again once the channels are chosen."""
        return bool(self._decided("refit"))

    @property
    def corrects(self) -> bool:
        """Whether the drift of skip paths is made up for."""
        return bool(self._decided("correct")) and self.sequential

    def _decided(self, name: str) -> Any:
        own = getattr(self, name)
        return (PAPER if self.preset == "paper" else OURS)[name] if own is None else own

    def asks(self, graph: ChannelGraph, alone: Callable[[Group], bool]) -> dict[str, Ask]:
        """Return what is wanted of every group; groups that stay whole are not named.

        `alone` tells whether a single layer reads a group once, as the paper's preset wants it.
        """
        only_alone = self.preset == "paper"
        asks = {}
        for group in self._named(graph):
            ask = self._ask(group)
            if ask is not None and (alone(group) or not only_alone):
                asks[group.name] = ask
        return asks

    def _named(self, graph: ChannelGraph) -> list[Group]:
        wanted = ["*"] if self.layers is None else _listed(self.layers)
        for pattern in (
            *wanted,
            *_listed(self.skip),
            *self.eps,
            *(self.widths or ()),
            *(self.scores or ()),
        ):
            if not any(matches(pattern, group) for group in graph.groups):
                names = ", ".join(group.name for group in graph.groups)
                raise BadSettingError(
                    f"no group matches {pattern!r}: patterns name layers that make channels, and "
                    f"the groups are {names}"
                )
        return [
            group
            for group in graph.groups
            if any(matches(pattern, group) for pattern in wanted)
            and not any(matches(pattern, group) for pattern in _listed(self.skip))
        ]

    def _ask(self, group: Group) -> Ask | None:
        width = _first(self.widths or {}, group)
        pair = _first(self.eps, group)
        if width is None and pair is None and not self._by_eps:
            return None
        eps_w, eps_l2 = pair or self.global_eps
        return Ask(
            channels=group.channels,
            width=None if width is None else _width(width, group),
            eps_w=eps_w,
            eps_l2=eps_l2,
            selector=self.selector or ("greedy" if self.allocates else "entropic"),  # pyright: ignore[reportArgumentType]
            scores=_scores(_first(self.scores or {}, group), group),
            alternation=self.alternation,
            coupling=self.coupling,
            round_to=self.round_to,
            raw=not self.refits,
        )


def draws_in(settings: Mapping[str, Any]) -> bool:
    """Whether anything is random under these settings, also as a record holds them."""
    drawn = settings.get("positions"), settings.get("resamples")
    return any(drawn) or settings.get("selector") == "random"


def matches(pattern: str, group: Group) -> bool:
    """Whether `pattern` is the name of the group or of a layer that produces its channels."""
    return any(fnmatchcase(name, pattern) for name in (group.name, *group.layers))


def _first(options: Mapping[str, Any], group: Group) -> Any:
    """Return the option of the first pattern that matches."""
    return next((value for key, value in options.items() if matches(key, group)), None)


def _width(width: int | float, group: Group) -> int:
    if isinstance(width, float) and 0 < width <= 1:
        return max(1, round(width * group.channels))
    if isinstance(width, int) and not isinstance(width, bool) and 1 <= width <= group.channels:
        return width
    raise BadSettingError(
        f"the width of {group.name} is {width!r}: hand over a whole number from 1 to "
        f"{group.channels}, or the fraction that stays, above 0.0 and up to 1.0"
    )


def _scores(scores: Sequence[float] | None, group: Group) -> tuple[float, ...] | None:
    if scores is None:
        return None
    if len(scores) != group.channels or any(map(math.isnan, scores)):
        raise BadSettingError(
            f"the scores of {group.name} are {len(scores)} numbers: hand over one for each of its "
            f"{group.channels} channels, none of them NaN"
        )
    return tuple(scores)


def _listed(patterns: Patterns) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)


def _one_of(name: str, value: object, known: Sequence[object]) -> None:
    if value not in known:
        raise BadSettingError(f"{name} is {value!r}: choose one of {', '.join(map(repr, known))}")


def _check_eps(eps_w: float, eps_l2: float) -> None:
    SolveSettings(eps_w=eps_w, eps_l2=eps_l2)
