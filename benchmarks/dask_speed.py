"""The table of docs/guides/dask.md, of blocks on threads: `python benchmarks/dask_speed.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import scipy.ndimage
import scipy.signal
import torch
from turns import medians

import convalgos.dask as cd

SECONDS = 5.0  # of a row
IMAGES = ((4000, 3, 1000), (4000, 15, 1000), (4000, 31, 1000))  # size, taps along an axis, chunks
LAYERS = ((16, 64, 112, 128, 4), (32, 256, 28, 256, 8))  # images, channels, size, filters, images of a chunk


def made(x: np.ndarray, chunks: Any) -> da.Array:
    """x in chunks that tasks have made."""
    return da.from_array(x, chunks).map_blocks(np.array)


def by_torch(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The correlation of images (n, channels, rows, columns), padded so that they keep their size."""
    given = torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(w)
    return torch.nn.functional.conv2d(*given, padding="same").numpy()


def on_image(size: int, taps: int, chunk: int) -> list[Callable[[], Any]]:
    """Ours, then SciPy's two and PyTorch's by `map_overlap`."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((size, size), np.float32), rng.standard_normal((taps, taps), np.float32)
    arrays, flipped, images, filters = made(x, chunk), w[::-1, ::-1].copy(), x[None, None], w[None, None]
    layers = made(images, (1, 1, chunk, chunk))

    def overlapped(function: Callable[..., Any]) -> Any:
        return arrays.map_overlap(function, depth=taps // 2, boundary=0, dtype="f4").compute()

    calls = [
        lambda: cd.conv(layers, filters, padding="same").compute(),
        lambda: overlapped(lambda block: scipy.ndimage.correlate(block, w, mode="constant")),
        lambda: overlapped(lambda block: scipy.signal.oaconvolve(block, flipped, "same")),
        lambda: overlapped(lambda block: by_torch(block[None, None], filters)[0, 0]),
    ]
    return calls if taps < 10 else [calls[0], *calls[2:]]  # `ndimage.correlate` takes minutes


def on_layer(images: int, channels: int, size: int, filters: int, chunk: int) -> list[Callable[[], Any]]:
    """Ours, then PyTorch's by `map_blocks`."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((images, channels, size, size), np.float32)
    w = rng.standard_normal((filters, channels, 3, 3), np.float32)
    blocks = made(x, (chunk, -1, -1, -1))
    theirs = {"chunks": (blocks.chunks[0], filters, size, size), "dtype": "f4"}
    return [
        lambda: cd.conv(blocks, w, padding="same").compute(),
        lambda: blocks.map_blocks(by_torch, w, **theirs).compute(),
    ]


def main() -> None:
    for text, rows, calls_of in (("image", IMAGES, on_image), ("layer", LAYERS, on_layer)):
        for row in rows:
            calls = calls_of(*row)
            expected = np.squeeze(calls[0]())
            assert all(abs(np.squeeze(c()) - expected).max() <= 1e-3 * abs(expected).max() for c in calls[1:])
            ours, *theirs = medians(calls, SECONDS, 3)
            others = ", ".join(f"{t / ours:.1f} times" for t in theirs)
            print(f"{text} {row}: {1e3 * ours:.0f} ms; others in order {others}", flush=True)


if __name__ == "__main__":
    main()
