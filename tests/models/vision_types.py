"""Networks of timm and torchvision with random weights: the smallest of each family, small images.

Run as a script it compiles them, each in a process of its own, and says which equal eager at a
batch that they were not traced for:

    python -m tilewright.tests.models.vision_types [--only resnet18] [--out FILE.jsonl] [--jobs 4]
"""

import inspect
from collections.abc import Callable
from typing import Any

from . import apart, sweep

# network -> the side of its images, and arguments besides
SHALLOW = {"depth": 2}
TIMM: dict[str, tuple[int, dict[str, Any]]] = {
    "resnet18": (64, {}),
    "resnext50_32x4d": (64, {"layers": (1, 1, 1, 1)}),
    "seresnet18": (64, {}),
    "resnetv2_18": (64, {}),
    "skresnet18": (64, {}),
    "res2net50_14w_8s": (64, {"layers": (1, 1, 1, 1)}),
    "resnest14d": (64, {}),
    "legacy_seresnet18": (64, {}),
    "botnet26t_256": (128, {"img_size": 128}),
    "test_byobnet": (64, {}),
    "repvgg_a0": (64, {}),
    "gernet_s": (64, {}),
    "mobileone_s0": (64, {}),
    "cs3darknet_focus_s": (64, {}),
    "cspresnet50": (64, {}),
    "cspnext_tiny": (64, {}),
    "densenet121": (64, {"block_config": (2, 2, 2, 2)}),
    "dla46_c": (64, {}),
    "dpn48b": (64, {}),
    "vovnet39a": (64, {}),
    "hrnet_w18_small": (64, {}),
    "regnetx_002": (64, {}),
    "rexnet_100": (64, {}),
    "selecsls42": (64, {}),
    "tresnet_m": (64, {"layers": (1, 1, 1, 1)}),
    "xception41": (96, {}),
    "legacy_xception": (96, {}),
    "inception_v4": (128, {}),
    "inception_resnet_v2": (128, {}),
    "nfnet_l0": (64, {}),
    "vgg11_bn": (64, {}),
    "hgnetv2_b0": (64, {}),
    "mobilenetv3_small_050": (64, {}),
    "lcnet_035": (64, {}),
    "tinynet_e": (64, {}),
    "mnasnet_small": (64, {}),
    "efficientnet_b0": (64, {}),
    "mixnet_s": (64, {}),
    "hardcorenas_a": (64, {}),
    "ghostnet_050": (64, {}),
    "repghostnet_050": (64, {}),
    "mobilenetv4_conv_small_035": (64, {}),
    "convnext_atto": (64, {}),
    "convmixer_768_32": (64, {}),
    "inception_next_atto": (64, {}),
    "edgenext_xx_small": (64, {}),
    "starnet_s050": (64, {}),
    "shvit_s1": (128, {}),
    "fasternet_t0": (64, {}),
    "rdnet_tiny": (64, {}),
    "mambaout_femto": (64, {}),
    "repvit_m0_9": (64, {}),
    "fastvit_t8": (64, {}),
    "vit_tiny_patch16_224": (64, {"img_size": 64, **SHALLOW}),
    "deit_tiny_distilled_patch16_224": (64, {"img_size": 64, **SHALLOW}),
    "beit_base_patch16_224": (64, {"img_size": 64, **SHALLOW}),
    "eva02_tiny_patch14_224": (56, {"img_size": 56, **SHALLOW}),
    "cait_xxs24_224": (64, {"img_size": 64, **SHALLOW}),
    "xcit_nano_12_p16_224": (64, {"img_size": 64, **SHALLOW}),
    "convit_tiny": (64, {"img_size": 64}),
    "crossvit_9_240": (240, {}),
    "coat_lite_tiny": (64, {"img_size": 64}),
    "davit_tiny": (64, {"depths": (1, 1, 1, 1)}),
    "efficientformer_l1": (224, {}),
    "efficientformerv2_s0": (224, {}),
    "efficientvit_b0": (64, {}),
    "efficientvit_m0": (224, {}),
    "focalnet_tiny_srf": (64, {}),
    "gcvit_xxtiny": (224, {}),
    "gmixer_12_224": (64, {"img_size": 64}),
    "mixer_s32_224": (64, {"img_size": 64}),
    "resmlp_12_224": (64, {"img_size": 64}),
    "gmlp_ti16_224": (64, {"img_size": 64}),
    "hiera_tiny_224": (224, {"stages": (1, 1, 1, 1)}),
    "levit_128s": (224, {}),
    "coatnet_nano_rw_224": (64, {"img_size": 64}),
    "maxvit_tiny_tf_224": (64, {"img_size": 64}),
    "poolformer_s12": (64, {}),
    "caformer_s18": (64, {}),
    "mobilevit_xxs": (64, {}),
    "mobilevitv2_050": (64, {}),
    "mvitv2_tiny": (64, {"img_size": 64}),
    "nest_tiny": (64, {"img_size": 64}),
    "nextvit_small": (64, {"depths": (1, 1, 5, 1)}),
    "pit_ti_224": (64, {"img_size": 64}),
    "pvt_v2_b0": (64, {}),
    "sequencer2d_s": (64, {"img_size": 64, "layers": (1, 1, 1, 1)}),
    "swiftformer_xs": (64, {}),
    "swin_tiny_patch4_window7_224": (56, {"img_size": 56, "depths": (1, 2, 1, 1)}),
    "swinv2_cr_tiny_224": (64, {"img_size": 64, "depths": (1, 2, 1, 1)}),
    "swinv2_tiny_window8_256": (64, {"img_size": 64, "depths": (1, 2, 1, 1)}),
    "tiny_vit_5m_224": (224, {"depths": (1, 1, 1, 1)}),
    "tnt_s_patch16_224": (64, {"img_size": 64, **SHALLOW}),
    "twins_pcpvt_small": (64, {"img_size": 64, "depths": (1, 1, 1, 1)}),
    "visformer_tiny": (64, {"img_size": 64, "depth": (1, 1, 1)}),
    "vit_relpos_small_patch16_224": (64, {"img_size": 64, **SHALLOW}),
    "volo_d1_224": (64, {"img_size": 64}),
}
TORCHVISION: dict[str, tuple[int, dict[str, Any]]] = {
    "alexnet": (64, {}),
    "squeezenet1_1": (64, {}),
    "googlenet": (64, {"init_weights": False}),
    "inception_v3": (96, {"init_weights": False}),
    "mobilenet_v2": (64, {}),
    "shufflenet_v2_x0_5": (64, {}),
    "segmentation.lraspp_mobilenet_v3_large": (64, {"weights_backbone": None}),
    "segmentation.deeplabv3_mobilenet_v3_large": (64, {"weights_backbone": None}),
    "video.r2plus1d_18": (32, {}),
    "video.s3d": (224, {}),
}


