"""What a report says about repeating its run leads to the same run again."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import entrim
from entrim.records import Record
from entrim.report import repeat
from entrim.report.closing import events
from entrim.report.page import html
from entrim.report.report_data import read
from tests.report.runs import HOSTILE, by_budget, by_eps, images, network, texts


@pytest.fixture(scope="module")
def eps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return by_eps(tmp_path_factory.mktemp("again") / "eps")


def by_chance(folder: Path) -> Path:
    generator = torch.Generator().manual_seed(11)
    options: Any = {"positions": 1, "resamples": 2, "selector": "random", "generator": generator}
    entrim.sparsify(network(), images(), widths={"*": 0.5}, **options).save(folder)
    return folder


def called(record: Record, model: torch.nn.Module) -> entrim.SparsifyResult:
    """Return what the lines of Python lead to."""
    scope: dict[str, Any] = {"entrim": entrim, "torch": torch, "model": model, "images": images()}
    lines = repeat.calls(record)
    exec("\n".join(lines), scope)
    return scope["small" if len(lines) == 1 else "better"]


@pytest.mark.parametrize(
    ("make", "name"), [(by_eps, HOSTILE), (by_budget, "second"), (by_chance, "second")]
)
def test_what_is_told_can_be_called_again(make: Any, name: str, tmp_path: Path) -> None:
    first = read(make(tmp_path / "run")).record
    again = called(first, network(name)).record
    assert [group.kept for group in again.groups] == [group.kept for group in first.groups]
    assert [group.stability for group in again.groups] == [g.stability for g in first.groups]
    assert again.after == first.after
    assert again.images_checksum == first.images_checksum
    assert entrim.Record.from_json(again.to_json()).settings == first.settings


def test_trainings_are_called_again_one_after_the_other() -> None:
    model = network()
    cut = entrim.sparsify(model, images(), widths={"*": 0.5})
    once = entrim.distill(cut, images(), epochs=1, seed=4)
    twice = entrim.distill(once, images(), epochs=2, shift=0.0)
    assert repeat.calls(twice.record)[1:] == [
        "better = entrim.distill(small, images, epochs=1, seed=4)",
        "better = entrim.distill(better, images, epochs=2, seed=0, shift=0.0)",
    ]
    again = called(twice.record, model)
    for name, tensor in twice.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name])


@pytest.mark.parametrize("commands", [(), (("entrim", "sparsify"),)])
def test_chance_is_spoken_of_whether_or_not_a_command_is_known(
    eps: Path, commands: Any, tmp_path: Path
) -> None:
    story = replace(read(eps), commands=commands)
    assert "random numbers none were drawn" in texts(html(story))
    drawn = replace(read(by_chance(tmp_path / "run")), commands=commands)
    assert "random numbers from seed 11" in texts(html(drawn))
    used = replace(drawn, record=replace(drawn.record, seed=None))
    assert "hand over the same one, in the same state" in texts(html(used))


def test_what_a_run_depends_on_is_told_as_far_as_it_is_known(eps: Path) -> None:
    story = read(eps)
    record = story.record
    page = texts(html(story))
    for known in (record.original, record.images_checksum, *record.versions.values()):
        assert str(known) in page
    assert f"threads {record.threads}" in page
    none: dict[str, Any] = dict.fromkeys(("original", "images_checksum", "threads", "date"))
    bare = texts(html(replace(story, record=replace(record, **none))))
    assert "checksum" not in bare
    assert "threads" not in bare


def test_settings_are_told_in_words(eps: Path) -> None:
    page = html(read(eps))
    assert ">None<" not in page
    assert ">True<" not in page
    assert events("layers", None) == "all"
    assert events("positions", None) == "not set"
    assert events("eps", {"conv*": [-1e-4, 1e-4]}) == "conv* -0.0001, 0.0001"


@pytest.mark.parametrize("noted", ["", "[]", '{"command": 3}', '{"command": [3]}'])
def test_a_command_that_is_not_ours_is_not_told(eps: Path, noted: str) -> None:
    (eps / "command.json").write_text(noted)
    assert read(eps).commands == ()
    assert read(eps).command is None


@pytest.mark.parametrize(
    ("before", "told"),
    [(None, 1), (3, 1), ([3], 1), ([["entrim", 3]], 1), ([["entrim", "a"], ["entrim", "b"]], 3)],
)
def test_the_commands_before_are_told_first(eps: Path, before: Any, told: int) -> None:
    noted = {"command": ["entrim", "sparsify", "a b"], "before": before}
    (eps / "command.json").write_text(json.dumps(noted))
    story = read(eps)
    assert len(story.commands) == told
    assert story.command == ("entrim", "sparsify", "a b")
    page = html(story).replace("&#x27;", "'")
    assert page.index("entrim sparsify 'a b'") > page.index("On the command line")
    if told == 3:
        assert "<code>entrim a</code><code>entrim b</code><code>entrim sparsify" in page
    (eps / "command.json").unlink()
