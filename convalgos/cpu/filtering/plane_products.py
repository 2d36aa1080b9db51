"""Sums of the rows of planes whose rows are short, by matrices: each row of a plane is one of all others.

A plane is read and written as it lies in memory. Between, rows are summed some at a time, each in a vector or
two, of which what lies behind the end of a row is written again with the next one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.cpu.filtering.line_elements import KINDS, load_line, store_within
from convalgos.cpu.filtering.row_sums import RowSums
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.runtime.record_launch import RecordLaunch
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, copy_bytes, pointer

ROWS = 8  # that are summed at a time
VECTORS = 2  # of a row, at most
SHARE = 1 << 13  # elements that are worth a thread; Zen 5
# x and y are (outer, size, inner). `down` (blocks, taps, ROWS) leads to `middle` rows, and `back` from these
# to all; without it `down` does. `filling` has the row behind the last one, if sums have as many `taps`.
# load and store convert elements, or are 0; middle_at, summed_at: places in the scratch of a task.
PLANE_FIELDS = fields(
    "x y scratch scratch_bytes tasks outer size inner taps middle down back filling load store x_bytes "
    "y_bytes middle_at summed_at"
)


@simd.emitter
def sum_plane_rows(
    v: Vec, ROWS: int, VECTORS: int, x: Value, inner: Value, weights: Value, taps: Value, rows: Value,
    y: Value,
) -> None:  # fmt: skip
    """y[j] = sum_t weights[j // ROWS][t][j % ROWS] * x[t], of rows of `inner` elements, and some behind."""
    source, w, to = (v.pointer(address) for address in (x, weights, y))
    with v.loop(v.idiv(v.iadd(rows, ROWS - 1), ROWS)) as block:
        first = v.imul(block, ROWS)
        scales = v.at(w, v.imul(first, taps))
        sums = [[v.register(v.zero()) for _ in range(VECTORS)] for _ in range(ROWS)]
        with v.loop(taps) as t:
            row = v.at(source, v.imul(t, inner))
            values = [v.load(row, m * v.lanes) for m in range(VECTORS)]
            for r, totals in enumerate(sums):
                scale = v.broadcast(scales, v.iadd(v.imul(t, ROWS), r))
                for total, value in zip(totals, values, strict=True):
                    total.set(v.fma(value, scale, total.value))
        for r, totals in enumerate(sums):
            out = v.at(to, v.imul(v.iadd(first, r), inner))
            for m, total in enumerate(totals):
                v.store(total.value, out, m * v.lanes)


@jit.specialise
def filter_planes(SIZE: int, LANES: int, WIDE: int) -> jit.Kernel:
    """The planes of a task, of rows of WIDE vectors."""

    def filter_planes(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PLANE_FIELDS)[0]
        laid = a.scratch + task * a.scratch_bytes
        middle, summed = laid + a.middle_at, laid + a.summed_at
        count = a.size * a.inner
        simd.zero_bytes(laid, a.summed_at)  # what lies behind rows is multiplied, too
        copy_bytes(laid + count * SIZE, a.filling, a.inner * SIZE)
        for plane in range(a.outer * task // a.tasks, a.outer * (task + 1) // a.tasks):
            x, y = a.x + plane * count * a.x_bytes, a.y + plane * count * a.y_bytes
            if a.load != 0:
                call(a.load, (x, laid, count))
            else:
                copy_bytes(laid, x, count * SIZE)
            rows = a.size if a.back == 0 else a.middle
            into = summed if a.back == 0 else middle
            sum_plane_rows(SIZE, LANES, ROWS, WIDE, laid, a.inner, a.down, a.taps, rows, into)
            if a.back != 0:
                sum_plane_rows(SIZE, LANES, ROWS, WIDE, middle, a.inner, a.back, a.middle, a.size, summed)
            if a.store != 0:
                call(a.store, (summed, y, count))
            else:
                copy_bytes(y, summed, count * SIZE)

    return filter_planes


def widest_row(dtype: np.dtype) -> int:
    """Elements of a row that a `PlanePass` sums."""
    return VECTORS * simd.lanes(dtype.itemsize)


def are_of_all(size: int, sums: Sequence[RowSums]) -> bool:
    """Whether sums are those of a `PlanePass`: of all of so many rows, in their order."""
    if len(sums) > 2 or any(by.firsts.any() or len(by.weights) < by.rows for by in sums):
        return False
    first = sums[0]
    taps = first.weights.shape[1]
    return size <= taps <= size + 1 and np.array_equal(first.sources[:size], np.arange(size))


class PlanePass:
    """y (outer, size, inner) = x summed along the middle axis; both are C-contiguous, and apart.

    Args:
        dtype: of sums, a float one.
        sums: one or two of all rows, as `are_of_all` tells.
        fill: what stands for elements that are none.
        of, into: short integers that x or y holds, where they are not of dtype.
    """

    def __init__(
        self, outer: int, size: int, inner: int, dtype: np.dtype, sums: Sequence[RowSums], fill: float,
        threads: int, of: np.dtype | None = None, into: np.dtype | None = None,
    ):  # fmt: skip
        self.count, each, lanes = outer * size * inner, dtype.itemsize, simd.lanes(dtype.itemsize)
        down, *back = sums
        middle, wide = down.rows, -(-inner // lanes)
        matrices = [_in_blocks(by.weights, dtype) for by in sums]
        tasks = max(1, min(threads, self.count // SHARE, outer))
        behind = (ROWS * inner + VECTORS * lanes) * each
        spans = [whole_lines(rows * inner * each + behind) for rows in (size + 1, middle, size)]
        filling = np.full(inner, fill, dtype)
        address = jit.data_address()
        values = (
            0, 0, 0, sum(spans), tasks, outer, size, inner, down.weights.shape[1], middle,
            address(matrices[0]), address(matrices[1]) if back else 0, address(filling),
            load_line(KINDS.index(of.name), each, lanes) if of else 0,
            store_within(KINDS.index(into.name), each, lanes) if into else 0,
            (of or dtype).itemsize, (into or dtype).itemsize, spans[0], spans[0] + spans[1],
        )  # fmt: skip
        self.run = RecordLaunch(
            filter_planes(each, lanes, wide), np.array(values, np.int64), PLANE_FIELDS.names,
            tasks * sum(spans), tasks, (matrices, filling),
        )  # fmt: skip


def _in_blocks(weights: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """(blocks, taps, ROWS) of (rows, taps)."""
    rows, taps = weights.shape
    blocks = math.ceil(rows / ROWS)
    filled = np.zeros((blocks * ROWS, taps), dtype)
    filled[:rows] = weights
    return np.ascontiguousarray(filled.reshape(blocks, ROWS, taps).swapaxes(1, 2))
