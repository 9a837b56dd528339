"""The proof that a cut is right: two networks must say the same on an example."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from entrim.errors import SurgeryError
from entrim.graph.eager import ExampleInputs, copy_inputs, copy_without_hooks, leaves

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
_IMAGES = 2
"""How many images of the example are looked at inside the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """How far the smaller network is from what it must compute.

    The largest difference in any output of the network or of a layer that reads cut channels, each
    relative to its own largest value: a branch that hardly reaches the output is proven too.
    """

    sliced: float
    """Slices of the old weights against the original with the removed columns set to zero."""
    final: float
    """The final weights against the same weights, zero-padded into the original."""
    tolerance: float
    dtype: torch.dtype
    """The precision in which both were computed: double where the network runs in it."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Where to look into a network: the outputs of one layer at the channels that stay."""

    layer: str
    axis: int
    """Counted from the end."""
    indices: Sequence[int] | None
    """None for all."""


@dataclass(frozen=True, slots=True)
class EquivalenceCheck:
    """A place to compare networks: the example, and the precision to compare in."""

    example_inputs: ExampleInputs
    dtype: torch.dtype
    double: bool

    @classmethod
    def of(cls, model: nn.Module, example_inputs: ExampleInputs) -> "EquivalenceCheck":
        """Return a bench in double precision where `model` runs in it, else in its own."""
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
        """The relative error that rounding can explain."""
        return TOLERANCE.get(self.dtype, 1e-4)

    def run(self, model: nn.Module, windows: Iterable[Probe]) -> list[Tensor]:
        """Return what a copy of `model` shows in eval mode: its outputs, then the windows."""
        still = copy_without_hooks(model).eval()
        args, kwargs = copy_inputs(self.example_inputs, in_double=self.double)
        if self.double:
            still = still.double()
        with torch.no_grad(), torch.random.fork_rng(devices=[]), _observing(still, windows) as seen:
            torch.manual_seed(0)
            return [*leaves(still(*args, **kwargs)), *seen]


@contextmanager
def _observing(model: nn.Module, windows: Iterable[Probe]) -> Iterator[list[Tensor]]:
    """Collect what `windows` show while `model` runs; the hooks go even on error."""
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
    """Return the largest difference, relative to the largest wanted value of that output."""
    if [leaf.shape for leaf in found] != [leaf.shape for leaf in expected]:
        return math.inf
    return max((_relative(a, b) for a, b in zip(found, expected, strict=True)), default=0.0)


def require_numbers(outputs: list[Tensor], model: nn.Module) -> None:
    """Refuse outputs of `model` that prove nothing: none at all, or NaN."""
    if not outputs:
        raise SurgeryError(
            "the network puts out no tensor that could be compared: return tensors, or lists, "
            "dicts or dataclasses of them"
        )
    if any(bool(torch.isnan(leaf).any()) for leaf in outputs):
        for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
            if bool(torch.isnan(tensor).any()):
                raise SurgeryError(
                    f"the network puts out NaN, because {name} holds NaN: give it weights that are "
                    "numbers"
                )
        raise SurgeryError("the network puts out NaN on the example: hand over another example")


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
