"""The coverage of third-party networks: rows, processes and tables."""

import os
import time
from typing import Any

import pytest

from experiments.coverage import command, tables
from experiments.coverage.networks import NETWORKS

TRACE = {"status": "traced", "library": "1", "seconds": 4.0, "export": 2.0, "groups": 3}
HALF = {"status": "verified", "parameters": 0.25}


def points(**changes: Any) -> dict[str, dict[str, Any]]:
    row = {**TRACE, "half": HALF, "frozen": {"it is an output of the network": 2}}
    run = {"status": "done", "loaded": True, "exported": True}
    found: dict[str, dict[str, Any]] = {f"{name}: trace": dict(row) for name in NETWORKS}
    found |= {f"{name}: budget": dict(run) for name in NETWORKS}
    first = next(iter(found))
    found[first] |= changes
    return found


def test_the_list_has_at_least_250_networks_of_seven_libraries() -> None:
    assert len(NETWORKS) >= 250
    assert len({name.partition("/")[0] for name in NETWORKS}) == 7


def test_targets_are_met_by_the_whole_list_only() -> None:
    names = list(NETWORKS)
    whole = "\n".join(tables.summary(points(), names))
    assert whole.count("- met") == 4
    assert "- met" not in "\n".join(tables.summary(points(), names[:-1]))


def test_a_network_that_is_not_verified_misses_the_target() -> None:
    found = tables.summary(points(half={"status": "SurgeryError"}), list(NETWORKS))
    assert any(line.startswith("- MISSED: every second channel") for line in found)


def fail(_: str) -> command.Row:
    raise ValueError("no such network")


def stop(_: str) -> command.Row:
    os._exit(3)


def wait(_: str) -> command.Row:
    time.sleep(60)
    return {}


@pytest.mark.parametrize(
    ("work", "status"), [(fail, "error"), (stop, "exit 3"), (wait, "time limit")]
)
def test_a_failure_is_a_row(monkeypatch: pytest.MonkeyPatch, work: Any, status: str) -> None:
    monkeypatch.setitem(command.STEPS, "trace", work)
    if work is wait:
        monkeypatch.setattr(command, "WALL", 0.01)
    assert command.in_process("trace", "timm/resnet18")["status"] == status
