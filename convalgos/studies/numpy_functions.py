"""Layer functions in NumPy, as Chainer computes them on a CPU: windows copied out, one product of matrices.

Written from the mathematics: Chainer's own code is measured beside, where it is installed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.studies.layer_functions import (
    EPSILON,
    KERNEL,
    MAX_WINDOW,
    MEAN_WINDOW,
    PAD,
    POOL_STRIDE,
    UP_PAD,
    UP_STRIDE,
    LayerCall,
    LayerData,
)

MAPS = (0, 2, 3)  # axes over which a channel is normalised


def windows_of(x: np.ndarray, kernel: int, stride: int, pad: int, border: float = 0.0) -> np.ndarray:
    """(N, C, kernel, kernel, out, out): what lies under each tap, copied (im2col)."""
    n, c, size, _ = x.shape
    out = (size + 2 * pad - kernel) // stride + 1
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=border)
    columns = np.empty((n, c, kernel, kernel, out, out), x.dtype)
    for i in range(kernel):
        for j in range(kernel):
            rows, across = (
                slice(i, i + stride * (out - 1) + 1, stride),
                slice(j, j + stride * (out - 1) + 1, stride),
            )
            columns[:, :, i, j] = padded[:, :, rows, across]
    return columns


def sum_of_windows(columns: np.ndarray, size: int, stride: int, pad: int) -> np.ndarray:
    """(N, C, size, size): what windows add up to where they overlap (col2im), of what `windows_of` gives."""
    n, c, kernel, _, out, _ = columns.shape
    wide = max(size + 2 * pad, (out - 1) * stride + kernel)
    padded = np.zeros((n, c, wide, wide), columns.dtype)
    for i in range(kernel):
        for j in range(kernel):
            rows, across = (
                slice(i, i + stride * (out - 1) + 1, stride),
                slice(j, j + stride * (out - 1) + 1, stride),
            )
            padded[:, :, rows, across] += columns[:, :, i, j]
    return padded[:, :, pad : pad + size, pad : pad + size]


def numpy_calls(data: LayerData) -> dict[str, LayerCall]:
    """The calls of all functions, by name."""
    d = data
    relu, softmax = np.maximum(d.x, 0), _softmax(d.scores)
    at = windows_in_line(d.x).argmax(2)  # kept by the forward pass for the gradient
    mean, deviation = d.x.mean(MAPS), np.sqrt(d.x.var(MAPS) + EPSILON)
    return {
        "convolution": lambda: _convolution(d),
        "convolution dx": lambda: _convolution_dx(d),
        "convolution dw": lambda: _convolution_dw(d),
        "transposed convolution": lambda: _transposed(d),
        "max pooling": lambda: _max_pooling(d.x),
        "max pooling dx": lambda: _max_pooling_dx(d, at),
        "average pooling": lambda: windows_of(d.x, MEAN_WINDOW, POOL_STRIDE, 0).mean((2, 3)),
        "average pooling dx": lambda: _average_pooling_dx(d),
        "linear": lambda: d.rows.dot(d.rows_w.T) + d.rows_b,
        "linear dx": lambda: d.scores_dy.dot(d.rows_w),
        "linear dw": lambda: d.scores_dy.T.dot(d.rows),
        "ReLU": lambda: np.maximum(d.x, 0),
        "ReLU dx": lambda: d.dx * (relu > 0),
        "batch norm": lambda: _batch_norm(d),
        "batch norm dx": lambda: _batch_norm_dx(d, mean, deviation),
        "softmax": lambda: _softmax(d.scores),
        "softmax dx": lambda: _softmax_dx(softmax, d.scores_dy),
        "convolution, norm, ReLU": lambda: np.maximum(
            _of_channel(d.scale) * _convolution(d) + _of_channel(d.shift), 0
        ),
    }


def _convolution(d: LayerData) -> Any:
    columns = windows_of(d.x, KERNEL, 1, PAD)
    y = np.tensordot(columns, d.w, ((1, 2, 3), (1, 2, 3))) + d.b  # (N, size, size, K)
    return np.moveaxis(y, 3, 1)


def _convolution_dx(d: LayerData) -> Any:
    columns = np.tensordot(d.w, d.dy, (0, 1))  # (C, 3, 3, N, size, size)
    return sum_of_windows(np.moveaxis(columns, 3, 0), d.sizes.size, 1, PAD)


def _convolution_dw(d: LayerData) -> Any:
    return np.tensordot(d.dy, windows_of(d.x, KERNEL, 1, PAD), ((0, 2, 3), (0, 4, 5)))


def _transposed(d: LayerData) -> Any:
    columns = np.moveaxis(np.tensordot(d.up_w, d.x, (0, 1)), 3, 0)  # (N, K, 4, 4, size, size)
    return sum_of_windows(columns, UP_STRIDE * d.sizes.size, UP_STRIDE, UP_PAD)


def windows_in_line(x: np.ndarray) -> Any:
    """(N, C, taps, out, out): the windows of max pooling."""
    columns = windows_of(x, MAX_WINDOW, POOL_STRIDE, 0, -np.inf)
    n, c, *_, out, _ = columns.shape
    return columns.reshape(n, c, MAX_WINDOW**2, out, out)


def _max_pooling(x: np.ndarray) -> Any:
    """The maximum of each window, and where it is, for the gradient."""
    columns = windows_in_line(x)
    columns.argmax(2)
    return columns.max(2)


def _max_pooling_dx(d: LayerData, at: np.ndarray) -> Any:
    n, c, out, _ = at.shape
    columns = np.zeros((n, c, MAX_WINDOW**2, out, out), np.float32)
    np.put_along_axis(columns, at[:, :, None], d.max_dy[:, :, None], 2)
    return sum_of_windows(
        columns.reshape(n, c, MAX_WINDOW, MAX_WINDOW, out, out), d.sizes.size, POOL_STRIDE, 0
    )


def _average_pooling_dx(d: LayerData) -> Any:
    columns = np.tile(d.mean_dy[:, :, None, None] / MEAN_WINDOW**2, (1, 1, MEAN_WINDOW, MEAN_WINDOW, 1, 1))
    return sum_of_windows(columns, d.sizes.size, POOL_STRIDE, 0)


def _of_channel(values: np.ndarray) -> Any:
    return values[:, None, None]


def _batch_norm(d: LayerData) -> Any:
    mean, deviation = d.x.mean(MAPS), np.sqrt(d.x.var(MAPS) + EPSILON)
    normal = (d.x - _of_channel(mean)) / _of_channel(deviation)
    return normal * _of_channel(d.gamma) + _of_channel(d.beta)


def _batch_norm_dx(d: LayerData, mean: np.ndarray, deviation: np.ndarray) -> Any:
    normal = (d.x - _of_channel(mean)) / _of_channel(deviation)
    count = d.x.size // d.sizes.channels
    of_beta, of_gamma = d.dx.sum(MAPS), (d.dx * normal).sum(MAPS)
    rest = d.dx - (normal * _of_channel(of_gamma) + _of_channel(of_beta)) / np.float32(count)
    return _of_channel(d.gamma / deviation) * rest


def _softmax(scores: np.ndarray) -> Any:
    y = np.exp(scores - scores.max(1, keepdims=True))
    y /= y.sum(1, keepdims=True)
    return y


def _softmax_dx(y: np.ndarray, dy: np.ndarray) -> Any:
    products = y * dy
    return products - y * products.sum(1, keepdims=True)
