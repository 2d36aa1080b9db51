"""The layer functions that are compared: their names, the arrays that they read, and their least work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np

KERNEL, PAD = 3, 1  # of the convolution
UP_KERNEL, UP_STRIDE, UP_PAD = 4, 2, 1  # of the transposed convolution, which doubles a map
MAX_WINDOW, MEAN_WINDOW, POOL_STRIDE = 3, 2, 2
EPSILON = 2e-5  # added to the variance
FUNCTIONS = (
    *("convolution", "convolution dx", "convolution dw", "transposed convolution"),
    *("max pooling", "max pooling dx", "average pooling", "average pooling dx"),
    *("linear", "linear dx", "linear dw", "ReLU", "ReLU dx"),
    *("batch norm", "batch norm dx", "softmax", "softmax dx"),
    "convolution, norm, ReLU",  # of inference: the norm has fixed figures
)

LayerCall = Callable[[], np.ndarray]


@dataclass(frozen=True)
class LayerSizes:
    """Maps (batch, channels, size, size), filters of the convolutions, and rows of the linear layer."""

    batch: int
    channels: int
    size: int
    filters: int
    rows: int
    inputs: int
    classes: int

    def __str__(self) -> str:
        maps = f"{self.batch}x{self.channels}x{self.size}x{self.size}"
        return f"{maps}, {self.filters} filters; {self.rows}x{self.inputs} to {self.classes}"


class LayerData:
    """Random arrays of all functions, float32, and what a forward pass keeps for their gradients."""

    def __init__(self, sizes: LayerSizes, seed: int = 0):
        s, rng = sizes, np.random.default_rng(seed)

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape, np.float32)

        pooled, halved = (s.size - MAX_WINDOW) // POOL_STRIDE + 1, s.size // 2
        self.sizes = sizes
        self.x = normal(s.batch, s.channels, s.size, s.size)
        self.dx = normal(*self.x.shape)  # a gradient of x's shape: of ReLU's and the norm's outputs
        self.w, self.b = normal(s.filters, s.channels, KERNEL, KERNEL), normal(s.filters)
        self.dy = normal(s.batch, s.filters, s.size, s.size)
        self.up_w = normal(s.channels, s.filters, UP_KERNEL, UP_KERNEL)
        self.max_dy = normal(s.batch, s.channels, pooled, pooled)
        self.mean_dy = normal(s.batch, s.channels, halved, halved)
        self.gamma, self.beta = normal(s.channels), normal(s.channels)
        self.scale, self.shift = 1 + abs(normal(s.filters)), normal(s.filters)  # of the fixed norm
        self.rows, self.rows_w = normal(s.rows, s.inputs), normal(s.classes, s.inputs)
        self.rows_b, self.scores = normal(s.classes), normal(s.rows, s.classes)
        self.scores_dy = normal(s.rows, s.classes)

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}


@dataclass(frozen=True)
class Work:
    """The least that a function must do: operations of its definition, and bytes read and written once."""

    flops: float
    moved: float

    def floor(self, peak: float, bandwidth: float) -> float:
        """Seconds below which no code of the same arithmetic comes on such a processor."""
        return max(self.flops / peak, self.moved / bandwidth)


def work_of(data: LayerData) -> dict[str, Work]:
    """The work of every function."""
    d, s = data, data.sizes
    taps = KERNEL * KERNEL * s.channels
    y = d.dy.size
    conv = Work(2.0 * y * taps, 4.0 * (d.x.size + d.w.size + y))
    up_y = s.batch * s.filters * prod((s.size * UP_STRIDE,) * 2)
    up = Work(2.0 * d.x.size * s.filters * UP_KERNEL**2, 4.0 * (d.x.size + d.up_w.size + up_y))
    linear = Work(2.0 * s.rows * s.inputs * s.classes, 4.0 * (d.rows.size + d.rows_w.size + d.scores.size))

    def streamed(operations: float, *arrays: np.ndarray) -> Work:
        return Work(operations * arrays[0].size, 4.0 * sum(a.size for a in arrays))

    return {
        "convolution": conv, "convolution dx": conv, "convolution dw": conv, "transposed convolution": up,
        "max pooling": streamed(2, d.x, d.max_dy), "max pooling dx": streamed(1, d.x, d.max_dy, d.max_dy),
        "average pooling": streamed(1, d.x, d.mean_dy), "average pooling dx": streamed(1, d.x, d.mean_dy),
        "linear": linear, "linear dx": linear, "linear dw": linear,
        "ReLU": streamed(1, d.x, d.x), "ReLU dx": streamed(1, d.x, d.x, d.x),
        "batch norm": streamed(6, d.x, d.x), "batch norm dx": streamed(10, d.x, d.x, d.x),
        "softmax": streamed(20, d.scores, d.scores),
        "softmax dx": streamed(4, d.scores, d.scores, d.scores),
        "convolution, norm, ReLU": Work(conv.flops + 3.0 * y, conv.moved),
    }  # fmt: skip
