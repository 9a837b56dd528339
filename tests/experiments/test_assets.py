"""The pre-trained networks are those that they claim to be."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from entrim.errors import BadSettingError, DataError
from experiments.datasets import CIFAR10, Dataset, imagenet_samples, load_cifar10
from experiments.errors import MissingPackageError
from experiments.models import PRETRAINED, ResNet20, load_pretrained

needs_assets = pytest.mark.skipif(
    not os.environ.get("ENTRIM_ASSETS"), reason="ENTRIM_ASSETS names no folder of weights and data"
)


@torch.no_grad()
def accuracy(name: str, data: Dataset) -> float:
    model, known = load_pretrained(name), PRETRAINED[name]
    assert not model.training
    batches = torch.arange(len(data)).split(100)
    hits = sum(
        int((model(data[rows].normalize(known.normalization)).argmax(1) == data.labels[rows]).sum())
        for rows in batches
    )
    return 100 * hits / len(data)


@needs_assets
@pytest.mark.parametrize("name", [name for name in PRETRAINED if name.startswith("cifar10")])
def test_a_cifar_network_is_within_two_points_of_its_known_accuracy(name: str) -> None:
    if not CIFAR10.file("test").exists():
        pytest.skip("CIFAR-10 is not in the cache: load it once")
    assert abs(accuracy(name, load_cifar10("test")[:1000]) - PRETRAINED[name].accuracy) < 2


@needs_assets
def test_resnet50_names_most_imagenet_samples() -> None:
    assert accuracy("imagenet_resnet50", imagenet_samples(range(0, 1000, 20))) > 80


@needs_assets
@pytest.mark.parametrize("name", PRETRAINED)
def test_weights_come_in_float32(name: str) -> None:
    assert {parameter.dtype for parameter in load_pretrained(name).parameters()} == {torch.float32}


@pytest.mark.parametrize(
    "load",
    [lambda: load_pretrained("cifar10_resnet20"), imagenet_samples],
    ids=["weights", "samples"],
)
def test_without_assets_the_error_names_the_variable_and_the_file(
    load: Callable[[], object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ENTRIM_ASSETS", raising=False)
    with pytest.raises(DataError, match=r"ENTRIM_ASSETS, which is unset: set it"):
        load()
    monkeypatch.setenv("ENTRIM_ASSETS", str(tmp_path))
    with pytest.raises(DataError, match=f"{tmp_path}.* is missing: .*ENTRIM_ASSETS"):
        load()


def with_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENTRIM_ASSETS", str(tmp_path))
    file = tmp_path / "weights" / "cifar10_resnet20.safetensors"
    file.parent.mkdir()
    return file


def test_half_precision_without_counters_is_loaded_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, model = with_weights(tmp_path, monkeypatch), ResNet20()
    halves = {k: t.half() for k, t in model.state_dict().items() if "tracked" not in k}
    save_file(halves, file)
    loaded = load_pretrained("cifar10_resnet20").state_dict()
    assert all(loaded[key].equal(half.float()) for key, half in halves.items())


@pytest.mark.parametrize("change", ["cut short", "of another network"])
def test_a_file_that_is_not_the_network_is_refused(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = with_weights(tmp_path, monkeypatch)
    other = nn.Linear(2, 2) if change == "of another network" else ResNet20()
    save_file(other.state_dict(), file)
    if change == "cut short":
        file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match="not the cifar10_resnet20 known here"):
        load_pretrained("cifar10_resnet20")


def test_misuse_names_what_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(BadSettingError, match="cifar10_vgg16"):
        load_pretrained("vgg19")
    folder = tmp_path / "data" / "imagenet-samples"
    folder.mkdir(parents=True)
    monkeypatch.setenv("ENTRIM_ASSETS", str(tmp_path))
    with pytest.raises(DataError, match="0 of 1000 images"):
        imagenet_samples()
    for number in range(1000):
        (folder / f"n{number:04}_thing.jpg").touch()
    with pytest.raises(BadSettingError, match=r"from 0 to 999, got \[3, 1000\]"):
        imagenet_samples([3, 1000])


def test_samples_without_pillow_name_the_group(uninstall: Callable[[str], None]) -> None:
    uninstall("PIL")
    with pytest.raises(MissingPackageError, match=r"pillow: pip .*--group experiments"):
        imagenet_samples()


def test_a_sample_is_the_middle_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    folder = tmp_path / "data" / "imagenet-samples"
    folder.mkdir(parents=True)
    monkeypatch.setenv("ENTRIM_ASSETS", str(tmp_path))
    for number in range(1000):
        (folder / f"n{number:04}_thing.jpg").touch()
    framed = Image.new("RGB", (256, 256), (255, 0, 0))
    framed.paste((0, 0, 255), (16, 16, 240, 240))
    framed.save(folder / "n0007_thing.jpg", quality=100, subsampling=0)
    sample = imagenet_samples([7])
    assert sample.labels.tolist() == [7]
    assert sample.images.shape == (1, 3, 224, 224)
    assert int(sample.images[0, 2, 8:-8, 8:-8].min()) > 250
    assert int(sample.images[0, 0, 8:-8, 8:-8].max()) < 5
