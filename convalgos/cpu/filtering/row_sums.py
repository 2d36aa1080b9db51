"""Rows that are weighted sums of other rows, by tables: to coarser rows, along these, and back.

Rows of short integers are summed as they are read, and stored as the integers that sums of floats end at.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.cpu.filtering.line_elements import KINDS, loaded, store_within
from convalgos.cpu.filtering.line_sums import FUSED, sum_lines, sum_lines_of
from convalgos.cpu.layout.streaming import STREAMED_PLANES, outgrows_caches, stream
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.runtime.record_launch import RecordLaunch
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_chunks
from convalgos.cpu.vectors.lanes import load_lanes, store_lanes
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, pointer

CACHE = 1 << 16  # bytes of the rows under a sum, in the first caches if they are few; Zen 5
SHORTEST = 1 << 10  # bytes of a row that are summed at a time, at least; Zen 4
GROUP = 4  # rows that are summed at a time
MOST_ZEROS = 2.0  # products of these for one of each row by itself; Zen 5
NARROW = 32  # bytes of vectors of which there are so few registers that groups take two side by side
SHARE = 1 << 13  # products of vectors that are worth a thread; Sapphire Rapids
UNITS = 4  # of work for each thread
SPREAD = 4  # rows that rows between two places of a grid are sums of
AT_ONCE = 4  # vectors of each of them in registers
SPREAD_BYTES = 1 << 10  # of rows that are written some vectors of each at a time, at most; Zen 4
# x and y are (outer, rows, inner). Row j of y is the sum over t of weights[j % phases][t] times the row of x
# that `sources` has at firsts[j] + t, where -1 is the fill value. `stream` is 0, or stores a line around the
# caches or as integers. x_bytes, y_bytes: of an element. `runs` are rows of y from which on others have equal
# firsts, and their end.
ROW_SUM_FIELDS = fields(
    "x y scratch scratch_bytes tasks outer x_rows y_rows inner chunk chunks bands firsts sources places "
    "weights phases taps filling sums stream line_at x_bytes y_bytes runs run_count"
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


@jit.helper
def find_summed(a: Any, j: int, at: int, outer: int, table: int) -> None:
    """The addresses of rows of x, from an element on, that row j of y is a sum of."""
    found = carray(pointer(table), a.taps, np.int64)
    first = carray(pointer(a.firsts), a.y_rows, np.int64)[j]
    sources = carray(pointer(a.sources), a.places, np.int64)
    for t in range(a.taps):
        source = sources[first + t]
        x = a.x + ((outer * a.x_rows + source) * a.inner + at) * a.x_bytes
        found[t] = a.filling if source < 0 else x


@jit.specialise
def sum_rows(SIZE: int) -> jit.Kernel:
    """The units of a task: some columns of some rows of y."""

    def sum_rows(args: int, task: int) -> None:
        a = carray(pointer(args), 1, ROW_SUM_FIELDS)[0]
        table = a.scratch + task * a.scratch_bytes
        line = table + a.line_at
        units = a.outer * a.chunks * a.bands
        for unit in range(units * task // a.tasks, units * (task + 1) // a.tasks):
            band, part = unit % a.bands, unit // a.bands
            at, o = part % a.chunks * a.chunk, part // a.chunks
            count = min(a.chunk, a.inner - at)
            for j in range(a.y_rows * band // a.bands, a.y_rows * (band + 1) // a.bands):
                find_summed(a, j, at, o, table)
                phase = j % a.phases if a.phases < a.y_rows else j  # which spares most a division
                weights = a.weights + phase * a.taps * SIZE
                y = a.y + ((o * a.y_rows + j) * a.inner + at) * a.y_bytes
                into = y if a.stream == 0 else line
                call(a.sums, (table, weights, a.taps, count, into, 0, 1))
                if a.stream != 0:
                    call(a.stream, (line, y, count))

    return sum_rows


@jit.specialise
def spread_rows(SIZE: int, LANES: int) -> jit.Kernel:
    """The units of a task: some runs of rows of y, which are whole and sums of SPREAD rows of x."""

    def spread_rows(args: int, task: int) -> None:
        a = carray(pointer(args), 1, ROW_SUM_FIELDS)[0]
        table = a.scratch + task * a.scratch_bytes
        runs = carray(pointer(a.runs), a.run_count + 1, np.int64)
        units = a.outer * a.bands
        for unit in range(units * task // a.tasks, units * (task + 1) // a.tasks):
            band, o = unit % a.bands, unit // a.bands
            for run in range(a.run_count * band // a.bands, a.run_count * (band + 1) // a.bands):
                begin, rows = runs[run], runs[run + 1] - runs[run]
                find_summed(a, begin, 0, o, table)
                y = a.y + (o * a.y_rows + begin) * a.inner * a.y_bytes
                into = y if a.stream == 0 else table + a.line_at
                weights = a.weights + begin * SPREAD * SIZE
                spread_run(SIZE, LANES, table, weights, rows, a.inner, into)
                if a.stream != 0:
                    call(a.stream, (into, y, rows * a.inner))

    return spread_rows


@simd.emitter
def spread_run(v: Vec, table: Value, weights: Value, rows: Value, count: Value, y: Value) -> None:
    """y (rows, count) = weights (rows, SPREAD) times the lines at addresses, which stay in registers."""
    w, to = v.pointer(weights), v.pointer(y)

    def chunk(at: Value, vectors: int, mask: Value = None) -> None:
        masks = [None] * (vectors - 1) + [mask]
        places = [v.iadd(at, m * v.lanes) for m in range(vectors)]
        lines = [
            [load_lanes(v, v.pointer(v.table64(table, t)), place, each)
             for place, each in zip(places, masks, strict=True)]
            for t in range(SPREAD)
        ]  # fmt: skip
        with v.loop(rows) as j:
            row, first = v.imul(j, count), v.imul(j, SPREAD)
            scales = [v.broadcast(w, v.iadd(first, t)) for t in range(SPREAD)]
            for m, (place, each) in enumerate(zip(places, masks, strict=True)):
                total = v.fmul(lines[0][m], scales[0])
                for line, scale in zip(lines[1:], scales[1:], strict=True):
                    total = v.fma(line[m], scale, total)
                store_lanes(v, total, to, v.iadd(row, place), each)

    loop_chunks(v, v, count, AT_ONCE, chunk)


@jit.specialise
def sum_grouped_rows(KIND: int, SIZE: int, LANES: int, ROWS: int) -> jit.Kernel:
    """The units of a task: some columns of some groups of ROWS rows of y, for all of which x is read once.

    Entries of `firsts` and weights (taps, ROWS) are those of groups, of which the last one ends with y.
    """

    def sum_grouped_rows(args: int, task: int) -> None:
        a = carray(pointer(args), 1, ROW_SUM_FIELDS)[0]
        table = a.scratch + task * a.scratch_bytes
        line, groups = table + a.line_at, -(-a.y_rows // ROWS)
        units = a.outer * a.chunks * a.bands
        for unit in range(units * task // a.tasks, units * (task + 1) // a.tasks):
            band, part = unit % a.bands, unit // a.bands
            at, o = part % a.chunks * a.chunk, part // a.chunks
            count = min(a.chunk, a.inner - at)
            for group in range(groups * band // a.bands, groups * (band + 1) // a.bands):
                find_summed(a, group, at, o, table)
                weights, first = a.weights + group * a.taps * ROWS * SIZE, min(group * ROWS, a.y_rows - ROWS)
                y, step = a.y + ((o * a.y_rows + first) * a.inner + at) * a.y_bytes, a.inner * a.y_bytes
                into, apart = (y, a.inner) if a.stream == 0 else (line, count)
                sum_group(SIZE, LANES, KIND, ROWS, table, weights, a.taps, count, into, apart)
                if a.stream != 0:
                    for r in range(ROWS):
                        call(a.stream, (line + r * count * SIZE, y + r * step, count))

    return sum_grouped_rows


@simd.emitter
def sum_group(
    v: Vec, KIND: int, ROWS: int, table: Value, weights: Value, taps: Value, count: Value, y: Value,
    apart: Value,
) -> None:  # fmt: skip
    """y[r][i] = sum_t weights[t][r] * lines[t][i], of lines of a kind; rows are `apart` elements."""
    w, to = v.pointer(weights), v.pointer(y)

    def chunk(at: Value, vectors: int, mask: Value = None) -> None:
        masks = [None] * (vectors - 1) + [mask]
        places = [v.iadd(at, m * v.lanes) for m in range(vectors)]
        sums = [[v.register(v.zero()) for _ in places] for _ in range(ROWS)]
        with v.loop(taps) as t:
            source = v.pointer(v.table64(table, t))
            lines = [loaded(v, KIND, source, *each) for each in zip(places, masks, strict=True)]
            for r, totals in enumerate(sums):
                scale = v.broadcast(w, v.iadd(v.imul(t, ROWS), r))
                for total, line in zip(totals, lines, strict=True):
                    total.set(v.fma(line, scale, total.value))
        for r, totals in enumerate(sums):
            row = v.imul(apart, r)
            for total, place, each in zip(totals, places, masks, strict=True):
                store_lanes(v, total.value, to, v.iadd(row, place), each)

    loop_chunks(v, v, count, AT_ONCE if v.lanes * v.size > NARROW else 2, chunk)


class RowGroups(NamedTuple):
    """Rows of which neighbours are sums of nearly the same: GROUP of them, or all where there are fewer.

    firsts: (groups,); sources: (places,), of which some may be behind the last one that is met; weights:
    (groups, taps, rows of a group).
    """

    firsts: np.ndarray
    sources: np.ndarray
    weights: np.ndarray


def row_groups(by: RowSums) -> RowGroups | None:
    """Groups of rows, if that does not take too many products by 0."""
    taps, many = by.weights.shape[1], min(GROUP, by.rows)
    groups = -(-by.rows // many)
    begins = np.minimum(np.arange(groups) * many, by.rows - many)
    rows = begins[:, None] + np.arange(many)  # (groups, many)
    firsts = by.firsts[rows]
    wide = int((firsts.max(1) - firsts.min(1)).max()) + taps
    if many == 1 or groups * many * wide > MOST_ZEROS * by.rows * taps:
        return None
    weights = np.zeros((groups, wide, many))
    first = firsts.min(1)
    at = (firsts - first[:, None])[:, :, None] + np.arange(taps)  # (groups, many, taps)
    weights[np.arange(groups)[:, None, None], at, np.arange(many)[:, None]] = by.weights[
        rows % len(by.weights)
    ]
    missing = max(0, int(first.max()) + wide - len(by.sources))
    return RowGroups(first, np.pad(by.sources, (0, missing), "edge"), weights)


class RowRecord(NamedTuple):
    """What a kernel of rows is launched with.

    record: (fields of ROW_SUM_FIELDS,) int64, without addresses of x, y and scratch; kept: what it points to.
    elements: of y. scratch_bytes: of each task.
    """

    kernel: int
    record: np.ndarray
    kept: tuple[np.ndarray, ...]
    elements: int
    tasks: int
    scratch_bytes: int


def row_record(
    outer: int, rows: int, inner: int, dtype: np.dtype, by: RowSums, fill: float, threads: int,
    of: np.dtype | None = None, into: np.dtype | None = None,
) -> RowRecord:  # fmt: skip
    """Of what `RowPass` does."""
    size, lanes, taps = dtype.itemsize, simd.lanes(dtype.itemsize), by.weights.shape[1]
    count = outer * by.rows * inner
    if into is not None:
        around = store_within(KINDS.index(into.name), size, lanes)
    else:
        around = stream(size, lanes) if outgrows_caches(count * size, STREAMED_PLANES) else 0
    runs = np.flatnonzero(np.diff(by.firsts, prepend=-1, append=-1))  # (runs + 1,)
    is_whole = taps == SPREAD and len(by.weights) == by.rows and inner * size <= SPREAD_BYTES and of is None
    spreads = is_whole and (into is not None or around == 0)
    groups = None if spreads or inner < lanes else row_groups(by)
    many = 1
    weights = by.weights.astype(dtype)
    firsts, sources = by.firsts, by.sources
    if groups is not None:
        firsts, sources, weights = groups.firsts, groups.sources, groups.weights.astype(dtype)
        taps, many = weights.shape[1:]
    chunk = inner if spreads else min(inner, max(SHORTEST, CACHE // taps) // size // lanes * lanes)
    chunks = -(-inner // chunk)
    threads = threads if outer * by.rows * -(-inner // lanes) * taps > SHARE else 1
    most = len(runs) - 1 if spreads else -(-by.rows // many)
    bands = 1 if threads == 1 else max(1, min(most, threads * UNITS // (outer * chunks)))
    tasks = min(threads, outer * chunks * bands)
    line_at = whole_lines(8 * taps)
    scratch_bytes = line_at + whole_lines(chunk * size * (int(np.diff(runs).max()) if spreads else many))
    filling = np.full(chunk, fill, of or dtype)
    sums = sum_lines_of(KINDS.index(of.name), size, lanes) if of else sum_lines(FUSED, size, lanes)
    values = (
        0, 0, 0, scratch_bytes, tasks, outer, rows, by.rows, inner, chunk, chunks, bands,
        firsts.ctypes.data, sources.ctypes.data, len(sources), weights.ctypes.data, len(weights),
        taps, filling.ctypes.data, sums, around, line_at, filling.itemsize, into.itemsize if into else size,
        runs.ctypes.data, len(runs) - 1,
    )  # fmt: skip
    kernel = spread_rows(size, lanes) if spreads else sum_rows(size)
    if groups is not None:
        kernel = sum_grouped_rows(KINDS.index((of or dtype).name), size, lanes, many)
    kept = firsts, sources, weights, filling, runs
    return RowRecord(kernel, np.array(values, np.int64), kept, count, tasks, scratch_bytes)


class RowPass:
    """y (outer, by.rows, inner) of x (outer, rows, inner), fixed to these sizes.

    dtype: of the sums, a float one. fill: what stands for rows of x that are none. of, into: short integers
    that x or y holds, where they are not of dtype.
    """

    def __init__(
        self, outer: int, rows: int, inner: int, dtype: np.dtype, by: RowSums, fill: float, threads: int,
        of: np.dtype | None = None, into: np.dtype | None = None,
    ):  # fmt: skip
        made = row_record(outer, rows, inner, dtype, by, fill, threads, of, into)
        self.count, names = made.elements, ROW_SUM_FIELDS.names
        scratch_bytes = made.tasks * made.scratch_bytes
        self.run = RecordLaunch(made.kernel, made.record, names, scratch_bytes, made.tasks, made.kept)
