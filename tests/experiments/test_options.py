"""What the cuts of the tables and of the studies are told: strengths, widths, sizes, images."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from entrim.budget import Budget
from experiments.models import Subject
from experiments.paper import cutting
from experiments.paper.cutting import cut_row, options_of
from experiments.paper.panels import within
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
def lenet() -> Subject:
    return toy(Work(Path("unused")))


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
    row: str, eps: dict[str, tuple[float, float]], lenet: Subject
) -> None:
    assert options_of(lenet, ROWS[row], "paper") == {
        "preset": "paper",
        "layers": list(eps),
        "eps": eps,
        "alternation": 0.003,
    }


@pytest.mark.parametrize(("network", "row"), CIFAR)
def test_the_wide_networks_are_cut_by_the_alternation_with_the_printed_strengths(
    network: str, row: Row, lenet: Subject
) -> None:
    assert options_of(replace(lenet, network=network), row, "paper") == {
        "preset": "paper",
        "layers": list(row.widths),
        "eps": dict.fromkeys(row.widths, (-0.0001, 0.0001)),
        "alternation": 0.003,
    }


@pytest.mark.parametrize(
    ("row", "widths"),
    [
        ("E1", {"conv1": 8}),
        ("E2", {"conv1": 4}),
        ("E1+fc-v1", {"conv1": 8, "fc1": 104, "fc2": 43}),
        ("E1+fc-v2", {"conv1": 8, "fc1": 40, "fc2": 18}),
    ],
)
def test_at_the_widths_of_the_paper_its_method_is_told_widths_and_no_strengths(
    row: str, widths: dict[str, int], lenet: Subject
) -> None:
    told = {"preset": "paper", "layers": list(widths), "widths": widths}
    assert options_of(lenet, ROWS[row], "widths") == told


@pytest.mark.parametrize(
    ("row", "layers", "params", "macs"),
    [
        ("E1", ["conv1"], 36_498, 272_520),
        ("E2", ["conv1"], 23_894, 200_520),
        ("E1+fc-v1", FULL, 27_223, 263_302),
        ("E1+fc-v2", FULL, 10_332, 246_500),
    ],
)
def test_our_default_is_held_to_the_parameters_and_in_studies_to_the_macs_too(
    row: str, layers: list[str], params: int, macs: int, lenet: Subject
) -> None:
    conv1, fc1, fc2 = (ROWS[row].widths.get(name, whole) for name, whole in WHOLE.items())
    assert macs == 784 * 6 * 25 + 100 * conv1 * 150 + 25 * conv1 * fc1 + fc1 * fc2 + fc2 * 10
    told = options_of(lenet, ROWS[row], "default")
    assert told == {"layers": layers, "budget": Budget(params=params)}
    told = within(lenet, ROWS[row])
    assert told == {"layers": layers, "budget": Budget(params=params, macs=macs)}


@pytest.mark.parametrize(("network", "row"), CIFAR)
def test_the_wide_networks_are_told_widths_or_parameters_and_no_strengths(
    network: str, row: Row, lenet: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "size_at", lambda *_: SimpleNamespace(params=1234))
    subject, layers = replace(lenet, network=network), list(row.widths)
    told = {"preset": "paper", "layers": layers, "widths": dict(row.widths)}
    assert options_of(subject, row, "widths") == told
    assert options_of(subject, row, "default") == {"layers": layers, "budget": Budget(params=1234)}


class ShownError(Exception):
    """What a cut was handed."""


@pytest.mark.parametrize(
    ("asked", "count"), [({}, 500), ({"images": 25}, 25), ({"images": 60}, 60)]
)
def test_a_cut_sees_as_many_images_as_were_asked_for(
    asked: dict[str, Any],
    count: int,
    lenet: Subject,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def show(*args: Any, **options: Any) -> None:
        raise ShownError(*args, options)

    monkeypatch.setattr(cutting, "sparsify", show)
    told, subject = {"layers": ["conv1"], "widths": {"conv1": 8}}, replace(lenet, seed=3)
    with pytest.raises(ShownError) as shown:
        cut_row(Work(tmp_path), subject, ROWS["E1"], "cut", told, **asked)
    model, images, options = shown.value.args
    assert model is subject.model
    assert torch.equal(images, subject.images(count))
    assert len(images) == count
    assert options["generator"].initial_seed() == 3
    assert told.items() <= options.items()
