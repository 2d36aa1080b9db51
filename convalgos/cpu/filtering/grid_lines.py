"""Lines by way of coarse grids, some at a time, along which vectors lie.

Each place of a grid is a dot product with elements that lie behind each other, and has weights of its own, so
that a grid ends where its line does. No line waits for others that would lie beside it in the lanes of
vectors. Lines across rows of few elements are turned over. See `coarse_gaussians` for the steps and their
error.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.cpu.filtering.line_borders import copy_pixel
from convalgos.cpu.filtering.line_elements import KINDS, load_line, store_within
from convalgos.cpu.filtering.recursive_kernels import turn_panel
from convalgos.cpu.filtering.row_sums import SPREAD, RowSums
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.runtime.record_launch import RecordLaunch
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.instructions import function_of, ir
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, copy_bytes, pointer, zero_bytes

MANY = 4  # lines that are filtered at a time, where there are so many
PLACES = 4  # of the grid that are summed at a time
SHARE = 1 << 12  # elements that are worth a thread; Zen 5
# x and y are (lines, size, after), of elements of x_bytes and y_bytes. A line has the elements that `sources`
# names, `places` of them, its own ones from `low` on; -1 is `filling`. Place j of the grid is the sum of
# `taps` of them from firsts[j] on, times down (rows, taps); `middle` filters the `laid` places that `along`
# names, if it has taps. Of y, the elements from starts[r] on lie in the interval spreads[r] between places,
# at the shares of a step that `shares` has; `sixth` is that of `interval_cubics`. `load` and `store`
# convert elements, or are 0; `turn` and `turn_back` turn planes over. In scratch are lines and outputs,
# `line_pitch` elements apart, places of grids, `grid_pitch` apart, their cubics, and a plane.
GRID_LINE_FIELDS = fields(
    "x y scratch scratch_bytes tasks lines size after places low sources filling rows taps firsts down laid "
    "along middle middle_taps starts spreads runs shares sixth intervals load store turn turn_back x_bytes "
    "y_bytes sums_at laid_at filtered_at cubics_at out_at elements_at line_pitch grid_pitch"
)


@jit.specialise
def filter_grid_lines(SIZE: int, LANES: int, LINES: int) -> jit.Kernel:
    """The lines of a task, LINES at a time."""

    def filter_grid_lines(args: int, task: int) -> None:
        a = carray(pointer(args), 1, GRID_LINE_FIELDS)[0]
        scratch = a.scratch + task * a.scratch_bytes
        zero_behind(a, SIZE, scratch, LINES)
        first, end = a.lines * task // a.tasks, a.lines * (task + 1) // a.tasks
        while first < end:
            n = max(min(first, end - LINES), 0)  # the last ones may be filtered once more
            for k in range(LINES):
                x, own = a.x + (n + k) * a.size * a.x_bytes, scratch + (k * a.line_pitch + a.low) * SIZE
                if a.load == 0:
                    copy_bytes(own, x, a.size * SIZE)
                else:
                    call(a.load, (x, own, a.size))
            y = a.y + n * a.size * a.y_bytes
            if a.store == 0:
                filter_together(a, SIZE, LANES, LINES, scratch, scratch, y, a.size)
            else:
                out = scratch + a.out_at
                filter_together(a, SIZE, LANES, LINES, scratch, scratch, out, a.line_pitch)
                for k in range(LINES):
                    call(a.store, (out + k * a.line_pitch * SIZE, y + k * a.size * a.y_bytes, a.size))
            first += LINES

    return filter_grid_lines


@jit.specialise
def filter_grid_planes(SIZE: int, LANES: int) -> jit.Kernel:
    """The planes of a task, (size, after) each, whose lines are turned over to lie in rows and back."""

    def filter_grid_planes(args: int, task: int) -> None:
        a = carray(pointer(args), 1, GRID_LINE_FIELDS)[0]
        scratch = a.scratch + task * a.scratch_bytes
        elements, out = scratch + a.elements_at, scratch + a.out_at
        count, pitch = a.size * a.after, a.line_pitch * SIZE
        zero_behind(a, SIZE, scratch, a.after + MANY - 1)
        for n in range(a.lines * task // a.tasks, a.lines * (task + 1) // a.tasks):
            x, y = a.x + n * count * a.x_bytes, a.y + n * count * a.y_bytes
            if a.load != 0:
                call(a.load, (x, elements, count))
                x = elements
            call(a.turn, (a.line_pitch // LANES, x, a.after, a.after, a.size, scratch + a.low * SIZE))
            for k in range(0, a.after, MANY):
                line = scratch + k * pitch
                filter_together(a, SIZE, LANES, MANY, scratch, line, out + k * pitch, a.line_pitch)
            to = y if a.store == 0 else elements
            call(a.turn_back, (a.line_pitch // LANES, to, a.after, a.after, a.size, out))
            if a.store != 0:
                call(a.store, (elements, y, count))

    return filter_grid_planes


@jit.helper
def zero_behind(a: Any, size: int, scratch: int, lines: int) -> None:
    """What is behind lines is multiplied by 0."""
    begin = a.low + a.size
    for k in range(lines):
        zero_bytes(scratch + (k * a.line_pitch + begin) * size, (a.line_pitch - begin) * size)


@jit.helper
def filter_together(
    a: Any, size: int, lanes: int, count: int, scratch: int, line: int, y: int, pitch: int
) -> None:  # fmt: skip
    """Some lines that are laid from `line` on, to y, where they are `pitch` elements apart."""
    sums, laid, filtered = scratch + a.sums_at, scratch + a.laid_at, scratch + a.filtered_at
    for k in range(count):
        begin = line + k * a.line_pitch * size
        own = begin + a.low * size
        gather_places(size, own, a.sources, 0, a.low, begin, a.filling)
        gather_places(size, own, a.sources, a.low + a.size, a.places, begin, a.filling)
    sum_to_places(
        size, lanes, count, line, a.line_pitch, a.firsts, a.rows, a.down, a.taps, sums, a.grid_pitch
    )  # fmt: skip
    spread = sums
    if a.middle_taps > 0:
        for k in range(count):
            at = k * a.grid_pitch * size
            gather_places(size, sums + at, a.along, 0, a.laid, laid + at, a.filling)
            filter_places(size, lanes, laid + at, a.laid, a.middle, a.middle_taps, filtered + at)
        spread = filtered
    cubics = scratch + a.cubics_at
    for k in range(count):
        at = k * a.grid_pitch * size
        interval_cubics(size, lanes, spread + at, a.intervals, a.sixth, cubics + SPREAD * at, a.grid_pitch)
    spread_places(
        size, lanes, count, cubics, a.grid_pitch, a.starts, a.spreads, a.runs, a.shares, a.size, y, pitch
    )


@jit.helper
def gather_places(
    size: int, elements: int, table: int, begin: int, end: int, target: int, filling: int
) -> None:
    """target[i] = the element that a table names, from a place to another."""
    sources = carray(pointer(table), end, np.int64)
    for i in range(begin, end):
        source = filling if sources[i] < 0 else elements + sources[i] * size
        copy_pixel(target + i * size, source, 1, size)


@simd.emitter
def sum_to_places(
    v: Vec, LINES: int, line: Value, line_pitch: Value, firsts: Value, rows: Value, weights: Value,
    taps: Value, y: Value, pitch: Value,
) -> None:  # fmt: skip
    """y[j] = sum_t weights[j][t] * line[firsts[j] + t]; whole vectors of taps, and PLACES rows."""
    source, w, to = (v.pointer(address) for address in (line, weights, y))
    kind = ir.FunctionType(v.element, [v.element, v.type])
    total = function_of(v.b, kind, f"llvm.vector.reduce.fadd.{v.suffix}")
    at_once = max(1, PLACES // LINES)
    lines = [v.imul(line_pitch, k) for k in range(LINES)]
    with v.loop(v.idiv(rows, at_once)) as block:
        j = v.imul(block, at_once)
        begins = [[v.iadd(each, v.table64(firsts, v.iadd(j, n))) for each in lines] for n in range(at_once)]
        places = [v.imul(v.iadd(j, n), taps) for n in range(at_once)]
        sums = [[v.register(v.zero()) for _ in lines] for _ in range(at_once)]
        with v.loop(v.idiv(taps, v.lanes)) as vector:
            t = v.imul(vector, v.lanes)
            for n, place in enumerate(places):
                weight = v.load(w, v.iadd(place, t))
                for each, begin in zip(sums[n], begins[n], strict=True):
                    each.set(v.fma(v.load(source, v.iadd(begin, t)), weight, each.value))
        zero = ir.Constant(v.element, 0.0)
        for n in range(at_once):
            for k, each in enumerate(sums[n]):
                value = v.b.call(total, [zero, each.value], fastmath=("reassoc",))
                v.b.store(value, v.at(to, v.iadd(v.imul(pitch, k), v.iadd(j, n))))


@simd.emitter
def filter_places(v: Vec, places: Value, count: Value, weights: Value, taps: Value, y: Value) -> None:
    """y[j] = sum_t weights[t] * places[j + t], and some behind the last one of `count` places."""
    source, w, to = (v.pointer(address) for address in (places, weights, y))
    wide = 2 * v.lanes
    with v.loop(v.idiv(v.iadd(v.isub(count, taps), wide), wide)) as block:
        at = v.imul(block, wide)
        sums = [v.register(v.zero()) for _ in range(2)]
        with v.loop(taps) as t:
            scale, first = v.broadcast(w, t), v.iadd(at, t)
            for n, each in enumerate(sums):
                each.set(v.fma(v.load(source, v.iadd(first, n * v.lanes)), scale, each.value))
        for n, each in enumerate(sums):
            v.store(each.value, to, v.iadd(at, n * v.lanes))


@simd.emitter
def interval_cubics(v: Vec, places: Value, count: Value, sixth: Value, cubics: Value, pitch: Value) -> None:
    """cubics[k][j]: what u**k has in the cubic B-spline from place j + 1 to j + 2, u from 0 to 1.

    Places are multiplied by a sixth first: sums of large ones have an end, too.
    """
    source, to = v.pointer(places), v.pointer(cubics)
    share = v.broadcast(v.pointer(sixth))
    with v.loop(v.idiv(v.iadd(count, v.lanes - 1), v.lanes)) as vector:
        j = v.imul(vector, v.lanes)
        one, two, three, four = (v.fmul(v.load(source, v.iadd(j, t)), share) for t in range(SPREAD))
        outer = v.fadd(one, three)
        terms = (
            v.axpy(4.0, two, outer),
            v.scale(3.0, v.fsub(three, one)),
            v.scale(3.0, v.axpy(-2.0, two, outer)),
            v.axpy(3.0, v.fsub(two, three), v.fsub(four, one)),
        )
        for k, term in enumerate(terms):
            v.store(term, to, v.iadd(v.imul(pitch, k), j))


@simd.emitter
def spread_places(
    v: Vec, LINES: int, cubics: Value, pitch: Value, starts: Value, intervals: Value, runs: Value,
    shares: Value, size: Value, y: Value, y_pitch: Value,
) -> None:  # fmt: skip
    """y[i] = the cubic of each run at shares[i], and some behind it, up to `size`."""
    source, share, to = (v.pointer(address) for address in (cubics, shares, y))
    froms = [[v.imul(pitch, SPREAD * k + t) for t in range(SPREAD)] for k in range(LINES)]
    outs = [v.imul(y_pitch, k) for k in range(LINES)]
    with v.loop(runs) as run:
        begin, first = v.table64(starts, run), v.table64(intervals, run)
        count = v.isub(v.table64(starts, v.iadd(run, 1)), begin)
        terms = [[v.broadcast(source, v.iadd(place, first)) for place in line] for line in froms]
        with v.loop(v.idiv(v.iadd(count, v.lanes - 1), v.lanes)) as vector:
            at = v.iadd(begin, v.imul(vector, v.lanes))
            u, totals = v.load(share, at), []
            for *lower, total in terms:
                for term in reversed(lower):
                    total = v.fma(total, u, term)
                totals.append(total)
            rest = v.isub(size, at)
            with v.choose(v.isub(rest, v.lanes)) as (whole, part):
                with whole:
                    for total, out in zip(totals, outs, strict=True):
                        v.store(total, to, v.iadd(out, at))
                with part:
                    for total, out in zip(totals, outs, strict=True):
                        v.store_masked(total, to, v.iadd(out, at), v.mask(rest))


class GridLinePass:
    """y (lines, size) = x (lines, size) by sums along lines; C-contiguous, and apart.

    Args:
        dtype: of sums, a float one.
        down, along, up: of `sums_on_grid`.
        fill: what stands for elements that are none.
        of, into: short integers that x or y holds, where they are not of dtype.
        after: x and y are (lines, size, after), of few elements behind.
    """

    def __init__(
        self, lines: int, size: int, dtype: np.dtype, down: RowSums, along: RowSums | None, up: RowSums,
        fill: float, threads: int, of: np.dtype | None = None, into: np.dtype | None = None, after: int = 1,
    ):  # fmt: skip
        self.count, each, lanes = lines * size * after, dtype.itemsize, simd.lanes(dtype.itemsize)
        tasks = max(1, min(threads, self.count // SHARE, lines))
        down = _folded(down, size, fill)
        many = MANY if lines // tasks >= MANY else 1
        rows, taps = -(-down.rows // PLACES) * PLACES, -(-down.weights.shape[1] // lanes) * lanes
        weights, firsts = np.zeros((rows, taps), dtype), np.zeros(rows, np.int64)
        weights[: down.rows, : down.weights.shape[1]], firsts[: down.rows] = down.weights, down.firsts
        starts = np.flatnonzero(np.diff(up.firsts, prepend=-1, append=-1))
        spreads = up.firsts[starts[:-1]]
        shares, scale = np.zeros(size + lanes, dtype), up.weights[0].sum()
        shares[:size] = up.weights @ np.arange(-1, 3) / scale  # splines of places, which are where they lie
        sixth = np.full(1, scale / 6, dtype)
        laid = along.sources if along else np.zeros(0, np.int64)
        middle = along.weights.astype(dtype) if along else np.zeros((1, 0), dtype)
        filling = np.full(1, fill, dtype)
        low = _first_own(down.sources, size)
        spanned = max(len(down.sources), int(firsts.max()) + taps, low + size + lanes)
        pitch, grid = -(-spanned // lanes) * lanes, max(rows, len(laid)) + 2 * lanes
        held = many if after == 1 else -(-after // lanes) * lanes + MANY  # lines
        grids = max(many, MANY) * grid
        counts = held * pitch, *[grids] * 3, SPREAD * grids, held * pitch, size * after * (after > 1)
        places = np.cumsum([whole_lines(count * each) for count in counts])  # bytes
        address = jit.data_address()
        values = (
            0, 0, 0, places[-1], tasks, lines, size, after, len(down.sources), low,
            address(down.sources), address(filling), rows, taps, address(firsts), address(weights), len(laid),
            address(laid), address(middle), middle.shape[1], address(starts), address(spreads), len(spreads),
            address(shares), address(sixth), int(spreads.max()) + 1,
            load_line(KINDS.index(of.name), each, lanes) if of else 0,
            store_within(KINDS.index(into.name), each, lanes) if into else 0,
            *((turn_panel(each, lanes, 0), turn_panel(each, lanes, 1)) if after > 1 else (0, 0)),
            (of or dtype).itemsize, (into or dtype).itemsize, *places[:6], pitch, grid,
        )  # fmt: skip
        record, names = np.array(values, np.int64), GRID_LINE_FIELDS.names
        kept: Any = down, laid, filling, weights, firsts, middle, starts, spreads, shares, sixth
        kernel = filter_grid_lines(each, lanes, many) if after == 1 else filter_grid_planes(each, lanes)
        self.run = RecordLaunch(kernel, record, names, tasks * int(places[-1]), tasks, kept)


def _first_own(sources: np.ndarray, size: int) -> int:
    """Where the elements of a line lie among those that it is laid with, in order."""
    own = np.arange(size)
    return next(
        int(at) for at in np.flatnonzero(sources == 0) if np.array_equal(sources[at : at + size], own)
    )


def _folded(by: RowSums, size: int, fill: float) -> RowSums:
    """The same sums, of elements that are there, if those of each row lie behind each other as before."""
    taps = by.weights.shape[1]
    sources = by.sources[by.firsts[:, None] + np.arange(taps)]  # (rows, taps)
    inside = sources >= 0
    firsts = np.where(inside, sources, size).min(1)
    spans = int((sources.max(1) - firsts).max()) + 1
    if spans > taps or (fill != 0 and not inside.all()):
        return by
    weights = np.zeros((by.rows, spans + 1))  # the last one is of elements that are none
    columns = np.where(inside, sources - firsts[:, None], spans)
    np.add.at(weights, (np.arange(by.rows)[:, None], columns), by.weights)
    return RowSums(firsts, np.arange(size), weights[:, :-1])
