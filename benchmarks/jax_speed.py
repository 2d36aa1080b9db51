"""The table of docs/guides/jax.md: `python benchmarks/jax_speed.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from turns import medians

import convalgos.jax as cj

SECONDS, TURN = 2.0, 0.05  # of a row, and in which one of the two is called in a row


class Row(NamedTuple):
    """A convolution: channels to filters in groups, of images of a size, padded so that they keep it."""

    text: str
    channels: tuple[int, int, int]
    images: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: int = 1
    dilation: int = 1
    transposed: bool = False
    last: bool = False


ROWS = (
    Row("1-D, one channel, 48,000 samples, 501 taps, dilation 4", (1, 1, 1), 1, (48000,), (501,), 1, 4),
    Row("1-D, 64 signals of 4,800 samples, 101 taps, dilation 2", (1, 1, 1), 64, (4800,), (101,), 1, 2),
    Row("1-D, depthwise, 64 x 4,000, 9 taps, dilation 8", (64, 64, 64), 1, (4000,), (9,), 1, 8),
    Row("1-D, one channel, 1,000 samples, 1,001 taps, transposed, stride 160", (1, 1, 1), 1, (1000,), (1001,),
        160, 1, True),
    Row("1-D, depthwise, 64 x 1,000, 8 taps, transposed, stride 4", (64, 64, 64), 1, (1000,), (8,),
        4, 1, True),
    Row("1-D, 64 to 32 channels, 16 taps, transposed, stride 8", (64, 32, 1), 1, (1000,), (16,), 8, 1, True),
    Row("2-D, 64 channels, 3 x 3, 4 images of 56 x 56, channels last", (64, 64, 1), 4, (56, 56), (3, 3),
        last=True),
    Row("2-D, 3 to 64 channels, 7 x 7, stride 2, 224 x 224", (3, 64, 1), 1, (224, 224), (7, 7), 2),
    Row("2-D, 128 to 64 channels, 4 x 4, transposed, stride 2, 32 x 32", (128, 64, 1), 1, (32, 32), (4, 4),
        2, 1, True),
    Row("2-D, 256 channels, 1 x 1, 28 x 28, channels last", (256, 256, 1), 1, (28, 28), (1, 1), last=True),
)  # fmt: skip


def compiled(convolve: Callable[..., Any], row: Row) -> Callable[..., Any]:
    """The program that convolves x and w by `jax.lax.conv_general_dilated` or ours."""
    space = "HW"[: len(row.size)]
    layout = f"N{space}C" if row.last else f"NC{space}"
    reach = [(k - 1) * row.dilation for k in row.kernel]
    rates = (row.stride,) * len(row.size)
    options = {
        "window_strides": (1,) * len(row.size) if row.transposed else rates,
        "padding": [(r, r) for r in reach] if row.transposed else "SAME",
        "lhs_dilation": rates if row.transposed else None,
        "rhs_dilation": (row.dilation,) * len(row.size),
        "dimension_numbers": (layout, f"{space}IO" if row.last else f"OI{space}", layout),
        "feature_group_count": row.channels[2],
    }
    return jax.jit(lambda x, w: convolve(x, w, **options))


def main() -> None:
    rng = np.random.default_rng(0)
    print("| convolution | convalgos | JAX | ratio |\n|---|---|---|---|")
    for row in ROWS:
        channels, filters, groups = row.channels
        x_shape = (row.images, *row.size, channels) if row.last else (row.images, channels, *row.size)
        of_taps = channels // groups
        w_shape = (*row.kernel, of_taps, filters) if row.last else (filters, of_taps, *row.kernel)
        arrays = [jax.numpy.asarray(rng.standard_normal(s, np.float32)) for s in (x_shape, w_shape)]
        ours, theirs = compiled(cj.conv_general_dilated, row), compiled(jax.lax.conv_general_dilated, row)
        y, wanted = ours(*arrays), theirs(*arrays)
        assert abs(y - wanted).max() <= 1e-4 * abs(wanted).max(), row
        calls = [lambda f=f, given=arrays: f(*given).block_until_ready() for f in (ours, theirs)]
        a, b = medians(calls, SECONDS, turn=TURN)
        print(f"| {row.text} | {1e3 * a:.3g} ms | {1e3 * b:.3g} ms | {b / a:.3g} |", flush=True)


if __name__ == "__main__":
    main()
