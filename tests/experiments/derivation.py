"""The values of our networks for the cells of the paper that follow from arithmetic."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from entrim import Measurement, Plan, measure, trace
from entrim.surgery.prune import prune
from experiments.models import ZOO
from experiments.paper.published import Table, layer_of, tables, widths

TYPES = {
    "conv2d": "conv",
    "linear": "fc",
    "avg_pool2d": "avg pool",
    "adaptive_avg_pool2d": "avg pool",
    "max_pool2d": "max pool",
    "flatten": "flatten",
}
MEGABYTE = 10**6


@dataclass(frozen=True)
class Operation:
    """One operation of a forward pass, as the paper's overviews list them."""

    type: str
    before: int
    after: int
    size: str
    params: int


class OperationRecorder(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Operation] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if type_ := TYPES.get(getattr(func, "__name__", "")):
            own = args[1:3] if type_ in ("conv", "fc") else ()
            params = sum(t.numel() for t in own if isinstance(t, Tensor))
            size = " x ".join(str(n) for n in out.shape[2:]) or "1 x 1"
            self.found.append(Operation(type_, args[0].shape[1], out.shape[1], size, params))
        return out


@functools.cache
def operations(name: str) -> dict[str, Operation]:
    """Return the operations of the network that the table lists, by the names in the table."""
    table = tables()[name]
    entry, seen = ZOO[table.network], OperationRecorder()
    with torch.no_grad(), seen:
        entry.model()(entry.images(1))
    listed = [one for one in seen.found if any(row.startswith(one.type) for row in table.rows)]
    found = dict(zip(table.rows, listed, strict=True))
    assert all(row.startswith(one.type) for row, one in found.items())
    return found


@functools.cache
def graph_of(network: str) -> tuple[nn.Module, Any]:
    model = ZOO[network].model()
    return model, trace(model, ZOO[network].images(1))


@functools.cache
def prune_to(network: str, row: str) -> tuple[nn.Module, Measurement]:
    """Return our network at the published widths, without the last channels, and its cost."""
    model, graph = graph_of(network)
    plan = Plan({name: range(width) for name, width in widths(network, row).items()})
    small = prune(model, plan, ZOO[network].images(1), graph=graph).model
    return small, measure(small, ZOO[network].images(1), repeats=2)


def sparsity(network: str, row: str) -> float:
    return 100 * (1 - prune_to(network, row)[1].params / ZOO[network].params)


def local_sparsity(network: str, row: str) -> float:
    """Return the percentage of removed weights, of convolutions pruned on both sides, no biases.

    A row conv5-7 prunes the inputs of conv5, conv6 and conv7, so conv5 and conv6 lose outputs too.
    """
    first, last = map(int, row.removeprefix("conv").split("-"))
    names = [layer_of(network, f"conv{n}") for n in range(first, last)]
    big, small = (
        sum(net.get_submodule(name).get_parameter("weight").numel() for name in names)
        for net in (graph_of(network)[0], prune_to(network, row)[0])
    )
    return 100 * (1 - small / big)


def of_kind(network: str, *kinds: type[nn.Module]) -> int:
    layers = [m for m in graph_of(network)[0].modules() if isinstance(m, kinds)]
    return sum(p.numel() for layer in layers for p in layer.parameters())


def convolutions(network: str, size: int) -> int:
    layers = graph_of(network)[0].modules()
    return sum(isinstance(m, nn.Conv2d) and m.kernel_size == (size, size) for m in layers)


COSTS: dict[str, Callable[[str, str], float]] = {
    "parameters": lambda network, row: prune_to(network, row)[1].params,
    "sparsity": sparsity,
    "local sparsity": local_sparsity,
    "FLOPs": lambda network, row: prune_to(network, row)[1].macs,
    "size": lambda network, row: 4 * prune_to(network, row)[1].params / MEGABYTE,
    "of BatchNorm": lambda network, _: of_kind(network, nn.BatchNorm2d),
    "of convolutions": lambda network, _: of_kind(network, nn.Conv2d),
    "convolutions": lambda network, _: convolutions(network, 3),
    "shortcuts": lambda network, _: convolutions(network, 1),
}
LAYERS: dict[str, Callable[[Table, Operation], float | str]] = {
    "input channels": lambda _, one: one.before,
    "output channels": lambda _, one: one.after,
    "output size": lambda _, one: one.size,
    "parameters": lambda _, one: one.params,
    "share": lambda table, one: 100 * one.params / ZOO[table.network].params,
}
OURS = {
    "vgg16-comparison": {"ours": "conv_all+fc", "ours (scratch)": "conv_all+fc"},
    "resnet18-comparison": {"ours": "conv_all"},
}
"""The rows of the comparisons for this method; the others cannot be derived."""
MEASURED = {
    *("accuracy", "fine tuned", "speedup", "baseline accuracy"),
    *("architecture", "conv1 output channels", "fc1-fc3 output channels"),
    *tables()["resnet18-widths"].columns,
    *tables()["vgg16-epochs"].columns,
    *tables()["vgg16-scratch"].columns,
}
"""Columns of choices and measurements, which do not follow from arithmetic."""
REPEATED = {
    ("vgg16-text", "conv_all+fc", "epochs from scratch"): lambda: tables()["vgg16-scratch"].columns[
        -1
    ],
    ("resnet18-text", "baseline", "accuracy"): lambda: (
        tables()["resnet18-results"].cell("baseline", "accuracy").printed.removesuffix("%")
    ),
    ("vgg16-text", "baseline", "accuracy"): lambda: (
        tables()["vgg16-results"].cell("baseline", "accuracy").printed.removesuffix("%")
    ),
}
"""Figures of the text that are also in a table."""


def derive(table: Table, row: str, column: str) -> float | str | None:
    """Return the value of the cell, in its own unit; None if it does not follow from arithmetic."""
    if (key := (table.name, row, column)) in REPEATED:
        return float(REPEATED[key]())
    if table.name.endswith("-layers"):
        return LAYERS[column](table, operations(table.name)[row])
    if table.name in OURS and row not in OURS[table.name]:
        return None
    if column in MEASURED:
        return None
    return COSTS[column](table.network, OURS.get(table.name, {}).get(row, row))
