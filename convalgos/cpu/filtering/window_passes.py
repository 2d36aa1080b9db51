"""Passes of dense filters over whole arrays: how `window_kernels` are called.

What does not depend on the sizes of arrays is found once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.axis_windows import AxisWindow, PixelWindow
from convalgos.core.window_borders import filling
from convalgos.cpu.filtering import line_sums
from convalgos.cpu.filtering.line_elements import element_kind, load_line, store_line
from convalgos.cpu.filtering.settling import settle_line
from convalgos.cpu.filtering.window_cut import WindowCut, source_planes
from convalgos.cpu.filtering.window_kernels import CLOSE, FUSED, WINDOW_FIELDS, sum_windows
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.record_launch import RecordLaunch
from convalgos.cpu.runtime.threads import cached_by_threads
from convalgos.cpu.vectors import simd

Array = np.ndarray[Any, Any]
Spanned = tuple[list[AxisWindow], int]  # (axes of pixels, elements of a pixel)
SPARSE = 0.5  # share of weights that are not 0, below which a list of them is the faster


class Sums(NamedTuple):
    """How windows are summed."""

    size: int  # bytes of an element
    order: int
    lines: list[Array] | None = None  # filters along axes that do the same
    bounds: tuple[float, float] = (0.0, 0.0)  # of `settling.cut_off`


class WeightedPass:
    """One pass by some weights, of arrays of any sizes; with `along`, of rows that this has filtered before.

    spanned: finds (axes of pixels, elements of a pixel) that the weights span.
    """

    def __init__(
        self, w: Array, x: np.dtype, y: np.dtype, spanned: Callable[[list[AxisWindow]], Spanned], sums: Sums,
        fill: float, along: Array | None = None,
    ):  # fmt: skip
        self.dtype, self._types, self._spanned = y, (x, y), spanned
        self._w, self._along, self._sums, self._fill = w, along, sums, float(fill)
        # by elements of a pixel and taps: pixels of one element leave out an axis that wider maps have
        self._made: dict[tuple[int, Shape], tuple[WindowPass, tuple[Array, ...]]] = {}

    def of(self, axes: list[AxisWindow]) -> RecordLaunch:
        """The pass over arrays of axes, as `WindowFilter.of` has them."""
        axes, pixel = self._spanned(axes)
        key = pixel, tuple([axis.taps for axis in axes])
        if key not in self._made:
            self._made[key] = self._of_pixels(axes, pixel)
        made, weights = self._made[key]
        return made.launch(tuple(axes), *weights)

    def _of_pixels(self, axes: list[AxisWindow], pixel: int) -> tuple[WindowPass, tuple[Array, ...]]:
        *_, rows, columns = axes
        w = self._w.reshape(-1, rows.taps, 1 if self._along is not None else columns.taps)
        count = 0 if self._along is None else len(self._along)
        unsized = tuple(axis._replace(size=0) for axis in axes)
        given = unsized, pixel, w.shape, (w != 0).tobytes(), count, self._sums[:2], self._fill
        made = _window_pass(*self._types, *given)
        return made, made.packed(w, self._along, self._sums.bounds)


@lru_cache(128)
def _window_pass(
    x: np.dtype, y: np.dtype, axes: tuple[AxisWindow, ...], step: int, taps: Shape, marks: bytes,
    along: int, sums: tuple[int, int], fill: float,
) -> WindowPass:  # fmt: skip
    weighted = np.frombuffer(marks, bool).reshape(taps)
    return WindowPass(x, y, step, weighted, along, *sums, fill)


class WindowPass:
    """Windows over arrays of two types and any sizes, with weights at the same places.

    Args:
        step: elements of a pixel.
        weighted: (places along the leading axes, rows, columns) bool: which weights are not 0.
        along: taps along rows.
        size, order: those of `Sums`.
    """

    def __init__(
        self, x: np.dtype, y: np.dtype, step: int, weighted: Array, along: int, size: int, order: int,
        fill: float,
    ):  # fmt: skip
        self._step, self._along, self._size, self._fill = step, along, size, fill
        lanes, self._dtype, self._close = simd.lanes(size), np.dtype(f"f{size}"), order == CLOSE
        self._met = np.flatnonzero(weighted.any((1, 2)))  # places along the leading axes that meet weights
        self._meets_all = len(self._met) == len(weighted)
        weighted = weighted[self._met]  # (rings, taps_r, taps_s)
        count = int(weighted.sum())
        # A weight of 0 times NaN is NaN, which SciPy does not compute.
        self._tiles = count == weighted.size or (x.kind != "f" and count >= SPARSE * weighted.size)
        taps = np.argwhere(weighted | (self._tiles and self._close))
        taps = np.roll(taps, -1, 0) if self._close else taps  # the first one last, where `settle_line` begins
        self._taps = tuple(np.ascontiguousarray(column) for column in taps.T)
        w_bytes, self._order = weighted.size * size, FUSED if self._close else order
        kind, self._bytes = element_kind(y), (x.itemsize, y.itemsize)
        settles = self._close and settle_line(kind, line_sums.IN_ORDER, size, lanes)
        self._values: dict[str, int | Array] = {
            "bias": np.zeros(1, self._dtype), "w_listed": w_bytes, "w_along": w_bytes + len(taps) * size,
            "load": load_line(element_kind(x), size, lanes), "settle": int(settles),
            "store": 0 if y == self._dtype else store_line(kind, size, lanes),
        }  # fmt: skip
        self._shared: dict[str, int] = {}  # fields of records of all sizes, once there is one
        self._tables: list[Array] = []  # that these point to
        self._kernel = sum_windows(size)

    def packed(self, w: Array, along: Array | None, bounds: tuple[float, float]) -> tuple[Array, ...]:
        """(weights as kernels read them, those of the list in float64, `bounds`).

        Args:
            w: (places, rows, columns) float64.
            along: (places, taps) along rows, or (taps,) of all.
        """
        w = w[self._met]
        listed = w[self._taps]
        packed = np.concatenate([w.ravel(), listed, [] if along is None else along.ravel()])
        return packed.astype(self._dtype, copy=False), listed, np.array(bounds, self._dtype)

    def launch(
        self, axes: tuple[AxisWindow, ...], packed: Array, exact: Array, bounds: Array
    ) -> RecordLaunch:
        """Of `packed` weights, over arrays of axes of pixels."""
        f, scratch_bytes, tasks, tables = _sized(self, axes)
        f, address = f.copy(), jit.data_address()
        f["w"], f["exact"], f["bounds"] = address(packed), address(exact), address(bounds)
        record = np.fromiter(f.values(), np.int64, len(f))
        kept = self._tables, tables, packed, exact, bounds
        return RecordLaunch(self._kernel, record, WINDOW_FIELDS.names, scratch_bytes, tasks, kept)

    def sized(self, axes: Sequence[AxisWindow]) -> tuple[dict[str, int], int, int, list[Array]]:
        """(fields of a record, bytes of scratch, tasks, tables that fields point to) for axes of pixels."""
        *leading, rows, pixels = axes
        columns = PixelWindow(pixels, self._step) if self._step > 1 else pixels
        planes = source_planes(leading, rows.size * columns.size * self._bytes[0])
        cut = WindowCut(
            planes if self._meets_all else planes[:, self._met], rows, columns, self._size, self._taps,
            self._along, self._tiles, apart=self._step, close=self._close,
        )  # fmt: skip
        if not self._shared:
            values = cut.shared(self._order, *self._bytes) | self._values
            shared = dict.fromkeys(WINDOW_FIELDS.names or (), 0)
            set_fields(shared, values, self._tables)
            self._shared = shared
        sizes, tables, f = cut.sizes(*self._bytes, self._fill), list[Array](), self._shared.copy()
        sizes["filters"] = filling(0, np.dtype(np.int64), cut.outer)
        set_fields(f, sizes, tables)
        return f, cut.scratch * cut.tasks, cut.tasks, tables


_sized = cached_by_threads(128)(WindowPass.sized)


def set_fields(f: dict[str, int], values: dict[str, int | Array], kept: list[Array]) -> None:
    """Set fields of a record, with addresses in the place of arrays, which are then kept."""
    address = jit.data_address()
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            kept.append(value)
            f[name] = address(value)
        else:
            f[name] = value
