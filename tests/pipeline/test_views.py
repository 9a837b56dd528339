"""Mirror images and mixtures in the reconstruction, and the images that judge a refit."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import entrim
from entrim.calibration.collect import LayerStatistics
from entrim.calibration.tensor_store import Scratch
from entrim.errors import BadSettingError
from entrim.metrics import compare, mirror_error
from entrim.reconstruction.layer import RIDGES, select_ridge
from entrim.reconstruction.sequential import _split_rows
from entrim.reconstruction.views import (
    ENOUGH_IMAGES,
    INNER_SPLIT,
    Views,
    add_views,
    mixtures_for,
)
from entrim.surgery.prune import prune
from entrim.surgery.trace import trace
from tests.pipeline.networks import chain, images
from tests.surgery.kinds import KINDS, shaken

X = images(60, 3, 8, 8)
HALF = entrim.Widths(0.5)


class Symmetric(nn.Module):
    """Means over each row of pixels: exactly invariant to mirroring."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 12, 1)
        self.last = nn.Linear(12 * 8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu().mean(3).flatten(1))


def statistics_of(model: nn.Module, batch_size: int) -> LayerStatistics:
    batches = X.split(batch_size)
    return LayerStatistics.of(
        model, trace(model, X[:2]), batches, memory_limit=2**30, scratch=Scratch()
    )


def test_the_error_of_an_invariant_network_is_zero() -> None:
    found = mirror_error(Symmetric(), X.split(30), ("logits",))
    assert found is not None
    assert found < 1e-10
    other = mirror_error(chain(), X.split(30), ("logits",))
    assert other is not None
    assert other > 0.2


def test_mirrored_batches_follow_the_others() -> None:
    batches = Views(statistics_of(chain(), 25).forward, is_mirrored=True, mixtures=0)
    tensors = [batch for batch in batches if isinstance(batch, Tensor)]
    assert len(batches) == len(tensors) == 6
    assert torch.equal(torch.cat(tensors), torch.cat([X, X.flip(-1)]))
    assert batches[-1] is not None
    assert len(batches[1:3]) == 2


@pytest.mark.parametrize(("model", "is_used"), [(Symmetric(), True), (chain(), False)])
def test_mirror_images_are_used_if_the_network_is_invariant(
    model: nn.Module, is_used: bool
) -> None:
    options: dict[str, Any] = {
        "calibration": entrim.Calibration(holdout=0),
        "reconstruction": entrim.Reconstruction(mixtures=0),
    }
    with entrim.Pruner(model, X, **options) as pruner:
        record = pruner.prune(HALF).record
        assert pruner.reconstruction_pass.images == (120 if is_used else 60)
        assert pruner.statistics.collection.images == pruner.reconstruction_pass.images
    assert any("mirror images" in note for note in record.notes) is is_used


@pytest.mark.parametrize(("mirror", "count"), [(True, 96), (False, 48)])
def test_the_choice_of_the_user_overrides_the_measurement(mirror: bool, count: int) -> None:
    reconstruction = entrim.Reconstruction(mirror=mirror, mixtures=0)
    for model in (Symmetric(), chain()):
        with entrim.Pruner(model, X, reconstruction=reconstruction) as pruner:
            assert not any("mirror images" in note for note in pruner.prune(HALF).record.notes)
            assert pruner.reconstruction_pass.images == count


def test_mirror_images_of_tables_are_refused() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    rows = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    entrim.sparsify(model, rows, HALF)
    with pytest.raises(BadSettingError, match="mirror=True needs a network"):
        entrim.sparsify(model, rows, HALF, reconstruction=entrim.Reconstruction(mirror=True))
    with pytest.raises(BadSettingError, match="mixtures=2 needs a network"):
        entrim.sparsify(model, rows, HALF, reconstruction=entrim.Reconstruction(mixtures=2))


@pytest.mark.parametrize(
    ("count", "mirrored", "expected"),
    [(20, True, 23), (80, False, 5), (250, True, 0), (600, False, 0)],
)
def test_few_images_are_mixed_until_there_are_enough(
    count: int, mirrored: bool, expected: int
) -> None:
    batch = torch.zeros(count, 3, 1, 1)
    task = replace(statistics_of(chain(), 60).forward, batches=[batch])
    found = mixtures_for(entrim.Reconstruction(), task, mirrored=mirrored)
    assert found == expected
    assert count * (1 + mirrored + found) <= max(ENOUGH_IMAGES, count * (1 + mirrored))
    reestimated = entrim.Reconstruction(batchnorm="reestimate")
    assert mixtures_for(reestimated, task, mirrored=mirrored) == 0
    assert mixtures_for(entrim.Reconstruction(mixtures=2), task, mirrored=mirrored) == 2


def test_the_default_reconstruction_of_few_images_uses_mixtures() -> None:
    with entrim.Pruner(chain(), X, calibration=entrim.Calibration(holdout=0)) as pruner:
        assert pruner.reconstruction_pass.views == 8
        assert pruner.reconstruction_pass.images == 480


def test_a_mixture_is_made_of_images_on_one_side_of_the_inner_split() -> None:
    sides = torch.arange(20) % INNER_SPLIT == INNER_SPLIT - 1
    values = sides.float()[:, None, None, None].expand(20, 1, 8, 8)
    task = replace(statistics_of(chain(), 20).forward, batches=[values, values, values])
    views = Views(task, is_mirrored=False, mixtures=8)
    for number in range(3, len(views)):
        mixed = views[number]
        assert isinstance(mixed, Tensor)
        assert torch.equal(mixed, values)
    assert len(views) == 27


