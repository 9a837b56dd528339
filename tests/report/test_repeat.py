"""The report contains what reproduces its run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import entrim
from entrim.records import Record
from entrim.report import repeat
from entrim.report.page import html
from entrim.report.report_data import read
from entrim.report.sections import describe
from tests.report.runs import (
    HOSTILE,
    images,
    network,
    save_budget_run,
    save_penalty_run,
    visible_text,
)


@pytest.fixture(scope="module")
def eps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_penalty_run(tmp_path_factory.mktemp("again") / "eps")


def save_random_run(folder: Path) -> Path:
    calibration = entrim.Calibration(n_positions=1, n_bootstrap=2)
    options: Any = {"calibration": calibration, "selector": "random", "seed": 11}
    entrim.sparsify(network(), images(), entrim.Widths(0.5), **options).save(folder)
    return folder


def save_paper_run(folder: Path) -> Path:
    entrim.sparsify(network(), images(), **entrim.paper_preset(-1e-2, 1e-3)).save(folder)
    return folder


def save_scores_run(folder: Path) -> Path:
    scores = entrim.Scores({"first": torch.arange(16.0), "second": torch.arange(24.0)})
    widths = entrim.Widths({"*": 0.5}, round_to=4)
    options: Any = {"selector": scores, "reconstruction": None, "exclude": "first"}
    entrim.sparsify(network(), images(), widths, **options).save(folder)
    return folder


def save_coupling_run(folder: Path) -> Path:
    selector = entrim.EntropicSelector(coupling="max")
    reconstruction = entrim.Reconstruction(order="independent", ridge=0.01)
    options: Any = {"selector": selector, "reconstruction": reconstruction}
    entrim.sparsify(network(), images(), entrim.Widths(8), **options).save(folder)
    return folder


def run_calls(record: Record, model: torch.nn.Module) -> entrim.SparsifyResult:
    """Return the result of the lines of Python."""
    scope: dict[str, Any] = {"entrim": entrim, "torch": torch, "model": model, "images": images()}
    lines = repeat.calls(record)
    exec("\n".join(lines), scope)
    return scope["small" if len(lines) == 1 else "better"]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (save_penalty_run, HOSTILE),
        (save_budget_run, "second"),
        (save_random_run, "second"),
        (save_paper_run, "second"),
        (save_scores_run, "second"),
        (save_coupling_run, "second"),
    ],
)
def test_repeat_snippet_is_executable(make: Any, name: str, tmp_path: Path) -> None:
    first = read(make(tmp_path / "run")).record
    again = run_calls(first, network(name)).record
    assert [group.kept for group in again.groups] == [group.kept for group in first.groups]
    assert [group.stability for group in again.groups] == [g.stability for g in first.groups]
    assert again.after == first.after
    assert again.images_checksum == first.images_checksum
    assert entrim.Record.from_json(again.to_json()).settings == first.settings


def test_repeat_snippet_contains_all_trainings() -> None:
    model = network()
    pruned = entrim.sparsify(model, images(), entrim.Widths(0.5))
    once = entrim.distill(pruned, images(), entrim.Distillation(epochs=1, seed=4))
    twice = entrim.distill(once, images(), entrim.Distillation(epochs=2, shift=0.0))
    assert repeat.calls(twice.record)[1:] == [
        "better = entrim.distill(small, images, entrim.Distillation(epochs=1, seed=4))",
        "better = entrim.distill(better, images, entrim.Distillation(epochs=2, shift=0.0, seed=0))",
    ]
    again = run_calls(twice.record, model)
    for name, tensor in twice.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name])


@pytest.mark.parametrize("commands", [(), (("entrim", "sparsify"),)])
def test_seed_is_reported(eps: Path, commands: Any, tmp_path: Path) -> None:
    record = replace(read(eps).record, seed=None)
    data = replace(read(eps), record=record, commands=commands)
    assert "seed no random numbers used" in visible_text(html(data))
    drawn = replace(read(save_random_run(tmp_path / "run")), commands=commands)
    assert "seed 11 " in visible_text(html(drawn))


def test_environment_is_reported(eps: Path) -> None:
    data = read(eps)
    record = data.record
    page = visible_text(html(data))
    for known in (record.original, record.images_checksum, *record.versions.values()):
        assert str(known) in page
    assert f"threads {record.threads}" in page
    none: dict[str, Any] = dict.fromkeys(("original", "images_checksum", "threads", "date"))
    bare = visible_text(html(replace(data, record=replace(record, **none))))
    assert "checksum" not in bare
    assert "threads" not in bare


def test_settings_are_described_in_words(eps: Path) -> None:
    page = html(read(eps))
    assert ">None<" not in page
    assert ">True<" not in page
    assert describe("n_positions", None) == "not set"
    assert describe("include", ["*"]) == "*"
    assert describe("per_group", {"conv*": [-1e-4, 1e-4]}) == "conv* -0.0001, 0.0001"


@pytest.mark.parametrize("content", ["", "[]", '{"command": 3}', '{"command": [3]}'])
def test_invalid_command_files_are_ignored(eps: Path, content: str) -> None:
    (eps / "command.json").write_text(content)
    assert read(eps).commands == ()
    assert read(eps).command is None


@pytest.mark.parametrize(
    ("before", "count"),
    [(None, 1), (3, 1), ([3], 1), ([["entrim", 3]], 1), ([["entrim", "a"], ["entrim", "b"]], 3)],
)
def test_earlier_commands_come_first(eps: Path, before: Any, count: int) -> None:
    content = {"command": ["entrim", "sparsify", "a b"], "before": before}
    (eps / "command.json").write_text(json.dumps(content))
    data = read(eps)
    assert len(data.commands) == count
    assert data.command == ("entrim", "sparsify", "a b")
    page = html(data).replace("&#39;", "'")
    assert page.rindex("entrim sparsify 'a b'") > page.index("On the command line")
    if count == 3:
        assert "<code>entrim a</code><code>entrim b</code><code>entrim sparsify" in page
    (eps / "command.json").unlink()
