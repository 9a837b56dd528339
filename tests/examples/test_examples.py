"""Every example runs, and prints what it is there to show."""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "examples"
Output = Callable[[str], str]


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Output:
    """Return a function that runs an example and returns what it prints."""

    def run(name: str) -> str:
        import_module(f"examples.{name}").main()
        return capsys.readouterr().out

    return run


def test_a_selector_lies_between_the_default_and_random_channels(output: Output) -> None:
    lines = re.findall(r"^(\w+) .*error of the outputs ([\d.]+)$", output("selector"), re.MULTILINE)
    errors = {name: float(error) for name, error in lines}
    assert errors["default"] <= errors["contribution"] < errors["random"]


def test_a_cost_limits_the_energy_beside_the_parameters(output: Output) -> None:
    text = output("cost")
    full = float(re.findall(r"original: (\d+) uJ", text)[0])
    lines = re.findall(r"^(\w+): (\d+) uJ, (\d+)% of the parameters", text, re.MULTILINE)
    found = {name: (float(energy), float(share)) for name, energy, share in lines}
    assert found.keys() == {"energy", "parameters", "both"}
    assert found["energy"][0] <= 0.7 * full < found["parameters"][0]
    assert found["parameters"][1] <= 50
    assert found["both"][0] <= 0.7 * full
    assert found["both"][1] <= 50
    widths = [int(width) for width in re.findall(r"'\d': (\d+)", text)]
    assert len(widths) == 9
    assert all(width % 8 == 0 for width in widths)


def test_a_sensitivity_decides_which_branch_keeps_its_channels(output: Output) -> None:
    lines = re.findall(
        r"^(\w+) .*'class_branch': (\d+), 'box_branch': (\d+)", output("sensitivity"), re.MULTILINE
    )
    found = {name: (int(classes), int(box)) for name, classes, box in lines}
    assert found["class"][0] > found["default"][0] > found["box"][0]
    assert found["class"][1] < found["default"][1] < found["box"][1]


def test_a_callback_stops_a_run_that_continues_after_it(output: Output) -> None:
    first, second, *steps, macs, stages = output("callback").splitlines()
    assert first == "stopped after 2"
    assert re.fullmatch(r"resume (\d+)/\1: interrupted run, restored", second)
    assert [step.split(":")[0] for step in steps] == [
        "allocate 1/3",
        "allocate 2/3",
        "reconstruct 1/2",
        "reconstruct 2/2",
    ]
    assert [step.endswith("restored") for step in steps[-2:]] == [True, False]
    before, after = (int(n.replace(",", "")) for n in re.findall(r"[\d,]+", macs))
    assert after <= 0.3 * before
    assert {"trace", "select", "allocate", "prune"} <= set(stages[8:].split(", "))


def test_a_rule_lets_the_channels_before_a_custom_operator_be_pruned(output: Output) -> None:
    assert output("operator_rule").splitlines() == [
        "groups without the rule: ['conv2']",
        "conv1: no rule for the operation examples::channel_scale",
        "groups with the rule: ['conv1', 'conv2']",
        "the scale has (16,) -> (8,)",
    ]


def test_batches_of_any_kind_lead_to_the_same_network(output: Output) -> None:
    dicts, tuples, same = output("batch_to_inputs").splitlines()
    assert dicts.removeprefix("dicts") == tuples.removeprefix("tuples")
    before, after = map(int, re.findall(r"(\d+) -> (\d+)", dicts)[0])
    assert after <= before / 2
    assert same == "the same channels are kept: True"


def test_every_example_has_a_docstring_a_main_and_a_test() -> None:
    tested = set(re.findall(r'output\("(\w+)"\)', Path(__file__).read_text()))
    names = {file.stem for file in FOLDER.glob("*.py")}
    assert names == tested | {"boxes"}  # that one is tested with SPARTAn
    for name in names:
        module = import_module(f"examples.{name}")
        assert module.__doc__
        assert callable(module.main)