def test_mixtures_differ_from_each_other_and_are_the_same_again() -> None:
    task = statistics_of(chain(), 20).forward
    views = Views(task, is_mirrored=True, mixtures=2)
    first, again, second = (views[number] for number in (6, 6, 9))
    assert isinstance(first, Tensor)
    assert isinstance(again, Tensor)
    assert isinstance(second, Tensor)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert bool((first.amin((0, 2, 3)) >= X[:20].amin((0, 2, 3))).all())


@pytest.mark.parametrize("mixtures", [-1, True])
def test_invalid_mixtures_are_refused(mixtures: object) -> None:
    with pytest.raises(BadSettingError, match="mixtures must be"):
        entrim.Reconstruction(mixtures=mixtures)  # pyright: ignore


@pytest.mark.parametrize("batch_size", [60, 20, 7, 3])
def test_an_image_and_its_mirror_image_are_on_one_side_of_the_inner_split(batch_size: int) -> None:
    task = add_views(statistics_of(chain(), batch_size).forward, mirrored=True)
    sides = []
    for batch, size in enumerate(task.batch_sizes):
        fitting, judging = _split_rows(task, batch, size)
        assert sorted([*fitting.tolist(), *judging.tolist()]) == list(range(size))
        sides += [row in judging for row in range(size)]
    assert sides[:60] == sides[60:]
    assert sum(sides[:60]) == 60 // INNER_SPLIT


def test_all_entries_of_an_image_are_on_one_side_of_the_inner_split() -> None:
    task = statistics_of(chain(), 20).forward
    fitting, judging = _split_rows(task, 0, 80)
    assert not {row // 4 for row in fitting.tolist()} & {row // 4 for row in judging.tolist()}
    assert len(judging) == 80 // INNER_SPLIT


def test_few_rows_without_an_inner_split_keep_the_weights() -> None:
    reader = statistics_of(chain(), 60).consumers["7"]
    g = torch.Generator().manual_seed(0)
    few, enough = (
        entrim.Moments.of(torch.randn(n, 10, generator=g), torch.randn(n, 2, generator=g))
        for n in (19, 20)
    )
    assert math.isinf(select_ridge(reader, [few], None))
    assert math.isfinite(select_ridge(reader, [enough], None))


def test_a_refit_of_noise_keeps_the_weights() -> None:
    reader = statistics_of(chain(), 60).consumers["7"]
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 30, generator=g), torch.randn(40, 3, generator=g)
    fitting, inner = entrim.Moments.of(x, y), entrim.Moments.of(x, -y)
    assert math.isinf(select_ridge(reader, [fitting, inner], None))


def test_a_ridge_below_the_rounding_of_the_sums_is_not_selected() -> None:
    reader = statistics_of(chain(), 60).consumers["7"]
    g = torch.Generator().manual_seed(0)
    mixed, weight = torch.randn(5, 30, generator=g), torch.randn(30, 3, generator=g)
    fitting, inner = (
        entrim.Moments.of(x, x @ weight) for x in torch.randn(2, 200, 5, generator=g) @ mixed
    )
    rounded = fitting.gram_sum.clone()
    rounded.diagonal()[1:] *= 1 - 3e-4
    assert float(torch.linalg.eigvalsh(rounded).min()) < 0
    assert select_ridge(reader, [fitting, inner], None) == RIDGES[0]
    known = replace(fitting, gram_sum=rounded)
    assert select_ridge(reader, [known, inner], None) == RIDGES[1]


IMAGE_KINDS = (
    "grouped",
    "depthwise",
    "Linear behind Flatten",
    "Linear behind an NHWC Flatten",
    "residual",
    "concat",
    "squeeze and excite",
    "transposed",
    "GroupNorm",
    "BatchNorm without bias",
    "reused layers",
    "Conv3d",
    "pixel shuffle",
    "functional convolution",
    "BatchNorm of the batch at hand",
    "LayerNorm over positions",
    "activations of every kind",
)


@pytest.mark.filterwarnings("ignore::entrim.errors.CalibrationWarning")  # random statistics
@pytest.mark.parametrize("order", ["sequential", "independent"])
@pytest.mark.parametrize("name", IMAGE_KINDS)
def test_a_reconstruction_is_not_worse_than_the_original_weights(name: str, order: str) -> None:
    torch.manual_seed(0)
    model = shaken(KINDS[name].build()).eval()
    shape = KINDS[name].example_inputs().shape[1:]  # pyright: ignore
    fitting, unseen = (torch.randn(count, *shape) for count in (96, 256))
    reconstruction = entrim.Reconstruction(order=order)
    with entrim.Pruner(
        model, fitting, selector="magnitude", reconstruction=reconstruction
    ) as pruner:
        refitted = pruner.apply(pruner.select(HALF))
        plan = entrim.Plan(refitted.plan.kept)
        kept = prune(model, plan, fitting[:4], graph=pruner.graph)
    errors = []
    for small in (refitted.model, kept.model):
        error = compare(small, model, [unseen], ("values",)).error()
        assert error is not None
        errors.append(error.value)
    assert errors[0] <= 1.1 * errors[1]
