"""Real JPEG files of a size, generated: smooth areas, edges and some noise, as photographs have."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

QUALITY = 90
DISTINCT = 4  # pictures; the files are copies of them
COARSE, NOISE = 24, 6.0  # points of the smooth ground along the shorter side; grey levels

READ = 1 << 20  # bytes at a time


def write_images(folder: Path, width: int, height: int, count: int) -> list[Path]:
    """Write so many files into a folder, and see that they have left the program for the file system."""
    encoded = [_encode(_picture(width, height, seed)) for seed in range(min(count, DISTINCT))]
    paths = []
    for i in range(count):
        path = folder / f"{width}x{height}_{i:03d}.jpg"
        with path.open("wb") as file:
            file.write(encoded[i % len(encoded)])
            file.flush()
            os.fsync(file.fileno())  # else it could not be dropped from memory
        paths.append(path)
    return paths


def read_files(paths: list[Path], *, cached: bool) -> int:
    """Read files whole, and return their bytes.

    Args:
        cached: False asks the system to drop them from its memory before, which it may not do everywhere.
    """
    total = 0
    for path in paths:
        with path.open("rb", buffering=0) as file:
            if not cached and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while part := file.read(READ):
                total += len(part)
    return total


def _picture(width: int, height: int, seed: int) -> np.ndarray:
    """(height, width, 3) bytes."""
    from PIL import Image

    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (COARSE, COARSE * width // height, 3), np.uint8)
    ground = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    edges = Image.fromarray(coarse[::4, ::4]).resize((width, height), Image.Resampling.NEAREST)
    mixed = np.asarray(Image.blend(ground, edges, 0.3), np.float32)  # (height, width, 3)
    mixed += random.normal(0, NOISE, (height, width, 1)).astype(np.float32)
    return np.clip(mixed, 0, 255).astype(np.uint8)


def _encode(picture: np.ndarray) -> bytes:
    from io import BytesIO

    from PIL import Image

    file = BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()
