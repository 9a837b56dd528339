"""The call that repeats a run."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from entrim import config
from entrim.records import Record

DEFAULTS: Mapping[str, Any] = {
    "budget": None,
    "selector": "auto",
    "reconstruction": config.to_plain(config.Reconstruction()),
    "include": ["*"],
    "exclude": [],
    "calibration": config.to_plain(config.Calibration()),
}


def calls(record: Record) -> list[str]:
    """Return the lines of Python that lead from `model` and `images` to the network."""
    lines = [f"small = {call(record.settings, record.seed)}"]
    for training in (*record.earlier, record.distilled):
        if training is not None:
            start = "small" if len(lines) == 1 else "better"
            lines.append(f"better = {distill_call(training.settings, start)}")
    return lines


def call(settings: Mapping[str, Any], seed: int | None = None) -> str:
    """Return the call of `sparsify` with everything that is not its default.

    >>> budget = {"type": "Budget", "params": 0.3, "macs": None, "round_to": 8}
    >>> call({"budget": budget, "include": ["*"], "exclude": ["fc"]})
    "entrim.sparsify(model, images, entrim.Budget(params=0.3, round_to=8), exclude=['fc'])"
    """
    changed = changed_settings(settings)
    budget = [expression(changed.pop("budget"))] if "budget" in changed else []
    options = [f"{name}={expression(value)}" for name, value in changed.items()]
    options += [] if seed is None else [f"seed={seed}"]
    source = "moments" if "moments" in settings else "images"
    return f"entrim.sparsify({', '.join(['model', source, *budget, *options])})"


_TARGETS = (
    *("--params", "--macs", "--bytes", "--latency", "--max-error", "--agreement", "--confidence"),
    *("--width", "--eps-w", "--eps-l2", "--eps", "--preset", "--solver", "--min-decrease", "--out"),
)
"""Options of a command that another target replaces; each has a value."""
_FLAGS = ("--single-consumer", "--force", "--json", "--debug", "--verbose", "--dry-run")


def resize(
    commands: Sequence[Sequence[str]], record: Record, resource: str, value: int | float, out: str
) -> str:
    """Return the command, or the call without one, that prunes to another size."""
    known = [words for words in commands if tuple(words[1:2]) == ("sparsify",)]
    if known:
        text = f"{100 * value:.4g}%" if isinstance(value, float) else str(value)
        return command([*_without_target(known[-1]), f"--{resource}", text, "--out", out])
    before = record.settings.get("budget") or {}
    budget = {"type": "Budget", resource: value}
    budget |= {name: before[name] for name in ("round_to", "depth") if name in before}
    return call({**record.settings, "budget": budget}, record.seed)


def _without_target(words: Sequence[str]) -> list[str]:
    """Return the words of a command without its target, its folder and flags of the output.

    >>> _without_target(["sparsify", "n.py:Net", "--macs=50%", "--seed", "1", "--out", "a"])
    ['sparsify', 'n.py:Net', '--seed', '1']
    """
    found, skipped = [], False
    for word in words:
        name, equals, _ = word.partition("=")
        is_option = len(name) > 3 and name.startswith("--")
        if skipped or (is_option and any(flag.startswith(name) for flag in _FLAGS)):
            skipped = False
        elif is_option and any(option.startswith(name) for option in _TARGETS):
            skipped = not equals
        else:
            found.append(word)
    return found


def changed_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the defaults of `sparsify`."""
    return {name: value for name, value in settings.items() if value != DEFAULTS.get(name, value)}


def distill_call(settings: Mapping[str, Any], start: str = "small") -> str:
    """Return the call of `distill` with its seed and everything that is not its default.

    >>> distill_call({"epochs": 3, "batch_size": 64, "seed": 0})
    'entrim.distill(small, images, entrim.Distillation(epochs=3, seed=0))'
    """
    options = _options(config.Distillation, settings, always=("seed",))
    value = f"entrim.Distillation({', '.join(options)})"
    return f"entrim.distill({', '.join([start, 'images', value])})"


def command(words: Sequence[str]) -> str:
    """Return the command line as a shell reads it."""
    return shlex.join(words)


def expression(value: Any) -> str:
    """Return the Python expression of a setting in a record.

    >>> expression({"type": "Widths", "widths": {"0": 3}, "round_to": 1})
    "entrim.Widths(widths={'0': 3})"
    """
    if isinstance(value, Mapping) and "type" in value:
        options = [
            f"{key}={expression(entry)}"
            for key, entry in value.items()
            if key != "type" and entry != _default(value["type"], key)
        ]
        return f"entrim.{value['type']}({', '.join(options)})"
    if isinstance(value, Mapping):
        entries = (f"{key!r}: {expression(entry)}" for key, entry in value.items())
        return f"{{{', '.join(entries)}}}"
    return repr(value)


def _default(type_name: str, name: str) -> Any:
    """Return the default of a field of a configuration value, as a record contains it."""
    kind = getattr(config, type_name, None)
    for item in () if kind is None else fields(kind):
        if item.name == name:
            factory = item.default_factory
            return config.to_plain(item.default if factory is MISSING else factory())
    return MISSING


def _options(config_type: type, settings: Mapping[str, Any], always: Sequence[str]) -> list[str]:
    known = {item.name for item in fields(config_type)}
    return [
        f"{name}={value!r}"
        for name, value in settings.items()
        if name in always or (name in known and value != _default(config_type.__name__, name))
    ]
