"""The call that repeats a run."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from inspect import signature
from typing import Any

from entrim.budget import Budget
from entrim.distillation.distill import distill
from entrim.records import Record
from entrim.settings import OURS, PAPER, Settings


def calls(record: Record) -> list[str]:
    """Return the lines of Python that lead from `model` and `images` to the network."""
    lines = [f"small = {call(record.settings, record.seed)}"]
    for training in (*record.earlier, record.distilled):
        if training is not None:
            start = "small" if len(lines) == 1 else "better"
            lines.append(f"better = {taught(training.settings, start)}")
    return lines


def call(settings: Mapping[str, Any], seed: int | None = None) -> str:
    """Return the call of `sparsify` with everything that is not its default.

    >>> call({"budget": {"params": 0.3, "macs": None}, "mode": "sequential", "round_to": 8})
    'entrim.sparsify(model, images, budget=entrim.Budget(params=0.3), round_to=8)'
    """
    options = [f"{name}={_written(name, value)}" for name, value in told(settings).items()]
    if seed is not None:
        options.append(f"generator=torch.Generator().manual_seed({seed})")
    return f"entrim.sparsify({', '.join(['model', 'images', *options])})"


def told(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from what would have been without them."""
    plain = Settings()
    usual = {field.name: getattr(plain, field.name) for field in fields(Settings)}
    usual |= PAPER if settings.get("preset") == "paper" else OURS
    return {
        name: value
        for name, value in settings.items()
        if _listed(value) != _listed(usual.get(name))
    }


def taught(settings: Mapping[str, Any], start: str = "small") -> str:
    """Return the call of `distill` with its seed and everything that is not its default.

    >>> taught({"epochs": 3, "batch": 64, "schedule": "cosine", "seed": 0})
    'entrim.distill(small, images, epochs=3, seed=0)'
    """
    known = signature(distill).parameters
    options = [
        f"{name}={value!r}"
        for name, value in settings.items()
        if name == "seed" or (name in known and value != known[name].default)
    ]
    return f"entrim.distill({', '.join([start, 'images', *options])})"


def command(words: Sequence[str]) -> str:
    """Return the command line as a shell reads it."""
    return shlex.join(words)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _written(name: str, value: Any) -> str:
    if name == "budget" and isinstance(value, Mapping):
        known = {field.name for field in fields(Budget)}
        given = [f"{k}={v!r}" for k, v in value.items() if v is not None and k in known]
        return f"entrim.Budget({', '.join(given)})"
    if name == "eps":
        return repr({pattern: tuple(pair) for pattern, pair in value.items()})
    return repr(_listed(value))
