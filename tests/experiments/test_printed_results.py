"""The tables in the documentation are those of the records."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.paper.pruning import METHODS
from experiments.paper.published import Cell
from experiments.paper.report import Line

_ROOT = Path(__file__).parents[2]
_MEASURED_WITH_IMAGES = (
    "E1",
    "E2",
    "E1+fc-v1",
    "E1+fc-v2",
    "ResNet-56, half of the inner channels",
)
_RECORDS = _ROOT / "experiments" / "results" / "reproduce"


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


_DOCUMENT = [_cells(line) for line in (_ROOT / "docs" / "reproduce.md").read_text().splitlines()]


def _record(name: str) -> dict[str, Any]:
    return json.loads((_RECORDS / f"{name}.json").read_text())


def _line(recorded: dict[str, Any]) -> Line:
    cells = {name: Cell(**recorded[name]) for name in ("paper", "arithmetic")}
    ours = {method: recorded["ours"][method] for method in METHODS}
    return Line(**{**recorded, **cells, "ours": ours})


@pytest.mark.parametrize("name", ["lenet-conv", "lenet-full"])
def test_the_tables_of_lenet_are_printed_as_recorded(name: str) -> None:
    record = _record(name)
    lines = [_line(line).cells() for line in record["lines"]]
    assert len(lines) > 20
    assert [line for line in lines if line not in _DOCUMENT] == []
    checks = [f"- {check}" for check in record["checks"]]
    assert [check for check in checks if [check] not in _DOCUMENT] == []


def test_the_drops_by_images_are_printed_as_recorded() -> None:
    drops: dict[str, list[str]] = {}
    columns = _record("images")["columns"]
    columns = [column for column in columns if column in _MEASURED_WITH_IMAGES]
    for line in _record("images")["lines"]:
        if line["quantity"] == "drop, raw" and line["row"].endswith(" images"):
            values = [f"{line['ours'][column][0]:.2f}" for column in columns]
            drops[line["row"].removesuffix(" images")] = values
    assert len(drops) == 8
    assert [row for row in drops.items() if [row[0], *row[1]] not in _DOCUMENT] == []


@pytest.mark.parametrize("name", ["vgg16-full"])
def test_accuracy_drop_speed_up_and_its_spread_are_printed_as_recorded(name: str) -> None:
    measured = _record(name)["measured"]
    assert measured
    for one in measured:
        accuracy = one["pruned"]["accuracy"]
        expected = {
            f"{accuracy:.2f}",
            f"{one['baseline'] - accuracy:.2f}",
            f"{one['timing']['speedup']:.2f}x",
            f"{one['timing']['deviation']:.2f}",
        }
        shown = [{cell.strip("*") for cell in line} for line in _DOCUMENT]
        assert any(expected <= line for line in shown), (one["row"], one["method"], expected)


def test_the_rivals_are_printed_as_recorded() -> None:
    measured = _record("comparison")["measured"]
    columns = list(dict.fromkeys(one["row"] for one in measured))
    printed = {line[0]: line[1:] for line in _DOCUMENT if len(line) == 1 + len(columns)}
    for one in measured:
        shown = printed[one["variant"]][columns.index(one["row"])]
        if "cannot" in one:
            assert shown == "-"
            continue
        drops = [one["pruned"]["accuracy"], *one.get("tuned", {}).values()]
        assert shown == " → ".join(f"{one['baseline'] - right:.2f}" for right in drops)