def build(name: str) -> tuple[Any, Callable[[int], dict[str, Any]]]:
    """A network whose normalizations are not those that it starts with, and batches of images."""
    import torch

    torchvision = import_torchvision()  # timm asks for it
    torch.manual_seed(0)
    if name in TIMM:
        import timm

        side, arguments = TIMM[name]
        model = timm.create_model(name, num_classes=10, **arguments)
    else:
        side, arguments = TORCHVISION[name]
        family, _, made = name.rpartition(".")
        models = torchvision.models
        model = getattr(getattr(models, family) if family else models, made)(**arguments)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(getattr(module, "running_var", None), torch.Tensor):
                module.running_mean.normal_(0, 0.3)
                module.running_var.uniform_(0.5, 2)
    argument = next(iter(inspect.signature(model.forward).parameters))
    size = (14,) * name.startswith("video.") + (side, side)

    def inputs_for(batch: int) -> dict[str, Any]:
        rng = torch.Generator().manual_seed(batch)
        return {argument: torch.randn(batch, 3, *size, generator=rng)}

    return apart.perturb(model.eval()), inputs_for


def import_torchvision() -> Any:
    """Torchvision; where its C++ part does not load, what its Python part asks for is declared."""
    import torch

    try:
        import torchvision
    except RuntimeError:
        for name in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)
        import torchvision
    return torchvision


if __name__ == "__main__":
    import_torchvision()
    import timm  # noqa: F401  before forking

    sweep.main(str(__doc__), [*TIMM, *TORCHVISION], build)
