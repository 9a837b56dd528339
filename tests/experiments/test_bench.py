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
