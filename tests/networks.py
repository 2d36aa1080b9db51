"""Networks that tests and benchmarks run: those of torchvision, untrained, a U-Net and an RRDB.

Norms of untrained networks get numbers of their own: with those they start with, merging changes nothing.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def why_no_torchvision() -> str | None:
    """Why its models cannot be built here, or None."""
    try:
        _import_torchvision()
    except (ImportError, RuntimeError) as error:
        return f"torchvision cannot be imported ({error}); CI installs it"
    return None


def _import_torchvision():
    """torchvision, also one built for another torch, whose operators are not there; its models need none."""
    if importlib.util.find_spec("torchvision") is None:
        raise ImportError("not installed")
    try:
        import torchvision
    except RuntimeError:  # "operator torchvision::nms does not exist"
        schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", schema)
        import torchvision

    return torchvision


def torchvision_model(name: str) -> nn.Module:
    """An untrained model of torchvision in eval, with few blocks where it repeats one of a kind."""
    torch.manual_seed(0)
    models = _import_torchvision().models
    if name == "densenet":
        model = models.DenseNet(growth_rate=8, block_config=(2, 3, 2), num_init_features=16)
    elif name == "convnext":
        stages = zip((24, 48, 96), (48, 96, None), (1, 2, 1), strict=True)
        model = models.ConvNeXt([models.convnext.CNBlockConfig(*sizes) for sizes in stages])
    elif name == "resnet":
        model = models.ResNet(models.resnet.BasicBlock, [2, 1, 1, 1])
    else:
        model = models.get_model(name, weights=None)
    return with_own_norms(model)


def with_own_norms(model: nn.Module) -> nn.Module:
    """In eval, with means and variances that a trained model could have."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    return model.eval()


def rapidocr_model(part: str) -> Path | None:
    """The trained network of a part of rapidocr-onnxruntime: det, cls or rec; None where it is not there."""
    package = importlib.util.find_spec("rapidocr_onnxruntime")
    if package is None or package.origin is None:
        return None
    found = sorted((Path(package.origin).parent / "models").glob(f"*_{part}_infer.onnx"))
    return found[0] if found else None


class UNet(nn.Module):
    """Maps go down by pooling and up by transposed convolutions, and are joined with those on the way down.

    Source: Ronneberger et al. 2015, arXiv:1505.04597.
    """

    def __init__(self, channels: int = 32, depth: int = 4):
        super().__init__()
        sizes = [channels << level for level in range(depth + 1)]
        self.down = nn.ModuleList(_twice(c, k) for c, k in zip([3, *sizes], sizes, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * k, k, 2, stride=2) for k in reversed(sizes[:-1]))
        self.joined = nn.ModuleList(_twice(2 * k, k) for k in reversed(sizes[:-1]))
        self.last = nn.Conv2d(channels, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        levels = []
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            levels.append(x)
        for up, block, before in zip(self.up, self.joined, reversed(levels[:-1]), strict=True):
            x = block(torch.cat((before, up(x)), 1))
        return self.last(x)


def _twice(c: int, k: int) -> nn.Sequential:
    layers = []
    for n in (c, k):
        layers += [nn.Conv2d(n, k, 3, padding=1, bias=False), nn.BatchNorm2d(k), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class _Dense(nn.Module):
    def __init__(self, channels: int, growth: int):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv2d(channels + i * growth, growth if i < 4 else channels, 3, padding=1) for i in range(5)
        )

    def forward(self, x: Tensor) -> Tensor:
        maps = [x]
        for layer in self.layers[:-1]:
            maps.append(F.leaky_relu(layer(torch.cat(maps, 1)), 0.2))
        return self.layers[-1](torch.cat(maps, 1)) * 0.2 + x


class RRDB(nn.Module):
    """Residual blocks of dense blocks, and four times the size: super-resolution.

    Source: Wang et al. 2018, arXiv:1809.00219 (ESRGAN).
    """

    def __init__(self, channels: int = 64, growth: int = 32, blocks: int = 2):
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.body = nn.ModuleList(
            nn.Sequential(*(_Dense(channels, growth) for _ in range(3))) for _ in range(blocks)
        )
        self.up = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.last = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = x
        for block in self.body:
            y = block(y) * 0.2 + y
        y = y + x
        for up in self.up:
            y = F.leaky_relu(up(F.interpolate(y, scale_factor=2, mode="nearest")), 0.2)
        return self.last(y)
