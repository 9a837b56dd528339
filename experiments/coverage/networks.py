"""The networks of the coverage table: names by library, and functions that build them."""

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn

from experiments.operators import define_missing_operators

Network = tuple[nn.Module, torch.Tensor]
"""A network in eval mode, and two images."""

TIMM: dict[int, str] = {
    64: """
        bat_resnext26ts convnext_atto convnext_atto_rms convnextv2_atto convnext_zepto_rms
        cs3darknet_s cs3sedarknet_l cspresnet50 cspresnext50 darknet17 cspnext_tiny densenet121
        dla34 dla46x_c dpn68 eca_resnet33ts edgenext_xx_small efficientnet_b0 efficientnet_b0_gn
        efficientnet_lite0 efficientvit_b0 ese_vovnet19b_dw fasternet_t0 fbnetc_100 fastvit_t8
        focalnet_tiny_srf gernet_s ghostnet_050 ghostnetv2_100 ghostnetv3_100 hgnet_tiny hgnetv2_b0
        inception_next_atto lcnet_050 legacy_seresnet18 mambaout_femto mixnet_s mobilenetv1_100
        mobilenetv2_050 mobilenetv3_small_050 mobilenetv4_conv_small mobileone_s0 nf_regnet_b0
        nf_resnet26 nfnet_l0 poolformer_s12 convformer_s18 caformer_s18 rdnet_tiny regnetx_002
        regnety_002 regnetz_005 repghostnet_050 repvgg_a0 repvit_m0_9 res2net50_14w_8s resnest14d
        resnet10t resnet18 resnet50_gn resnetblur18 resnetv2_50 resnext26ts rexnet_100
        sebotnet33ts_256 selecsls42 semnasnet_050 skresnet18 spnasnet_100 starnet_s1 tinynet_e
        vgg11 vgg11_bn xcit_nano_12_p8_224 resnetv2_50x1_bit tresnet_m
    """,
    96: "inception_v3 xception41",
    224: "coat_tiny efficientformer_l1 efficientvit_m0 levit_128s levit_conv_128s pit_ti_224"
    " mobilevit_xxs mobilevitv2_050",
}
"""Networks of timm by the side of their images."""
TIMM_RESIZED = """
    cait_xxs24_224 convit_tiny crossvit_9_240 deit_tiny_patch16_224 eva02_tiny_patch14_224
    gmixer_12_224 gmlp_ti16_224 hiera_tiny_224 mixer_s32_224 mvitv2_tiny pvt_v2_b0 resmlp_12_224
    swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 vit_tiny_patch16_224 vit_small_patch32_224
    maxvit_pico_rw_256 coatnet_pico_rw_224
"""
"""Networks of timm that are built for small images where they accept it."""
TORCHVISION: dict[int, str] = {
    64: """
        convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet mnasnet0_5 mnasnet1_0
        mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet18
        resnet34 resnet50 resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0 wide_resnet50_2
        squeezenet1_0 squeezenet1_1 vgg11_bn vgg16 swin_t swin_v2_t fcn_resnet50 deeplabv3_resnet50
        deeplabv3_mobilenet_v3_large lraspp_mobilenet_v3_large
    """,
    96: "alexnet inception_v3",
    224: "vit_b_32 maxvit_t",
}
VIDEO = "r3d_18 mc3_18 r2plus1d_18"
"""Networks of torchvision for 16 frames of 32 x 32 pixels."""
SEGMENTATION = """
    Unet-resnet18 Unet-vgg11_bn Unet-mobilenet_v2 Unet-efficientnet-b0 Unet-densenet121 Unet-mit_b0
    Unet-timm-skresnet18 Unet-se_resnet50 UnetPlusPlus-resnet18 UnetPlusPlus-mobilenet_v2
    MAnet-resnet18 Linknet-resnet18 Linknet-mobilenet_v2 FPN-resnet18 FPN-mobilenet_v2
    FPN-efficientnet-b0 PSPNet-resnet18 PSPNet-mobilenet_v2 PAN-resnet18 PAN-mobilenet_v2
    DeepLabV3-resnet18 DeepLabV3-mobilenet_v2 DeepLabV3Plus-resnet18 DeepLabV3Plus-mobilenet_v2
    UPerNet-resnet18 UPerNet-mobilenet_v2 Segformer-mit_b0 Segformer-resnet18
"""
"""Architecture and encoder."""
ULTRALYTICS = """
    yolov3-tiny yolov5n yolov6n yolov8n yolov8n-ghost yolov8n-p2 yolov9t yolov10n yolo11n yolo12n
    yolov8n-cls yolo11n-cls yolov8n-seg yolo11n-seg yolov8n-pose yolov8n-obb
"""
PYTORCHCV: dict[int, str] = {
    64: """
        bagnet9 bninception darknet_tiny densenet121 dicenet_w1 dla34 dpn68 drnc26 espnetv2_wd2
        fbnet_cb hardnet39ds hrnet_w18_small_v1 lednet_cityscapes menet108_8x1_g3 mixnet_s
        mobilenet_wd4 mobilenetv2_wd4 mobilenetv3_small_w7d20 msdnet22 peleenet preresnet10
        preresnet18 proxylessnas_mobile regnetx002 regnety002 resnesta18 resnestabc14 resnet10
        resnet18_wd4 resneta10 resnetd50b revnet38 selecsls42 sepreresnet10 seresnet10
        shufflenet_g1_wd4 shufflenet_g3_wd4 shufflenetv2_wd2 squeezenet_v1_1 squeezeresnet_v1_0
        sqnxt23_w1 vgg11 vovnet27s bisenet_resnet18_celebamaskhq cgnet_cityscapes diracnet18v2
        efficientnet_b0 fastscnn_cityscapes linknet_cityscapes sinet_cityscapes unet_cityscapes
    """,
    32: """
        densenet40_k12_cifar10 diapreresnet20_cifar10 diaresnet20_cifar10 nin_cifar10
        preresnet20_cifar10 resdropresnet20_cifar10 resnet20_cifar10 rir_cifar10 seresnet20_cifar10
        shakedropresnet20_cifar10 xdensenet40_2_k24_bc_cifar10
    """,
    96: "inceptionv3 xception",
}


