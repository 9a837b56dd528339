"""What is measured of one network; every function runs in a process of its own."""

import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.utils.flop_counter import FlopCounterMode

import entrim
from entrim.errors import EntrimError, NothingToCutError
from entrim.graph import tracer
from entrim.graph.channel_graph import ChannelGraph
from entrim.graph.eager import leaves
from entrim.surgery.prune import prune
from experiments.coverage.networks import build

IMAGES, KEPT_MACS = 40, 0.7
"""Images of a run with a budget, and the share of the MACs that it keeps at most."""
HALF = 2
"""Every second channel of every group is removed for trial."""
REASONS = 4
"""Number of reasons listed for frozen channels."""
Row = dict[str, Any]


@dataclass(slots=True)
class ExportClock:
    """The processor seconds of torch.export, and its last program."""

    seconds: float = 0.0
    calls: int = 0
    program: ExportedProgram | None = None


@contextmanager
def timed_exports() -> Iterator[ExportClock]:
    """Time every torch.export in the block."""
    clock, export = ExportClock(), torch.export.export

    def timed(*args: Any, **kwargs: Any) -> ExportedProgram:
        begin = time.process_time()
        clock.program = export(*args, **kwargs)
        clock.seconds += time.process_time() - begin
        clock.calls += 1
        return clock.program

    torch.export.export = timed
    try:
        yield clock
    finally:
        torch.export.export = export


def measure_trace(name: str) -> Row:
    """Return the prunable shares of a network, and the seconds of its trace and of torch.export."""
    model, images = build(name)
    row: Row = {"parameters": sum(p.numel() for p in model.parameters())}
    graph = None
    with timed_exports() as clock:
        begin = time.process_time()
        try:
            graph = entrim.trace(model, images)
            row |= {"status": "traced", "groups": len(graph.groups)}
        except EntrimError as error:
            row |= {"status": type(error).__name__, "message": str(error)[:300]}
            graph = error.graph if isinstance(error, NothingToCutError) else None
        row["seconds"] = time.process_time() - begin
    row |= {"export": clock.seconds, "exports": clock.calls}
    if not isinstance(graph, ChannelGraph):
        return row
    reasons: Counter[str] = Counter()
    for one in graph.frozen:
        reasons[general(one.reason, one.layer)] += one.channels
    row["frozen"] = dict(reasons.most_common(REASONS))
    if graph.groups and clock.program is not None:
        row |= shares(model, images, graph, clock.program)
        row["half"] = prune_half(model, images, graph)
    return row


def general(reason: str, layer: str) -> str:
    """Return the reason without the name of a layer or of an operation."""
    words = [word for word in reason.split() if word != layer and "." not in word.rstrip(".,:")]
    return " ".join(word.rstrip("0123456789_") or word for word in words)


def shares(model: nn.Module, images: Tensor, graph: ChannelGraph, program: ExportedProgram) -> Row:
    """Return the shares of the parameters and MACs in tensors that can become smaller.

    MACs are those of convolutions, linear layers and products of matrices; a product of two
    activations counts as not prunable.
    """
    prunable = {member.tensor for group in graph.groups for member in group.members}
    parameters = dict(model.named_parameters())
    inside = sum(tensor.numel() for name, tensor in parameters.items() if name in prunable)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(images)
    total = counter.get_total_flops() / 2
    _, aliases = tracer.named_tensors(model)
    names = tracer.placeholders(program, aliases)
    macs = sum(_macs(node, names, prunable) for node in program.graph.nodes)
    return {
        "share of parameters": inside / sum(map(Tensor.numel, parameters.values())),
        "share of MACs": min(1.0, macs / total) if total else 0.0,
        "macs": round(total / len(images)),
    }


def _macs(node: fx.Node, names: Mapping[fx.Node, str], prunable: set[str]) -> float:
    """Return the MACs of an operation with a weight in `prunable`, else 0."""
    call = tracer.arguments_of(node) if node.op == "call_function" else {}
    weight, source = call.get("weight"), call.get("input")
    if not isinstance(weight, fx.Node) or names.get(weight) not in prunable:
        return 0.0
    kind, shape = str(node.target), weight.meta["val"].shape
    if "conv" in kind and isinstance(source, fx.Node):
        shown = source if "transpose" in kind else node
        channels = shown.meta["val"].shape[1 - len(shape)]
    elif "linear" in kind:
        shown, channels = node, node.meta["val"].shape[-1]
    else:
        return 0.0
    return shown.meta["val"].numel() / channels * shape.numel()


