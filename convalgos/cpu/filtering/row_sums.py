"""Rows that are weighted sums of other rows, by tables: to coarser rows, along these, and back.

Rows of short integers are summed as they are read, and stored as the integers that sums of floats end at.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.cpu.filtering.line_elements import KINDS, store_within
from convalgos.cpu.filtering.line_sums import FUSED, sum_lines, sum_lines_of
from convalgos.cpu.layout.streaming import STREAMED_PLANES, outgrows_caches, stream
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.runtime.record_launch import RecordLaunch
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import call, carray, pointer

CACHE = 1 << 19  # bytes of the rows under a sum, in the second cache; Zen 4
SHORTEST = 1 << 10  # bytes of a row that are summed at a time, at least; Zen 4
SHARE = 1 << 13  # products of vectors that are worth a thread; Sapphire Rapids
UNITS = 4  # of work for each thread
# x and y are (outer, rows, inner). Row j of y is the sum over t of weights[j % phases][t] times the row of x
# that `sources` has at firsts[j] + t, where -1 is the fill value. `stream` is 0, or stores a line around the
# caches or as integers. x_bytes, y_bytes: of an element.
ROW_SUM_FIELDS = fields(
    "x y scratch scratch_bytes tasks outer x_rows y_rows inner chunk chunks bands firsts sources places "
    "weights phases taps filling sums stream line_at x_bytes y_bytes"
)


class RowSums(NamedTuple):
    """Which rows of x are summed to each row of y.

    firsts: (rows of y,) int64; sources: (places,) int64; weights: (phases, taps) float64.
    """

    firsts: np.ndarray
    sources: np.ndarray
    weights: np.ndarray

    @property
    def rows(self) -> int:
        return len(self.firsts)


@jit.specialise
def sum_rows(SIZE: int) -> jit.Kernel:
    """The units of a task: some columns of some rows of y."""

    def sum_rows(args: int, task: int) -> None:
        a = carray(pointer(args), 1, ROW_SUM_FIELDS)[0]
        scratch = a.scratch + task * a.scratch_bytes
        table, line = carray(pointer(scratch), a.taps, np.int64), scratch + a.line_at
        firsts = carray(pointer(a.firsts), a.y_rows, np.int64)
        sources = carray(pointer(a.sources), a.places, np.int64)
        units = a.outer * a.chunks * a.bands
        for unit in range(units * task // a.tasks, units * (task + 1) // a.tasks):
            band, part = unit % a.bands, unit // a.bands
            at, o = part % a.chunks * a.chunk, part // a.chunks
            count = min(a.chunk, a.inner - at)
            for j in range(a.y_rows * band // a.bands, a.y_rows * (band + 1) // a.bands):
                for t in range(a.taps):
                    source = sources[firsts[j] + t]
                    x = a.x + ((o * a.x_rows + source) * a.inner + at) * a.x_bytes
                    table[t] = a.filling if source < 0 else x
                phase = j % a.phases if a.phases < a.y_rows else j  # which spares most a division
                weights = a.weights + phase * a.taps * SIZE
                y = a.y + ((o * a.y_rows + j) * a.inner + at) * a.y_bytes
                into = y if a.stream == 0 else line
                call(a.sums, (scratch, weights, a.taps, count, into, 0, 1))
                if a.stream != 0:
                    call(a.stream, (line, y, count))

    return sum_rows


class RowPass:
    """y (outer, by.rows, inner) of x (outer, rows, inner), fixed to these sizes.

    dtype: of the sums, a float one. fill: what stands for rows of x that are none. third: "weights", where
    calls bring others than by's. of, into: short integers that x or y holds, where they are not of dtype.
    """

    def __init__(
        self, outer: int, rows: int, inner: int, dtype: np.dtype, by: RowSums, fill: float, threads: int,
        third: str = "", of: np.dtype | None = None, into: np.dtype | None = None,
    ):  # fmt: skip
        size, lanes, taps = dtype.itemsize, simd.lanes(dtype.itemsize), by.weights.shape[1]
        self.count = outer * by.rows * inner  # elements of y
        chunk = min(inner, max(SHORTEST, CACHE // taps) // size // lanes * lanes)
        chunks = -(-inner // chunk)
        threads = threads if outer * by.rows * -(-inner // lanes) * taps > SHARE else 1
        bands = 1 if threads == 1 else max(1, min(by.rows, threads * UNITS // (outer * chunks)))
        tasks = min(threads, outer * chunks * bands)
        line_at = whole_lines(8 * taps)
        scratch_bytes = line_at + whole_lines(chunk * size)
        weights, filling = by.weights.astype(dtype), np.full(chunk, fill, of or dtype)
        kept = *by, weights, filling
        if into is not None:
            around = store_within(KINDS.index(into.name), size, lanes)
        else:
            around = stream(size, lanes) if outgrows_caches(self.count * size, STREAMED_PLANES) else 0
        sums = sum_lines_of(KINDS.index(of.name), size, lanes) if of else sum_lines(FUSED, size, lanes)
        values = (
            0, 0, 0, scratch_bytes, tasks, outer, rows, by.rows, inner, chunk, chunks, bands,
            by.firsts.ctypes.data, by.sources.ctypes.data, len(by.sources), weights.ctypes.data, len(weights),
            taps, filling.ctypes.data, sums, around, line_at, filling.itemsize,
            into.itemsize if into else size,
        )  # fmt: skip
        record, names = np.array(values, np.int64), ROW_SUM_FIELDS.names
        self.run = RecordLaunch(sum_rows(size), record, names, tasks * scratch_bytes, tasks, kept, third)


class MatrixPass:
    """y (rows, columns) = x (rows, taps) times a matrix (taps, columns), of few columns or taps, + offset.

    The rows of the matrix are summed, with weights that are the elements of x.
    """

    def __init__(self, rows: int, matrix: np.ndarray, threads: int, offset: np.ndarray | None = None):
        self._matrix, (taps, columns) = matrix, matrix.shape
        self._offset = offset  # (columns,)
        by = RowSums(np.zeros(rows, np.int64), np.arange(taps), np.zeros((rows, taps)))
        self._sums = RowPass(1, taps, columns, matrix.dtype, by, 0.0, threads, "weights")
        self.count = self._sums.count

    def run(self, x: np.ndarray, y: np.ndarray) -> None:
        """Many threads may run it at once."""
        self._sums.run(self._matrix, y, x)
        if self._offset is not None:
            rows = y.reshape(-1)[: self.count].reshape(-1, len(self._offset))
            rows += self._offset
