"""Networks of the studies, each with the rows in which it is pruned."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from entrim import Budget
from entrim.errors import BadSettingError, DataError
from experiments import models
from experiments.models import TrainedModel
from experiments.paper.pruning import describe, size_at
from experiments.paper.records import Point, PreviousRecord, label
from experiments.paper.report import NOT_RUN
from experiments.paper.reproduce import Options
from experiments.paper.rows import EPS, Row, half_row, rows_of
from experiments.work import NotFinishedError, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One network and the rows in which it is pruned."""

    network: str
    load: Callable[..., TrainedModel]
    rows: tuple[Row, ...]
    epochs: int
    """Of fine tuning, where a study has one; 0 for none."""

    def tuning_epochs(self, options: Options) -> tuple[int, ...]:
        """Return the numbers of epochs of fine tuning."""
        usual = (self.epochs,) if self.epochs else ()
        return usual if not usual or options.epoch_override is None else options.epoch_override


def lenet_panel(*names: str, epochs: int) -> Panel:
    """Return LeNet in some rows of its two tables, in all if none is named."""
    rows = [row for table in ("lenet-conv", "lenet-full") for row in rows_of(table)]
    some = tuple(row for row in rows if row.name in names or not names)
    return Panel(network="LeNet", load=models.lenet, rows=some, epochs=epochs)


def half_resnet_panel(network: str, load: Callable[..., TrainedModel]) -> Panel:
    """Return a residual network with half the channels inside its blocks."""
    return Panel(network=network, load=load, rows=(half_row(network),), epochs=1)


def last_row_panel(network: str, experiment: str, load: Callable[..., TrainedModel]) -> Panel:
    """Return a network in the last row of its table, the smallest; nothing is fine tuned."""
    row = rows_of(experiment)[-1]
    named = replace(row, name=f"{network}, {row.name}")
    return Panel(network=network, load=load, rows=(named,), epochs=0)


def whole_panel(network: str, load: Callable[..., TrainedModel], names: Sequence[str]) -> Panel:
    """Return a network whose groups are all pruned, in rows that the paper does not have."""
    rows = tuple(
        Row(name=f"{network}, {name}", eps={"*": EPS}, widths={}, cells={}) for name in names
    )
    return Panel(network=network, load=load, rows=rows, epochs=0)


def stream_panel(
    network: str, load: Callable[..., TrainedModel], streams: Mapping[str, int]
) -> Panel:
    """Return a residual network with half the channels of its residual stream, by group."""
    row = Row(
        name=f"{network}, half of the residual stream",
        eps=dict.fromkeys(streams, EPS),
        widths={name: channels // 2 for name, channels in streams.items()},
        cells={},
    )
    return Panel(network=network, load=load, rows=(row,), epochs=0)


def requested_panels(panels: Sequence[Panel], options: Options) -> tuple[Panel, ...]:
    """Return the panels of the requested networks."""
    known = [panel.network for panel in panels]
    requested = known if options.networks is None else options.networks
    if unknown := [name for name in requested if name not in known]:
        raise BadSettingError(
            f"there is no {', '.join(unknown)} here: name some of {', '.join(known)}"
        )
    return tuple(panel for panel in panels if panel.network in requested)


def load_models(
    panels: Sequence[Panel],
    work: Work,
    options: Options,
    previous: PreviousRecord,
    notes: list[str],
) -> Iterator[tuple[Panel, TrainedModel, Point]]:
    """Yield every requested network of every seed with its description, and add notes on them.

    Networks without weights or data are skipped. A network that differs from the one in the record
    is an error.
    """
    for panel in requested_panels(panels, options):
        for seed in options.seeds:
            name = label(panel.network, seed)
            try:
                trained = options.prepare(panel.load(work, seed, quick=options.quick))
                described = describe(work, trained)
            except (NotFinishedError, DataError) as error:
                if not previous.matching(network=panel.network, seed=seed):
                    notes.append(f"{name}: {NOT_RUN} ({error})")
                continue
            notes.append(f"{name}: {trained.origin}; baseline {described['baseline']:.2f} %")
            previous.check_same_network(described)
            yield panel, trained, described


def same_size_options(trained: TrainedModel, row: Row) -> dict[str, Any]:
    """Return the options for a budget: parameters and MACs at the widths of the row."""
    size = size_at(trained, row)
    return {"include": list(row.eps), "budget": Budget(params=size.params, macs=size.macs)}
