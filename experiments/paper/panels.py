"""Networks and the rows in which the studies cut them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from entrim import Budget
from entrim.errors import BadSettingError, DataError
from experiments import models
from experiments.models import Subject
from experiments.paper.cutting import size_at, told_of
from experiments.paper.earlier import Earlier, Point, named
from experiments.paper.report import NOT_RUN
from experiments.paper.reproduce import Options
from experiments.paper.rows import Row, halved, rows_of
from experiments.work import NotFinishedError, Work


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
        usual = (self.epochs,) if self.epochs else ()
        return usual if not usual or options.taught is None else options.taught


def lenet(*names: str, epochs: int) -> Panel:
    """Return LeNet in some rows of its two tables, in all where none is named."""
    rows = [row for table in ("lenet-conv", "lenet-full") for row in rows_of(table)]
    some = tuple(row for row in rows if row.name in names or not names)
    return Panel(network="LeNet", subject=models.lenet, rows=some, epochs=epochs)


def halved_resnet(network: str, subject: Callable[..., Subject]) -> Panel:
    """Return a residual network with half the channels inside its blocks."""
    return Panel(network=network, subject=subject, rows=(halved(network),), epochs=1)


def last_of(network: str, experiment: str, subject: Callable[..., Subject]) -> Panel:
    """Return a network in the last row of its table, the smallest; nothing is fine tuned."""
    row = rows_of(experiment)[-1]
    named = replace(row, name=f"{network}, {row.name}")
    return Panel(network=network, subject=subject, rows=(named,), epochs=0)


def asked_for(panels: Sequence[Panel], options: Options) -> tuple[Panel, ...]:
    """Return those whose networks are to be run."""
    known = [panel.network for panel in panels]
    asked = known if options.networks is None else options.networks
    if unknown := [name for name in asked if name not in known]:
        raise BadSettingError(
            f"there is no {', '.join(unknown)} here: name some of {', '.join(known)}"
        )
    return tuple(panel for panel in panels if panel.network in asked)


def at_hand(
    panels: Sequence[Panel], work: Work, options: Options, earlier: Earlier, notes: list[str]
) -> Iterator[tuple[Panel, Subject, Point]]:
    """Yield every network of every seed, and what is told of it; note what there is, and is not.

    One whose weights or data are missing does not keep the others from being run. One that is
    another than in the record is refused.
    """
    for panel in asked_for(panels, options):
        for seed in options.seeds:
            name = named(panel.network, seed)
            try:
                subject = panel.subject(work, seed, quick=options.quick)
                told = told_of(work, subject)
            except (NotFinishedError, DataError) as error:
                if not earlier.telling(network=panel.network, seed=seed):
                    notes.append(f"{name}: {NOT_RUN} ({error})")
                continue
            notes.append(f"{name}: {subject.origin}; baseline {told['baseline']:.2f} %")
            earlier.refuse_another(told)
            yield panel, subject, told


def within(subject: Subject, row: Row) -> dict[str, Any]:
    """Return our allocation, within parameters and MACs of the network at the widths of the row."""
    size = size_at(subject, row)
    return {"layers": list(row.eps), "budget": Budget(params=size.params, macs=size.macs)}
