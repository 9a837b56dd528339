"""Measure parameters, multiply-accumulates, bytes, latency and energy of a network."""

import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from entrim.errors import BadSettingError, MeasurementWarning, warn
from entrim.graph.eager import (
    ExampleInputs,
    call,
    copy_inputs,
    isolate_random_state,
    remove_hooks,
    samples,
)

_WARM_UP = 3
_ATTENTION_ON_CPU = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[
        torch.ops.aten._scaled_dot_product_flash_attention
    ]
}
"""The counter of PyTorch knows the operators of attention on other devices only."""
_SAME = 0.05
"""A smaller relative difference of latencies is not reported."""
_POWERCAP = Path("/sys/class/powercap")
_UNITS = ("B", "kB", "MB", "GB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds of one forward pass, and the conditions of the measurement."""

    median: float
    deviation: float
    """Interquartile range of the seconds."""
    batch: int
    threads: int
    repeats: int

    def __str__(self) -> str:
        threads = f"{self.threads} thread" + "s" * (self.threads != 1)
        return (
            f"{1e3 * self.median:.3g} ms (spread {1e3 * self.deviation:.2g} ms) for a batch of "
            f"{self.batch} on {threads}, median of {self.repeats}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The size of a network and the cost of running it."""

    params: int
    macs: int
    """Multiply-accumulates of convolutions, linear layers and matrix products per sample.

    Operations that PyTorch cannot count are not included, with a MeasurementWarning."""
    bytes: int
    """Bytes of all parameters and buffers; a shared tensor counts once."""
    latency: Latency
    energy: float | None = None
    """Joules per sample of the whole processor, idle power included; None if not measurable."""

    def __str__(self) -> str:
        return (
            f"{self.params:,} parameters, {self.macs:,} MACs, {_size(self.bytes)}, {self.latency}"
        )


def measure(
    model: nn.Module,
    example_inputs: ExampleInputs,
    *,
    batch: int | None = None,
    repeats: int = 20,
    threads: int | None = None,
) -> Measurement:
    """Return size and latency of `model` in eval mode. Cost: `repeats` + 4 forward passes.

    Operations are counted during execution, including functional convolutions; additions of a bias
    are not counted.

    Parameters
    ----------
    model : nn.Module
        The network; it is not modified.
    example_inputs : Tensor, tuple or dict
        Inputs of a forward pass.
    batch : int, optional
        Number of samples; by default the first dimension of the first tensor.
    repeats : int, default 20
        Number of timed passes, at least 2.
    threads : int, optional
        Number of threads for this call; by default unchanged.

    Returns
    -------
    Measurement

    Examples
    --------
    >>> import torch, entrim
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> cost = entrim.measure(net, torch.randn(3, 4))
    >>> cost.params, cost.macs, cost.bytes, cost.latency.batch
    (58, 48, 232, 3)
    """
    batch = samples(example_inputs) if batch is None else batch
    for name, value, least in (("batch", batch, 1), ("repeats", repeats, 2)):
        if value < least:
            raise BadSettingError(f"{name} must be at least {least}, got {value}")
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}.values()
    with torch.no_grad(), _evaluating(model), _on_threads(threads) as running:
        macs = round(_flops(model, example_inputs) / 2 / batch)
        meter = EnergyMeter.start(_POWERCAP)
        seconds = _seconds(model, example_inputs, repeats)
        joules = meter.joules()
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Measurement(
        params=sum(parameter.numel() for parameter in model.parameters()),
        macs=macs,
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        latency=Latency(
            median=median, deviation=high - low, batch=batch, threads=running, repeats=repeats
        ),
        energy=None if joules is None else joules / (batch * (_WARM_UP + repeats)),
    )


def interleaved_seconds(
    models: Sequence[nn.Module], example_inputs: ExampleInputs, *, repeats: int = 20
) -> list[list[float]]:
    """Return the seconds of `repeats` forward passes of each of `models`, in turns.

    Load of the machine affects all of them alike; the order changes from round to round, because
    the first network of a round finds other data in the caches.
    """
    seconds: list[list[float]] = [[] for _ in models]
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for model in models:
            stack.enter_context(_evaluating(model))
        for number in range(_WARM_UP + repeats):
            order = range(len(models))
            for k in (*order[number % len(models) :], *order[: number % len(models)]):
                seconds[k].append(_one_pass(models[k], example_inputs))
    return [times[_WARM_UP:] for times in seconds]


def speedup(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """Return by how many times the second of two interleaved measurements is faster.

    The 95 % confidence interval of the median ratio of a round; below 1 it is slower. None if there
    is no difference: the interval contains 1, or the median differs from 1 by less than 5 %.

    >>> speedup([2.0] * 20, [1.0] * 20), speedup([1.0, 2.0] * 10, [2.0, 1.0] * 10)
    ((2.0, 2.0), None)
    """
    ratios = sorted(old / new for old, new in zip(before, after, strict=True))
    count, middle = len(ratios), statistics.median(ratios)
    rank = max(0, math.floor(count / 2 - 0.98 * math.sqrt(count)) - 1)  # of the binomial(n, 1/2)
    low, high = ratios[rank], ratios[count - 1 - rank]
    return (low, high) if not low <= 1 <= high and abs(middle - 1) >= _SAME else None


def _flops(model: nn.Module, example_inputs: ExampleInputs) -> int:
    """Return the number of operations; those that cannot be counted are 0, with a warning."""
    failed: dict[str, None] = {}
    known = {**flop_registry, **_ATTENTION_ON_CPU}
    rules = {op: _tolerant(str(op), rule, failed) for op, rule in known.items()}
    counter = FlopCounterMode(display=False, custom_mapping=rules)
    try:
        with warnings.catch_warnings(), counter:
            warnings.filterwarnings("ignore", ".*global hooks")  # the counter's own, once compiled
            call(model, example_inputs)
    except Exception as error:
        call(model, example_inputs)  # raises if the network itself fails
        failed[f"the network ({type(error).__name__}: {error})"] = None
    if failed:
        warn(
            f"MACs do not include {', '.join(failed)}, because PyTorch cannot count its "
            "operations: request a budget of params or bytes instead",
            MeasurementWarning,
        )
    return counter.get_total_flops()


def _tolerant(name: str, rule: Callable[..., int], failed: dict[str, None]) -> Callable[..., int]:
    """Return a rule of the counter that records its failure instead of raising an error."""

    def count(*args: Any, **kwargs: Any) -> int:
        try:
            return rule(*args, **kwargs)
        except Exception:
            failed[name] = None
            return 0

    count._get_raw = True  # pyright: ignore[reportFunctionMemberAccess]
    return count


def _seconds(model: nn.Module, example_inputs: ExampleInputs, repeats: int) -> list[float]:
    return [_one_pass(model, example_inputs) for _ in range(_WARM_UP + repeats)][_WARM_UP:]


def _one_pass(model: nn.Module, example_inputs: ExampleInputs) -> float:
    """Return the seconds of one forward pass."""
    args, kwargs = copy_inputs(example_inputs)
    _finish()
    begin = time.perf_counter()
    model(*args, **kwargs)
    _finish()
    return time.perf_counter() - begin


def _finish() -> None:
    """Wait for asynchronous operations of an accelerator."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Set `model` to eval mode without hooks of the user, and restore its state afterwards.

    Parameters do not require gradients, or FlopCounterMode fails if one is passed to a module. The
    model is not copied, so that compiled networks can be measured and memory is saved.
    """
    modes = [(module, module.training) for module in model.modules()]
    trained = [p for p in model.parameters() if p.requires_grad and not p.is_inference()]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False)
    ]
    try:
        with isolate_random_state(), remove_hooks(model):
            model.eval()
            for parameter in trained:
                parameter.requires_grad_(False)
            yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
        for module, mode in modes:
            module.training = mode
        for module, name, buffer, value in buffers:
            setattr(module, name, buffer.copy_(value))


