"""What the solver costs and what its choices are worth."""

import entrim
from experiments.benchmarks.lenet_layers import (
    Case,
    fast_against_reference,
    network_accuracy,
    selection_quality,
)
from experiments.benchmarks.oracle import distance_from_the_best
from experiments.benchmarks.record import write
from experiments.benchmarks.wide_layer import (
    certificate_cost,
    growth_with_rows,
    path_against_cold,
    wide_rows,
)


def main() -> None:
    """Measure section by section, print each as it comes, write all of them."""
    sections = []

    def add(section: str) -> None:
        print(section, end="\n\n", flush=True)
        sections.append(section)

    case = Case.load()
    add(network_accuracy(case))
    add(selection_quality(case))
    wide = entrim.Moments.of(*wide_rows(500), block=9)
    add(certificate_cost(wide))
    add(path_against_cold(wide, case))
    del wide
    add(growth_with_rows())
    add(distance_from_the_best())
    add(fast_against_reference(case))
    print(write("Solver", "python -m experiments bench solver", sorted(sections)))
