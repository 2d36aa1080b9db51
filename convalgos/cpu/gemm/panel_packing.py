"""Filters packed into panels, from wherever their elements lie: a rotated filter is packed in one pass.

A filter is a view (groups, filters, *taps) of any strides. Its taps are read in runs of neighbours in memory,
a square of filters by taps at a time, and each tap is written to its place in the panel.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.problem import Shape
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.runtime.recorded_packing import launch_packing
from convalgos.cpu.vectors import simd, transpose
from convalgos.cpu.vectors.simd import carray, pointer

PARALLEL_BYTES = 1 << 17  # of a filter: smaller ones are packed by one thread
FEW = 1 / 5  # runs to a tap from which on taps are copied one by one; Xeon (Sapphire Rapids)
# Strides count elements. runs (runs, of_run): the first element of a run and the tap that it is; or, of each
# element from there on, the tap or -1, and at the end whether these are all consecutive. across: a run of all
# filters of a panel, then the next one.
PANEL_PACK_FIELDS = fields(
    "w packed spare groups filters group_stride filter_stride runs count of_run across taps vectors panels "
    "tasks"
)


@simd.emitter
def copy_tap(
    v: simd.Vec, source: simd.Value, stride: simd.Value, filters: simd.Value, target: simd.Value
) -> None:
    """target[i] = source[i * stride] for i < filters <= lanes; lanes beyond become 0."""
    from_, to, inside = v.pointer(source), v.pointer(target), v.mask(filters)
    with v.choose(v.isub(1, stride)) as (adjacent, apart):
        with adjacent:
            v.store(v.load_masked(from_, 0, inside), to)
        with apart:
            last = v.isub(filters, 1)
            found = v.zero()
            for i in range(v.lanes):
                row = v.at(from_, v.imul(v.imin(i, last), stride))
                found = v.b.insert_element(found, v.b.load(row, typ=v.element), v.integer(i))
            v.store(v.b.select(inside, found, v.zero()), to)


@jit.specialise
def pack_panels(SIZE: int, LANES: int) -> jit.Kernel:
    """Panels (taps, filters of a panel) of a filter."""

    def pack_panels(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PANEL_PACK_FIELDS)[0]
        runs = carray(pointer(a.runs), a.count * a.of_run, np.int64)
        spare = a.spare + task * LANES * SIZE
        total = a.groups * a.panels
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            group, panel = item // a.panels, item % a.panels
            first = a.vectors * panel // a.panels * LANES
            width = a.vectors * (panel + 1) // a.panels * LANES - first
            to = a.packed + (group * a.vectors * LANES + first) * a.taps * SIZE
            blocks = (min(width, a.filters - first) + LANES - 1) // LANES
            outer, inner = (a.count, blocks) if a.across else (blocks, a.count)  # as w lies, in long runs
            for i in range(outer):
                for j in range(inner):
                    block, run = (j, i) if a.across else (i, j)
                    k, at = first + block * LANES, run * a.of_run
                    filters = min(LANES, a.filters - k)
                    source = a.w + (group * a.group_stride + k * a.filter_stride + runs[at]) * SIZE
                    target = to + block * LANES * SIZE
                    place = target + runs[at + 1] * width * SIZE
                    if a.of_run == 2:
                        copy_tap(SIZE, LANES, source, a.filter_stride, filters, place)
                    elif filters == LANES and runs[at + 1 + LANES]:
                        transpose.load_whole_square(SIZE, LANES, source, a.filter_stride, place, width)
                    else:
                        places = a.runs + (at + 1) * 8
                        transpose.load_square_to(
                            SIZE, LANES, source, a.filter_stride, filters, places, target, width, spare
                        )

    return pack_panels


def packed_panels(w: np.ndarray, panels: int, order: np.ndarray | None = None) -> np.ndarray:
    """A filter (groups, filters, *taps) as (groups, panels, taps, filters of a panel), in one row.

    Behind the last filter of a group its last vector has zeros.

    Args:
        w: of any strides that are multiples of its elements.
        order: the tap that comes first, the one behind it, and so on; None: as they are in w.
    """
    tasks = jit.thread_count() if w.nbytes > PARALLEL_BYTES else 1
    known = _packing(
        w.shape, w.strides, w.itemsize, panels, None if order is None else order.tobytes(), tasks
    )
    packed = aligned_empty(known.size, w.dtype)
    if known.partial is not None:
        groups, first, rows = known.partial
        last = packed[: known.elements].reshape(groups, -1)[:, first:]
        last.reshape(groups, known.taps, -1)[:, :, rows:] = 0
    address, record = jit.data_address(), known.record.copy()
    begin = address(packed)
    record[:3] = address(w), begin, begin + known.end
    kernel = pack_panels(w.itemsize, simd.lanes(w.itemsize))
    launch_packing(kernel, record, tasks, w, packed, known.runs.table)
    return packed


class Packing(NamedTuple):
    """How filters of a shape are packed; kept, as it takes longer to tell than small ones to pack."""

    record: np.ndarray  # the words of `PANEL_PACK_FIELDS`, but for the first three, which are addresses
    runs: Runs
    elements: int  # of the panels,
    size: int  # and of all
    end: int  # bytes of what comes before the spare elements
    taps: int
    partial: tuple[int, int, int] | None  # groups, element where the last panel begins, filters in it


@lru_cache(256)
def _packing(
    shape: Shape, strides: Shape, itemsize: int, panels: int, order: bytes | None, tasks: int
) -> Packing:
    groups, filters, *kernel = shape
    taps, lanes = math.prod(kernel), simd.lanes(itemsize)
    vectors = -(-filters // lanes)
    # kernels may read some taps further; elements between those of a filter go to the end of it
    elements, spare = groups * vectors * lanes * taps, lanes * -(-vectors // panels) * lanes
    first = vectors * (panels - 1) // panels * lanes  # filter of the last panel
    runs = _runs(shape[2:], strides[1:], itemsize, lanes, order)
    apart = strides[0] // itemsize, strides[1] // itemsize
    lie = *apart, runs.table.ctypes.data, len(runs.table), runs.table.shape[1], int(runs.across)
    record = np.array([0, 0, 0, groups, filters, *lie, taps, vectors, panels, tasks], np.int64)
    return Packing(
        record, runs, elements, elements + spare + tasks * lanes, (elements + spare) * itemsize, taps,
        (groups, first * taps, filters - first) if filters % lanes else None,
    )  # fmt: skip


class Runs(NamedTuple):
    """Neighbours in memory among the taps of a filter."""

    table: np.ndarray  # (runs, of_run), see `PANEL_PACK_FIELDS`
    across: bool  # whether filters lie closer to each other than some taps


def _c_steps(shape: Shape, itemsize: int) -> Shape:
    """Bytes between neighbours along each dimension of an array that is laid in C's order."""
    return tuple([itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape))])


