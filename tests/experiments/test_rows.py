"""Every row has the layers, the penalties and the epochs of the paper."""

from collections.abc import Mapping

import pytest

from experiments.paper.published import Cell
from experiments.paper.reproduce import EXPERIMENTS
from experiments.paper.rows import Row, rows_of

VGG = (0, 3, 7, 10, 14, 17, 20, 24, 27, 30, 34, 37, 40)
"""Where conv0 to conv12 stand in `features`."""


def vgg(first: int, *widths: int) -> dict[str, int]:
    """Return the groups whose channels the layers from conv`first` on take in."""
    return {f"features.{VGG[first - 1 + i]}": width for i, width in enumerate(widths)}


ALL = vgg(1, 29, 64, 124, 127, 250, 232, 219, 65, 24, 12, 10, 12)
ALL_AND_FC = {**ALL, "features.40": 91}
LAST_BLOCKS = {"layer4.0.conv1": 110, "layer4.1.conv1": 23}
WIDTHS: dict[tuple[str, str], dict[str, int]] = {
    ("lenet-conv", "E1"): {"conv1": 8},
    ("lenet-conv", "E2"): {"conv1": 4},
    ("lenet-full", "E1+fc-v1"): {"conv1": 8, "fc1": 104, "fc2": 43},
    ("lenet-full", "E1+fc-v2"): {"conv1": 8, "fc1": 40, "fc2": 18},
    ("vgg16-groups", "conv1-4"): vgg(1, 29, 64, 124, 127),
    ("vgg16-groups", "conv5-7"): vgg(5, 250, 232, 219),
    ("vgg16-groups", "conv8-10"): vgg(8, 65, 24, 12),
    ("vgg16-groups", "conv11-12"): vgg(11, 10, 12),
    ("vgg16-groups", "conv8-12"): vgg(8, 65, 24, 12, 10, 12),
    ("vgg16-full", "conv_all"): ALL,
    ("vgg16-full", "conv_all+fc"): ALL_AND_FC,
    ("vgg16-epochs", "conv_all+fc"): ALL_AND_FC,
    ("vgg16-scratch", "conv_all+fc"): ALL_AND_FC,
    ("resnet18", "conv(14,16)"): LAST_BLOCKS,
    ("resnet18", "conv_all"): {
        "layer2.0.conv1": 122,
        "layer2.1.conv1": 92,
        "layer3.0.conv1": 228,
        "layer3.1.conv1": 94,
        **LAST_BLOCKS,
    },
}
TUNED: dict[tuple[str, str], dict[int, str]] = {
    ("lenet-conv", "E1"): {10: "99.03%"},
    ("lenet-conv", "E2"): {10: "98.73%"},
    ("lenet-full", "E1+fc-v1"): {10: "98.92%"},
    ("lenet-full", "E1+fc-v2"): {10: "98.47%"},
    ("vgg16-groups", "conv1-4"): {10: ""},
    ("vgg16-groups", "conv5-7"): {10: "93.64%"},
    ("vgg16-groups", "conv8-10"): {10: "93.6%"},
    ("vgg16-groups", "conv11-12"): {10: ""},
    ("vgg16-groups", "conv8-12"): {10: "93.51%"},
    ("vgg16-full", "conv_all"): {50: "93.45%"},
    ("vgg16-full", "conv_all+fc"): {50: "93.38%"},
    ("vgg16-epochs", "conv_all+fc"): {
        1: "92.39%", 10: "93.07%", 20: "93.28%", 50: "93.38%", 70: "93.46%", 100: "93.66%",
        160: "93.87%",
    },
    ("vgg16-scratch", "conv_all+fc"): {},
    ("resnet18", "conv(14,16)"): {1: "94.7%", 20: "95.1%"},
    ("resnet18", "conv_all"): {1: "94.03%", 50: "94.91%"},
}  # fmt: skip
SCRATCH: dict[tuple[str, str], dict[int, str]] = {
    ("lenet-conv", "E1"): {10: ""},
    ("lenet-conv", "E2"): {10: ""},
    ("lenet-full", "E1+fc-v1"): {10: ""},
    ("lenet-full", "E1+fc-v2"): {10: ""},
    ("vgg16-epochs", "conv_all+fc"): {
        1: "41.65%", 10: "76.64%", 20: "81.95%", 50: "83.86%", 70: "85.16%", 100: "85.56%",
        160: "87.63%",
    },
    ("vgg16-scratch", "conv_all+fc"): {},
}  # fmt: skip
ALONG = {
    1: "41.65%", 10: "76.64%", 20: "81.95%", 50: "83.86%", 70: "85.16%", 100: "85.56%",
    160: "87.63%", 200: "90.88%", 250: "93.77%", 280: "94.02%",
}  # fmt: skip
BOTH_SIDES = {
    "conv1-4": VGG[1:4],
    "conv5-7": VGG[5:7],
    "conv8-10": VGG[8:10],
    "conv11-12": VGG[11:12],
    "conv8-12": VGG[8:12],
}


def strength(row: str, group: str) -> float:
    """Return eps_l2, and -eps_w, as the captions of the paper print them."""
    if group == "conv1":
        return {"E1": 0.01, "E2": 0.05}[row[:2]]
    return 0.001 if row.endswith("fc-v2") else 0.0001


def row_of(key: tuple[str, str]) -> Row:
    (row,) = (row for row in rows_of(key[0]) if row.name == key[1])
    return row


def cell_texts(cells: Mapping[int, Cell]) -> dict[int, str]:
    return {epochs: cell.printed for epochs, cell in cells.items()}


def test_the_rows_are_those_of_the_paper() -> None:
    assert [(name, row.name) for name in EXPERIMENTS for row in rows_of(name)] == list(WIDTHS)


@pytest.mark.parametrize("key", WIDTHS, ids=", ".join)
def test_a_row_cuts_the_printed_layers_to_the_printed_widths(key: tuple[str, str]) -> None:
    row = row_of(key)
    assert list(row.widths.items()) == list(WIDTHS[key].items())
    assert list(row.eps.items()) == [(group, strength(key[1], group)) for group in WIDTHS[key]]


@pytest.mark.parametrize("key", WIDTHS, ids=", ".join)
def test_a_row_is_taught_for_the_printed_epochs(key: tuple[str, str]) -> None:
    row = row_of(key)
    assert cell_texts(row.tuned) == TUNED[key]
    assert cell_texts(row.scratch) == SCRATCH.get(key, {})
    assert cell_texts(row.by_epoch) == (ALONG if key[0] == "vgg16-scratch" else {})


@pytest.mark.parametrize("key", WIDTHS, ids=", ".join)
def test_local_sparsity_is_that_of_the_layers_cut_on_both_sides(key: tuple[str, str]) -> None:
    expected = BOTH_SIDES.get(key[1], ()) if key[0] == "vgg16-groups" else ()
    assert row_of(key).inner == tuple(f"features.{place}" for place in expected)
