"""Geometry of a convolution: the input that each kernel offset reads at each output."""

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import torch
from jaxtyping import Int
from torch import Tensor

from entrim.errors import BadSettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One spatial axis of a layer."""

    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0
    extra: int = 0
    """Output padding of a transposed convolution."""
    transposed: bool = False

    def outputs(self, size: int) -> int:
        """Return the number of output positions for `size` inputs."""
        reach, pad = self.dilation * (self.kernel - 1), self.before + self.after
        if self.transposed:
            return (size - 1) * self.stride + reach + 1 - pad + self.extra
        return (size + pad - reach - 1) // self.stride + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Kernel, stride, dilation and padding of a layer; all empty for a linear layer."""

    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()
    """Zeros before and after each axis; padding="same" can be asymmetric."""
    groups: int = 1
    transposed: bool = False
    output_padding: tuple[int, ...] = ()
    """Output padding of a transposed convolution; empty for none."""

    def __post_init__(self) -> None:
        rank = len(self.kernel)
        if not rank == len(self.stride) == len(self.dilation) == len(self.padding):
            raise BadSettingError(
                f"{self} has tuples of different lengths: pass one value per axis"
            )
        if len(self.output_padding) not in (0, rank):
            raise BadSettingError(f"{self}: output_padding must have one value per axis, or none")
        if min(self.groups, *self.kernel, *self.stride, *self.dilation, 1) < 1:
            raise BadSettingError(f"{self}: kernel, stride, dilation and groups must be positive")

    @property
    def block(self) -> int:
        """The number q of columns per channel."""
        return math.prod(self.kernel)

    @property
    def may_pad(self) -> bool:
        """Whether a weight may meet a zero of the padding instead of an input."""
        return self.transposed or any(map(any, self.padding))

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The spatial axes; a linear layer has one axis with a kernel of size 1."""
        if not self.kernel:
            return (Axis(),)
        settings = zip(
            *(self.kernel, self.stride, self.dilation, self.padding),
            self.output_padding or (0,) * len(self.kernel),
            strict=True,
        )
        return tuple(
            Axis(
                kernel=kernel,
                stride=stride,
                dilation=dilation,
                before=before,
                after=after,
                extra=extra,
                transposed=self.transposed,
            )
            for kernel, stride, dilation, (before, after), extra in settings
        )

    def outputs(self, sizes: tuple[int, ...]) -> int:
        """Return the number of output positions for a feature map of these sizes."""
        along = (axis.outputs(size) for axis, size in zip(self.axes, sizes, strict=True))
        return math.prod(max(0, positions) for positions in along)


@lru_cache(maxsize=256)
def axis_sources(axis: Axis, size: int) -> Int[Tensor, "positions kernel"]:
    """Return the input coordinate of each kernel offset at each output, -1 for padding.

    With stride t and dilation e, output p of a convolution reads the input t p + e i - before. A
    transposed convolution writes its input u to t u + e i - before, so output p reads the u for
    which this is p.
    """
    p, i = torch.arange(axis.outputs(size))[:, None], torch.arange(axis.kernel)[None]
    if axis.transposed:
        reached = p + axis.before - axis.dilation * i
        source = reached.div(axis.stride, rounding_mode="floor")
        source[reached % axis.stride != 0] = -1
    else:
        source = axis.stride * p + axis.dilation * i - axis.before
    return torch.where((source >= 0) & (source < size), source, -1)


def sources(geometry: Geometry, sizes: tuple[int, ...]) -> Int[Tensor, "positions q"]:
    """Return the flat input position of each weight at each output, -1 for padding."""
    flat = torch.zeros(1, 1, dtype=torch.int64)
    for axis, size in zip(geometry.axes, sizes, strict=True):
        along = axis_sources(axis, size)[None, :, None, :]
        before = flat[:, None, :, None]
        flat = torch.where((before < 0) | (along < 0), -1, before * size + along)
        flat = flat.flatten(2).flatten(0, 1)
    return flat


Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Run:
    """Inputs u of one axis that occur together with u + shift in the same pairs of offsets."""

    shift: int
    inputs: range
    pairs: tuple[Pair, ...]


@lru_cache(maxsize=256)
def axis_runs(axis: Axis, size: int) -> tuple[Run, ...]:
    """Return all pairs of inputs that are read by a common output, as runs.

    Kernel offsets i and j read inputs a fixed shift apart. An offset reads every `stride`-th input
    of an interval, and these intervals have equal lengths, so the inputs with the same pairs of
    offsets are evenly spaced.
    """
    pairs: defaultdict[tuple[int, int], list[Pair]] = defaultdict(list)
    for row in axis_sources(axis, size).tolist():
        met = [(i, u) for i, u in enumerate(row) if u >= 0]
        for (i, u), (j, v) in product(met, met):
            pairs[v - u, u].append((i, j))
    runs: defaultdict[tuple[int, tuple[Pair, ...]], list[int]] = defaultdict(list)
    for (shift, u), met in sorted(pairs.items()):
        runs[shift, tuple(sorted(met))].append(u)
    return tuple(
        Run(shift, range(us[0], us[-1] + 1, us[1] - us[0] if len(us) > 1 else 1), met)
        for (shift, met), us in runs.items()
    )


@dataclass(frozen=True, slots=True)
class Meeting:
    """Inputs of a feature map that occur with those `shift` away in the same pairs of offsets."""

    shift: tuple[int, ...]
    inputs: tuple[range, ...]
    pairs: tuple[Pair, ...]
    """Flat kernel offsets."""

    @property
    def itself(self) -> bool:
        """Whether the shift is zero."""
        return not any(self.shift)


@lru_cache(maxsize=256)
def meetings(geometry: Geometry, sizes: tuple[int, ...]) -> tuple[Meeting, ...]:
    """Return the products that make up the Gram matrix of the patches, one per symmetric pair.

    Block (i, j) of the Gram matrix is the sum over all meetings with this pair. Missing pairs are
    the transposes of existing ones, or zero.
    """
    axes = geometry.axes
    found = []
    for runs in product(*(axis_runs(*both) for both in zip(axes, sizes, strict=True))):
        shift = tuple(run.shift for run in runs)
        if shift < (0,) * len(axes):
            continue
        pairs = [(0, 0)]
        for axis, run in zip(axes, runs, strict=True):
            pairs = [
                (a * axis.kernel + i, b * axis.kernel + j) for a, b in pairs for i, j in run.pairs
            ]
        found.append(Meeting(shift, tuple(run.inputs for run in runs), tuple(pairs)))
    return tuple(found)
