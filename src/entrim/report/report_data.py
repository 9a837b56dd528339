"""The contents of a report, read from a saved folder."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from entrim.records import Record
from entrim.storage.model_folder import read_manifest, record_in

COMMAND = "command.json"
"""The file in which a command stores its words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of the network."""

    name: str
    before: int = 0
    """Channels of the original layer."""
    after: int = 0
    """Channels after pruning."""
    reasons: tuple[str, ...] = ()
    """Why some of its channels are frozen."""
    included: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """The record of a run, its layers and its commands."""

    folder: str
    """The folder of the run; empty if it is not saved."""
    record: Record
    layers: tuple[Layer, ...]
    """In the order of the modules of the network."""
    commands: tuple[tuple[str, ...], ...] = ()
    """The commands that led to the run, the last one last; empty if it was saved from Python."""

    @classmethod
    def of(
        cls,
        folder: Path,
        record: Record,
        tensors: Mapping[str, str],
        commands: Sequence[Sequence[str]],
    ) -> "ReportData":
        """Return the data of a record; `tensors` are those of the original network."""
        return cls(
            folder="" if folder == Path() else str(folder),
            record=record,
            layers=layers_of(record, tensors),
            commands=tuple(map(tuple, commands)),
        )

    @property
    def command(self) -> tuple[str, ...] | None:
        """The last command, if there is one."""
        return self.commands[-1] if self.commands else None


def read(folder: str | os.PathLike[str]) -> ReportData:
    """Return the data of the run saved in `folder`; raise LoadError if there is none.

    >>> import tempfile, torch, entrim
    >>> from entrim.report import read
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> folder = tempfile.mkdtemp()
    >>> entrim.sparsify(net, torch.randn(99, 4), entrim.Widths({"0": 4})).save(folder)
    >>> [(layer.name, layer.before, layer.after) for layer in read(folder).layers]
    [('0', 8, 4), ('2', 2, 2)]
    """
    place, manifest = Path(folder), read_manifest(folder)
    tensors = manifest["original"]["tensors"]
    return ReportData.of(place, record_in(manifest, place), tensors, commands_in(place))


def layers_of(record: Record, tensors: Mapping[str, str]) -> tuple[Layer, ...]:
    """Return every layer with its widths; `tensors` are those of the original network.

    Excluded groups are not in the record: their layers are found by their weights.
    """
    found: dict[str, Layer] = {}
    for group in record.groups:
        for name in group.layers:
            found[name] = _more(found.get(name, Layer(name=name)), group.channels, len(group.kept))
    for name, channels, reason in record.frozen:
        wider = _more(found.get(name, Layer(name=name)), channels, channels)
        found[name] = replace(wider, reasons=(*wider.reasons, reason))
    for tensor, form in tensors.items():
        name = _owner(tensor)
        if tensor.rpartition(".")[2] == "weight" and name not in found:
            sizes = [int(n) for n in re.findall(r"\d+", form.partition("[")[2])]
            if len(sizes) > 1:
                found[name] = Layer(name=name, before=sizes[0], after=sizes[0], included=False)
    order = {name: place for place, name in enumerate(dict.fromkeys(map(_owner, tensors)))}
    return tuple(sorted(found.values(), key=lambda layer: order.get(layer.name, len(order))))


def _more(layer: Layer, before: int, after: int) -> Layer:
    return replace(layer, before=layer.before + before, after=layer.after + after)


def _owner(tensor: str) -> str:
    return tensor.rpartition(".")[0]


def commands_in(place: Path) -> tuple[tuple[str, ...], ...]:
    """Return the commands that led to the run in `place`; an invalid file is ignored.

    The commands of a run that this one started from come first.
    """
    try:
        found: Any = json.loads((place / COMMAND).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()
    if not isinstance(found, dict) or not _are_words(found.get("command")):
        return ()
    before = found.get("before")
    earlier = before if isinstance(before, list) and all(map(_are_words, before)) else []
    return tuple(tuple(words) for words in (*earlier, found["command"]))


def _are_words(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(word, str) for word in found)
