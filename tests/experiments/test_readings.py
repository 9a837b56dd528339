"""The readings of the paper: ridge, rows and stop of every one."""

from pathlib import Path

import pytest

from entrim.errors import CommandError
from experiments.benchmarks.readings import (
    ALL_POSITIONS,
    ONE_POSITION,
    READINGS,
    LayerSize,
    check_layers,
    penalty_of,
    size_of,
    solve,
    widths_table,
)
from experiments.paper.rows import rows_of
from experiments.work import Work
from tests.experiments.toys import toy

SIZE = LayerSize(outputs=64, rows=8000)


def test_the_ridges_are_those_of_the_three_printed_equations() -> None:
    ridges = {
        reading.name: penalty_of(reading, 1e-4, SIZE, start=2.0).eps_l2 for reading in READINGS
    }
    assert len(ridges) == len(READINGS)
    for name, ridge in ridges.items():
        factor = 1 / 8000 if "/ T" in name else 64 if " M," in name else 1
        assert ridge == pytest.approx(1e-4 * factor), name


def test_stopped_readings_use_the_alternation_and_the_others_the_fast_solver() -> None:
    for reading in READINGS:
        found = penalty_of(reading, 1e-4, SIZE, start=2.0)
        assert found.eps_w == -1e-4
        stop = None if "minimum" in reading.name else 2e-6 if "1e-6" in reading.name else 3e-3
        assert found.min_decrease == stop
        assert found.solver == ("mm" if stop is None else "alternating")
        one = reading.calibration is ONE_POSITION
        assert one == ("T = 500" in reading.name and "H W" not in reading.name)


def test_the_size_of_a_regression_is_that_of_the_layer_behind(tmp_path: Path) -> None:
    trained = toy(Work(tmp_path))
    assert size_of(trained, "conv0", ALL_POSITIONS) == LayerSize(outputs=16, rows=500 * 100)
    assert size_of(trained, "conv0", ONE_POSITION) == LayerSize(outputs=16, rows=500)
    assert size_of(trained, "conv1", ALL_POSITIONS) == LayerSize(outputs=120, rows=500)


def test_a_reading_starts_at_the_uniform_w_and_decreases_the_loss(tmp_path: Path) -> None:
    found = solve(toy(Work(tmp_path)), READINGS[2], "fc2", 1e-4)
    assert 1 <= found["kept"] <= 84
    assert found["F"] < found["start"]


def test_widths_stand_above_the_channels_alive_and_the_printed_ones() -> None:
    row = rows_of("vgg16-full")[-1]
    points = {f"{READINGS[0].name}: features.3": {"kept": 50}}
    lines = widths_table(points, row, row.widths).splitlines()
    assert lines[2].split("|")[2:5] == [" - ", " 50 ", " - "]
    assert lines[-1].split("|")[2:5] == [" 29 ", " 64 ", " 124 "]
    assert "channels alive" in lines[-2]
    assert check_layers([], row) == list(row.widths)
    with pytest.raises(CommandError, match=r"no layer conv7: name some of features\.0"):
        check_layers(["conv7"], row)
