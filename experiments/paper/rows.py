"""The rows of the paper's tables: pruned groups, penalties, epochs, printed values."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from experiments.models import ZOO
from experiments.paper.published import Cell, Table, disagreements, layer_of, tables, widths

EMPTY = Cell("")
_LENET_EPOCHS = 10
EPS = 1e-4
"""The paper's strength of both terms on CIFAR-10."""
_GROUP_EPOCHS, _FULL_EPOCHS = 10, 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: the groups that are pruned, and what the paper prints."""

    name: str
    eps: Mapping[str, float]
    """eps_l2 and -eps_w of every group, or of all by the pattern "*"."""
    widths: Mapping[str, int]
    """The channels that the paper keeps of them."""
    inner: tuple[str, ...] = ()
    """The convolutions pruned on both sides, for the local sparsity."""
    cells: Mapping[str, Cell]
    """What is printed of the network that is only pruned."""
    arithmetic: Mapping[str, Cell] = field(default_factory=dict)
    """Values that these cells must mean, where the paper contradicts itself."""
    tuned: Mapping[int, Cell] = field(default_factory=dict)
    """The accuracy after fine tuning, by epochs."""
    scratch: Mapping[int, Cell] = field(default_factory=dict)
    """The accuracy of the same architecture, trained from new weights, by epochs."""
    by_epoch: Mapping[int, Cell] = field(default_factory=dict)
    """The accuracy along one training from new weights, the longest of these epochs."""


def rows_of(experiment: str) -> tuple[Row, ...]:
    """Return the rows of one of the paper's tables."""
    return {
        "lenet-conv": _lenet_conv,
        "lenet-full": _lenet_full,
        "vgg16-groups": _vgg_groups,
        "vgg16-full": _vgg_full,
        "vgg16-epochs": _vgg_epochs,
        "vgg16-scratch": _vgg_scratch,
        "resnet18": _resnet,
    }[experiment]()


def half_row(network: str) -> Row:
    """Return a row that the paper does not have: half the channels inside all residual blocks."""
    with torch.device("meta"):
        model = ZOO[network].build()
    inner = {
        name: module.out_channels
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d) and name.endswith(".conv1")
    }
    return Row(
        name=f"{network}, half of the inner channels",
        eps=dict.fromkeys(inner, EPS),
        widths={name: width // 2 for name, width in inner.items()},
        cells={},
    )


def _cells(table: Table, row: str) -> dict[str, Cell]:
    """Return the cells of a row that is only pruned, from its table and from the text.

    Widths and accuracies after fine tuning are separate fields of a row.
    """
    left_out = ("fine tuned", "conv1 output channels", "fc1-fc3 output channels")
    cells = zip(table.columns, table.rows[row], strict=True)
    printed = {name: cell for name, cell in cells if name not in left_out}
    if not printed.get("local sparsity", EMPTY).printed:
        printed.pop("local sparsity", None)
    text = tables().get(_text_table(table))
    size = text.cell(row, "size") if text and row in text.rows else EMPTY
    return {**printed, "size": size} | {
        name: printed.get(name, EMPTY) for name in ("speedup", "FLOPs")
    }


def _arithmetic(table: Table, row: str) -> dict[str, Cell]:
    names = (table.name, _text_table(table))
    return {
        known.column: Cell(known.ours)
        for known in disagreements()
        if known.table in names and known.row == row
    }


def _text_table(table: Table) -> str:
    """Return the name of the table with figures from the text of the paper."""
    return f"{table.name.split('-')[0]}-text"


def _lenet(table: Table, name: str, eps: Mapping[str, float]) -> Row:
    return Row(
        name=name,
        eps=eps,
        widths=widths("LeNet", name),
        cells=_cells(table, name),
        arithmetic=_arithmetic(table, name),
        tuned={_LENET_EPOCHS: table.cell(name, "fine tuned")},
        scratch={_LENET_EPOCHS: EMPTY},
    )


def _lenet_conv() -> tuple[Row, ...]:
    table = tables()["lenet-conv"]
    return tuple(_lenet(table, name, {"conv1": table.eps[name]}) for name in ("E1", "E2"))


def _lenet_full() -> tuple[Row, ...]:
    table = tables()["lenet-full"]

    def row(version: str) -> Row:
        first, rest = table.eps["E1"], table.eps[version]
        return _lenet(table, f"E1+{version}", {"conv1": first, "fc1": rest, "fc2": rest})

    return row("fc-v1"), row("fc-v2")


def _vgg(name: str, first: int, last: int) -> Row:
    """Return the row that prunes the inputs of the layers `first` to `last`; 13 is fc."""
    table, kept = tables()["vgg16-results"], widths("VGG-16", name)
    groups = [layer_of("VGG-16", f"conv{number - 1}") for number in range(first, last + 1)]
    inner = [layer_of("VGG-16", f"conv{number}") for number in range(first, last)]
    epochs = _FULL_EPOCHS if name.startswith("conv_all") else _GROUP_EPOCHS
    return Row(
        name=name,
        eps=dict.fromkeys(groups, table.eps["all"]),
        widths={group: kept[group] for group in groups},
        inner=tuple(inner) if table.cell(name, "local sparsity").printed else (),
        cells=_cells(table, name),
        arithmetic=_arithmetic(table, name),
        tuned={epochs: table.cell(name, "fine tuned")},
        scratch={},
    )


def _vgg_groups() -> tuple[Row, ...]:
    ends = ((1, 4), (5, 7), (8, 10), (11, 12), (8, 12))
    return tuple(_vgg(f"conv{first}-{last}", first, last) for first, last in ends)


def _vgg_full() -> tuple[Row, ...]:
    return _vgg("conv_all", 1, 12), _vgg("conv_all+fc", 1, 13)


def _by_epochs(table: str, label: str) -> dict[int, Cell]:
    """Return the accuracies of one row of a table whose columns are epochs."""
    printed = tables()[table]
    cells = zip(printed.columns, printed.rows[label], strict=True)
    return {int(epochs): cell for epochs, cell in cells if epochs != "0"}


def _vgg_epochs() -> tuple[Row, ...]:
    """Return conv_all+fc, fine tuned and from new weights: every number of epochs by itself."""
    tuned, scratch = (_by_epochs("vgg16-epochs", label) for label in ("fine tune", "scratch"))
    return (replace(_vgg("conv_all+fc", 1, 13), tuned=tuned, scratch=scratch),)


def _vgg_scratch() -> tuple[Row, ...]:
    """Return conv_all+fc along one training from new weights, as the paper's columns look."""
    along = _by_epochs("vgg16-epochs", "scratch") | _by_epochs("vgg16-scratch", "scratch")
    return (replace(_vgg("conv_all+fc", 1, 13), tuned={}, by_epoch=along),)


def _resnet() -> tuple[Row, ...]:
    table = tables()["resnet18-results"]

    def row(name: str, longer: int) -> Row:
        kept = widths("ResNet18", name)
        ends = {1: "1 epoch", longer: f"{longer} epochs"}
        return Row(
            name=name,
            eps=dict.fromkeys(kept, table.eps["all"]),
            widths=kept,
            cells=_cells(table, name),
            arithmetic=_arithmetic(table, name),
            tuned={
                n: table.cell(f"{name}, fine tuned {text}", "accuracy") for n, text in ends.items()
            },
        )

    return row("conv(14,16)", 20), row("conv_all", 50)
