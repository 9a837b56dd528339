"""What the paper prints in two places is the same in both places of our data."""

import pytest

from experiments.paper.published import Cell, tables
from experiments.paper.rows import rows_of

Place = tuple[str, str, str]
ALL, OURS = "conv_all+fc", "ours (scratch)"
REPEATED: list[tuple[str, list[Place]]] = [
    ("99.04%", [("lenet-conv", "baseline", "accuracy"), ("lenet-full", "baseline", "accuracy")]),
    (
        "61,706",
        [
            ("lenet-conv", "baseline", "parameters"),
            ("lenet-full", "baseline", "parameters"),
            ("lenet-text", "baseline", "parameters"),
        ],
    ),
    (
        "94.08%",
        [
            ("vgg16-results", "baseline", "accuracy"),
            ("vgg16-text", "baseline", "accuracy"),
            ("vgg16-comparison", "ours", "baseline accuracy"),
            ("vgg16-comparison", OURS, "baseline accuracy"),
        ],
    ),
    ("83.40%", [("vgg16-results", ALL, "accuracy"), ("vgg16-epochs", "fine tune", "0")]),
    ("93.38%", [("vgg16-results", ALL, "fine tuned"), ("vgg16-epochs", "fine tune", "50")]),
    ("93.87%", [("vgg16-epochs", "fine tune", "160"), ("vgg16-comparison", "ours", "accuracy")]),
    ("94.02%", [("vgg16-scratch", "scratch", "280"), ("vgg16-comparison", OURS, "accuracy")]),
    (
        "1.66e6",
        [
            ("vgg16-results", ALL, "parameters"),
            ("vgg16-comparison", "ours", "parameters"),
            ("vgg16-comparison", OURS, "parameters"),
        ],
    ),
    (
        "88.7%",
        [
            ("vgg16-results", ALL, "sparsity"),
            ("vgg16-comparison", "ours", "sparsity"),
            ("vgg16-comparison", OURS, "sparsity"),
        ],
    ),
    (
        "95.39%",
        [
            ("resnet18-results", "baseline", "accuracy"),
            ("resnet18-comparison", "ours", "baseline accuracy"),
        ],
    ),
    (
        "94.91%",
        [
            ("resnet18-results", "conv_all, fine tuned 50 epochs", "accuracy"),
            ("resnet18-comparison", "ours", "accuracy"),
        ],
    ),
    (
        "73.6%",
        [
            ("resnet18-results", "conv_all", "sparsity"),
            ("resnet18-comparison", "ours", "sparsity"),
        ],
    ),
]


@pytest.mark.parametrize(("printed", "cells"), REPEATED, ids=[printed for printed, _ in REPEATED])
def test_a_figure_that_is_printed_twice_is_the_same_in_both_places(
    printed: str, cells: list[Place]
) -> None:
    found = [tables()[table].cell(row, column) for table, row, column in cells]
    assert found == [Cell(printed)] * len(cells)


def test_the_last_epochs_of_fine_tuning_and_of_new_weights_are_those_that_are_compared() -> None:
    (tuned,), (new,) = rows_of("vgg16-epochs"), rows_of("vgg16-scratch")
    compared = tables()["vgg16-comparison"]
    assert tuned.tuned[max(tuned.tuned)] == compared.cell("ours", "accuracy")
    assert new.by_epoch[max(new.by_epoch)] == compared.cell(OURS, "accuracy")


def test_strengths_that_are_printed_twice_are_the_same_in_both_places() -> None:
    eps = {name: table.eps for name, table in tables().items() if table.eps}
    assert eps["lenet-conv"]["E1"] == eps["lenet-full"]["E1"] == 0.01
    one_for_all = [eps[name] for name in ("vgg16-widths", "vgg16-results", "resnet18-results")]
    assert one_for_all == [{"all": 0.0001}] * 3


def test_groups_that_are_cut_together_keep_what_each_keeps_alone() -> None:
    groups = {row.name: dict(row.widths) for row in rows_of("vgg16-groups")}
    deep = groups["conv8-10"] | groups["conv11-12"]
    assert groups["conv8-12"] == deep
    conv_all, with_fc = (dict(row.widths) for row in rows_of("vgg16-full"))
    assert conv_all == groups["conv1-4"] | groups["conv5-7"] | deep
    assert with_fc == conv_all | {"features.40": 91}
    last, everywhere = (dict(row.widths) for row in rows_of("resnet18"))
    assert last.items() <= everywhere.items()
