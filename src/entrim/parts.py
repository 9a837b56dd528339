"""The parts of a network that share one pair of eps."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from entrim.errors import BadSettingError
from entrim.graph import Group
from entrim.settings import Patterns, matches

if TYPE_CHECKING:
    Division = Mapping[str, Patterns] | Patterns | None
else:
    Division = object  # so that anything else is refused by us, with the remedy
Parts = Mapping[str, tuple[str, ...]]
"""The patterns of every part, under its name."""
PARTS = 4
"""Of a network whose parts nobody named: two eps each are as many as some dozen trials can tune."""


def parts_of(patterns: Division, groups: Sequence[Group]) -> dict[str, tuple[str, ...]]:
    """Return the parts that `patterns` make of `groups`; the first pattern that matches counts.

    None makes at most four, of neighbouring groups.
    """
    if not groups:
        raise BadSettingError("no group is left to search in: widen layers= or skip=")
    if patterns is None:
        return _neighbours([group.name for group in groups])
    parts = _named(patterns)
    left = list(groups)
    for pattern in (pattern for part in parts.values() for pattern in part):
        mine = [group.name for group in left if matches(pattern, group)]
        if not mine:
            raise BadSettingError(f"{_why_empty(pattern, groups)}: take {pattern!r} out")
        left = [group for group in left if group.name not in mine]
    if left:
        raise BadSettingError(
            f"no pattern matches {', '.join(group.name for group in left)}: add a last pattern "
            '"*", or leave them whole with skip='
        )
    return parts


def _neighbours(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    number = min(PARTS, len(names))
    edges = [round(k * len(names) / number) for k in range(number + 1)]
    runs = [tuple(names[a:b]) for a, b in pairwise(edges)]
    return {run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}": run for run in runs}


def _named(patterns: Division) -> dict[str, tuple[str, ...]]:
    if isinstance(patterns, Mapping):
        parts = {name: _listed(some) for name, some in patterns.items()}
    else:
        parts = {pattern: (pattern,) for pattern in _listed(patterns)}
    return {_text(name): tuple(map(_text, some)) for name, some in parts.items()}


def _listed(patterns: object) -> tuple[object, ...]:
    if isinstance(patterns, str):
        return (patterns,)
    if isinstance(patterns, Sequence):
        return tuple(patterns)
    raise BadSettingError(f"patterns holds {patterns!r}: hand over a pattern, or a list of them")


def _text(pattern: object) -> str:
    if isinstance(pattern, str):
        return pattern
    raise BadSettingError(f"patterns holds {pattern!r}: hand over strings")


def _why_empty(pattern: str, groups: Sequence[Group]) -> str:
    if any(matches(pattern, group) for group in groups):
        return f"the patterns before {pattern!r} match all that it does"
    return (
        f"no group matches {pattern!r}; patterns name layers that make channels, and the groups "
        f"are {', '.join(group.name for group in groups)}"
    )
