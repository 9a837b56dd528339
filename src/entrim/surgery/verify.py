"""Verification of a pruned network: its outputs are compared on example inputs."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from entrim.errors import SurgeryError
from entrim.graph.eager import ExampleInputs, copy_inputs, copy_without_hooks, leaves
from entrim.graph.restricted import RestrictedStatistics

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
_IMAGES = 2
"""Number of images whose inner activations are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The result of the verification of a pruned network.

    The largest difference in any output of the network or of a consumer of pruned channels, each
    relative to its largest value, so that branches with little influence are verified, too.
    """

    sliced: float
    """Slices of the old weights against the original with the removed columns set to zero."""
    final: float
    """The final weights against the same weights, zero-padded into the original."""
    tolerance: float
    dtype: torch.dtype
    """Precision of the comparison: double if the network supports it."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The outputs of one layer at the kept channels."""

    layer: str
    axis: int
    """Channel axis, counted from the end."""
    indices: Sequence[int] | None
    """Kept channels; None for all."""


@dataclass(frozen=True, slots=True)
class EquivalenceCheck:
    """Compares networks on example inputs, in a given precision."""

    example_inputs: ExampleInputs
    dtype: torch.dtype
    double: bool

    @classmethod
    def of(cls, model: nn.Module, example_inputs: ExampleInputs) -> "EquivalenceCheck":
        """Return a check in double precision if `model` supports it, else in its own."""
        dtypes = [p.dtype for p in model.parameters() if p.is_floating_point()]
        own = min(dtypes, key=lambda dtype: torch.finfo(dtype).bits, default=torch.float32)
        bench = cls(example_inputs, torch.float64, double=True)
        if not any(p.device.type == "mps" for p in model.parameters()):
            try:
                if any(leaf.dtype == torch.float64 for leaf in bench.run(model, ())):
                    return bench
            except (RuntimeError, TypeError, ValueError):
                pass
        return cls(example_inputs, own, double=False)

    @property
    def tolerance(self) -> float:
        """Relative difference that rounding can explain."""
        return TOLERANCE.get(self.dtype, 1e-4)

    def run_restricted(self, model: nn.Module, windows: Iterable[Probe]) -> list[Tensor]:
        """Return the same as `run`; marks of removed channels restrict statistics."""
        with RestrictedStatistics():
            return self.run(model, windows)

    def run_without_data(self, empty: nn.Module) -> None:
        """Run a network on the device "meta", where only shapes are computed."""
        args, kwargs = pytree.tree_map_only(
            Tensor, lambda t: t.to("meta"), copy_inputs(self.example_inputs)
        )
        with torch.no_grad():
            empty(*args, **kwargs)

    def run(self, model: nn.Module, windows: Iterable[Probe]) -> list[Tensor]:
        """Return the outputs of a copy of `model` in eval mode, then those of the probes."""
        still = copy_without_hooks(model).eval()
        args, kwargs = copy_inputs(self.example_inputs, in_double=self.double)
        if self.double:
            still = still.double()
        with torch.no_grad(), torch.random.fork_rng(devices=[]), _observing(still, windows) as seen:
            torch.manual_seed(0)
            return [*leaves(still(*args, **kwargs)), *seen]


@contextmanager
def _observing(model: nn.Module, windows: Iterable[Probe]) -> Iterator[list[Tensor]]:
    """Collect the outputs of the probes in the block; hooks are removed even on error."""
    seen: list[Tensor] = []
    hooks = [
        model.get_submodule(window.layer).register_forward_hook(_shower(window, seen))
        for window in windows
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _shower(window: Probe, seen: list[Tensor]) -> Callable[..., None]:
    def show(_: nn.Module, __: Any, output: Tensor) -> None:
        if output.dim() + window.axis > 0:
            output = output[:_IMAGES]
        if window.indices is not None:
            index = torch.tensor(window.indices, device=output.device)
            output = output.index_select(window.axis, index)
        seen.append(output.clone())

    return show


def difference(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference, relative to the largest expected value of the output."""
    if [leaf.shape for leaf in found] != [leaf.shape for leaf in expected]:
        return math.inf
    return max((_relative(a, b) for a, b in zip(found, expected, strict=True)), default=0.0)


def require_numbers(outputs: list[Tensor], model: nn.Module) -> None:
    """Raise a SurgeryError if outputs cannot be compared: none at all, or NaN."""
    if not outputs:
        raise SurgeryError(
            "the network returns no tensor: return tensors, or lists, dicts or dataclasses of them"
        )
    if any_nan(outputs):
        for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
            if bool(torch.isnan(tensor).any()):
                raise SurgeryError(
                    f"the network returns NaN, because {name} contains NaN: load finite weights"
                )
        raise SurgeryError(
            "the network returns NaN on the example inputs: pass other example_inputs"
        )


def any_nan(outputs: list[Tensor]) -> bool:
    """Whether any output contains NaN."""
    return any(bool(torch.isnan(leaf).any()) for leaf in outputs)


def _relative(found: Tensor, expected: Tensor) -> float:
    found, expected = (_real(tensor).to(torch.float64) for tensor in (found, expected))
    apart = (found - expected)[found != expected].abs()
    if not apart.numel():
        return 0.0
    scale = (
        float(expected[torch.isfinite(expected)].abs().amax()) if expected.isfinite().any() else 0.0
    )
    worst = float(apart.nan_to_num(nan=math.inf).max())
    return worst / scale if scale else worst


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