def timm(name: str, side: int, *, resized: bool = False) -> Network:
    """Return a network of timm; `resized` builds it for images of this side."""
    create: Any = import_module("timm").create_model
    settings = {"img_size": side} if resized else {}
    return create(name, num_classes=20, **settings), torch.randn(2, 3, side, side)


def torchvision(name: str, side: int) -> Network:
    """Return a network of torchvision for images."""
    models: Any = import_module("torchvision").models
    settings: dict[str, Any] = {"num_classes": 20}
    if name in ("googlenet", "inception_v3"):
        settings |= {"aux_logits": False, "init_weights": False}
    if name.startswith(("fcn", "deeplab", "lraspp")):
        settings |= {"weights_backbone": None}
    return models.get_model(name, **settings), torch.randn(2, 3, side, side)


def video(name: str) -> Network:
    """Return a network of torchvision for videos."""
    models: Any = import_module("torchvision").models
    model = models.get_model(name, num_classes=20)
    return model, torch.randn(2, 3, 16, 32, 32)


def segmentation(name: str) -> Network:
    """Return a network of segmentation-models-pytorch, from `Architecture-encoder`."""
    architecture, _, encoder = name.partition("-")
    smp: Any = import_module("segmentation_models_pytorch")
    model = smp.create_model(architecture.lower(), encoder, encoder_weights=None, classes=3)
    return model, torch.randn(2, 3, 64, 64)


def ultralytics(name: str) -> Network:
    """Return the network inside of a YOLO; fused for inference as `YOLO.predict` does."""
    yolo: Any = import_module("ultralytics").YOLO
    return yolo(f"{name}.yaml", verbose=False).model, torch.randn(2, 3, 64, 64)


def pytorchcv(name: str, side: int) -> Network:
    """Return a network of pytorchcv."""
    provider: Any = import_module("pytorchcv.model_provider")
    if name.startswith("jasper"):
        return provider.get_model(name), torch.randn(2, 64, 64)
    settings = {"in_size": (side, side)} if name.endswith(("cityscapes", "halmaskhq")) else {}
    return provider.get_model(name, **settings), torch.randn(2, 3, side, side)


