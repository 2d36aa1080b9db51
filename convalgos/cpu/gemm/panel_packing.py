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
from convalgos.cpu.vectors import simd, transpose
from convalgos.cpu.vectors.simd import carray, pointer

PARALLEL_BYTES = 1 << 17  # of a filter: smaller ones are packed by one thread
# Strides count elements. runs (runs, 1 + columns): the first element of a run, and of each element from there
# on the tap that it is, or -1.
PANEL_PACK_FIELDS = fields(
    "w packed spare groups filters group_stride filter_stride runs count columns taps vectors panels tasks"
)


@simd.emitter
def copy_tap(v: simd.Vec, source: simd.Value, filters: simd.Value, target: simd.Value) -> None:
    """target[i] = source[i] for i < filters <= lanes; lanes beyond become 0."""
    v.store(v.load_masked(v.pointer(source), 0, v.mask(filters)), v.pointer(target))


@jit.specialise
def pack_panels(SIZE: int, LANES: int) -> jit.Kernel:
    """Panels (taps, filters of a panel) of a filter."""

    def pack_panels(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PANEL_PACK_FIELDS)[0]
        runs = carray(pointer(a.runs), a.count * (1 + a.columns), np.int64)
        spare = a.spare + task * LANES * SIZE
        total = a.groups * a.panels
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            group, panel = item // a.panels, item % a.panels
            first = a.vectors * panel // a.panels * LANES
            width = a.vectors * (panel + 1) // a.panels * LANES - first
            to = a.packed + (group * a.vectors * LANES + first) * a.taps * SIZE
            for k in range(first, min(first + width, a.filters), LANES):
                source = a.w + (group * a.group_stride + k * a.filter_stride) * SIZE
                target = to + (k - first) * SIZE
                filters = min(LANES, a.filters - k)
                for run in range(a.count):
                    at = run * (1 + a.columns)
                    from_ = source + runs[at] * SIZE
                    if a.columns == 1:
                        copy_tap(SIZE, LANES, from_, filters, target + runs[at + 1] * width * SIZE)
                        continue
                    places = a.runs + (at + 1) * 8
                    transpose.load_square_to(
                        SIZE, LANES, from_, a.filter_stride, filters, places, target, width, spare
                    )

    return pack_panels


def packed_panels(w: np.ndarray, panels: int, order: np.ndarray | None = None) -> np.ndarray:
    """A filter (groups, filters, *taps) as (groups, panels, taps, filters of a panel), in one row.

    Behind the last filter of a group its last vector has zeros.

    Args:
        w: of any strides that are multiples of its elements.
        order: the tap that comes first, the one behind it, and so on; None: as they are in w.
    """
    groups, filters, *shape = w.shape
    taps, lanes = math.prod(shape), simd.lanes(w.itemsize)
    vectors = -(-filters // lanes)
    # kernels may read some taps further; elements between those of a filter go to the end of it
    elements, spare = groups * vectors * lanes * taps, lanes * -(-vectors // panels) * lanes
    tasks = jit.thread_count() if w.nbytes > PARALLEL_BYTES else 1
    packed = aligned_empty(elements + spare + tasks * lanes, w.dtype)
    if filters % lanes:
        first = vectors * (panels - 1) // panels * lanes  # filter of the last panel
        last = packed[:elements].reshape(groups, -1)[:, first * taps :]
        last.reshape(groups, taps, -1)[:, :, filters - first :] = 0
    group_stride, filter_stride, *strides = (stride // w.itemsize for stride in w.strides)
    known = _runs(
        tuple(shape), tuple(strides), lanes, filter_stride == 1, None if order is None else order.tobytes()
    )
    address = jit.data_address()
    end = address(packed) + (elements + spare) * w.itemsize
    lie = group_stride, filter_stride, address(known.table), len(known.table), known.columns
    record = np.array(
        [(address(w), address(packed), end, groups, filters, *lie, taps, vectors, panels, tasks)],
        PANEL_PACK_FIELDS,
    )
    jit.launch(pack_panels(w.itemsize, lanes), address(record), tasks)
    return packed


class Runs(NamedTuple):
    """Neighbours in memory among the taps of a filter."""

    table: np.ndarray  # (runs, 1 + columns), see `PANEL_PACK_FIELDS`
    columns: int


@lru_cache(64)
def _runs(shape: Shape, strides: Shape, lanes: int, filters_adjacent: bool, order: bytes | None) -> Runs:
    """Those of taps of a shape that lie so many elements apart; each alone, where filters are neighbours.

    Args:
        order: of `packed_panels`, int64.
    """
    places = np.zeros(shape, np.int64)
    for axis, stride in enumerate(strides):
        places += np.arange(shape[axis]).reshape(-1, *(1,) * (len(shape) - axis - 1)) * stride
    places = places.ravel() if order is None else places.ravel()[np.frombuffer(order, np.int64)]
    if filters_adjacent:
        return Runs(np.stack((places, np.arange(places.size)), -1), 1)
    taps = np.argsort(places, kind="stable")
    places = places[taps]
    apart = np.diff(places, prepend=places[:1]) > lanes // 2  # behind a gap that is not worth reading
    part = np.cumsum(apart)
    starts = places[np.flatnonzero(np.diff(part, prepend=-1))][part]  # of the part that a tap is in
    part, column = np.divmod(places - starts, lanes)
    begins = np.flatnonzero(apart | (np.diff(part, prepend=-1) != 0))
    run = np.zeros(places.size, np.int64)
    run[begins[1:]] = 1
    run = np.cumsum(run)
    table = np.full((begins.size, 1 + lanes), -1, np.int64)
    table[:, 0] = (places - column)[begins]
    table[run, 1 + column] = taps
    return Runs(table, lanes)
