"""What our own networks say to the cells of the paper that arithmetic decides."""

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

KINDS = {
    "conv2d": "conv",
    "linear": "fc",
    "avg_pool2d": "avg pool",
    "adaptive_avg_pool2d": "avg pool",
    "max_pool2d": "max pool",
    "flatten": "flatten",
}
MEGABYTE = 10**6


@dataclass(frozen=True)
class Step:
    """One operation of a forward pass, as the paper's overviews list them."""

    kind: str
    before: int
    after: int
    size: str
    params: int


class Steps(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Step] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if kind := KINDS.get(getattr(func, "__name__", "")):
            own = args[1:3] if kind in ("conv", "fc") else ()
            params = sum(t.numel() for t in own if isinstance(t, Tensor))
            size = " x ".join(str(n) for n in out.shape[2:]) or "1 x 1"
            self.found.append(Step(kind, args[0].shape[1], out.shape[1], size, params))
        return out


@functools.cache
def steps(name: str) -> dict[str, Step]:
    """Return the operations of the whole network that the table lists, under its own names."""
    table = tables()[name]
    entry, seen = ZOO[table.network], Steps()
    with torch.no_grad(), seen:
        entry.model()(entry.images(1))
    listed = [step for step in seen.found if any(row.startswith(step.kind) for row in table.rows)]
    found = dict(zip(table.rows, listed, strict=True))
    assert all(row.startswith(step.kind) for row, step in found.items())
    return found


@functools.cache
def graph_of(network: str) -> tuple[nn.Module, Any]:
    model = ZOO[network].model()
    return model, trace(model, ZOO[network].images(1))


@functools.cache
def cut_to(network: str, row: str) -> tuple[nn.Module, Measurement]:
    """Return our network at the published widths, the last channels gone, and its cost."""
    model, graph = graph_of(network)
    plan = Plan({name: range(width) for name, width in widths(network, row).items()})
    small = prune(model, plan, ZOO[network].images(1), graph=graph).model
    return small, measure(small, ZOO[network].images(1), repeats=2)


def sparsity(network: str, row: str) -> float:
    return 100 * (1 - cut_to(network, row)[1].params / ZOO[network].params)


def local_sparsity(network: str, row: str) -> float:
    """Return the share of weights that went, of convolutions cut on both sides, biases apart.

    A row conv5-7 cuts the inputs of conv5, conv6 and conv7, so conv5 and conv6 lose outputs too.
    """
    first, last = map(int, row.removeprefix("conv").split("-"))
    names = [layer_of(network, f"conv{n}") for n in range(first, last)]
    big, small = (
        sum(net.get_submodule(name).get_parameter("weight").numel() for name in names)
        for net in (graph_of(network)[0], cut_to(network, row)[0])
    )
    return 100 * (1 - small / big)


def of_kind(network: str, *kinds: type[nn.Module]) -> int:
    layers = [m for m in graph_of(network)[0].modules() if isinstance(m, kinds)]
    return sum(p.numel() for layer in layers for p in layer.parameters())


def convolutions(network: str, size: int) -> int:
    layers = graph_of(network)[0].modules()
    return sum(isinstance(m, nn.Conv2d) and m.kernel_size == (size, size) for m in layers)


COSTS: dict[str, Callable[[str, str], float]] = {
    "parameters": lambda network, row: cut_to(network, row)[1].params,
    "sparsity": sparsity,
    "local sparsity": local_sparsity,
    "FLOPs": lambda network, row: cut_to(network, row)[1].macs,
    "size": lambda network, row: 4 * cut_to(network, row)[1].params / MEGABYTE,
    "of BatchNorm": lambda network, _: of_kind(network, nn.BatchNorm2d),
    "of convolutions": lambda network, _: of_kind(network, nn.Conv2d),
    "convolutions": lambda network, _: convolutions(network, 3),
    "shortcuts": lambda network, _: convolutions(network, 1),
}
LAYERS: dict[str, Callable[[Table, Step], float | str]] = {
    "input channels": lambda _, step: step.before,
    "output channels": lambda _, step: step.after,
    "output size": lambda _, step: step.size,
    "parameters": lambda _, step: step.params,
    "share": lambda table, step: 100 * step.params / ZOO[table.network].params,
}
OURS = {
    "vgg16-comparison": {"ours": "conv_all+fc", "ours (scratch)": "conv_all+fc"},
    "resnet18-comparison": {"ours": "conv_all"},
}
"""The rows of the comparisons that speak of this method; the others cannot be derived."""
MEASURED = {
    *("accuracy", "fine tuned", "speedup", "baseline accuracy"),
    *("architecture", "conv1 output channels", "fc1-fc3 output channels"),
    *tables()["resnet18-widths"].columns,
    *tables()["vgg16-epochs"].columns,
    *tables()["vgg16-scratch"].columns,
}
"""Columns that say what was chosen or measured, not what follows from it."""
TOLD_TWICE = {
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
"""Figures of the text that a table prints too."""


def derive(table: Table, row: str, column: str) -> float | str | None:
    """Return what the cell must say, in its own unit; None where arithmetic cannot know."""
    if (key := (table.name, row, column)) in TOLD_TWICE:
        return float(TOLD_TWICE[key]())
    if table.name.endswith("-layers"):
        return LAYERS[column](table, steps(table.name)[row])
    if table.name in OURS and row not in OURS[table.name]:
        return None
    if column in MEASURED:
        return None
    return COSTS[column](table.network, OURS.get(table.name, {}).get(row, row))
