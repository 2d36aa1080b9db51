"""Maps in another size, by linear interpolation between pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, check_bound, image_step
from convalgos.core.layouts import array_shape, channels_together
from convalgos.cpu.elementwise.bound_steps import FLOAT, BoundStep, launched
from convalgos.cpu.elementwise.resize_kernels import BETWEEN, RESIZE_FIELDS, resize_share
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd

CHUNK = 16  # rows of y at a time


def resized_coordinates(coordinates: str, before: int, after: int, scale: float) -> np.ndarray:
    """Where on a dimension of x, in pixels, those of y lie.

    Args:
        coordinates: "half_pixel" lays the outer edges of pixels on each other, "align_corners" the middles of
            the first and the last, "asymmetric" the begins.
        scale: of pixels of y for one of x; "align_corners" has its own.
    """
    i = np.arange(after, dtype=np.float64)
    if coordinates == "align_corners":
        return i * ((before - 1) / max(1, after - 1))
    return (i + 0.5) / scale - 0.5 if coordinates == "half_pixel" else i / scale


class ResizePlan(BoundStep):
    """Each pixel of y between the four, along one dimension the two, pixels of x around it.

    Args:
        shape: logical, (N, C, [H,] W), of x.
        sizes: of y, along each spatial dimension.
        layout: of x and y.
        coordinates: of `resized_coordinates`.
        scales: along each spatial dimension; None is sizes over those of x.

    Example:
        >>> x = np.array([[[0.0, 1.0]]], "f4")
        >>> ResizePlan(x.shape, (4,), "channels_first").run((x,), y := np.empty((1, 1, 4), "f4"))
        >>> y.tolist()
        [[[0.0, 0.25, 0.75, 1.0]]]
    """

    strided_batch = True
    told = True

    def __init__(
        self,
        shape: Shape,
        sizes: Shape,
        layout: str,
        coordinates: str = "half_pixel",
        scales: Sequence[float] | None = None,
    ):
        self._shapes = [array_shape(layout, (*shape[:2], *s)) for s in (shape[2:], sizes)]
        scales = scales or [m / max(1, n) for n, m in zip(shape[2:], sizes, strict=True)]
        tables = [
            _between(resized_coordinates(coordinates, *dimension), dimension[0])
            for dimension in zip(shape[2:], sizes, scales, strict=True)
        ]
        (self._rows, self._row_shares), (self._columns, self._column_shares) = [
            _between(np.zeros(1), 1), *tables
        ][-2:]  # fmt: skip
        count = channels_together(layout, shape[1])
        width, y_width = shape[-1], sizes[-1]
        pixels, y_pixels = math.prod(shape[2:]) * count, math.prod(sizes) * count
        self._values = {
            "columns": self._columns.ctypes.data, "column_shares": self._column_shares.ctypes.data,
            "rows": self._rows.ctypes.data, "row_shares": self._row_shares.ctypes.data,
            "planes": -(-shape[1] // count), "width": width, "y_height": len(self._rows),
            "y_width": y_width, "count": count, "x_plane": pixels, "y_plane": y_pixels, "chunk": CHUNK,
        }  # fmt: skip

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        x, y = arrays
        check_bound("x", x, self._shapes[0], FLOAT, strided=True)
        check_bound("y", y, self._shapes[1], FLOAT, strided=True, written=True)
        drawn = aligned_empty(jit.thread_count() * 2 * self._values["y_width"] * self._values["count"], FLOAT)
        values = self._values | {
            "x": x.ctypes.data, "y": y.ctypes.data, "drawn": drawn.ctypes.data,
            "images": len(x) if x.size and y.size else 0, "x_n": image_step(x), "y_n": image_step(y),
        }  # fmt: skip
        kernel = resize_share(FLOAT.itemsize, simd.lanes(FLOAT.itemsize))
        return launched(kernel, RESIZE_FIELDS, values, y.size, x, y, drawn, self, told=("x", "y"))


def _between(where: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(the two pixels of so many that each place is between, how far it is from the first to the second)."""
    where = np.clip(where, 0, max(0, count - 1))
    pairs = np.empty(len(where), BETWEEN)
    pairs["first"] = np.floor(where)
    pairs["second"] = np.minimum(pairs["first"] + 1, count - 1)
    return pairs, (where - pairs["first"]).astype(FLOAT)
