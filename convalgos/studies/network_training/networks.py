"""The networks that are trained, as published, in torch: AlexNet, VGG-16, ResNet-50 and U-Net.

AlexNet is that of two towers (groups=2) without its local response normalisation, which no later network has;
U-Net pads its convolutions, so that its maps keep their sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

CLASSES = 1000
OF_PIXELS = 2  # classes of U-Net


@dataclass(frozen=True)
class TrainedNetwork:
    """A network and what it is trained on.

    Args:
        build: makes the module.
        image: channels, height and width of its input.
        batch: images of a step.
        of_pixels: whether it gives a class to each pixel, and not to the image.
        suite: the embedded suite that has its convolutions.
    """

    name: str
    build: Callable[[], nn.Module]
    image: tuple[int, int, int]
    batch: int
    suite: str
    classes: int = CLASSES
    of_pixels: bool = False


def alexnet() -> nn.Module:
    """Krizhevsky et al. 2012: (N, 3, 227, 227) -> (N, 1000)."""
    convolutions = [
        *(nn.Conv2d(3, 96, 11, 4), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(96, 256, 5, padding=2, groups=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(384, 384, 3, padding=1, groups=2), nn.ReLU(inplace=True)),
        *(nn.Conv2d(384, 256, 3, padding=1, groups=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
    ]
    return nn.Sequential(*convolutions, nn.Flatten(), *_dense(256 * 6 * 6))


def vgg16() -> nn.Module:
    """Simonyan and Zisserman 2014, configuration D: (N, 3, 224, 224) -> (N, 1000)."""
    layers: list[nn.Module] = []
    channels = 3
    for width, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), *_dense(512 * 7 * 7))


def _dense(features: int) -> Iterable[nn.Module]:
    """The three dense layers of AlexNet and VGG-16."""
    for width in (4096, 4096):
        yield from (nn.Linear(features, width), nn.ReLU(inplace=True), nn.Dropout())
        features = width
    yield nn.Linear(features, CLASSES)


class Sum(nn.Module):
    """x + y, as a step of its own."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class JoinedChannels(nn.Module):
    """The channels of x and of y, as a step of its own."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y], 1)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with batch normalisation, and the input added: (N, C, H, W) -> (N, 4*width, H/s, W/s)."""

    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        self.steps = nn.Sequential(
            *(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != 4 * width:
            projection = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(4 * width))
        self.sum, self.last = Sum(), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.sum(self.steps(x), self.shortcut(x)))
        return y


def resnet50() -> nn.Module:
    """He et al. 2015, the stride in the 3x3: (N, 3, 224, 224) -> (N, 1000)."""
    layers: list[nn.Module] = [
        *(nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    channels = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, 2 if stage and not block else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


class UNet(nn.Module):
    """Ronneberger et al. 2015: (N, 1, H, W) -> (N, 2, H, W), with H and W divisible by 16."""

    def __init__(self, width: int = 64):
        super().__init__()
        widths = [width << level for level in range(5)]
        self.down = nn.ModuleList(map(_double, [1, *widths[:-1]], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.joined = nn.ModuleList(_double(2 * w, w) for w in reversed(widths[:-1]))
        self.last = nn.Conv2d(width, OF_PIXELS, 1)
        self.pool, self.join = nn.MaxPool2d(2), JoinedChannels()

    def forward(self, x: Tensor) -> Tensor:
        levels = []
        for level, block in enumerate(self.down):
            x = block(self.pool(x) if level else x)
            levels.append(x)
        for up, joined, skipped in zip(self.up, self.joined, reversed(levels[:-1]), strict=True):
            x = joined(self.join(skipped, up(x)))
        y: Tensor = self.last(x)
        return y


def _double(channels: int, width: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True)),
    )


NETWORKS = (
    TrainedNetwork("AlexNet", alexnet, (3, 227, 227), 16, "alexnet"),
    TrainedNetwork("VGG-16", vgg16, (3, 224, 224), 2, "vgg16"),
    TrainedNetwork("ResNet-50", resnet50, (3, 224, 224), 8, "resnet50"),
    TrainedNetwork("U-Net", UNet, (1, 256, 256), 1, "unet", OF_PIXELS, of_pixels=True),
)
