"""The cost of the solver and the quality of its selections."""

import entrim
from experiments.benchmarks.lenet_layers import (
    Case,
    mm_against_alternating,
    network_accuracy,
    selection_quality,
)
from experiments.benchmarks.oracle import distance_from_the_best
from experiments.benchmarks.record import write
from experiments.benchmarks.wide_layer import (
    growth_with_rows,
    path_against_cold,
    residual_cost,
    wide_rows,
)


def main() -> None:
    """Measure section by section, print each, write all of them."""
    sections = []

    def add(section: str) -> None:
        print(section, end="\n\n", flush=True)
        sections.append(section)

    case = Case.load()
    add(network_accuracy(case))
    add(selection_quality(case))
    wide = entrim.Moments.of(*wide_rows(500), block=9)
    add(residual_cost(wide))
    add(path_against_cold(wide, case))
    del wide
    add(growth_with_rows())
    add(distance_from_the_best())
    add(mm_against_alternating(case))
    print(write("Solver", "python -m experiments bench solver", sorted(sections)))
