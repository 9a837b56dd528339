"""The published tables of other methods stand next to our rows, as drops."""

import pytest

from experiments.paper.literature import literature
from experiments.paper.pruning import RowResult


def cells(section: str) -> dict[str, list[str]]:
    lines = [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in section.splitlines()
    ]
    return {line[0]: line[1:] for line in lines[2:]}


def test_drops_and_parameters_are_those_of_the_paper() -> None:
    *_, vgg = literature("VGG-16", "conv_all+fc", [], {0: 90.0})
    *_, resnet = literature("ResNet18", "conv_all", [], {0: 90.0})
    assert cells(vgg)["Kumar"] == ["93.77", "-0.04", "1.07e6", "92.7 %"]
    assert cells(vgg)["the paper"] == ["94.08", "0.21", "1.66e6", "88.7 %"]
    assert len(cells(vgg)) == 12
    assert cells(resnet)["Ma"] == ["94.14", "0.92", "(1.34e+05)", "98.8 %"]
    assert literature("LeNet", "E1", [], {}) == ()


def test_ours_are_raw_and_at_the_best_number_of_epochs_of_the_first_seed() -> None:
    pruned = {"parameters": 1_472_826, "accuracy": 88.0}
    ours = RowResult(
        row="conv_all+fc",
        method="default",
        seed=0,
        pruned=pruned,
        tuned={1: 89.0, 10: 89.5, 50: 89.4},
    )
    other = RowResult(row="conv_all+fc", method="default", seed=1, pruned=pruned)
    not_run = RowResult(row="conv_all+fc", method="paper", seed=0)
    another = RowResult(row="conv_all", method="widths", seed=0, pruned=pruned)
    *_, section = literature(
        "VGG-16", "conv_all+fc", [ours, other, not_run, another], {0: 90.0, 1: 91.0}
    )
    found = {name: line for name, line in cells(section).items() if name.startswith("here")}
    name = "here, conv_all+fc: our default, within its parameters"
    assert found == {
        f"{name}, raw": ["90.00", "2.00", "1,472,826", "90.0 %"],
        f"{name}, fine tuned, 10 epochs": ["90.00", "0.50", "1,472,826", "90.0 %"],
    }


@pytest.mark.parametrize("network", ["VGG-16", "ResNet18"])
def test_the_note_says_that_the_published_results_are_fine_tuned(network: str) -> None:
    assert "fine tuning" in literature(network, "conv_all", [], {0: 90.0})[1]
