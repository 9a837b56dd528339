"""Where the paper's alternation stops: the effect of its unnamed tolerance on the kept channels.

`python -m experiments bench stop` prunes the inputs of fc1 in the LeNets of three seeds, as in the
rows E1 and E2, with several values of `min_decrease`. Trains the networks if necessary.
"""

from dataclasses import replace

import entrim
from experiments import models
from experiments.benchmarks.record import table, write
from experiments.models import TrainedModel
from experiments.paper.pruning import IMAGES, MIN_DECREASE, sparsify_options
from experiments.paper.rows import Row, rows_of
from experiments.work import Work, work_folder

SEEDS = (0, 1, 2)
MIN_DECREASES = (1e-1, 1e-2, MIN_DECREASE, 1e-3, 1e-4, 1e-5)


def count_kept(trained: TrainedModel, row: Row, min_decrease: float) -> int:
    """Return the number of kept channels if the alternation stops at this decrease."""
    options = sparsify_options(trained, row, "paper")
    options["budget"] = replace(options["budget"], min_decrease=min_decrease)
    small = entrim.sparsify(trained.model, trained.images(IMAGES), **options)
    return sum(len(group.kept) for group in small.record.groups)


def main() -> None:
    """Print the kept channels for every value, next to the paper's."""
    lenets = [models.lenet(Work(work_folder()), seed) for seed in SEEDS]
    rows = rows_of("lenet-conv")
    lines: list[list[object]] = [
        [f"{value:.0e}", *(count_kept(lenet, row, value) for row in rows for lenet in lenets)]
        for value in MIN_DECREASES
    ]
    header = ["min_decrease", *(f"{r.name}, seed {s}" for r in rows for s in SEEDS)]
    printed = [sum(row.widths.values()) for row in rows for _ in SEEDS]
    note = (
        f"Channels kept. `python -m experiments reproduce` stops at {MIN_DECREASE:.0e}, chosen to "
        "match what the paper prints on two LeNets trained earlier; these three were not used for "
        "the choice."
    )
    sections = [note, table(header, [*lines, ["as printed", *printed]])]
    print(write("stop", "python -m experiments bench stop", sections))
