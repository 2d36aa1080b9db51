"""Windows along an axis of an array: where each lies, and what it sees beyond the ends."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from convalgos.core.boundaries import OUTSIDE, ZERO, source_indices
from convalgos.core.problem import ConvProblem


class AxisWindow(NamedTuple):
    """Windows of `taps` elements along an axis of `size`, one element apart.

    low: elements of a window before its output's place, which for the first window is element 0.
    boundary: of `core.boundaries`.
    windows: how many; as many as elements unless told. See `outputs`.
    """

    size: int
    taps: int = 1
    low: int = 0
    boundary: str = ZERO
    windows: int | None = None

    @property
    def outputs(self) -> int:
        return self.size if self.windows is None else self.windows

    @property
    def high(self) -> int:
        """Elements of the last window behind the last element; negative where it ends before that."""
        return self.outputs + self.taps - 1 - self.low - self.size

    @property
    def sources(self) -> np.ndarray[Any, Any]:
        """(outputs + taps - 1,) int64: the element at each place that windows reach, or OUTSIDE."""
        at = source_indices(self.boundary, self.size, self.low, max(0, self.high))
        return at[: len(at) + min(0, self.high)]

    @property
    def unfiltered(self) -> AxisWindow:
        return AxisWindow(self.size)


def windows_of_problem(p: ConvProblem) -> list[AxisWindow]:
    """What the windows of a convolution span along each dimension, before strides."""
    return [
        AxisWindow(size, extent, low, boundary, (outputs - 1) * stride + 1)
        for size, extent, (low, _), boundary, outputs, stride in zip(
            p.spatial, p.kernel_extent, p.padding, p.boundary, p.spatial_out, p.stride, strict=True
        )
    ]


class PixelWindow(NamedTuple):
    """Windows along a row of pixels of `step` neighbouring elements, each of which sees only its own kind."""

    pixels: AxisWindow
    step: int

    @property
    def size(self) -> int:
        return self.pixels.size * self.step

    @property
    def taps(self) -> int:
        """Elements of a row that a window spans."""
        return (self.pixels.taps - 1) * self.step + 1

    @property
    def low(self) -> int:
        return self.pixels.low * self.step

    @property
    def outputs(self) -> int:
        return self.pixels.outputs * self.step

    @property
    def boundary(self) -> str:
        return self.pixels.boundary

    @property
    def sources(self) -> np.ndarray[Any, Any]:
        """As of `AxisWindow`."""
        at = self.pixels.sources[:, None]  # (pixels, 1)
        return np.where(at == OUTSIDE, OUTSIDE, at * self.step + np.arange(self.step)).reshape(-1)
