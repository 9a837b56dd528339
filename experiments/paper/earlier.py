"""What an earlier record knows: a run adds to it and takes nothing out that still holds."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from entrim.errors import DataError

FORMAT = 2
"""Of records. Since 2 a point tells of its network: name, weights, baseline, origin."""
Point = Mapping[str, Any]
_TOLD = ("network", "seed", "baseline", "origin")
_TRAININGS = ("tuned", "scratch")
_SAME_CUT = ("widths", "parameters", "accuracy")


def named(network: str, seed: int) -> str:
    """Return what a network is called in notes."""
    return f"{network}, seed {seed}"


@dataclass(frozen=True, slots=True)
class Earlier:
    """The points of a record that is there already, maybe from another machine."""

    points: tuple[Point, ...] = ()

    @classmethod
    def read(cls, file: Path, experiment: str, *, quick: bool) -> "Earlier":
        """Return the points in `file`, none where there is no such file."""
        try:
            record = json.loads(file.read_text())
            told, made = record["experiment"], record["format"]
            shrunk, points = bool(record.get("quick")), record["measured"]
            found = cls(tuple(map(_read, points)) if made == FORMAT else ())
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{file} is no record that could be added to ({type(error).__name__}: {error}): "
                "move it away, or name another with --record"
            ) from error
        kind = {True: "a quick run", False: "a run in full"}
        if (told, made, shrunk) != (experiment, FORMAT, quick):
            raise DataError(
                f"{file} is the record, of format {made}, of {kind[shrunk]} of {told}; this is "
                f"{kind[quick]} of {experiment}, format {FORMAT}: name another with --record"
            )
        return found

    def telling(self, **same: Any) -> list[Point]:
        """Return the points that tell just this."""
        return [p for p in self.points if all(p.get(name) == v for name, v in same.items())]

    def refuse_another(self, told: Point) -> None:
        """Raise where points of that network and seed are of other weights than `told`.

        Weights trained on another machine differ, and figures of two networks are no one row. Where
        the record has no weights, the baseline must do.
        """
        for point in self.telling(network=told["network"], seed=told["seed"]):
            name = "weights" if point.get("weights") else "baseline"
            if point[name] != told[name]:
                raise DataError(
                    f"the record tells of another {named(told['network'], told['seed'])} "
                    f"({name} {point[name]}, here {told[name]}): move it away, or name another "
                    "with --record"
                )

    def but_for_stale(
        self, told: Point, names: Sequence[str], stages: Mapping[tuple[Any, ...], str]
    ) -> "tuple[Earlier, list[str]]":
        """Return what would be cut in the same way today, and a note on all else.

        `stages` says by what is told under `names` which stage a cut of that network is now.
        """

        def stale(point: Point) -> bool:
            mine = all(point[name] == told[name] for name in ("network", "seed"))
            stage = (point.get("cut") or {}).get("stage")
            return mine and stage is not None and stage != stages.get(_key(point, names), stage)

        gone = [point for point in self.points if stale(point)]
        kept = tuple(point for point in self.points if not stale(point))
        called = named(told["network"], told["seed"])
        return replace(self, points=kept), [
            f"{called}, {', '.join(map(str, _key(point, names)))}: left out of the record that was "
            "there, because it was cut with other settings than today"
            for point in gone
        ]

    def notes(self, run: Collection[str]) -> list[str]:
        """Return a note on every network of the record that was not run now."""
        others = {named(p["network"], p["seed"]): p for p in self.points}
        return [
            f"{name}: {p['origin']}; baseline {p['baseline']:.2f} %, as recorded before"
            for name, p in others.items()
            if name not in run
        ]

    def beside(
        self, new: Sequence[Point], names: Sequence[str], order: Callable[[Point], Any]
    ) -> list[Point]:
        """Return earlier and new points; a new one replaces what tells the same under `names`.

        Trainings that the earlier one has of the very same cut stay.
        """
        known = {_key(point, names): point for point in self.points}
        fresh = {_key(point, names): point for point in new}
        added = {key: _added(known[key], p) if key in known else p for key, p in fresh.items()}
        return sorted((known | added).values(), key=order)


NOTHING = Earlier()


def place_in(names: Sequence[str], name: str) -> int:
    """Return where `name` stands in the order of `names`; what is unknown comes last."""
    return names.index(name) if name in names else len(names)


def _key(point: Point, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(point.get(name) for name in names)


def _added(old: Point, new: Point) -> Point:
    was, now = old.get("cut"), new.get("cut")
    if was is None or now is None or any(was[name] != now[name] for name in _SAME_CUT):
        return new
    if was.get("stage", now["stage"]) != now["stage"]:
        return new
    trainings = {
        kind: {**old.get(kind, {}), **new.get(kind, {})}
        for kind in _TRAININGS
        if kind in old or kind in new
    }
    timing = {"timing": new.get("timing") or old["timing"]} if "timing" in old else {}
    return {**new, **trainings, **timing}


def _read(point: Point) -> Point:
    """Return a point that tells of its network, its epochs numbers again, which JSON writes."""
    trainings = {kind: point[kind] for kind in _TRAININGS if kind in point}
    return {
        **point,
        **{name: point[name] for name in _TOLD},
        **{kind: {int(n): right for n, right in some.items()} for kind, some in trainings.items()},
    }
