"""Resolve a target with name patterns to the target of every group."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from entrim.config import (
    Budget,
    EntropicPenalty,
    Patterns,
    Reconstruction,
    Target,
    Widths,
    list_patterns,
    to_plain,
)
from entrim.errors import BadSettingError
from entrim.graph.channel_graph import ChannelGraph, Group
from entrim.selection.base import GroupTarget, Selector, name_of
from entrim.selection.baselines import MomentsSelector, Scores
from entrim.selection.elimination import EliminationSelector
from entrim.selection.entropic import EntropicSelector

SELECTORS: Mapping[str, Selector] = {
    "entropic": EntropicSelector(),
    "greedy": EliminationSelector(),
    "lasso": MomentsSelector("lasso"),
    "magnitude": MomentsSelector("magnitude"),
    "random": MomentsSelector("random"),
    "exhaustive": MomentsSelector("exhaustive"),
}


@dataclass(frozen=True, slots=True)
class TargetResolver:
    """Resolves targets for a selector and patterns of groups."""

    selector: Selector | None
    """None for elimination under a budget, and the entropic solution otherwise."""
    needs_solution: bool
    """Whether the weights of the entropic solution are used."""
    include: Sequence[str]
    exclude: Sequence[str]

    @classmethod
    def of(
        cls,
        selector: str | Selector,
        reconstruction: Reconstruction | None,
        include: Patterns,
        exclude: Patterns,
    ) -> "TargetResolver":
        """Return the resolver for the options of `sparsify`, validated."""
        solved = reconstruction is not None and not reconstruction.refits
        return cls(find_selector(selector), solved, list_patterns(include), list_patterns(exclude))

    @property
    def is_random(self) -> bool:
        """Whether the selector may draw random numbers; assumed for user-defined selectors."""
        if self.selector is None or isinstance(self.selector, Scores | EntropicSelector):
            return False
        return self.selector not in [s for name, s in SELECTORS.items() if name != "random"]

    def selector_for(self, target: Target | None) -> Selector:
        """Return the selector for `target`."""
        if self.selector is not None:
            return self.selector
        return SELECTORS["greedy" if target is None or isinstance(target, Budget) else "entropic"]

    def check(self, target: Target | None) -> None:
        """Raise a BadSettingError if the selector or reconstruction does not support `target`."""
        if target is not None and not isinstance(target, Budget | Widths | EntropicPenalty):
            raise BadSettingError(
                "the budget must be an entrim.Budget, entrim.Widths or entrim.EntropicPenalty, got "
                f"{target!r}: pass for example entrim.Budget(params=0.3)"
            )
        selector = self.selector_for(target)
        entropic = isinstance(selector, EntropicSelector)
        if isinstance(target, EntropicPenalty) and not entropic:
            raise BadSettingError(
                f"the selector {name_of(selector)} selects at given widths: pass "
                "entrim.Widths(0.5) or a Budget, or leave the selector out"
            )
        if self.needs_solution and (not entropic or target is None or isinstance(target, Budget)):
            raise BadSettingError(
                'Reconstruction(weights="solution") uses the weights of an entropic solution: pass '
                "an EntropicPenalty, or Widths with the entropic selector; reconstruction=None "
                "keeps the original weights"
            )

    def group_targets(
        self,
        target: Target | None,
        graph: ChannelGraph,
        has_single_consumer: Callable[[Group], bool],
    ) -> dict[str, GroupTarget]:
        """Return the target of every included group; excluded groups keep all channels."""
        self.check(target)
        selector = self.selector_for(target)
        self._check_patterns(target, selector, graph)
        found = {}
        for group in graph.groups:
            included = any(map(group.matches, self.include))
            if not included or any(map(group.matches, self.exclude)):
                continue
            group_target = self._group_target(target, group, selector, has_single_consumer)
            if group_target is not None:
                found[group.name] = group_target
                if isinstance(selector, Scores):
                    selector.of_group(group)  # check the scores before any computation
        return found

    def _check_patterns(
        self, target: Target | None, selector: Selector, graph: ChannelGraph
    ) -> None:
        patterns = [*self.include, *self.exclude]
        if isinstance(target, Widths):
            patterns += target.by_pattern
        if isinstance(target, EntropicPenalty):
            patterns += target.per_group
        if isinstance(selector, Scores):
            patterns += selector.scores
        for pattern in patterns:
            if not any(group.matches(pattern) for group in graph.groups):
                names = ", ".join(group.name for group in graph.groups)
                raise BadSettingError(
                    f"no group matches {pattern!r}: pass the name of a group or of a layer that "
                    f"produces its channels; the groups are {names}"
                )

    def _group_target(
        self,
        target: Target | None,
        group: Group,
        selector: Selector,
        has_single_consumer: Callable[[Group], bool],
    ) -> GroupTarget | None:
        found = GroupTarget(
            channels=group.channels,
            selector=selector,
            coupling=selector.coupling if isinstance(selector, EntropicSelector) else "joint",
            round_to=1 if target is None else target.round_to,
            needs_solution=self.needs_solution,
        )
        if isinstance(target, Widths):
            width = _first_match(target.by_pattern, group)
            return None if width is None else replace(found, width=_width(width, group))
        if isinstance(target, EntropicPenalty):
            if target.single_consumer and not has_single_consumer(group):
                return None
            pair = _first_match(target.per_group, group) or (target.eps_w, target.eps_l2)
            settings = target.solver_settings(*pair)
            return replace(found, penalty=settings, coupling=target.coupling)
        return found


def find_selector(selector: str | Selector) -> Selector | None:
    """Return the selector with this name, None for "auto"."""
    if isinstance(selector, str):
        if selector == "auto":
            return None
        if selector not in SELECTORS:
            known = ", ".join(map(repr, ("auto", *SELECTORS)))
            raise BadSettingError(f"selector must be one of {known}; got {selector!r}")
        return SELECTORS[selector]
    if not isinstance(selector, Selector):
        raise BadSettingError(
            "selector must be a name or an object with a method select(statistics, k), got "
            f"{type(selector).__name__}"
        )
    return selector


def describe_selector(selector: Selector | None) -> Any:
    """Return the description of a selector in a record: its name, or its fields."""
    if selector is None:
        return "auto"
    known = next((name for name, value in SELECTORS.items() if value == selector), None)
    return known or to_plain(selector)


def _first_match(options: Mapping[str, Any], group: Group) -> Any:
    """Return the option of the first pattern that matches `group`."""
    return next((value for key, value in options.items() if group.matches(key)), None)


def _width(width: int | float, group: Group) -> int:
    if isinstance(width, float):
        return max(1, round(width * group.channels))
    if width > group.channels:
        raise BadSettingError(
            f"the width of {group.name} must be at most {group.channels}, its number of channels; "
            f"got {width}"
        )
    return width
