"""From a JPEG file to an image of a training batch: read, decode, crop and resize, normalise."""

from __future__ import annotations

import math
import time
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SIDE = 224  # of the images that ResNet-50 is trained on
SHAPE = (3, SIDE, SIDE)
# Of ImageNet, per channel: (3, 1, 1)
MEAN = np.array([[[123.675]], [[116.28]], [[103.53]]], np.float32)
SCALE = 1 / np.array([[[58.395]], [[57.12]], [[57.375]]], np.float32)
AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)  # of a random crop, as torchvision's RandomResizedCrop has them
TRIES = 10
STEPS = ("read", "decode", "crop and resize", "normalise")

Times = tuple[float, ...]  # of the clock, before the first of STEPS and after each


class ImageTask(NamedTuple):
    """An image that is to be loaded: its file, the seed of its crop, and its place in the batch."""

    path: Path
    seed: int
    slot: int


def load_image(task: ImageTask, batch: np.ndarray) -> Times:
    """Put an image into its place of a batch (n, 3, 224, 224), and tell when each step began and ended.

    Raises:
        ValueError: the file is no image, and is named. OSError: it cannot be read.
    """
    from PIL import Image, UnidentifiedImageError

    times = [time.monotonic()]
    data = task.path.read_bytes()
    times.append(time.monotonic())
    try:
        picture = Image.open(BytesIO(data)).convert("RGB")  # which decodes it
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"{task.path} is no image that can be decoded: {error}") from None
    times.append(time.monotonic())
    random = np.random.default_rng(task.seed)
    box = random_box(picture.width, picture.height, random)
    small: Any = picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box)
    times.append(time.monotonic())
    pixels = np.asarray(small)  # (224, 224, 3) bytes
    out = batch[task.slot]  # (3, 224, 224) float32
    np.subtract(pixels.transpose(2, 0, 1), MEAN, out=out)
    out *= SCALE
    if random.random() < 0.5:
        out[:] = out[:, :, ::-1].copy()
    times.append(time.monotonic())
    return tuple(times)


def random_box(width: int, height: int, random: np.random.Generator) -> tuple[int, int, int, int]:
    """(left, upper, right, lower) of a random crop; the whole picture where ten crops did not fit."""
    for _ in range(TRIES):
        area = width * height * random.uniform(*AREA)
        aspect = math.exp(random.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, upper = int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1))
            return left, upper, left + w, upper + h
    return 0, 0, width, height
