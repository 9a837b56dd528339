"""How the paper can be read on VGG-16: what counts as a data point, as the ridge, as the end.

`python -m experiments bench readings` cuts all layers as in the row conv_all+fc with the paper's
eps, read in several ways, and sets the widths beside those it prints. What is finished is not run
again. Needs ENTRIM_ASSETS.
"""

from collections.abc import Mapping
from typing import Any

from experiments import models
from experiments.benchmarks.ledger import networks_at_hand
from experiments.benchmarks.record import table, write
from experiments.models import Subject
from experiments.paper.cutting import FALL, IMAGES, cut_row, options_of, told_of
from experiments.paper.rows import Row, rows_of
from experiments.work import Work, work_folder

ONE_EACH = {"positions": 1}
"""500 rows, one position of each of 500 images, instead of all."""


def readings(subject: Subject, row: Row) -> dict[str, Mapping[str, Any]]:
    """Return what `sparsify` is told, by how the paper is read."""
    stopped = options_of(subject, row, "paper")
    minimum = {key: value for key, value in stopped.items() if key != "alternation"}
    printed = {group: (-eps, eps / IMAGES) for group, eps in row.eps.items()}
    return {
        f"all positions, stopped below {FALL:.0e}": stopped,
        "all positions, to the minimum": minimum,
        f"{IMAGES} positions, stopped below {FALL:.0e}": {**stopped, **ONE_EACH},
        f"{IMAGES} positions, to the minimum": {**minimum, **ONE_EACH},
        f"{IMAGES} positions, ridge eps_l2 / T, stopped": {**stopped, **ONE_EACH, "eps": printed},
    }


def main() -> None:
    """Print the widths of every reading beside the paper's."""
    if not networks_at_hand():
        return
    work = Work(work_folder())
    subject, row = models.vgg16(work), rows_of("vgg16-full")[-1]
    lines: list[list[object]] = []
    for reading, told in readings(subject, row).items():
        cut, _ = cut_row(work, subject, row, f"VGG-16 {reading}", told)
        kept = "-".join(str(cut["widths"][group]) for group in row.widths)
        lines.append([reading, kept, f"{cut['parameters']:,}", f"{cut['accuracy']:.2f}"])
    printed = ["the paper", "-".join(map(str, row.widths.values()))]
    printed += [row.cells[name].printed for name in ("parameters", "accuracy")]
    note = (
        f"{row.name}: every layer alone, the paper's eps, nothing solved again. Baseline here "
        f"{told_of(work, subject)['baseline']:.2f} % ({subject.origin})."
    )
    header = ["reading", "channels kept", "parameters", "accuracy"]
    print(
        write(
            "readings",
            "python -m experiments bench readings",
            [note, table(header, [*lines, printed])],
        )
    )
