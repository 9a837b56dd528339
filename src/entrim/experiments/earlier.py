"""What an earlier record knows: a run adds to it and takes nothing out of it."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entrim.errors import DataError

Point = Mapping[str, Any]
_TRAININGS = ("tuned", "scratch")
_SAME_CUT = ("widths", "parameters", "accuracy")


@dataclass(frozen=True, slots=True)
class Earlier:
    """The points of a record that is there already, maybe from another machine."""

    points: tuple[Point, ...] = ()

    @classmethod
    def read(cls, file: Path, experiment: str, *, quick: bool) -> "Earlier":
        """Return the points in `file`, none where there is no such file."""
        try:
            record = json.loads(file.read_text())
            told, points = record["experiment"], tuple(map(_numbered, record["measured"]))
            shrunk = bool(record.get("quick", False))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{file} is no record that could be added to ({type(error).__name__}: {error}): "
                "move it away, or name another with --record"
            ) from error
        if (told, shrunk) != (experiment, quick):
            raise DataError(
                f"{file} is a {'quick ' * shrunk}record of {told}: name another with --record"
            )
        return cls(points)

    def telling(self, **same: Any) -> list[Point]:
        """Return the points that tell just this."""
        return [p for p in self.points if all(p.get(name) == v for name, v in same.items())]

    def refuse_another(self, baseline: float, **same: Any) -> None:
        """Raise where points that tell this are of a network that scores otherwise.

        Weights trained on another machine differ, and figures of two networks are no one row.
        """
        for point in self.telling(**same):
            if point.get("baseline") != baseline:
                raise DataError(
                    f"the record tells of another network (baseline {point.get('baseline')} %, "
                    f"here {baseline} %): move it away, or name another with --record"
                )

    def notes(self, name: Callable[[Point], str], run: Collection[str]) -> list[str]:
        """Return a note on every network of the record, called by `name`, that was not run now."""
        others = {name(p): p["baseline"] for p in self.points if name(p) not in run}
        return [
            f"{called}: as in the record that was there; baseline {baseline:.2f} %"
            for called, baseline in others.items()
        ]

    def beside(self, new: Sequence[Point], names: Sequence[str]) -> list[Point]:
        """Return earlier and new points; a new one replaces what tells the same under `names`.

        Trainings that the earlier one has of the very same cut stay.
        """
        known = {_key(point, names): point for point in self.points}
        fresh = {_key(point, names): point for point in new}
        added = {key: _added(known[key], fresh[key]) for key in known.keys() & fresh.keys()}
        return list((known | fresh | added).values())


NOTHING = Earlier()


def _key(point: Point, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(point.get(name) for name in names)


def _added(old: Point, new: Point) -> Point:
    was, now = (point.get("cut") for point in (old, new))
    if was is None or now is None or any(was[name] != now[name] for name in _SAME_CUT):
        return new
    trainings = {
        kind: {**old.get(kind, {}), **new.get(kind, {})}
        for kind in _TRAININGS
        if kind in old or kind in new
    }
    timing = {"timing": new.get("timing") or old["timing"]} if "timing" in old else {}
    return {**new, **trainings, **timing}


def _numbered(point: Point) -> Point:
    """Return a point whose epochs are numbers again, which JSON keeps as text."""
    return {
        name: {int(epochs): right for epochs, right in value.items()}
        if name in _TRAININGS
        else value
        for name, value in point.items()
    }
