"""Networks of timm, torchvision and transformers on the command line."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import entrim
from entrim.cli.main import parser
from entrim.cli.model import read_model
from entrim.cli.saved_model import read_saved
from entrim.errors import CommandError, MissingPackageError
from tests.cli.conftest import Command, assert_refused


class FakeLibrary(ModuleType):
    """A package with one network, which records how it was built."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, Any]] = []

    def list_models(self) -> list[str]:
        return ["resnet18", "resnet50", "vgg16"]

    def build(self, name: str, weights: object) -> nn.Module:
        self.calls.append((name, weights))
        if name == "vgg16":
            raise OSError("no route to host\nTraceback")
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def create_model(self, name: str, *, pretrained: bool) -> nn.Module:
        return self.build(name, pretrained)

    def get_model(self, name: str, *, weights: str | None) -> nn.Module:
        return self.build(name, weights)


@pytest.fixture
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    fake = FakeLibrary(request.param)
    monkeypatch.setitem(sys.modules, request.param.partition(".")[0], fake)
    monkeypatch.setitem(sys.modules, request.param, fake)
    return fake


@pytest.mark.parametrize("library", ["timm"], indirect=True)
def test_an_export_does_not_download_the_trained_weights(
    library: FakeLibrary, tmp_path: Path
) -> None:
    net, x = library.build("resnet18", None), torch.randn(60, 4)
    entrim.sparsify(net, x, entrim.Widths(0.5), callbacks=()).save(tmp_path / "small")
    words = ["export", str(tmp_path / "small"), "--model", "timm:resnet18", "--shape", "4"]
    assert read_saved(parser().parse_args([*words, "--onnx", "x"])).small.get_parameter(
        "0.weight"
    ).shape == (4, 4)
    assert library.calls[-1] == ("resnet18", False)


@pytest.mark.parametrize(
    ("library", "model", "trained"),
    [
        ("timm", "timm:resnet18", True),
        ("timm", "timm:resnet18.a1_in1k", True),
        ("timm", "timm:hf-hub:someone/net", True),
        ("torchvision.models", "torchvision:resnet18", "DEFAULT"),
    ],
    indirect=["library"],
)
def test_trained_weights_are_read_if_there_are_no_others(
    library: FakeLibrary, model: str, trained: object, tmp_path: Path
) -> None:
    weights = tmp_path / "w.pt"
    name = model.partition(":")[2]
    built = read_model(model, None)
    torch.save({key: torch.full_like(one, 2.0) for key, one in built.state_dict().items()}, weights)
    assert not built.training
    assert library.calls == [(name, trained)]
    given = read_model(model, str(weights))
    assert library.calls[1] == (name, None if trained == "DEFAULT" else False)
    assert given.get_parameter("0.weight").unique().tolist() == [2.0]


@pytest.mark.parametrize("library", ["timm", "torchvision.models"], indirect=True)
def test_an_unknown_name_is_refused_with_similar_names(library: FakeLibrary) -> None:
    prefix = library.__name__.partition(".")[0]
    with pytest.raises(CommandError, match="no network 'resnet51': name one of its 3, such as re"):
        read_model(f"{prefix}:resnet51", None)
    with pytest.raises(CommandError, match=r"cannot build vgg16 \(OSError: no route to host\):"):
        read_model(f"{prefix}:vgg16", None)


@pytest.mark.parametrize("prefix", ["timm", "torchvision", "hf"])
def test_a_missing_package_is_named(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = {"hf": "transformers"}.get(prefix, prefix)
    for name in (package, "torchvision.models"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        MissingPackageError, match=rf"{prefix}:net needs {package}.*: pip install \w+$"
    ):
        read_model(f"{prefix}:net", None)


def test_a_package_for_another_pytorch_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator nms does not exist')")
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    remedy = r"timm failed \(operator nms .* install timm and torchvision for PyTorch 2"
    with pytest.raises(MissingPackageError, match=remedy):
        read_model("timm:resnet18", None)


def test_a_network_of_transformers_is_pruned_scored_and_loaded(
    command: Command, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    sizes: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1]}
    config = transformers.ResNetConfig(**sizes, layer_type="basic", num_labels=3)
    torch.manual_seed(0)
    model = transformers.ResNetForImageClassification(config).eval()
    model.half().save_pretrained(tmp_path / "net")
    images = np.random.default_rng(0).normal(size=(60, 3, 32, 32)).astype(np.float32)
    np.save(tmp_path / "x.npy", images)
    np.save(tmp_path / "y.npy", np.arange(60) % 3)
    options = ("--images", "x.npy", "--labels", "y.npy", "--width", "0.5", "--out", "small")
    done = command("sparsify", "hf:net", *options, "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    assert json.loads(done.out)["after"]["params"] < json.loads(done.out)["before"]["params"]
    small = entrim.load(model.float(), tmp_path / "small")
    assert type(small) is type(model)
    assert small(torch.from_numpy(images[:2])).logits.shape == (2, 3)
    done = command("export", "small", "--hf", "folder", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "model.safetensors, modeling_pruned.py" in done.out
    assert "images and entrim" in (tmp_path / "folder/README.md").read_text()
    again = command("export", "small", "--hf", "folder", cwd=tmp_path)
    assert again.code == 1
    assert "folder is not an empty folder: name a new one" in again.err
    forced = command("export", "small", "--timm", "other", "--force", cwd=tmp_path)
    assert_refused(forced, "--force is for files: leave it out")
    refused = command("inspect", "hf:nowhere/net", "--shape", "3,32,32", cwd=tmp_path)
    assert_refused(refused, "transformers cannot build nowhere/net", "--weights FILE")
