"""`entrim inspect`: the layers of a network, and the channels that can be pruned."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils.flop_counter import FlopCounterMode

from entrim.cli import units
from entrim.cli.console import print_json, print_reading, print_result, table
from entrim.cli.model import add_model, read_model
from entrim.errors import CommandError
from entrim.graph.channel_graph import ChannelGraph
from entrim.graph.eager import call, copy_without_hooks
from entrim.report.numbers import percent, short
from entrim.surgery.trace import trace

_EXAMPLES = """\
examples:
  entrim inspect nets.py:ResNet20 --shape 3,32,32
  entrim inspect torchvision.models:vgg16 --weights vgg16.safetensors --shape 3,224,224
  entrim inspect nets.py:ResNet20 --shape 3,32,32 --json | jq '.layers[].name'"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One module of the tree."""

    name: str
    class_name: str
    depth: int
    params: int
    """Of the module and its children."""
    macs: int
    """Per image."""
    leaf: bool
    group: str | None = None
    """The group that its channels belong to."""
    channels: int = 0
    """Channels that can be pruned."""
    follows: tuple[tuple[int, str], ...] = ()
    """Channels that it passes on, as a depthwise layer does, and their groups."""
    frozen: tuple[tuple[int, str], ...] = ()
    """Frozen channels, and the reasons."""


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "inspect",
        help="show the layers of a network, and which channels can be pruned",
        description="Show a network as a tree: parameters and MACs of every module, and which "
        "channels can be pruned or are frozen, with the reason. The code of MODEL is executed.",
        epilog=_EXAMPLES,
    )
    add_model(parser)
    parser.add_argument(
        "--shape",
        type=units.sizes,
        required=True,
        metavar="C,H,W",
        help="shape of one image, such as 3,32,32",
    )
    return parser


def run(args: Namespace) -> int:
    """Print the tree."""
    print_reading(args.model, None)
    model = read_model(args.model, args.weights, args.device)
    inputs = torch.randn(2, *args.shape, generator=torch.Generator().manual_seed(0))
    inputs = inputs.to(args.device)
    macs = _macs(model, inputs)
    graph = trace(model, inputs)
    found = list(entries(model, graph, macs))
    if args.json:
        groups = {group.name: group.channels for group in graph.groups}
        layers = [asdict(entry) for entry in found if entry.leaf]
        blocks = {block.name: list(block.groups) for block in graph.blocks}
        found_json = {"groups": groups, "layers": layers, "blocks": blocks}
        print_json({"model": type(model).__name__, **found_json})
    else:
        print_result(tree(found))
        print_result(_summary(graph))
    return 0


def entries(model: nn.Module, graph: ChannelGraph, macs: Mapping[str, int]) -> Iterator[Entry]:
    """Yield every module that has parameters, parents first."""
    produced = {layer: group for group in graph.groups for layer in group.layers}
    passed, operations = _passed_groups(graph), _operations(model)
    for name, module in model.named_modules():
        params = sum(parameter.numel() for parameter in module.parameters())
        if not params:
            continue
        group = produced.get(name)
        yield Entry(
            name=name,
            class_name=type(module).__name__ if operations is None else operations.get(name, ""),
            depth=name.count(".") + 1 if name else 0,
            params=params,
            macs=macs.get(name, 0),
            leaf=not any(True for child in module.children() for _ in child.parameters()),
            group=None if group is None else group.name,
            channels=0 if group is None else group.channels,
            follows=() if group is not None else tuple(passed.get(name, ())),
            frozen=tuple((f.channels, f.reason) for f in graph.frozen if f.layer == name),
        )


