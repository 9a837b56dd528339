"""All published cells of the paper as data, and the channels of our networks they refer to.

The tables are TOML files in `tables/`, with cells as printed, so that the number of digits is
known. `tables/disagreements.toml` lists the cells that arithmetic contradicts.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from entrim.errors import BadSettingError

_NUMBER = re.compile(r"~?(?P<digits>[\d,]+(?:\.(?P<decimals>\d+))?)(?:e(?P<power>\d+))?(?:%|x|MB)?")
_VGG_CONVOLUTIONS = (0, 3, 7, 10, 14, 17, 20, 24, 27, 30, 34, 37, 40)
"""Their indices in `features`."""
_LENET_PIXELS = 25
"""Columns of fc1 for one channel of conv1."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell as printed; empty where the paper leaves it empty.

    >>> Cell("1.47e7").value, Cell("1.47e7").round(14_728_266), Cell("40.85%").round(40.848)
    (14700000.0, 14700000.0, 40.85)
    """

    printed: str

    @property
    def value(self) -> float | None:
        """The figure, in the unit that is printed; None for words, lists and an empty cell."""
        match = _NUMBER.fullmatch(self.printed)
        if match is None:
            return None
        return float(match["digits"].replace(",", "") + "e" + (match["power"] or "0"))

    def round(self, value: float | int) -> float:
        """Return `value` to the digits that this cell prints."""
        match = _NUMBER.fullmatch(self.printed)
        if match is None:
            raise BadSettingError(f"the cell {self.printed!r} is not a number: check `value` first")
        power = int(match["power"] or 0)
        return float(f"{value / 10**power:.{len(match['decimals'] or '')}f}e{power}")


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the paper, or the figures that it prints outside its tables."""

    name: str
    label: str
    """Its place in the paper."""
    network: str
    """Its name in the zoo."""
    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[Cell, ...]]
    eps: Mapping[str, float] = field(default_factory=dict)
    """The strength of both terms in each configuration: eps_l2, and -eps_w."""

    def cell(self, row: str, column: str) -> Cell:
        """Return one cell; KeyError or ValueError when there is none."""
        return self.rows[row][self.columns.index(column)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """A cell that arithmetic contradicts."""

    table: str
    row: str
    column: str
    printed: str
    ours: str
    """The correct value, to the digits of the cell."""
    reason: str
    """The arithmetic."""


@cache
def tables() -> Mapping[str, Table]:
    """Return all tables by name."""
    found: dict[str, Table] = {}
    for network in ("lenet", "vgg16", "resnet18"):
        for name, data in _read(network).items():
            rows = {row: tuple(map(Cell, cells)) for row, *cells in data.pop("rows")}
            found[name] = Table(name=name, rows=rows, columns=tuple(data.pop("columns")), **data)
    return found


@cache
def disagreements() -> tuple[Disagreement, ...]:
    """Return the cells that arithmetic contradicts, each with its arithmetic."""
    return tuple(Disagreement(**entry) for entry in _read("disagreements")["known"])


def widths(network: str, row: str) -> dict[str, int]:
    """Return the number of channels that the paper keeps in each group of our network, in `row`.

    Groups that are not named keep all channels. The rows are those of the tables that print widths:
    `lenet-conv`, `lenet-full`, `vgg16-widths` and `resnet18-results`.

    >>> widths("LeNet", "E1+fc-v1"), widths("ResNet18", "conv(14,16)")
    ({'conv1': 8, 'fc1': 104, 'fc2': 43}, {'layer4.0.conv1': 110, 'layer4.1.conv1': 23})
    """
    found = {
        "LeNet": _lenet_widths,
        "VGG-16": _vgg_widths,
        "ResNet18": _resnet_widths,
    }
    if network not in found:
        raise BadSettingError(f"the paper has no {network}: use one of {', '.join(found)}")
    return found[network](row)


def layer_of(network: str, printed: str) -> str:
    """Return the name in our network of a layer of the paper.

    >>> layer_of("VGG-16", "conv5"), layer_of("ResNet18", "conv6"), layer_of("LeNet", "fc1")
    ('features.17', 'layer2.0.conv2', 'fc1')
    """
    number = int(printed.removeprefix("conv")) if printed.startswith("conv") else None
    if network == "VGG-16":
        return "classifier" if number is None else f"features.{_VGG_CONVOLUTIONS[number]}"
    if network == "ResNet18":
        return _resnet_layer(number)
    return printed


def _resnet_layer(number: int | None) -> str:
    if number is None:
        return "linear"
    if number == 0:
        return "conv1"
    stage, place = divmod(number - 1, 4)
    return f"layer{stage + 1}.{place // 2}.conv{place % 2 + 1}"


def _lenet_widths(row: str) -> dict[str, int]:
    conv, full = tables()["lenet-conv"], tables()["lenet-full"]
    if row in conv.rows:
        return {"conv1": int(conv.cell(row, "conv1 output channels").printed)}
    columns, *rest = map(int, full.cell(row, "fc1-fc3 output channels").printed.split("-"))
    return {"conv1": columns // _LENET_PIXELS, "fc1": rest[0], "fc2": rest[1]}


def _vgg_widths(row: str) -> dict[str, int]:
    printed = tables()["vgg16-widths"].cell(row, "architecture").printed
    numbers = [int(word) for word in printed.split(", ") if word != "M"]
    return {layer_of("VGG-16", f"conv{i}"): width for i, width in enumerate(numbers)}


def _resnet_widths(row: str) -> dict[str, int]:
    """Return the outputs of the layers in front of those whose inputs the paper prints."""
    table = tables()["resnet18-widths"]
    shown = re.fullmatch(r"conv\((.*)\)", row)
    numbers = [int(column.removeprefix("conv")) for column in table.columns]
    chosen = [int(n) for n in shown[1].split(",")] if shown else numbers
    source = "conv_all" if shown else row
    return {_resnet_layer(n - 1): int(table.cell(source, f"conv{n}").printed) for n in chosen}


def _read(name: str) -> dict[str, Any]:
    text = files("experiments.paper").joinpath("tables", f"{name}.toml").read_text("utf-8")
    return tomllib.loads(text)
