"""Where the paper's alternation stops: what its unnamed tolerance does to the channels it keeps.

`python -m experiments bench stop` cuts the inputs of fc1 in the LeNets of three seeds, as in the
rows E1 and E2, with the alternation stopped at several falls of the loss. Trains what the cache
lacks.
"""

import entrim
from experiments import models
from experiments.benchmarks.record import table, write
from experiments.models import Subject
from experiments.paper.cutting import FALL, IMAGES, options_of
from experiments.paper.rows import Row, rows_of
from experiments.work import Work, work_folder

SEEDS = (0, 1, 2)
FALLS = (1e-1, 1e-2, FALL, 1e-3, 1e-4, 1e-5)


def kept(subject: Subject, row: Row, fall: float) -> int:
    """Return how many channels stay where a step lowers the loss by less than `fall`."""
    how = {**options_of(subject, row, "paper"), "alternation": fall}
    small = entrim.sparsify(subject.model, subject.images(IMAGES), **how)
    return sum(len(group.kept) for group in small.record.groups)


def main() -> None:
    """Print what every stop keeps, beside the paper."""
    lenets = [models.lenet(Work(work_folder()), seed) for seed in SEEDS]
    rows = rows_of("lenet-conv")
    lines: list[list[object]] = [
        [f"{fall:.0e}", *(kept(lenet, row, fall) for row in rows for lenet in lenets)]
        for fall in FALLS
    ]
    header = ["the loss falls by less than", *(f"{r.name}, seed {s}" for r in rows for s in SEEDS)]
    printed = [sum(row.widths.values()) for row in rows for _ in SEEDS]
    note = (
        f"Channels kept. `python -m experiments reproduce` stops below {FALL:.0e}, chosen to "
        "match what the paper prints on two LeNets trained earlier; these three had no part in it."
    )
    sections = [note, table(header, [*lines, ["as printed", *printed]])]
    print(write("stop", "python -m experiments bench stop", sections))
