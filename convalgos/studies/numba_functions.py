"""Layer functions in Numba: each a loop nest over all cores, which reads its inputs once and makes no copies.

The loops are plain Python here, with `prange` a `range`; `numba_calls` compiles them for all threads.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from convalgos.studies.layer_functions import (
    EPSILON,
    MAX_WINDOW,
    MEAN_WINDOW,
    PAD,
    POOL_STRIDE,
    UP_KERNEL,
    UP_PAD,
    UP_STRIDE,
    LayerCall,
    LayerData,
)
from convalgos.studies.numpy_functions import windows_in_line

BLOCK = 4  # filters that are summed together: each reads the same inputs

prange: Any = range


@cache
def compiled(
    loops: Callable[..., None], *, parallel: bool = True, fastmath: bool = True
) -> Callable[..., None]:
    """Loops as Numba compiles them, those over `prange` on all threads; sums in any order with `fastmath`."""
    import numba

    names = {**loops.__globals__, "prange": numba.prange}
    made: Any = numba.njit(types.FunctionType(loops.__code__, names), parallel=parallel, fastmath=fastmath)
    return made  # type: ignore[no-any-return]


def numba_calls(
    data: LayerData, compile_loops: Callable[[Callable[..., None]], Callable[..., None]] = compiled
) -> dict[str, LayerCall]:
    """The calls of the functions that are written here, by name; the others are one product of matrices.

    Args:
        compile_loops: what makes the loops fast; a test leaves them as they are.
    """
    d, s = data, data.sizes
    relu = np.maximum(d.x, 0)
    padded = np.pad(d.x, ((0, 0), (0, 0), (PAD, PAD), (PAD, PAD)))
    exponents = np.exp(d.scores - d.scores.max(1, keepdims=True))
    softmax = exponents / exponents.sum(1, keepdims=True)
    turned = np.ascontiguousarray(d.w[:, :, ::-1, ::-1].swapaxes(0, 1))  # (C, K, 3, 3)
    padded_dy = np.pad(d.dy, ((0, 0), (0, 0), (PAD, PAD), (PAD, PAD)))
    at = windows_in_line(d.x).argmax(2)
    found = np.empty_like(at)  # where maxima are, which the forward pass keeps
    mean = d.x.mean((0, 2, 3))
    inverse = 1 / np.sqrt(d.x.var((0, 2, 3)) + np.float32(EPSILON))
    plain, no_bias = np.ones(max(s.filters, s.channels), np.float32), np.zeros(s.channels, np.float32)
    fixed = d.scale * d.b + d.shift  # of the norm behind the convolution
    linear, none = np.float32(-np.inf), np.float32(0)  # least outputs without ReLU, and with it
    up = (s.batch, s.filters, UP_STRIDE * s.size, UP_STRIDE * s.size)

    def call(loops: Callable[..., None], shape: tuple[int, ...], *arrays: Any) -> LayerCall:
        fast, y = compile_loops(loops), np.empty(shape, np.float32)

        def run() -> np.ndarray:
            fast(*arrays, y)
            return y

        return run

    return {
        "convolution": call(convolve_rows, d.dy.shape, padded, d.w, plain, d.b, linear),
        "convolution dx": call(convolve_rows, d.x.shape, padded_dy, turned, plain, no_bias, linear),
        "convolution dw": call(_convolution_dw, d.w.shape, padded, d.dy),
        "transposed convolution": call(_transposed, up, d.x, d.up_w),
        "max pooling": call(_max_pooling, d.max_dy.shape, d.x, found),
        "max pooling dx": call(_max_pooling_dx, d.x.shape, d.max_dy, at),
        "average pooling": call(_average_pooling, d.mean_dy.shape, d.x),
        "average pooling dx": call(_average_pooling_dx, d.x.shape, d.mean_dy),
        "ReLU": call(_relu, d.x.shape, d.x),
        "ReLU dx": call(_relu_dx, d.x.shape, relu, d.dx),
        "batch norm": call(_batch_norm, d.x.shape, d.x, d.gamma, d.beta),
        "batch norm dx": call(_batch_norm_dx, d.x.shape, d.x, d.dx, d.gamma, mean, inverse),
        "softmax": call(_softmax, d.scores.shape, d.scores),
        "softmax dx": call(_softmax_dx, d.scores.shape, softmax, d.scores_dy),
        "convolution, norm, ReLU": call(convolve_rows, d.dy.shape, padded, d.w, d.scale, fixed, none),
    }  # fmt: skip


# --- the loops -------------------------------------------------------------------------------


def convolve_rows(x: Any, w: Any, scale: Any, bias: Any, least: Any, y: Any) -> None:
    """y = max(least, scale * (x * w) + bias), of a padded x."""
    filters, channels, kernel, _ = w.shape
    blocks = -(-filters // BLOCK)
    height, width = y.shape[2:]
    for task in prange(len(y) * blocks):
        n, first = task // blocks, task % blocks * BLOCK
        sums = np.empty((BLOCK, width), np.float32)
        for row in range(height):
            sums[:] = 0
            for c in range(channels):
                for i in range(kernel):
                    for j in range(kernel):
                        for q in range(BLOCK):
                            weight = w[min(first + q, filters - 1), c, i, j]
                            for at in range(width):
                                sums[q, at] += weight * x[n, c, row + i, at + j]
            for q in range(min(BLOCK, filters - first)):
                k = first + q
                for at in range(width):
                    y[n, k, row, at] = max(least, scale[k] * sums[q, at] + bias[k])


def _convolution_dw(x: Any, dy: Any, dw: Any) -> None:
    """The three taps of a row are summed together: they read the same dy."""
    filters, channels, kernel, _ = dw.shape
    for task in prange(filters * channels):
        k, c = task // channels, task % channels
        for i in range(kernel):
            first, second, third = np.float32(0), np.float32(0), np.float32(0)
            for n in range(len(dy)):
                for row in range(dy.shape[2]):
                    left, above = dy[n, k, row], x[n, c, row + i]
                    for at in range(len(left)):
                        first += left[at] * above[at]
                        second += left[at] * above[at + 1]
                        third += left[at] * above[at + 2]
            dw[k, c, i, 0], dw[k, c, i, 1], dw[k, c, i, 2] = first, second, third


def _transposed(x: Any, w: Any, y: Any) -> None:
    """Outputs of each parity are a convolution of two by two taps of their own."""
    images, channels, size, _ = x.shape
    filters = w.shape[1]
    for task in prange(images * filters):
        n, k = task // filters, task % filters
        sums = np.empty((size, size), np.float32)
        for down in range(UP_STRIDE):
            for right in range(UP_STRIDE):
                sums[:] = 0
                for c in range(channels):
                    for i in range(1 - down, UP_KERNEL, UP_STRIDE):
                        above = (down + UP_PAD - i) // UP_STRIDE  # x's row less y's
                        for j in range(1 - right, UP_KERNEL, UP_STRIDE):
                            left = (right + UP_PAD - j) // UP_STRIDE
                            weight = w[c, k, i, j]
                            top, first = max(0, -above), max(0, -left)
                            count = size - abs(left)
                            for row in range(top, top + size - abs(above)):
                                found, met = sums[row, first:], x[n, c, row + above, first + left :]
                                for at in range(count):
                                    found[at] += weight * met[at]
                for row in range(size):
                    for at in range(size):
                        y[n, k, UP_STRIDE * row + down, UP_STRIDE * at + right] = sums[row, at]


def _max_pooling(x: Any, found: Any, y: Any) -> None:
    channels, out = y.shape[1], y.shape[2]
    for task in prange(len(y) * channels):
        n, c = task // channels, task % channels
        for row in range(out):
            for at in range(out):
                most, place = x[n, c, row * POOL_STRIDE, at * POOL_STRIDE], 0
                for i in range(MAX_WINDOW):
                    for j in range(MAX_WINDOW):
                        value = x[n, c, row * POOL_STRIDE + i, at * POOL_STRIDE + j]
                        if value > most:
                            most, place = value, i * MAX_WINDOW + j
                y[n, c, row, at], found[n, c, row, at] = most, place


def _max_pooling_dx(dy: Any, places: Any, dx: Any) -> None:
    channels, out = dy.shape[1], dy.shape[2]
    for task in prange(len(dy) * channels):
        n, c = task // channels, task % channels
        dx[n, c] = 0
        for row in range(out):
            for at in range(out):
                i, j = places[n, c, row, at] // MAX_WINDOW, places[n, c, row, at] % MAX_WINDOW
                dx[n, c, row * POOL_STRIDE + i, at * POOL_STRIDE + j] += dy[n, c, row, at]


def _average_pooling(x: Any, y: Any) -> None:
    channels, out = y.shape[1], y.shape[2]
    for task in prange(len(y) * channels):
        n, c = task // channels, task % channels
        for row in range(out):
            for at in range(out):
                total = np.float32(0)
                for i in range(MEAN_WINDOW):
                    for j in range(MEAN_WINDOW):
                        total += x[n, c, row * POOL_STRIDE + i, at * POOL_STRIDE + j]
                y[n, c, row, at] = total / MEAN_WINDOW**2


def _average_pooling_dx(dy: Any, dx: Any) -> None:
    channels = dy.shape[1]
    for task in prange(len(dy) * channels):
        n, c = task // channels, task % channels
        dx[n, c] = 0
        for row in range(MEAN_WINDOW * dy.shape[2]):
            for at in range(MEAN_WINDOW * dy.shape[3]):
                dx[n, c, row, at] = dy[n, c, row // MEAN_WINDOW, at // MEAN_WINDOW] / MEAN_WINDOW**2


def _relu(x: Any, y: Any) -> None:
    for n in prange(len(x)):
        y[n] = np.maximum(x[n], np.float32(0))


def _relu_dx(kept: Any, dy: Any, dx: Any) -> None:
    for n in prange(len(dy)):
        dx[n] = np.where(kept[n] > 0, dy[n], np.float32(0))


def _batch_norm(x: Any, gamma: Any, beta: Any, y: Any) -> None:
    count = len(x) * x.shape[2] * x.shape[3]
    for c in prange(x.shape[1]):
        total, squares = np.float32(0), np.float32(0)
        for n in range(len(x)):
            total += x[n, c].sum()
        mean = total / count
        for n in range(len(x)):
            squares += ((x[n, c] - mean) ** 2).sum()
        factor = gamma[c] / np.sqrt(squares / count + EPSILON)
        for n in range(len(x)):
            y[n, c] = (x[n, c] - mean) * factor + beta[c]


def _batch_norm_dx(x: Any, dy: Any, gamma: Any, mean: Any, inverse: Any, dx: Any) -> None:
    count = len(x) * x.shape[2] * x.shape[3]
    for c in prange(x.shape[1]):
        of_beta, of_gamma = np.float32(0), np.float32(0)
        for n in range(len(x)):
            of_beta += dy[n, c].sum()
            of_gamma += (dy[n, c] * (x[n, c] - mean[c])).sum()
        share = of_gamma * inverse[c] * inverse[c] / count
        for n in range(len(x)):
            dx[n, c] = gamma[c] * inverse[c] * (dy[n, c] - (x[n, c] - mean[c]) * share - of_beta / count)


def _softmax(x: Any, y: Any) -> None:
    for row in prange(len(x)):
        y[row] = np.exp(x[row] - x[row].max())
        y[row] /= y[row].sum()


def _softmax_dx(kept: Any, dy: Any, dx: Any) -> None:
    for row in prange(len(dy)):
        products = kept[row] * dy[row]
        dx[row] = products - kept[row] * products.sum()
