"""A pruned network of timm is loaded by timm."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import entrim
from entrim.errors import ExportError, MissingPackageError
from entrim.integrations.timm import save_timm, shapes_string
from experiments.operators import define_missing_operators

SMALL = {"num_classes": 10}


def create(name: str) -> Any:
    """Return a network of timm with random weights."""
    define_missing_operators()
    models = pytest.importorskip("timm", reason="needs timm")
    torch.manual_seed(0)
    return models.create_model(name, **SMALL).eval()


def halve(model: nn.Module) -> nn.Module:
    """Return the network with every second channel."""
    images = torch.randn(2, 3, 64, 64)
    groups = entrim.trace(model, images).groups
    plan = entrim.Plan({group.name: range(0, group.channels, 2) for group in groups})
    return entrim.apply_plan(model, plan, images)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["resnet10t", "mobilenetv2_035"])
def test_timm_loads_both_files(name: str, tmp_path: Path) -> None:
    original = create(name)
    small = halve(original)
    save_timm(small, original, tmp_path / "small")
    models = pytest.importorskip("timm").models
    text = (tmp_path / "small/shapes.txt").read_text()
    loaded = models.adapt_model_from_string(create(name), text)
    models.load_checkpoint(loaded, str(tmp_path / "small/model.safetensors"))
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(loaded.eval()(images), small(images), atol=1e-5)
    assert loaded.num_features == small.num_features


@pytest.mark.filterwarnings("ignore")
def test_a_network_that_the_format_does_not_describe_is_refused(tmp_path: Path) -> None:
    original = create("regnetx_002")  # with grouped convolutions
    with pytest.raises(ExportError, match=r"format of timm does not describe .* result\.save"):
        save_timm(halve(original), original, tmp_path / "small")
    assert not (tmp_path / "small").exists()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "timm.models", None)
    model = nn.Linear(3, 2)
    with pytest.raises(MissingPackageError, match=r"needs timm .*: pip install timm"):
        save_timm(model, model, tmp_path)
    assert shapes_string(model) == "weight:[2, 3]***bias:[2]"
