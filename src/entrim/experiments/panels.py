"""Networks and the rows in which the studies cut them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from entrim.budget import Budget
from entrim.experiments import subjects
from entrim.experiments.cutting import size_at
from entrim.experiments.reproduce import QUICK_EPOCHS, Options
from entrim.experiments.rows import Row, halved, rows_of
from entrim.experiments.subjects import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One network and the rows in which it is cut."""

    network: str
    subject: Callable[..., Subject]
    rows: tuple[Row, ...]
    epochs: int
    """Of fine tuning, where a study tunes; 0 for none."""

    def taught(self, options: Options) -> tuple[int, ...]:
        """Return for how many epochs a network is fine tuned."""
        if options.quick:
            return (QUICK_EPOCHS,)
        usual = (self.epochs,) if self.epochs else ()
        return usual if options.epochs is None else options.epochs


def lenet(*names: str, epochs: int) -> Panel:
    """Return LeNet in some rows of its two tables, in all where none is named."""
    rows = [row for table in ("lenet-conv", "lenet-full") for row in rows_of(table)]
    some = tuple(row for row in rows if row.name in names or not names)
    return Panel(network="LeNet", subject=subjects.lenet, rows=some, epochs=epochs)


def halved_resnet(network: str, subject: Callable[..., Subject]) -> Panel:
    """Return a residual network with half the channels inside its blocks."""
    return Panel(network=network, subject=subject, rows=(halved(network),), epochs=1)


def within(subject: Subject, row: Row) -> dict[str, Any]:
    """Return our allocation, within parameters and MACs of the network at the widths of the row."""
    size = size_at(subject, row)
    return {"layers": list(row.eps), "budget": Budget(params=size.params, macs=size.macs)}