STAGES = {"embedding_size": 16, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 2, 2, 1]}
WIDE = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1]}
PLAIN = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "image_size": 64,
    "patch_size": 8,
}
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "ResNetForImageClassification": STAGES,
    "RegNetForImageClassification": {**STAGES, "groups_width": 8},
    "BitForImageClassification": {**STAGES, "hidden_sizes": [64, 64, 96, 128], "num_groups": 8},
    "ConvNextForImageClassification": WIDE,
    "ConvNextV2ForImageClassification": WIDE,
    "MobileNetV1ForImageClassification": {"depth_multiplier": 0.25, "image_size": 64},
    "MobileNetV2ForImageClassification": {"depth_multiplier": 0.35, "image_size": 64},
    "MobileViTForImageClassification": {"image_size": 64},
    "MobileViTV2ForImageClassification": {"image_size": 64, "width_multiplier": 0.5},
    "EfficientNetForImageClassification": {"width_coefficient": 0.5, "hidden_dim": 1280},
    "PoolFormerForImageClassification": {"hidden_sizes": [16, 32, 48, 64]},
    "VanForImageClassification": {},
    "FocalNetForImageClassification": {"embed_dim": 24, "depths": [1, 1, 2, 1], "image_size": 64},
    "LevitForImageClassification": {},
    "CvtForImageClassification": {},
    "SegformerForImageClassification": {},
    "SegformerForSemanticSegmentation": {},
    "SwinForImageClassification": {"embed_dim": 24, "depths": [1, 1, 2, 1], "image_size": 64},
    "Swinv2ForImageClassification": {"embed_dim": 24, "depths": [1, 1, 2, 1], "image_size": 64},
    "PvtForImageClassification": {"image_size": 64},
    "PvtV2ForImageClassification": {"image_size": 64},
    "ViTForImageClassification": PLAIN,
    "DeiTForImageClassification": PLAIN,
    "BeitForImageClassification": PLAIN,
    "Dinov2ForImageClassification": PLAIN,
    "ViTMAEForPreTraining": PLAIN,
    "SwiftFormerForImageClassification": {},
    "HGNetV2ForImageClassification": {},
    "TextNetForImageClassification": {},
    "UperNetForSemanticSegmentation": {},
    "DPTForDepthEstimation": {**PLAIN, "backbone_out_indices": [0, 1, 2, 2]},
    "HieraForImageClassification": {"embed_dim": 24, "depths": [1, 1, 2, 1]},
    "IJepaForImageClassification": PLAIN,
    "CLIPVisionModel": PLAIN,
    "SiglipVisionModel": PLAIN,
    "AlignVisionModel": {"width_coefficient": 0.5},
}
"""Classes of transformers, and the settings of their configuration."""
NATIVE = ("Levit", "Cvt", "SwiftFormer", "Hiera")
"""Networks of transformers whose images keep the usual 224 x 224 pixels."""


def transformers(name: str) -> Network:
    """Return a network of transformers, from a configuration."""
    library: Any = import_module("transformers")
    network = getattr(library, name)
    config = network.config_class(**TRANSFORMERS[name])
    if name.endswith("Classification"):
        config.num_labels = 20
    side = 224 if name.startswith(NATIVE) else 64
    return network(config), torch.randn(2, 3, side, side)


def _unet3d(name: str, **settings: Any) -> Network:
    nets: Any = import_module("monai.networks.nets")
    return getattr(nets, name)(**settings), torch.randn(2, 1, 32, 32, 32)


def _plane(name: str, side: int = 64, **settings: Any) -> Network:
    nets: Any = import_module("monai.networks.nets")
    return getattr(nets, name)(**settings), torch.randn(2, 1, side, side)


