"""Records of earlier runs: a new run adds to them and keeps everything that still holds."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from entrim.errors import DataError

FORMAT = 3
"""Of records. Since 2 a point describes its network; since 3 names are those of entrim 0.1."""
Point = Mapping[str, Any]
_REQUIRED = ("network", "seed", "baseline", "origin")
_TRAININGS = ("tuned", "scratch", "by_epoch")
_SAME_NETWORK = ("widths", "parameters", "accuracy")


def label(network: str, seed: int) -> str:
    """Return the name of a network in notes."""
    return f"{network}, seed {seed}"


@dataclass(frozen=True, slots=True)
class PreviousRecord:
    """The points of an existing record, maybe from another machine."""

    points: tuple[Point, ...] = ()

    @classmethod
    def read(cls, file: Path, experiment: str, *, quick: bool) -> "PreviousRecord":
        """Return the points in `file`, none if it does not exist."""
        try:
            record = json.loads(file.read_text())
            recorded = record["experiment"], record["format"], bool(record.get("quick"))
            points = record["measured"]
            found = cls(tuple(map(_read, points)) if recorded[1] == FORMAT else ())
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{file} is not a record that could be extended ({type(error).__name__}: {error}): "
                "move it away, or name another with --record"
            ) from error
        run = {True: "a quick run", False: "a full run"}
        if recorded != (experiment, FORMAT, quick):
            raise DataError(
                f"{file} is the record, of format {recorded[1]}, of {run[recorded[2]]} of "
                f"{recorded[0]}; this is {run[quick]} of {experiment}, format {FORMAT}: name "
                "another with --record"
            )
        return found

    def matching(self, **values: Any) -> list[Point]:
        """Return the points with these values."""
        return [p for p in self.points if all(p.get(name) == v for name, v in values.items())]

    def check_same_network(self, described: Point) -> None:
        """Raise an error if points of this network and seed have other weights.

        Weights trained on another machine differ, and results of two networks must not share a
        row. Where the record has no weights, the baseline is compared.
        """
        for point in self.matching(network=described["network"], seed=described["seed"]):
            name = "weights" if point.get("weights") else "baseline"
            if point[name] != described[name]:
                raise DataError(
                    "the record is of another "
                    f"{label(described['network'], described['seed'])} ({name} {point[name]}, here "
                    f"{described[name]}): move it away, or name another with --record"
                )

    def without_stale(
        self, described: Point, names: Sequence[str], stages: Mapping[tuple[Any, ...], str]
    ) -> "tuple[PreviousRecord, list[str]]":
        """Return the record without points of this network that are pruned differently today.

        Also returns a note on each of them. `stages` are today's stages, by the values of `names`.
        """

        def is_stale(point: Point) -> bool:
            mine = all(point[name] == described[name] for name in ("network", "seed"))
            stage = (point.get("pruned") or {}).get("stage")
            return mine and stage is not None and stage != stages.get(_key(point, names), stage)

        stale = [point for point in self.points if is_stale(point)]
        current = tuple(point for point in self.points if not is_stale(point))
        network = label(described["network"], described["seed"])
        return replace(self, points=current), [
            f"{network}, {', '.join(map(str, _key(point, names)))}: removed from the record, "
            "because it was pruned with other settings than today"
            for point in stale
        ]

    def notes(self, run: Collection[str]) -> list[str]:
        """Return a note on every network of the record that was not run now."""
        others = {label(p["network"], p["seed"]): p for p in self.points}
        return [
            f"{name}: {p['origin']}; baseline {p['baseline']:.2f} %, as recorded before"
            for name, p in others.items()
            if name not in run
        ]

    def merge(
        self, new: Sequence[Point], names: Sequence[str], order: Callable[[Point], Any]
    ) -> list[Point]:
        """Return old and new points; a new point replaces one with the same values of `names`.

        Trainings of the same pruned network are kept.
        """
        known = {_key(point, names): point for point in self.points}
        for point in new:
            key = _key(point, names)
            known[key] = _merge_points(known[key], point) if key in known else point
        return sorted(known.values(), key=order)


NO_RECORD = PreviousRecord()


def position_in(names: Sequence[str], name: str) -> int:
    """Return the position of `name` in `names`; unknown ones come last."""
    return names.index(name) if name in names else len(names)


def _key(point: Point, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(point.get(name) for name in names)


def _merge_points(old: Point, new: Point) -> Point:
    before, now = old.get("pruned"), new.get("pruned")
    if before is None or now is None or any(before[n] != now[n] for n in _SAME_NETWORK):
        return new
    if before.get("stage", now["stage"]) != now["stage"]:
        return new
    trainings = {
        name: {**old.get(name, {}), **new.get(name, {})}
        for name in _TRAININGS
        if name in old or name in new
    }
    timing = {"timing": new.get("timing") or old["timing"]} if "timing" in old else {}
    return {**new, **trainings, **timing}


def _read(point: Point) -> Point:
    """Return a point of a JSON record with numbers of epochs as integers; check its fields."""
    trainings = {name: point[name] for name in _TRAININGS if name in point}
    return {
        **point,
        **{name: point[name] for name in _REQUIRED},
        **{name: {int(n): value for n, value in some.items()} for name, some in trainings.items()},
    }
