"""The published tables of other methods, next to our rows: drops from the own baseline."""

from collections.abc import Iterator, Mapping, Sequence

from experiments.models import ZOO
from experiments.paper.pruning import METHODS, RowResult
from experiments.paper.published import Table, tables
from experiments.paper.report import table

TABLES = {"VGG-16": "vgg16-comparison", "ResNet18": "resnet18-comparison"}
"""The published table of other methods, by network."""
_HEADER = ("method", "baseline", "drop", "parameters", "sparsity")
_NOTE = (
    "Published results with labels and fine tuning unless stated; parameters in parentheses follow "
    "from the printed sparsity. Ours: the smallest network of the table, one seed."
)


def literature(
    network: str, row: str, found: Sequence[RowResult], baselines: Mapping[int, float]
) -> tuple[str, ...]:
    """Return the table of other methods with our results in `row`; none for other networks."""
    if network not in TABLES:
        return ()
    lines = [*_published(tables()[TABLES[network]]), *_ours(network, row, found, baselines)]
    return ("### Other methods, as printed", _NOTE, table(_HEADER, lines))


def _published(printed: Table) -> Iterator[list[str]]:
    """Yield the published rows."""
    for method in printed.rows:
        cells = {column: printed.cell(method, column) for column in printed.columns}
        base, accuracy = cells["baseline accuracy"].value, cells["accuracy"].value
        sparsity = cells["sparsity"]
        if base is None or accuracy is None or sparsity.value is None:
            continue
        left = ZOO[printed.network].params * (1 - sparsity.value / 100)
        yield [
            method.replace("ours", "the paper"),
            f"{base:.2f}",
            f"{base - accuracy:.2f}",
            cells["parameters"].printed if "parameters" in cells else f"({left:.3g})",
            sparsity.printed.replace("%", " %"),
        ]


def _ours(
    network: str, row: str, found: Sequence[RowResult], baselines: Mapping[int, float]
) -> Iterator[list[str]]:
    """Yield our raw rows and the best fine-tuned ones, of the first seed."""
    for result in found:
        if result.row != row or result.seed != min(baselines) or result.pruned is None:
            continue
        base, parameters = baselines[result.seed], result.pruned["parameters"]
        accuracies = {"raw": result.pruned["accuracy"]}
        if result.tuned:
            epochs, best = max(result.tuned.items(), key=lambda pair: pair[1])
            accuracies[f"fine tuned, {epochs} epochs" if epochs > 1 else "fine tuned, 1 epoch"] = (
                best
            )
        for training, accuracy in accuracies.items():
            yield [
                f"here, {row}: {METHODS[result.method]}, {training}",
                f"{base:.2f}",
                f"{base - accuracy:.2f}",
                f"{parameters:,}",
                f"{100 * (1 - parameters / ZOO[network].params):.1f} %",
            ]