def _passed_groups(graph: ChannelGraph) -> dict[str, list[tuple[int, str]]]:
    """Return the groups of the channels that layers pass on one by one, with their numbers."""
    read = {(site.weight, site.dim) for site in graph.consumers}
    found: dict[str, list[tuple[int, str]]] = {}
    for group in graph.groups:
        for member in group.members:
            owner, _, leaf = member.tensor.rpartition(".")
            matrix = leaf == "weight" and len(graph.shapes[member.tensor]) > 1
            if matrix and (member.tensor, member.dim) not in read:
                count = sum(map(len, member.indices))
                found.setdefault(owner, []).append((count, group.name))
    return found


def _operations(model: nn.Module) -> dict[str, str] | None:
    """Return the operations on the tensors of each module of an exported program.

    Their classes are lost. None for other networks, whose modules have classes.
    """
    if not isinstance(model, fx.GraphModule):
        return None
    found = {"": "program"}
    for node in model.graph.nodes:
        operation = getattr(getattr(node.target, "_schema", None), "name", "")
        for source in node.all_input_nodes if operation else ():
            if source.op == "get_attr":
                owner = str(source.target).rpartition(".")[0]
                found.setdefault(owner, operation.rpartition("::")[2])
    return found


def tree(found: Sequence[Entry]) -> str:
    """Return the modules as a tree, with sizes on the right."""
    root = found[0]
    rows = [
        [
            _label(found, k),
            _part(entry.params, root.params),
            _part(entry.macs, root.macs),
            _describe(entry),
        ]
        for k, entry in enumerate(found)
    ]
    return table([["", "parameters", "MACs", "channels"], *rows], left=(0, 3))


def _label(found: Sequence[Entry], place: int) -> str:
    """Return branches, name and class of one entry."""
    entry = found[place]
    if not entry.depth:
        return entry.class_name
    branches = ""
    for depth in range(1, entry.depth + 1):
        later = next((e.depth for e in found[place + 1 :] if e.depth <= depth), 0)
        goes_on = later == depth
        branches += (
            ("├─ " if goes_on else "└─ ") if depth == entry.depth else "│  " * goes_on or "   "
        )
    return f"{branches}{entry.name.rpartition('.')[2]} {entry.class_name}".rstrip()


def _part(value: int, full: int) -> str:
    return f"{short(value)} {percent(value / max(full, 1)):>7}" if value else ""


def _describe(entry: Entry) -> str:
    notes = []
    if entry.group is not None:
        shared = "" if entry.group == entry.name else f" together with {entry.group}"
        notes.append(f"{entry.channels} can be pruned{shared}")
    notes += [f"{count} follow {group}" for count, group in entry.follows]
    notes += [f"{count} frozen: {reason}" for count, reason in entry.frozen]
    return "; ".join(notes)


def _summary(graph: ChannelGraph) -> str:
    free = sum(group.channels for group in graph.groups)
    frozen = sum(item.channels for item in graph.frozen)
    number = len(graph.groups)
    groups = f"{number} group{'s' * (number != 1)}"
    text = f"\n{groups} with {free:,} channels can be pruned, {frozen:,} channels are frozen"
    if not graph.blocks:
        return text
    names = ", ".join(block.name for block in graph.blocks)
    return f"{text}\nresidual blocks that can be removed: {names}"


@torch.no_grad()
def _macs(model: nn.Module, example_inputs: torch.Tensor) -> dict[str, int]:
    """Return the multiply-accumulates of every module per image."""
    like = next(model.parameters(), example_inputs)
    still, counter = copy_without_hooks(model).requires_grad_(False), FlopCounterMode(display=False)
    try:
        with counter:
            call(still, example_inputs.to(like.device, like.dtype))
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise CommandError(
            f"the network cannot read images of shape {tuple(example_inputs.shape[1:])} "
            f"({reason}): pass --shape as in its training"
        ) from error
    root = type(model).__name__
    found = {}
    for name, kinds in counter.get_flop_counts().items():
        if name == root or name.startswith(f"{root}."):
            inner = name[len(root) + 1 :]
            found[inner] = round(sum(kinds.values()) / 2 / len(example_inputs))
    return found
