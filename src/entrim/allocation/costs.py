"""Costs of a network as a function of its widths: sums of products of dimensions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor, fx, nn

from entrim.calibration.executor import Program
from entrim.config import SIZES
from entrim.graph.channel_graph import ChannelGraph
from entrim.graph.tracer import arguments_of

Widths = Mapping[str, int]
SECONDS = "seconds"
"""The kind of cost that is the estimated latency, if it was measured."""


@dataclass(frozen=True, slots=True)
class Length:
    """One dimension of a tensor as a linear function of the widths."""

    fixed: int | float
    units: Mapping[str, int | float] = field(default_factory=dict)

    def at(self, widths: Widths) -> int | float:
        """Return the size of the dimension."""
        return self.fixed + sum(each * widths[name] for name, each in self.units.items())


@dataclass(frozen=True, slots=True)
class Term:
    """The number of elements of one tensor, times the cost of each element."""

    each: Mapping[str, int | float]
    """Cost of one element, by kind of cost."""
    lengths: tuple[Length, ...]
    block: str | None = None
    """A group inside of the residual block of the tensor: its width is 0 if there is no block."""
    tensor: str = ""
    """Name of the tensor."""

    @property
    def groups(self) -> set[str]:
        """The groups on which the term depends."""
        found = {name for length in self.lengths for name in length.units}
        return found if self.block is None else found | {self.block}

    def elements(self, widths: Widths) -> int | float:
        """Return the number of elements."""
        if self.block is not None and widths[self.block] == 0:
            return 0
        return math.prod(length.at(widths) for length in self.lengths)

    def __add__(self, other: "Term") -> "Term":
        """Return the sum of two terms of equal lengths in the same block."""
        kinds = {**self.each, **other.each}
        each = {kind: self.each.get(kind, 0) + other.each.get(kind, 0) for kind in kinds}
        return replace(self, each=each, tensor="")

    def simplified(self) -> "Term":
        """Return the term with fixed lengths multiplied into the cost of each element."""
        fixed = math.prod(length.fixed for length in self.lengths if not length.units)
        each = {kind: price * fixed for kind, price in self.each.items()}
        return replace(self, each=each, lengths=tuple(one for one in self.lengths if one.units))


@dataclass(frozen=True)
class Costs:
    """Parameters, bytes and MACs of a network as functions of its widths.

    Exact if all channels of a group have the same number of positions in each tensor. If the inner
    groups of a residual block have the width 0, the block is removed.
    """

    terms: tuple[Term, ...]
    rest: Mapping[str, int | float]
    """Costs that do not depend on the widths."""

    @classmethod
    def of(
        cls, model: nn.Module, graph: ChannelGraph, program: Program, macs: int, images: int
    ) -> "Costs":
        """Return the costs of `model`, which takes `macs` per image at full width.

        `program` contains its operations on a batch of `images` images.
        """
        parameters = dict(model.named_parameters())
        every = {**parameters, **dict(model.named_buffers())}
        positions = _output_positions(program, images)
        blocks = {name: block.groups[:1] for block in graph.blocks for name in block.tensors}
        terms = []
        for name, tensor in every.items():
            each = {
                "params": float(name in parameters),
                "bytes": float(tensor.element_size()),
                "macs": positions.get(name, 0.0),
            }
            inside = next(iter(blocks.get(name, ())), None)
            terms.append(Term(each, _lengths(graph, name, tuple(tensor.shape)), inside, name))
        for name, macs_per_channel in graph.products.items():
            terms.append(Term({"macs": macs_per_channel}, (Length(0, {name: 1}),)))
        costs = cls(tuple(terms), {})
        whole = {group.name: group.channels for group in graph.groups}
        return cls(costs.terms, {"macs": macs - costs.at(whole)["macs"]})

    @cached_property
    def terms_of(self) -> dict[str, list[Term]]:
        """The terms that depend on each group."""
        found: dict[str, list[Term]] = {}
        for term in self.terms:
            for name in term.groups:
                found.setdefault(name, []).append(term)
        return found

    def at(self, widths: Widths) -> dict[str, int | float]:
        """Return all costs at `widths`, which must contain every group."""
        total = _sum(self._merged, widths)
        return {kind: value + self.rest.get(kind, 0.0) for kind, value in total.items()}

    def of_groups(self, names: Sequence[str], widths: Widths) -> dict[str, int | float]:
        """Return the costs of the tensors that depend on any of some groups.

        They are computed once for all widths that agree in the groups of these tensors.
        """
        chosen = tuple(names)
        if chosen not in self._dependencies:
            terms = {id(term): term for name in chosen for term in self.terms_of.get(name, [])}
            groups = {group for term in terms.values() for group in term.groups}
            self._dependencies[chosen] = merge(list(terms.values())), sorted(groups)
        terms, groups = self._dependencies[chosen]
        key = chosen, tuple(widths[group] for group in groups)
        if key not in self._computed:
            self._computed[key] = _sum(terms, widths)
        return self._computed[key]

    @cached_property
    def _merged(self) -> list[Term]:
        """All terms, those of equal lengths as one."""
        return merge(self.terms)

    @cached_property
    def _dependencies(self) -> dict[tuple[str, ...], tuple[list[Term], list[str]]]:
        """The tensors that depend on some groups, and all groups on which these depend."""
        return {}

    @cached_property
    def _computed(self) -> dict[object, dict[str, int | float]]:
        """Costs by groups and widths."""
        return {}


def merge(terms: Sequence[Term]) -> list[Term]:
    """Return terms with the same sum, one for all with equal lengths in the same block."""
    found: dict[object, Term] = {}
    for term in map(Term.simplified, terms):
        lengths = tuple((one.fixed, tuple(sorted(one.units.items()))) for one in term.lengths)
        key = term.block, tuple(sorted(lengths))
        found[key] = found[key] + term if key in found else term
    return list(found.values())


def _sum(terms: Sequence[Term], widths: Widths) -> dict[str, int | float]:
    total: dict[str, int | float] = dict.fromkeys(SIZES, 0)
    for term in terms:
        elements = term.elements(widths)
        for kind, price in term.each.items():
            total[kind] = total.get(kind, 0) + price * elements
    return total


def _lengths(graph: ChannelGraph, tensor: str, shape: tuple[int, ...]) -> tuple[Length, ...]:
    """Return the dimensions of `tensor` as functions of the widths."""
    units: list[dict[str, int | float]] = [{} for _ in shape]
    for group in graph.groups:
        for member in group.members:
            if member.tensor == tensor:
                held = sum(map(len, member.indices))
                units[member.dim][group.name] = held / group.channels
    sizes = {group.name: group.channels for group in graph.groups}
    return tuple(
        Length(size - sum(each * sizes[name] for name, each in mine.items()), mine)
        for size, mine in zip(shape, units, strict=True)
    )


def _output_positions(program: Program, images: int) -> dict[str, int | float]:
    """Return the number of multiplications per image of each element of a weight.

    Elements are counted and divided by the number of images, because the batch may be another
    dimension than the first, or be merged with one.
    """
    found: dict[str, int | float] = {}
    for node in program.nodes:
        call = arguments_of(node) if node.op == "call_function" else {}
        weight, source = call.get("weight"), call.get("input")
        out = node.meta.get("val")
        if not isinstance(weight, fx.Node) or weight not in program.names:
            continue
        if not isinstance(source, fx.Node) or not isinstance(out, Tensor):
            continue
        name = program.names[weight]
        kind = str(node.target)
        if "conv" in kind:
            shown = source.meta["val"] if "transpose" in kind else out
            channels = shown.shape[1 - weight.meta["val"].dim()]
        elif "linear" in kind:
            shown, channels = out, out.shape[-1]
        else:
            continue
        found[name] = found.get(name, 0.0) + shown.numel() / channels / images
    return found
