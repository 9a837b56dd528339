"""Round trips of networks of timm and torchvision: export, import, prune, write back."""

import tempfile
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

import entrim
import entrim.onnx
from entrim.errors import EntrimError
from experiments.errors import MissingPackageError

SIZE = 64
"""Height and width of the images."""
TIMM = ("resnet18", "resnet26d", "resnext50_32x4d", "wide_resnet50_2", "seresnet50")
TIMM += ("skresnet18", "resnest14d", "res2net50_14w_8s", "ecaresnet26t", "regnetx_002")
TIMM += ("regnety_002", "vgg11_bn", "densenet121", "dla34", "hrnet_w18_small", "cspresnet50")
TIMM += ("mobilenetv2_050", "mobilenetv3_small_050", "mnasnet_small", "efficientnet_lite0")
TIMM += ("tf_efficientnetv2_b0", "mixnet_s", "ghostnet_050", "rexnet_100", "lcnet_050")
TIMM += ("tinynet_e", "repvgg_a0", "mobileone_s0", "selecsls42b", "xception41", "ese_vovnet19b_dw")
TIMM += ("convnext_atto", "nf_regnet_b0", "gernet_s")
TORCHVISION = ("alexnet", "squeezenet1_1", "shufflenet_v2_x0_5", "googlenet")
NAMES = (*(f"timm {name}" for name in TIMM), *(f"torchvision {name}" for name in TORCHVISION))


def build(name: str) -> nn.Module:
    """Return a network with random weights and statistics in eval mode."""
    library, architecture = name.split()
    try:
        package: Any = import_module(library)
    except ImportError as error:
        raise MissingPackageError("networks of other libraries", library) from error
    if library == "timm":
        model = package.create_model(architecture, num_classes=10)
    else:
        options = {"init_weights": False} if architecture == "googlenet" else {}
        model = package.models.get_model(architecture, num_classes=10, **options)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    return model.eval()


def export(model: nn.Module, file: Path) -> None:
    """Export a network as users do, with the default exporter."""
    image = torch.randn(2, 3, SIZE, SIZE)
    torch.onnx.export(model, (image,), str(file), dynamo=True, verbose=False, external_data=False)


def roundtrip(name: str) -> dict[str, Any]:
    """Return the outcome: "not exported", "written", or the sentence of an error."""
    torch.manual_seed(0)
    model = build(name)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        file = Path(folder, "net.onnx")
        try:
            export(model, file)
        except Exception as error:
            return {"outcome": "not exported", "reason": type(error).__name__}
        try:
            return prune_file(file)
        except EntrimError as error:
            return {"outcome": str(error)}


def prune_file(file: Path) -> dict[str, Any]:
    """Return the figures of a file of which two thirds of the channels were kept at random."""
    model = entrim.onnx.load(file)
    batch, *shape = model.nodes.shapes[0]
    images = torch.randn((max(batch, 2), *shape), generator=torch.Generator().manual_seed(1))
    with entrim.Pruner(
        model,
        images,
        selector="random",
        reconstruction=None,
        calibration=entrim.Calibration(holdout=0),
    ) as pruner:
        result = pruner.prune(entrim.Widths(2 / 3))
    written = entrim.onnx.save(result, file.with_name(f"{file.stem}-small.onnx"))
    sizes = result.record.before.params, result.record.after.params
    return {
        "outcome": "written",
        "nodes": len(model.nodes.steps),
        "groups": len(result.record.groups),
        "params": sizes,
        "parity": written.parity,
    }