_IN2 = {"spatial_dims": 2, "in_channels": 1, "out_channels": 3}
_IN3 = {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}
_SCALES = {"channels": (8, 16, 32, 64), "strides": (2, 2, 2)}
_DYN = {"kernel_size": [3, 3, 3, 3], "strides": [1, 2, 2, 2], "upsample_kernel_size": [2, 2, 2]}
MONAI: dict[str, Callable[[], Network]] = {
    "UNet": functools.partial(_unet3d, "UNet", **_IN3, **_SCALES),
    "UNet-res": functools.partial(_unet3d, "UNet", **_IN3, **_SCALES, num_res_units=2),
    "BasicUNet": functools.partial(_unet3d, "BasicUNet", **_IN3, features=(8, 8, 16, 32, 64, 8)),
    "BasicUNet-2d": functools.partial(_plane, "BasicUNet", **_IN2),
    "BasicUNetPlusPlus": functools.partial(_plane, "BasicUNetPlusPlus", **_IN2),
    "AttentionUnet": functools.partial(_plane, "AttentionUnet", **_IN2, **_SCALES),
    "DynUNet": functools.partial(_unet3d, "DynUNet", **_IN3, **_DYN),
    "SegResNet": functools.partial(_unet3d, "SegResNet", init_filters=8),
    "SegResNetDS": functools.partial(_unet3d, "SegResNetDS", init_filters=8),
    "VNet": functools.partial(_unet3d, "VNet"),
    "HighResNet": functools.partial(_unet3d, "HighResNet"),
    "DenseNet121": functools.partial(_plane, "DenseNet121", **_IN2),
    "SEResNet50": functools.partial(
        _plane, "SEResNet50", spatial_dims=2, in_channels=1, num_classes=3
    ),
    "ResNet18": functools.partial(
        _plane, "resnet18", spatial_dims=2, n_input_channels=1, num_classes=3
    ),
    "EfficientNetBN": functools.partial(
        _plane,
        "EfficientNetBN",
        model_name="efficientnet-b0",
        pretrained=False,
        spatial_dims=2,
        in_channels=1,
        num_classes=3,
    ),
    "FlexibleUNet": functools.partial(
        _plane, "FlexibleUNet", in_channels=1, out_channels=3, backbone="resnet18", spatial_dims=2
    ),
    "AutoEncoder": functools.partial(_plane, "AutoEncoder", **_IN2, **_SCALES),
    "MedNeXtS": functools.partial(_unet3d, "MedNeXtSmall", **_IN3),
    "UNETR": functools.partial(
        _plane,
        "UNETR",
        in_channels=1,
        out_channels=3,
        img_size=64,
        spatial_dims=2,
        hidden_size=96,
        mlp_dim=192,
        num_heads=4,
    ),
    "SwinUNETR": functools.partial(
        _plane, "SwinUNETR", in_channels=1, out_channels=3, spatial_dims=2, feature_size=12
    ),
    "ViT": functools.partial(
        _plane,
        "ViT",
        in_channels=1,
        img_size=64,
        patch_size=16,
        spatial_dims=2,
        hidden_size=96,
        mlp_dim=192,
        num_layers=3,
        num_heads=4,
        classification=True,
    ),
}
"""Networks of monai, most of them for volumes of 32 x 32 x 32 voxels."""


def _by_side(
    library: str, build: Callable[..., Network], names: dict[int, str]
) -> dict[str, Callable[[], Network]]:
    return {
        f"{library}/{name}": functools.partial(build, name, side)
        for side, some in names.items()
        for name in some.split()
    }


def _by_name(
    library: str, build: Callable[..., Network], names: str
) -> dict[str, Callable[[], Network]]:
    return {f"{library}/{name}": functools.partial(build, name) for name in names.split()}


NETWORKS: dict[str, Callable[[], Network]] = {
    **_by_side("timm", timm, TIMM),
    **{
        f"timm/{name}": functools.partial(timm, name, 128, resized=True)
        for name in TIMM_RESIZED.split()
    },
    **_by_side("torchvision", torchvision, TORCHVISION),
    **_by_name("torchvision", video, VIDEO),
    **_by_name("transformers", transformers, " ".join(TRANSFORMERS)),
    **_by_name("segmentation-models-pytorch", segmentation, SEGMENTATION),
    **{f"monai/{name}": build for name, build in MONAI.items()},
    **_by_name("ultralytics", ultralytics, ULTRALYTICS),
    **_by_side("pytorchcv", pytorchcv, PYTORCHCV),
}
"""Library and name -> a function that builds the network."""


def build(name: str) -> Network:
    """Return a network with random weights from seed 0, in eval mode, and two images."""
    define_missing_operators()
    torch.manual_seed(0)
    model, images = NETWORKS[name]()
    return model.eval().float(), images