@contextmanager
def _on_threads(threads: int | None) -> Iterator[int]:
    """Set the number of threads in the block (None: unchanged), and yield it."""
    before = torch.get_num_threads()
    if threads is not None and threads < 1:
        raise BadSettingError(f"threads must be a positive integer, got {threads}")
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, slots=True)
class EnergyMeter:
    """The RAPL counters of all processor packages, in microjoules, when the measurement began."""

    begin: dict[Path, int]

    @classmethod
    def start(cls, folder: Path) -> "EnergyMeter":
        """Return a meter of the readable packages in a powercap folder."""
        packages = (zone for zone in folder.glob("intel-rapl:*") if zone.name.count(":") == 1)
        values = {zone: _read_counter(zone / "energy_uj") for zone in packages}
        return cls({zone: value for zone, value in values.items() if value is not None})

    def joules(self) -> float | None:
        """Return the energy since the start, None if no counter is readable.

        A counter that is lower than at the start has wrapped around once.
        """
        total = 0
        for zone, begin in self.begin.items():
            end, limit = (
                _read_counter(zone / "energy_uj"),
                _read_counter(zone / "max_energy_range_uj"),
            )
            if end is None or (end < begin and limit is None):
                return None
            total += end - begin if end >= begin else end - begin + (limit or 0)
        return total / 1e6 if self.begin else None


def _read_counter(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _size(count: int) -> str:
    power = min((len(str(count)) - 1) // 3, len(_UNITS) - 1)
    return f"{count / 1000**power:.3g} {_UNITS[power]}"
