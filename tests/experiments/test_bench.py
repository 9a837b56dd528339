"""`python -m experiments bench`: every benchmark can be run, some of them in parts."""

import inspect
from importlib import import_module
from pathlib import Path

import pytest

from experiments import benchmarks
from experiments.__main__ import main
from experiments.benchmarks import BENCHMARKS, IN_PARTS


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_a_main_that_takes_parts_where_it_has_some(name: str) -> None:
    taken = inspect.signature(import_module(f"experiments.benchmarks.{name}").main).parameters
    assert list(taken) == (["parts"] if name in IN_PARTS else [])


def test_every_module_with_a_main_is_a_benchmark() -> None:
    folder = Path(benchmarks.__path__[0])
    found = {file.stem for file in folder.glob("*.py") if "\ndef main(" in file.read_text()}
    assert found == BENCHMARKS.keys()


def test_a_benchmark_without_its_networks_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ENTRIM_ASSETS", raising=False)
    assert main(["bench", "allocation", "lenet"]) == 0
    assert capsys.readouterr().out.startswith("skipped: ")


def test_parts_of_a_benchmark_that_has_none_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "solver", "lenet"]) == 1
    assert capsys.readouterr().err == "experiments: solver has no parts: leave lenet out\n"


def test_an_unknown_benchmark_is_misused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["bench", "nothing"])
    assert left.value.code == 2
    assert capsys.readouterr().out == ""


def test_trainings_are_plotted_as_drops_next_to_the_published_ones() -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    from experiments.benchmarks.paper import draw_trainings

    figure, axes = plt.subplots()
    point = {
        "method": "default",
        "baseline": 92.0,
        "tuned": {"10": 91.5, "1": 91.0},
        "by_epoch": {},
    }
    draw_trainings(axes, [point, {**point, "method": "paper"}])
    lines = {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines
    }
    plt.close(figure)
    assert set(lines) == {
        "paper, fine tuned",
        "paper, scratch",
        "entrim, as many parameters, fine tuned",
    }
    assert lines["entrim, as many parameters, fine tuned"] == ([1, 10], [1.0, 0.5])
    assert lines["paper, scratch"][0][-1] == 280
    assert lines["paper, scratch"][1][-1] == pytest.approx(94.08 - 94.02)
