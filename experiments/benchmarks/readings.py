"""Readings of the paper on VGG-16: what is a data point, the ridge, the end of the alternation.

`python -m experiments bench readings` prunes all layers as in the row conv_all+fc with the paper's
eps, read in several ways, and compares the widths with the printed ones. Finished results are not
run again. Needs ENTRIM_ASSETS.
"""

from dataclasses import replace

from entrim import Calibration
from experiments import models
from experiments.benchmarks.record import has_weights, table, write
from experiments.models import TrainedModel
from experiments.paper.pruning import (
    IMAGES,
    MIN_DECREASE,
    SparsifyOptions,
    describe,
    prune_row,
    sparsify_options,
)
from experiments.paper.rows import Row, rows_of
from experiments.work import Work, work_folder

ONE_POSITION = {"calibration": Calibration(n_positions=1)}
"""500 rows, one position of each of 500 images, instead of all."""


def readings(trained: TrainedModel, row: Row) -> dict[str, SparsifyOptions]:
    """Return the options of `sparsify` for every reading of the paper."""
    stopped = sparsify_options(trained, row, "paper")
    penalty = stopped["budget"]
    minimum = {**stopped, "budget": replace(penalty, solver="mm", min_decrease=None)}
    by_rows = {group: (-eps, eps / IMAGES) for group, eps in row.eps.items()}
    ridge = {**stopped, "budget": replace(penalty, per_group=by_rows)}
    return {
        f"all positions, stopped below {MIN_DECREASE:.0e}": stopped,
        "all positions, to the minimum": minimum,
        f"{IMAGES} positions, stopped below {MIN_DECREASE:.0e}": {**stopped, **ONE_POSITION},
        f"{IMAGES} positions, to the minimum": {**minimum, **ONE_POSITION},
        f"{IMAGES} positions, ridge eps_l2 / T, stopped": {**ridge, **ONE_POSITION},
    }


def main() -> None:
    """Print the widths of every reading next to the paper's."""
    if not has_weights():
        return
    work = Work(work_folder())
    trained, row = models.vgg16(work), rows_of("vgg16-full")[-1]
    lines: list[list[object]] = []
    for reading, options in readings(trained, row).items():
        point, _ = prune_row(work, trained, row, f"VGG-16 {reading}", options)
        kept = "-".join(str(point["widths"][group]) for group in row.widths)
        lines.append([reading, kept, f"{point['parameters']:,}", f"{point['accuracy']:.2f}"])
    printed = ["the paper", "-".join(map(str, row.widths.values()))]
    printed += [row.cells[name].printed for name in ("parameters", "accuracy")]
    note = (
        f"{row.name}: every layer alone, the paper's eps, the weights of the entropic solution. "
        f"Baseline here {describe(work, trained)['baseline']:.2f} % ({trained.origin})."
    )
    header = ["reading", "channels kept", "parameters", "accuracy"]
    sections = [note, table(header, [*lines, printed])]
    print(write("readings", "python -m experiments bench readings", sections))