def prune_half(model: nn.Module, images: Tensor, graph: ChannelGraph) -> Row:
    """Return the outcome of removing every second channel of every group."""
    plan = entrim.Plan({g.name: range(0, g.channels, HALF) for g in graph.groups})
    before = sum(map(Tensor.numel, model.parameters()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            done = prune(model, plan, images, graph=graph)
        except EntrimError as error:
            return {"status": type(error).__name__, "message": str(error)[:300]}
    after = sum(map(Tensor.numel, done.model.parameters()))
    status = "rolled back" if done.rolled_back else "verified"
    return {"status": status, "error": done.proof.final, "parameters": after / before}


def measure_pruning(name: str) -> Row:
    """Return the outcome of a run with a budget: saved, loaded, exported, trained for one step."""
    model, images = build(name)
    generator = torch.Generator().manual_seed(1)
    many = torch.randn(IMAGES, *images.shape[1:], generator=generator)
    begin = time.process_time()
    with warnings.catch_warnings(record=True) as caught, tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("always")
        result = entrim.sparsify(model, many, entrim.Budget(macs=KEPT_MACS))
        seconds = time.process_time() - begin
        result.save(Path(folder, "run"))
        loaded = entrim.load(build(name)[0], Path(folder, "run"))
    small = result.model
    return {
        "status": "done",
        "seconds": seconds,
        "error": result.record.error,
        "warnings": sorted({type(one.message).__name__ for one in caught}),
        "macs": result.record.after.macs / result.record.before.macs,
        "loaded": _same(small, loaded, images),
        "exported": _exported(small, images),
        "trained": _train_once(small, images),
    }


def _same(one: nn.Module, other: nn.Module, images: Tensor) -> bool:
    with torch.no_grad():
        pairs = zip(_tensors(one.eval()(images)), _tensors(other.eval()(images)), strict=True)
        return all(torch.equal(a, b) for a, b in pairs)


def _exported(small: nn.Module, images: Tensor) -> bool:
    """Whether torch.export of the pruned network computes the same."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(small.eval(), (images,), strict=False).module()
        pairs = zip(_tensors(small(images)), _tensors(program(images)), strict=True)
        return all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in pairs)


def _train_once(small: nn.Module, images: Tensor) -> bool:
    """Whether one step of gradient descent in train mode changes the weights."""
    optimizer = torch.optim.SGD(small.train().parameters(), lr=1e-3)
    before = [p.detach().clone() for p in small.parameters()]
    outputs = [t for t in _tensors(small(images)) if t.requires_grad]
    torch.stack([t.float().square().mean() for t in outputs]).sum().backward()
    optimizer.step()
    pairs = zip(before, small.parameters(), strict=True)
    return any(not torch.equal(a, b) for a, b in pairs)


def _tensors(output: Any) -> list[Tensor]:
    return [leaf for leaf in leaves(output) if leaf.is_floating_point()]


def measure_peer(name: str) -> Row:
    """Return the outcome of torch-pruning: half of the channels of every layer by magnitude."""
    import torch_pruning

    model, images = build(name)
    before = sum(map(Tensor.numel, model.parameters()))
    shape = [leaf.shape for leaf in _tensors(model(images))]
    layers: list[nn.Module] = list(model.modules())
    last = [layer for layer in layers if isinstance(layer, nn.Linear | nn.Conv2d)]
    begin = time.process_time()
    pruner = torch_pruning.pruner.MagnitudePruner(
        model,
        images,
        importance=torch_pruning.importance.MagnitudeImportance(p=2),
        pruning_ratio=1 / HALF,
        ignored_layers=[*last[-1:]],
    )
    pruner.step()
    seconds = time.process_time() - begin
    found = [leaf.shape for leaf in _tensors(model.eval()(images))]
    after = sum(map(Tensor.numel, model.parameters()))
    return {
        "status": "runs" if found == shape else "other outputs",
        "seconds": seconds,
        "parameters": after / before,
    }
