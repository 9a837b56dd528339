"""The energy of a measurement, from counters in a folder like that of Linux."""

from pathlib import Path

import pytest
import torch
from torch import nn

import entrim
from entrim.surgery import measure as measuring
from entrim.surgery.measure import EnergyMeter


def write_zone(folder: Path, name: str, energy: int, limit: int = 1_000_000) -> Path:
    zone = folder / name
    zone.mkdir(exist_ok=True)
    (zone / "energy_uj").write_text(f"{energy}\n")
    (zone / "max_energy_range_uj").write_text(f"{limit}\n")
    return zone


def test_the_energy_of_all_packages_is_added_without_their_parts(tmp_path: Path) -> None:
    for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):
        write_zone(tmp_path, name, 100_000)
    meter = EnergyMeter.start(tmp_path)
    for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):
        write_zone(tmp_path, name, 350_000)
    assert meter.joules() == pytest.approx(0.5)


def test_a_counter_that_wraps_around_continues(tmp_path: Path) -> None:
    write_zone(tmp_path, "intel-rapl:0", 900_000)
    meter = EnergyMeter.start(tmp_path)
    write_zone(tmp_path, "intel-rapl:0", 100_000)
    assert meter.joules() == pytest.approx(0.2)


def test_without_readable_counters_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert EnergyMeter.start(tmp_path / "missing").joules() is None
    monkeypatch.setattr(measuring, "_POWERCAP", tmp_path)
    assert entrim.measure(nn.Linear(4, 2), torch.ones(3, 4), repeats=2).energy is None


def test_a_measurement_contains_the_joules_per_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = write_zone(tmp_path, "intel-rapl:0", 0, limit=10**9)
    monkeypatch.setattr(measuring, "_POWERCAP", tmp_path)

    class Heater(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            spent = int((zone / "energy_uj").read_text())
            (zone / "energy_uj").write_text(str(spent + 600_000))
            return x

    cost = entrim.measure(Heater(), torch.ones(3, 4), repeats=2)
    assert cost.energy == pytest.approx(0.2)
