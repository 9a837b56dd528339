"""The options of `sparsify` in tables and studies: penalties, widths, budgets, images."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import entrim
from entrim import Budget, EntropicPenalty, Reconstruction, Widths
from experiments.models import TrainedModel
from experiments.paper import pruning
from experiments.paper.panels import same_size_options
from experiments.paper.pruning import prune_row, sparsify_options
from experiments.paper.rows import Row, rows_of
from experiments.work import Work
from tests.experiments.toys import toy

ROWS = {row.name: row for experiment in ("lenet-conv", "lenet-full") for row in rows_of(experiment)}
CIFAR = [
    pytest.param(network, row, id=f"{experiment}, {row.name}")
    for experiment, network in (
        ("vgg16-groups", "VGG-16"),
        ("vgg16-full", "VGG-16"),
        ("vgg16-epochs", "VGG-16"),
        ("vgg16-scratch", "VGG-16"),
        ("resnet18", "ResNet18"),
    )
    for row in rows_of(experiment)
]
WHOLE = {"conv1": 16, "fc1": 120, "fc2": 84}
FULL = list(WHOLE)


@pytest.fixture(scope="module")
def lenet() -> TrainedModel:
    return toy(Work(Path("unused")))


def paper_options(eps: dict[str, tuple[float, float]]) -> dict[str, Any]:
    return {
        "include": list(eps),
        "budget": EntropicPenalty(
            per_group=eps, solver="alternating", min_decrease=0.003, single_consumer=True
        ),
        "reconstruction": Reconstruction(weights="solution"),
    }


def width_options(widths: dict[str, int]) -> dict[str, Any]:
    return {
        "include": list(widths),
        "budget": Widths(widths),
        "reconstruction": Reconstruction(weights="solution"),
    }


@pytest.mark.parametrize(
    ("row", "eps"),
    [
        ("E1", {"conv1": (-0.01, 0.01)}),
        ("E2", {"conv1": (-0.05, 0.05)}),
        (
            "E1+fc-v1",
            {"conv1": (-0.01, 0.01), "fc1": (-0.0001, 0.0001), "fc2": (-0.0001, 0.0001)},
        ),
        ("E1+fc-v2", {"conv1": (-0.01, 0.01), "fc1": (-0.001, 0.001), "fc2": (-0.001, 0.001)}),
    ],
)
def test_lenet_is_cut_by_the_alternation_with_the_printed_strengths(
    row: str, eps: dict[str, tuple[float, float]], lenet: TrainedModel
) -> None:
    assert sparsify_options(lenet, ROWS[row], "paper") == paper_options(eps)


@pytest.mark.parametrize(("network", "row"), CIFAR)
def test_the_wide_networks_are_cut_by_the_alternation_with_the_printed_strengths(
    network: str, row: Row, lenet: TrainedModel
) -> None:
    eps = dict.fromkeys(row.widths, (-0.0001, 0.0001))
    found = sparsify_options(replace(lenet, network=network), row, "paper")
    assert found == paper_options(eps)


@pytest.mark.parametrize(
    ("row", "widths"),
    [
        ("E1", {"conv1": 8}),
        ("E2", {"conv1": 4}),
        ("E1+fc-v1", {"conv1": 8, "fc1": 104, "fc2": 43}),
        ("E1+fc-v2", {"conv1": 8, "fc1": 40, "fc2": 18}),
    ],
)
def test_at_the_widths_of_the_paper_its_method_has_widths_and_no_penalty(
    row: str, widths: dict[str, int], lenet: TrainedModel
) -> None:
    assert sparsify_options(lenet, ROWS[row], "widths") == width_options(widths)


@pytest.mark.parametrize(
    ("row", "groups", "params", "macs"),
    [
        ("E1", ["conv1"], 36_498, 272_520),
        ("E2", ["conv1"], 23_894, 200_520),
        ("E1+fc-v1", FULL, 27_223, 263_302),
        ("E1+fc-v2", FULL, 10_332, 246_500),
    ],
)
def test_our_default_is_held_to_the_parameters_and_in_studies_to_the_macs_too(
    row: str, groups: list[str], params: int, macs: int, lenet: TrainedModel
) -> None:
    conv1, fc1, fc2 = (ROWS[row].widths.get(name, whole) for name, whole in WHOLE.items())
    assert macs == 784 * 6 * 25 + 100 * conv1 * 150 + 25 * conv1 * fc1 + fc1 * fc2 + fc2 * 10
    options = sparsify_options(lenet, ROWS[row], "default")
    assert options == {"include": groups, "budget": Budget(params=params)}
    options = same_size_options(lenet, ROWS[row])
    assert options == {"include": groups, "budget": Budget(params=params, macs=macs)}


@pytest.mark.parametrize(("network", "row"), CIFAR)
def test_the_wide_networks_have_widths_or_parameters_and_no_penalty(
    network: str, row: Row, lenet: TrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "size_at", lambda *_: SimpleNamespace(params=1234))
    trained, groups = replace(lenet, network=network), list(row.widths)
    assert sparsify_options(trained, row, "widths") == width_options(dict(row.widths))
    assert sparsify_options(trained, row, "default") == {
        "include": groups,
        "budget": Budget(params=1234),
    }


class ShownError(Exception):
    """Contains the arguments of `sparsify`."""


@pytest.mark.parametrize(
    ("requested", "count"), [({}, 500), ({"images": 25}, 25), ({"images": 60}, 60)]
)
def test_sparsify_gets_as_many_images_as_requested(
    requested: dict[str, Any],
    count: int,
    lenet: TrainedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def show(*args: Any, **options: Any) -> None:
        raise ShownError(*args, options)

    monkeypatch.setattr(entrim, "sparsify", show)
    chosen = {"include": ["conv1"], "budget": Widths({"conv1": 8})}
    trained = replace(lenet, seed=3)
    with pytest.raises(ShownError) as shown:
        prune_row(Work(tmp_path), trained, ROWS["E1"], "cut", chosen, **requested)
    model, images, options = shown.value.args
    assert model is trained.model
    assert torch.equal(images, trained.images(count))
    assert len(images) == count
    assert options["seed"] == 3
    assert chosen.items() <= options.items()