def _runs_of_neighbours(count: int, lanes: int) -> Runs | None:
    """Those of taps that lie one behind the other; None where these are too few."""
    runs = -(-count // lanes)
    if runs >= FEW * count:
        return None
    table = np.empty((runs, 1 + lanes + 1), np.int64)
    table[:, 1:-1] = np.arange(runs * lanes).reshape(runs, lanes)
    table[:, 0], table[:, -1] = table[:, 1], 1
    if more := runs * lanes - count:
        table[-1, 1 + lanes - more :] = -1
        table[-1, -1] = 0
    return Runs(table, False)


@lru_cache(64)
def _runs(shape: Shape, strides: Shape, itemsize: int, lanes: int, order: bytes | None) -> Runs:
    """Those of taps of a shape; each alone, where filters are neighbours, or hardly any taps are.

    Args:
        strides: bytes from a filter to the next, and from a tap to the next along each dimension.
        order: of `packed_panels`, int64.
    """
    one_run = (
        order is None and itemsize != strides[0] >= strides[1] and strides[1:] == _c_steps(shape, itemsize)
    )
    if one_run and (found := _runs_of_neighbours(math.prod(shape), lanes)) is not None:
        return found
    places = np.zeros(shape, np.int64)
    for axis, stride in enumerate(strides[1:]):
        places += np.arange(shape[axis]).reshape(-1, *(1,) * (len(shape) - axis - 1)) * (stride // itemsize)
    places = places.ravel() if order is None else places.ravel()[np.frombuffer(order, np.int64)]
    taps = np.argsort(places, kind="stable")
    places = places[taps]
    across = strides[0] < max(map(abs, strides[1:]), default=0)
    alone = Runs(np.stack((places, taps), -1), across)
    if strides[0] == itemsize:
        return alone
    apart = np.diff(places, prepend=places[:1]) > lanes // 2  # behind a gap that is not worth reading
    part = np.cumsum(apart)
    starts = places[np.flatnonzero(np.diff(part, prepend=-1))][part]  # of the part that a tap is in
    part, column = np.divmod(places - starts, lanes)
    begins = np.flatnonzero(apart | (np.diff(part, prepend=-1) != 0))
    run = np.zeros(places.size, np.int64)
    run[begins[1:]] = 1
    run = np.cumsum(run)
    if begins.size >= FEW * places.size:
        return alone
    table = np.full((begins.size, 1 + lanes + 1), -1, np.int64)
    table[:, 0] = (places - column)[begins]
    table[run, 1 + column] = taps
    table[:, -1] = (np.diff(table[:, 1:-1]) == 1).all(1)
    return Runs(table, across)
