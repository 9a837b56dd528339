"""`entrim inspect`: what a network is made of, and what can go."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils.flop_counter import FlopCounterMode

from entrim.cli.console import columns_of, print_progress, tell_json, tell_reading
from entrim.cli.model import add_model, read_model
from entrim.cli.units import sizes
from entrim.errors import CommandError
from entrim.graph.channel_graph import ChannelGraph
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
    """Of the module and all inside it."""
    macs: int
    """For one image."""
    leaf: bool
    group: str | None = None
    """The group that its channels belong to."""
    channels: int = 0
    """Those that can be cut."""
    follows: tuple[tuple[int, str], ...] = ()
    """How many it passes on without making them, as a depthwise layer does, and of which group."""
    frozen: tuple[tuple[int, str], ...] = ()
    """How many had to stay, and why."""


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "inspect",
        help="show the layers of a network, what can be cut, what is frozen and why",
        description="Show a network as a tree: where parameters and MACs sit, which channels can "
        "be cut, which are frozen and why. The code of MODEL is run.",
        epilog=_EXAMPLES,
    )
    add_model(parser)
    parser.add_argument(
        "--shape", type=sizes, required=True, metavar="C,H,W", help="of one image, such as 3,32,32"
    )
    return parser


def run(args: Namespace) -> int:
    """Print the tree."""
    tell_reading(args.model, None)
    model = read_model(args.model, args.weights)
    example = torch.randn(2, *args.shape, generator=torch.Generator().manual_seed(0))
    macs = _macs(model, example)
    graph = trace(model, example)
    found = list(entries(model, graph, macs))
    if args.json:
        groups = {group.name: group.channels for group in graph.groups}
        layers = [asdict(entry) for entry in found if entry.leaf]
        tell_json({"model": type(model).__name__, "groups": groups, "layers": layers})
    else:
        print_progress(tree(found))
        print_progress(_summary(graph))
    return 0


def entries(model: nn.Module, graph: ChannelGraph, macs: Mapping[str, int]) -> Iterator[Entry]:
    """Yield every module that has parameters, from the outside in."""
    made = {layer: group for group in graph.groups for layer in group.layers}
    passed, operations = _passed(graph), _operations(model)
    for name, module in model.named_modules():
        params = sum(parameter.numel() for parameter in module.parameters())
        if not params:
            continue
        group = made.get(name)
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


def _passed(graph: ChannelGraph) -> dict[str, list[tuple[int, str]]]:
    """Return, for layers that pass channels on one by one, how many are of which group."""
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
    """Return what an exported program does with the tensors of each of its modules.

    Their classes are lost; None of any other network, whose modules tell their own.
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
    """Return the modules as a tree, with figures to the right."""
    whole = found[0]
    stems = [_stem(found, k) for k in range(len(found))]
    wide = max(columns_of(stem) for stem in stems)
    head = f"{' ' * wide}  {'parameters':>16}  {'MACs':>16}  channels"
    lines = [
        f"{stem}{' ' * (wide - columns_of(stem))}  {_part(e.params, whole.params)}  "
        f"{_part(e.macs, whole.macs)}  {_fate(e)}"
        for stem, e in zip(stems, found, strict=True)
    ]
    return "\n".join(line.rstrip() for line in (head, *lines))


def _stem(found: Sequence[Entry], place: int) -> str:
    """Return branches, name and kind of one entry."""
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
    return f"{short(value):>8} {percent(value / max(full, 1)):>7}" if value else f"{'':>16}"


def _fate(entry: Entry) -> str:
    said = []
    if entry.group is not None:
        shared = "" if entry.group == entry.name else f" together with {entry.group}"
        said.append(f"{entry.channels} can be cut{shared}")
    said += [f"{count} go together with {group}" for count, group in entry.follows]
    said += [f"{count} frozen: {reason}" for count, reason in entry.frozen]
    return "; ".join(said)


def _summary(graph: ChannelGraph) -> str:
    free = sum(group.channels for group in graph.groups)
    held = sum(frozen.channels for frozen in graph.frozen)
    number = len(graph.groups)
    groups = f"{number} group{'s' * (number != 1)}"
    return f"\n{groups} with {free:,} channels can be cut, {held:,} are frozen"


@torch.no_grad()
def _macs(model: nn.Module, example_inputs: torch.Tensor) -> dict[str, int]:
    """Return the multiply-accumulates of every module for one image."""
    like = next(model.parameters(), example_inputs)
    counter = FlopCounterMode(display=False)
    try:
        with counter:
            model(example_inputs.to(like.device, like.dtype))
    except Exception as error:
        said = (str(error).splitlines() or [""])[0]
        raise CommandError(
            f"the network cannot read images of shape {tuple(example_inputs.shape[1:])} ({said}): "
            "pass --shape as it was trained with"
        ) from error
    root = type(model).__name__
    found = {}
    for name, kinds in counter.get_flop_counts().items():
        if name == root or name.startswith(f"{root}."):
            inner = name[len(root) + 1 :]
            found[inner] = round(sum(kinds.values()) / 2 / len(example_inputs))
    return found
