"""Energy of the processor from the RAPL counters of Linux, if they are readable."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class EnergyMeter:
    """The counters of all processor packages, in microjoules, when the measurement began."""

    begin: dict[Path, int]

    @classmethod
    def start(cls, folder: Path) -> "EnergyMeter":
        """Return a meter of the readable packages in a powercap folder."""
        packages = (zone for zone in folder.glob("intel-rapl:*") if zone.name.count(":") == 1)
        values = {zone: _read(zone / "energy_uj") for zone in packages}
        return cls({zone: value for zone, value in values.items() if value is not None})

    def joules(self) -> float | None:
        """Return the energy since the start, None if no counter is readable.

        A counter that is lower than at the start has wrapped around once.
        """
        total = 0
        for zone, begin in self.begin.items():
            end, limit = _read(zone / "energy_uj"), _read(zone / "max_energy_range_uj")
            if end is None or (end < begin and limit is None):
                return None
            total += end - begin if end >= begin else end - begin + (limit or 0)
        return total / 1e6 if self.begin else None


def _read(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
