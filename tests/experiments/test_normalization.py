"""Pixels as a network wants them, and the figures of real datasets."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments import normalization
from experiments.datasets import CIFAR10, FASHION_MNIST, MNIST, Collection


@given(
    value=st.integers(0, 255),
    mean=st.floats(-1, 1),
    std=st.floats(0.1, 2),
    scale=st.sampled_from([1.0, 255.0]),
)
def test_normalizing_is_affine_and_leaves_the_bytes_alone(
    value: int, mean: float, std: float, scale: float
) -> None:
    images = torch.full((1, 1, 2, 2), value, dtype=torch.uint8)
    out = normalization.Normalization((mean,), (std,), scale=scale)(images)
    assert out.dtype == torch.float32
    expected = torch.full((1, 1, 2, 2), (value / scale - mean) / std)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5 * scale / std)
    assert (images == value).all()


def test_blue_comes_first_for_keras() -> None:
    red = torch.tensor([200, 0, 0], dtype=torch.uint8).view(1, 3, 1, 1)
    out = normalization.KERAS(red).flatten()
    torch.testing.assert_close(out, torch.tensor([-103.939, -116.779, 200 - 123.68]))


@pytest.mark.parametrize(
    ("dataset", "known"),
    [
        (MNIST, normalization.MNIST),
        (FASHION_MNIST, normalization.FASHION_MNIST),
        (CIFAR10, normalization.CIFAR10),
    ],
    ids=lambda value: value.name if isinstance(value, Collection) else "",
)
def test_a_real_training_part_has_the_mean_and_deviation_that_its_normalization_prints(
    dataset: Collection, known: normalization.Normalization
) -> None:
    if not dataset.file("train").exists():
        pytest.skip(f"{dataset.name} is not in the cache: load it once")
    train = dataset.load("train")
    assert torch.bincount(train.labels).shape == (10,)
    squares = torch.zeros(dataset.image[0], dtype=torch.float64)
    sums, count = torch.zeros_like(squares), train.images[:, 0].numel()
    for images in train.images.split(1000):
        x = images.double() / 255
        sums, squares = sums + x.sum((0, 2, 3)), squares + x.square().sum((0, 2, 3))
    mean = sums / count
    std = (squares / count - mean.square()).sqrt()
    assert [f"{value:.4f}" for value in mean] == [f"{value:.4f}" for value in known.mean]
    assert [f"{value:.4f}" for value in std] == [f"{value:.4f}" for value in known.std]
