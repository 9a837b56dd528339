"""Every published cell that arithmetic decides is ours to the printed digits, or a known slip."""

from collections.abc import Iterator

import pytest

from entrim.errors import BadSettingError
from experiments.models import ZOO
from experiments.paper.published import Cell, Disagreement, Table, disagreements, tables, widths
from tests.experiments.derivation import derive, graph_of

MACS_WITHIN = 0.01
UNDERIVED = {"vgg16-widths", "vgg16-epochs", "vgg16-scratch", "resnet18-widths"}
"""Tables of choices and of accuracies only."""
KNOWN = {(d.table, d.row, d.column): d for d in disagreements()}


def cells() -> Iterator[tuple[Table, str, str, Cell]]:
    for table in tables().values():
        for row, printed in table.rows.items():
            for column, cell in zip(table.columns, printed, strict=True):
                if cell.printed:
                    yield table, row, column, cell


def agrees(column: str, cell: Cell, ours: float | str) -> bool:
    if isinstance(ours, str):
        return cell.printed == ours
    assert cell.value is not None, cell
    if column == "FLOPs":
        return abs(ours / cell.value - 1) < MACS_WITHIN
    return cell.round(ours) == cell.value


@pytest.mark.parametrize("name", tables())
def test_a_derived_cell_is_ours_or_a_known_disagreement(name: str) -> None:
    wrong, derived = [], 0
    for table, row, column, cell in cells():
        if table.name != name or (ours := derive(table, row, column)) is None:
            continue
        derived += 1
        known = KNOWN.get((name, row, column))
        if agrees(column, cell, ours) == (known is not None):
            wrong.append((row, column, cell.printed, ours, known))
    assert not wrong, "\n".join(map(str, wrong))
    assert derived or name in UNDERIVED


@pytest.mark.parametrize("known", disagreements(), ids=lambda d: f"{d.table}, {d.row}, {d.column}")
def test_a_known_disagreement_says_what_is_printed_and_what_ours_is(known: Disagreement) -> None:
    table = tables()[known.table]
    cell, ours = table.cell(known.row, known.column), derive(table, known.row, known.column)
    assert cell.printed == known.printed
    assert isinstance(ours, int | float)
    assert cell.round(ours) == Cell(known.ours).value
    assert known.reason


def test_every_printed_figure_can_be_read() -> None:
    words = {"architecture", "output size", "fc1-fc3 output channels"}
    assert all(cell.value is not None for _, _, column, cell in cells() if column not in words)


@pytest.mark.parametrize("table", tables().values(), ids=lambda table: table.name)
def test_every_row_is_as_long_as_the_columns(table: Table) -> None:
    assert all(len(row) == len(table.columns) for row in table.rows.values())


@pytest.mark.parametrize(
    ("network", "table"),
    [
        ("LeNet", "lenet-conv"),
        ("LeNet", "lenet-full"),
        ("VGG-16", "vgg16-widths"),
        ("ResNet18", "resnet18-widths"),
    ],
)
def test_published_widths_name_groups_and_the_baseline_is_our_whole_network(
    network: str, table: str
) -> None:
    whole = {group.name: group.channels for group in graph_of(network)[1].groups}
    for row in tables()[table].rows:
        found = widths(network, row)
        assert all(width <= whole[name] for name, width in found.items())
        assert (row == "baseline") == all(found[name] == whole[name] for name in found)


def test_a_network_that_the_paper_does_not_have_is_refused() -> None:
    with pytest.raises(BadSettingError, match="LeNet, VGG-16, ResNet18"):
        widths("ResNet-50", "baseline")


def test_words_have_no_value_and_cannot_be_rounded() -> None:
    assert Cell("28 x 28").value is None
    with pytest.raises(BadSettingError, match="is not a number"):
        Cell("28 x 28").round(1.0)


def test_every_network_of_the_tables_is_in_the_zoo() -> None:
    assert {table.network for table in tables().values()} <= set(ZOO)
