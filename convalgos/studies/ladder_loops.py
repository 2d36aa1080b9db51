"""The lower rungs of the ladder: one image's 3x3 convolution by loops, from plain Python to vectors.

x is padded, (C, H + 2, W + 2); w is (K, C, 3, 3); y is (K, H, W).
"""

from __future__ import annotations

from typing import Any

import numpy as np


def python_loops(x: list[Any], w: list[Any], height: int, width: int) -> list[float]:
    """Outputs of the first filter on so many rows and columns, from nested lists."""
    found = []
    for row in range(height):
        for at in range(width):
            total = 0.0
            for c in range(len(x)):
                for i in range(3):
                    for j in range(3):
                        total += x[c][row + i][at + j] * w[0][c][i][j]
            found.append(total)
    return found


def numpy_planes(x: np.ndarray, w: np.ndarray, filters: int) -> np.ndarray:
    """(filters, H, W): for every pair of channels and tap, a product and a sum of whole planes."""
    height, width = x.shape[1] - 2, x.shape[2] - 2
    y = np.zeros((filters, height, width), x.dtype)
    for k in range(filters):
        for c in range(len(x)):
            for i in range(3):
                for j in range(3):
                    y[k] += w[k, c, i, j] * x[c, i : i + height, j : j + width]
    return y


def scalar_loops(x: Any, w: Any, y: Any) -> None:
    """The same loops as in Python, compiled: a sum at a time, in order, so that nothing can be a vector."""
    for k in range(y.shape[0]):
        for row in range(y.shape[1]):
            for at in range(y.shape[2]):
                total = np.float32(0)
                for c in range(x.shape[0]):
                    for i in range(3):
                        for j in range(3):
                            total += x[c, row + i, at + j] * w[k, c, i, j]
                y[k, row, at] = total


def tiled_loops(x: Any, w: Any, y: Any) -> None:
    """Four filters by two outputs at a time in registers: six numbers are read for eight products."""
    for k in range(0, y.shape[0] - 3, 4):
        for row in range(y.shape[1]):
            for at in range(0, y.shape[2] - 1, 2):
                a = b = c = d = e = f = g = h = np.float32(0)
                for channel in range(x.shape[0]):
                    for i in range(3):
                        for j in range(3):
                            left, right = x[channel, row + i, at + j], x[channel, row + i, at + j + 1]
                            first, second = w[k, channel, i, j], w[k + 1, channel, i, j]
                            third, fourth = w[k + 2, channel, i, j], w[k + 3, channel, i, j]
                            a, b = a + left * first, b + right * first
                            c, d = c + left * second, d + right * second
                            e, f = e + left * third, f + right * third
                            g, h = g + left * fourth, h + right * fourth
                y[k, row, at], y[k, row, at + 1] = a, b
                y[k + 1, row, at], y[k + 1, row, at + 1] = c, d
                y[k + 2, row, at], y[k + 2, row, at + 1] = e, f
                y[k + 3, row, at], y[k + 3, row, at + 1] = g, h
