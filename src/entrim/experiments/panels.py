"""Networks and the rows in which the studies cut them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from entrim.budget import Budget
from entrim.errors import BadSettingError, DataError
from entrim.experiments import subjects
from entrim.experiments.cutting import baseline, size_at
from entrim.experiments.report import NOT_RUN
from entrim.experiments.reproduce import Options
from entrim.experiments.rows import Row, halved, rows_of
from entrim.experiments.subjects import Subject
from entrim.experiments.work import NotFinishedError, Work


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
    return Panel(network="LeNet", subject=subjects.lenet, rows=some, epochs=epochs)


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


def named(network: str, seed: int) -> str:
    """Return what a network is called in notes."""
    return f"{network}, seed {seed}"


def at_hand(
    panels: Sequence[Panel], work: Work, options: Options, notes: list[str]
) -> Iterator[tuple[Panel, Subject, float]]:
    """Yield every network of every seed with its accuracy; note what there is, and what is not.

    One whose weights or data are missing does not keep the others from being run.
    """
    for panel in asked_for(panels, options):
        for seed in options.seeds:
            name = named(panel.network, seed)
            try:
                subject = panel.subject(work, seed, quick=options.quick)
                base = baseline(work, subject)
            except (NotFinishedError, DataError) as error:
                notes.append(f"{name}: {NOT_RUN} ({error})")
                continue
            notes.append(f"{name}: {subject.origin}; baseline {base:.2f} %")
            yield panel, subject, base


def within(subject: Subject, row: Row) -> dict[str, Any]:
    """Return our allocation, within parameters and MACs of the network at the widths of the row."""
    size = size_at(subject, row)
    return {"layers": list(row.eps), "budget": Budget(params=size.params, macs=size.macs)}
