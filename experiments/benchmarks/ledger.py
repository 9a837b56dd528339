"""Measured points that are kept: a run that was stopped goes on where it ended."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.benchmarks.record import RESULTS


def networks_at_hand() -> bool:
    """Whether the pre-trained networks can be found; says so where they cannot."""
    known = bool(os.environ.get("ENTRIM_ASSETS"))
    if not known:
        print("skipped: the pre-trained networks are looked for in ENTRIM_ASSETS, which is unset")
    return known


@dataclass(frozen=True, slots=True)
class Ledger:
    """One JSON line a point, under a key; a point that is there is not measured again."""

    file: Path

    @classmethod
    def called(cls, name: str) -> "Ledger":
        """Return the ledger called `name` among the results."""
        RESULTS.mkdir(exist_ok=True)
        return cls(RESULTS / f"{name}.jsonl")

    def point(self, key: str, measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Return the point under `key`, measured and written down where it is missing."""
        known = self.points()
        if key not in known:
            found = {"key": key, **measure()}
            with self.file.open("a") as ledger:
                ledger.write(json.dumps(found) + "\n")
            print(found, flush=True)
            return found
        return known[key]

    def points(self) -> dict[str, dict[str, Any]]:
        """Return every point by its key."""
        if not self.file.exists():
            return {}
        lines = [json.loads(line) for line in self.file.read_text().splitlines()]
        return {line["key"]: line for line in lines}
