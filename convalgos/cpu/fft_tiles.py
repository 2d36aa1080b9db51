"""Convolution by Fourier transforms of small tiles: fewer products for 5x5 kernels and larger ones.

A tile of t x t inputs gives the (t - r + 1) x (t - s + 1) outputs that the wrap-around of its transform
leaves whole (overlap-save). The spectrum of a real tile is half redundant: t^2 / 2 + 2 complex values are
kept, and each takes the three real products of Gauss per pair of channels. A 9x9 kernel on t = 16 thus needs
6 products for an output instead of 81, with no more error than a direct sum. Wins from 5x5 up with 16 and
more channels, and on long 1-D kernels with tiles of 128.

The transforms (`tiled.fft_transforms`) are codelets on vectors of channels, in the driver that Winograd
uses, too (`tiled.driver`). Kernels with taps in one dimension of the plane use the 1-D form; taps in depth
are summed inside the product; stride and dilation are steps inside the tiles.

Source: Zlateski, Jia, Li and Durand, "FFT convolutions are faster than Winograd on modern CPUs, here's why",
arXiv:1809.07851 ("Gauss-FFT").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np

from convalgos.core.algorithm import Algorithm, room_for_few
from convalgos.core.layouts import PLAIN
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime import jit
from convalgos.cpu.tiled import bounds, search
from convalgos.cpu.tiled import filters as tiled_filters
from convalgos.cpu.tiled.borders import ReadsBorders
from convalgos.cpu.tiled.box_algorithm import TiledAlgorithm
from convalgos.cpu.tiled.box_plan import BoxPlan
from convalgos.cpu.tiled.fft_transforms import (
    spectral_filter_tiles,
    spectral_input_tiles,
    spectral_output_tiles,
)
from convalgos.cpu.tiled.geometry import plane_taps, taps_told
from convalgos.cpu.tiled.spectral_schedule import SpectralBoxSchedule
from convalgos.cpu.vectors import simd

MORE = (10, 12, 30, 64)  # inputs of a tile that an exhaustive search tries, too
MOST_2D = 32  # inputs of a side of a tile: longer kernels would be too much code, on too many points
SCRATCH = 64 << 20  # bytes that a problem smaller than this may take

# --- shapes --------------------------------------------------------------------------------------


def tile_outputs(problem: ConvProblem, t: int) -> tuple[int, int] | str:
    """Outputs of a tile along rows and columns of a plane, or why it cannot be cut into tiles of t inputs."""
    taps = plane_taps(problem)
    if max(taps) > 1 and max(taps) <= t // 2 + 1:
        return tuple(1 if n == 1 else t - n + 1 for n in taps)  # type: ignore[return-value]
    needed = f"needs 2 to {t // 2 + 1} taps"
    if problem.ndim == 1:
        return f"{needed}; {taps_told(problem)}"
    return f"{needed} in a dimension of the plane, and no more in the other; {taps_told(problem)}"


@lru_cache(512)
def spectral_box_schedule(problem: ConvProblem, t: int, box: int, threads: int) -> SpectralBoxSchedule:
    """The schedule of a problem that `tile_outputs` accepts.

    Args:
        box: tiles of a box, about; 0 for any number.
    """
    return search.best(one_spectral_box(problem, t, threads), box)


def one_spectral_box(problem: ConvProblem, t: int, threads: int) -> SpectralBoxSchedule:
    """All tiles of a problem in one box."""
    outputs = tile_outputs(problem, t)
    assert not isinstance(outputs, str), outputs
    return search.uncut(SpectralBoxSchedule, problem, threads).tiled(outputs)


# --- kernels: products ---------------------------------------------------------------------------


@simd.emitter
def complex_tile(
    v: simd.Vec, ROWS: int, x: Any, rows: Any, offsets: Any, u: Any, taps: Any, ahead: Any, accumulate: Any,
    y: Any, y_stride: Any,
) -> None:  # fmt: skip
    """y[i] (+)= sum_t x[rows[i] + offsets[t]] * conj(u[t]), for i < ROWS, where values are complex.

    x holds the imaginary part of an element a vector behind the real part; u (taps, 2*lanes) and y, in rows
    y_stride apart, hold a vector of real parts before one of imaginary parts. What lies at `ahead`, which may
    be any address, is asked into the L2 cache.

    (a + ib)(c - id) takes the products p = (a + b) c, q = a (c + d), r = b (c - d): it is p - r + i (p - q).
    """
    inputs = [v.at(v.pointer(x), v.table64(rows, i)) for i in range(ROWS)]
    weights, later, target = v.pointer(u), v.pointer(ahead), v.pointer(y)
    sums = [[v.register(v.zero()) for _ in "pqr"] for _ in range(ROWS)]
    with v.loop(taps) as t:
        at = v.table64(offsets, t)
        tap = v.imul(t, 2 * v.lanes)
        for line in range(0, 2 * v.lanes, simd.LINE // v.size):
            v.prefetch(later, v.iadd(tap, line))
        c, d = v.load(weights, tap), v.load(weights, v.iadd(tap, v.lanes))
        factors = c, v.fadd(c, d), v.fsub(c, d)
        for row, input_ in zip(sums, inputs, strict=True):
            a, b = v.broadcast(input_, at), v.broadcast(v.at(input_, v.lanes), at)
            for total, left, right in zip(row, (v.fadd(a, b), a, b), factors, strict=True):
                total.set(v.fma(left, right, total.value))
    kept = v.mask(v.imul(accumulate, v.lanes))
    for i, row in enumerate(sums):
        p, q, r = (total.value for total in row)
        for part, value in ((0, v.fsub(p, r)), (v.lanes, v.fsub(p, q))):
            place = v.at(target, v.iadd(v.imul(y_stride, i), part))
            v.store(v.fadd(v.load_masked(place, 0, kept), value), place)


@jit.specialise
def sum_complex_panel(SIZE: int, LANES: int, ROWS: int) -> Callable[..., None]:
    """`panels.sum_panel` of complex values, for a panel of one vector."""
    FEWER = max(ROWS - 1, 1)

    def sum_complex_panel(
        x: int, table: int, pixels: int, offsets: int, taps: int, chunk: int, u: int, sums: int
    ) -> None:
        tiles = (pixels + ROWS - 1) // ROWS
        rows = max(pixels, tiles * FEWER)
        width = 2 * LANES
        for tap in range(0, taps, chunk):
            count = min(chunk, taps - tap)
            at = offsets + tap * 8
            weights = u + tap * width * SIZE
            ahead = weights + count * width * SIZE
            for tile in range(tiles):
                first = rows * tile // tiles
                start = table + first * 8
                target = sums + first * width * SIZE
                if rows * (tile + 1) // tiles - first == ROWS:
                    complex_tile(
                        SIZE, LANES, ROWS, x, start, at, weights, count, ahead, tap > 0, target, width
                    )
                else:
                    complex_tile(
                        SIZE, LANES, FEWER, x, start, at, weights, count, ahead, tap > 0, target, width
                    )

    return sum_complex_panel


# --- plan ----------------------------------------------------------------------------------------


def takes_too_much(cut: SpectralBoxSchedule) -> bool:
    """Whether the boxes of a cut need more scratch than there shall be."""
    return cut.scratch_bytes > max(SCRATCH, cut.problem.bytes)


class FftTilesPlan(BoxPlan):
    cut: SpectralBoxSchedule

    def __init__(self, problem: ConvProblem, algorithm: FftTiles, cut: SpectralBoxSchedule):
        kernel = (problem.itemsize, cut.lanes, algorithm.t, cut.dims)
        product = sum_complex_panel(problem.itemsize, cut.lanes, cut.product_rows)
        super().__init__(
            problem, algorithm, cut, spectral_input_tiles(*kernel), spectral_output_tiles(*kernel), product
        )
        self._filter_tiles = spectral_filter_tiles(*kernel)

    def on_maps(self, problem: ConvProblem) -> Self | None:
        """This plan for other sizes of the maps; None where these are to be cut otherwise."""
        if not search.is_alike(self.cut, problem):
            return None
        cut = search.boxed_like(self.cut, problem)
        if takes_too_much(cut):
            return None
        product = sum_complex_panel(cut.problem.itemsize, cut.lanes, cut.product_rows)
        return self.in_boxes(problem, cut, sum_panel=product)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        return tiled_filters.transform_filter(w, self.cut, self.record, self._filter_tiles)


# --- algorithm -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FftTiles(ReadsBorders, TiledAlgorithm):
    """Tiles of t inputs in one or both dimensions of a plane; t is even, a product of 2, 3 and 5."""

    t: int
    box: int = 0  # tiles of a box, about; 0 for the number that is predicted best

    family: ClassVar[str] = "cpu.fft_tiles"
    spreads_nan: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = (*PLAIN, "blocked")
    writes: ClassVar[tuple[str, ...]] = reads
    mixes_layouts: ClassVar[bool] = True

    @property
    def variant(self) -> str:
        return f"t{self.t}" + (f".box{self.box}" if self.box else "")

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        found = tile_outputs(problem, self.t)
        if isinstance(found, str) or problem.is_empty:
            return found if isinstance(found, str) else None
        if min(found) > 1 and self.t > MOST_2D:
            return f"tiles of {self.t} inputs are for one dimension; {MOST_2D} by {MOST_2D} are the largest"
        cut = self._schedule(problem)
        if takes_too_much(cut):
            return f"the smallest box of tiles takes {cut.scratch_bytes >> 20} MiB of scratch"
        return None

    def why_not_on_maps(self, problem: ConvProblem) -> str | None:
        return None  # `plan_like` tells

    def variants(self, problem: ConvProblem) -> Iterator[Algorithm]:
        yield from (replace(self, t=t) for t in MORE)
        if not problem.is_empty:
            boxes = [replace(self, box=box) for box in search.BOXES]
            yield from search.different(self, boxes, lambda a: a._schedule(problem))

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        r, s = plane_taps(problem)
        tiled = 1 < max(r, s) <= self.t // 2 + 1 and (min(r, s) == 1 or self.t <= MOST_2D)
        if problem.is_empty or not tiled:
            return math.inf
        h, w = 1 if r == 1 else self.t - r + 1, 1 if s == 1 else self.t - s + 1
        return bounds.bounds(SpectralBoxSchedule, problem, machine).seconds(h, w)

    def least_of_all(self, problem: ConvProblem, machine: Machine) -> float:
        if problem.is_pointwise:
            return math.inf
        return bounds.least_of_tiles(SpectralBoxSchedule, problem, machine)

    def granule(self, problem: ConvProblem) -> tuple[int, ...]:
        return one_spectral_box(problem, self.t, 1).granule[3 - problem.ndim :]

    def error_bound(self, problem: ConvProblem) -> float:
        # The transforms err by their depth, the sum of a point like a random walk, as large as its products;
        # the constant covers the largest of many outputs.
        eps = float(np.finfo(problem.dtype).eps)
        if problem.is_empty:
            return eps
        cut = self._schedule(problem)
        return 2 * eps * (cut.dims * math.log2(self.t) + math.sqrt(cut.taps)) * room_for_few(problem)

    def plan(self, problem: ConvProblem) -> Plan:
        return FftTilesPlan(problem, self, self._schedule(problem))

    def plan_like(self, problem: ConvProblem, known: Plan) -> Plan:
        found = known.on_maps(problem) if isinstance(known, FftTilesPlan) and problem.is_zero_padded else None
        return found or self.serve(problem)

    def _schedule(self, problem: ConvProblem) -> SpectralBoxSchedule:
        return spectral_box_schedule(problem, self.t, self.box, jit.thread_count())


ALGORITHMS = tuple(FftTiles(t) for t in (16, 18, 20, 24, 32, 128))
