"""Gradients of maps with a border, folded in scratch: each pixel beyond the edges onto that it is a copy of.

The map with its border lies in scratch as vectors of channels, so that a pixel is folded by one addition.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from convalgos.core.boundaries import ZERO, source_indices
from convalgos.core.problem import ConvProblem
from convalgos.cpu.dwconv.channel_blocking import ChannelBlocking, channel_blocking
from convalgos.cpu.dwconv.channel_records import CHANNEL_KERNEL_FIELDS
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, pointer

NO_FOLD: dict[str, int | np.ndarray] = dict.fromkeys(
    ("folds", "fold_count", "map_rows", "map_row_count", "map_row"), 0
)


def folding_blocking(problem: ConvProblem) -> ChannelBlocking:
    """Whole maps in scratch."""
    return replace(channel_blocking(problem), y_near=False, bands=1)


def fold_values(problem: ConvProblem, slice_pixels: int) -> dict[str, int | np.ndarray]:
    """What `fold_map` reads, of a gradient of a map with a border whose slices lie so many pixels apart."""
    p = problem.as_3d
    axes = list(zip(p.boundary, p.spatial, p.padding, strict=True))
    sources = [np.arange(n) if b == ZERO else source_indices(b, n, *pads) for b, n, pads in axes]
    low = [0 if b == ZERO else pads[0] for b, _, pads in axes]
    d, h, w = np.ix_(*sources)
    beyond = (d < 0) | (h < 0) | (w < 0)  # (depth, height, width) of the extended map
    _, height, width = beyond.shape
    places = np.add.outer(np.arange(len(d)) * slice_pixels, np.arange(height * width).reshape(height, width))
    inside = tuple(slice(a, a + n) for a, (_, n, _) in zip(low, axes, strict=True))
    copied = places[inside][d, h, w]  # the place of what each is a copy of
    outer = ~beyond & (copied != places)
    pairs = np.stack([places[outer], copied[outer]], 1)  # (places, 2)
    rows = places[inside][:, :, 0].ravel()
    return {
        "folds": pairs.astype(np.int64), "fold_count": len(pairs), "map_rows": rows.astype(np.int64),
        "map_row_count": len(rows), "map_row": p.spatial[2],
    }  # fmt: skip


@simd.emitter
def fold_vectors(v: Vec, sums: Value, table: Value, count: Value) -> None:
    """sums[to] += sums[from], for so many pairs of a table (from, to) of vectors."""
    base = v.pointer(sums)
    with v.loop(count) as i:
        given, to = (v.imul(v.table64(table, v.iadd(v.imul(i, 2), n)), v.lanes) for n in (0, 1))
        v.store(v.fadd(v.load(base, given), v.load(base, to)), base, to)


@simd.emitter
def place_vectors(v: Vec, source: Value, channels: Value, count: Value, y: Value, step: Value) -> None:
    """y[j * step + i] = source[j][i], for i < channels <= lanes, j < count from the first on.

    They may overlap where y is lower.
    """
    inside = v.mask(channels)
    with v.choose(v.isub(channels, v.lanes)) as (whole, part):  # masked stores are slower
        with whole, v.loop(count) as j:
            v.store(v.load(v.pointer(source), v.imul(j, v.lanes)), v.pointer(y), v.imul(j, step))
        with part, v.loop(count) as j:
            value = v.load(v.pointer(source), v.imul(j, v.lanes))
            v.store_masked(value, v.pointer(y), v.imul(j, step), inside)


@jit.specialise
def fold_map(SIZE: int, LANES: int) -> jit.Kernel:
    """The sums of a map with its border to y, of a vector of channels.

    1. What lies beyond the edges is added to what it is a copy of.
    2. The rows of the map go to y where channels lie last; else they are moved together, and turned.
    """

    def fold_map(args: int, sums: int, channels: int, y: int) -> None:
        a = carray(pointer(args), 1, CHANNEL_KERNEL_FIELDS)[0]
        rows = carray(pointer(a.map_rows), a.map_row_count, np.int64)
        fold_vectors(SIZE, LANES, sums, a.folds, a.fold_count)
        last = a.y_k == 1
        to = y if last else sums
        step, count = a.y_pixel if last else LANES, channels if last else LANES
        for i in range(a.map_row_count):
            row = sums + rows[i] * LANES * SIZE
            place_vectors(SIZE, LANES, row, count, a.map_row, to + i * a.map_row * step * SIZE, step)
        if not last:
            call(a.place, (sums, a.y_k, a.y_pixel, channels, a.map_row_count * a.map_row, y))

    return fold_map
