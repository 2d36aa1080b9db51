"""Gradients of maps extended by their border folded onto the maps: rows of the map, dealt to the threads."""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from convalgos.core.borders.extended import extended
from convalgos.core.boundaries import OUTSIDE, ZERO, source_indices
from convalgos.core.layouts import channels_together
from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime import jit, threads
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer

# Planes of rows of pixels; sizes in bytes, but for counts. `sources`: the rows of an extended plane that are
# added to each row of y, from `first` of it on; `columns`: for each pixel below and above an extended row,
# that of y, or OUTSIDE.
FOLDING_FIELDS = fields("y x planes rows x_plane x_row y_row pixel low high first sources columns tasks")


@simd.emitter
def add_elements(v: Vec, ADD: int, x: Value, count: Value, y: Value) -> None:
    """y[i] = x[i], or with ADD y[i] + x[i], for i < count."""
    source, target = v.pointer(x), v.pointer(y)
    whole = v.idiv(count, v.lanes)
    with v.loop(whole) as i:
        at = v.imul(i, v.lanes)
        value = v.load(source, at)
        v.store(v.fadd(value, v.load(target, at)) if ADD else value, target, at)
    at = v.imul(whole, v.lanes)
    inside = v.mask(v.isub(count, at))
    value = v.load_masked(source, at, inside)
    v.store_masked(v.fadd(value, v.load_masked(target, at, inside)) if ADD else value, target, at, inside)


@simd.emitter
def add_element(v: Vec, x: Value, y: Value) -> None:
    """y[0] += x[0], in vectors of one lane: what was just stored in wider ones can be read at once."""
    source, target = v.pointer(x), v.pointer(y)
    v.store(v.fadd(v.load(source), v.load(target)), target)


@jit.specialise
def fold_rows(SIZE: int, LANES: int) -> jit.Kernel:
    """The rows of a task, each with all that are copies of it."""

    def fold_rows(args: int, task: int) -> None:
        a = carray(pointer(args), 1, FOLDING_FIELDS)[0]
        first = carray(pointer(a.first), a.rows + 1, np.int64)
        sources = carray(pointer(a.sources), first[a.rows], np.int64)
        columns = carray(pointer(a.columns), a.low + a.high, np.int64)
        total = a.planes * a.rows
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            row, y = unit % a.rows, a.y + unit * a.y_row
            for i in range(first[row], first[row + 1]):
                x = a.x + unit // a.rows * a.x_plane + sources[i] * a.x_row
                inside = x + a.low * a.pixel
                if i == first[row]:
                    add_elements(SIZE, LANES, 0, inside, a.y_row // SIZE, y)
                else:
                    add_elements(SIZE, LANES, 1, inside, a.y_row // SIZE, y)
                for j in range(a.low + a.high):
                    from_ = x + j * a.pixel if j < a.low else inside + a.y_row + (j - a.low) * a.pixel
                    if columns[j] >= 0 and a.pixel == SIZE:
                        add_element(SIZE, 1, from_, y + columns[j] * SIZE)
                    elif columns[j] >= 0:
                        add_elements(SIZE, LANES, 1, from_, a.pixel // SIZE, y + columns[j] * a.pixel)

    return fold_rows


class Folding:
    """The gradient of the extended map of a problem, in `source` -> that of the map; one call at a time."""

    def __init__(self, problem: ConvProblem, source: np.ndarray):
        p, wide = problem.as_3d, extended(problem).problem.as_3d
        pixel = channels_together(p.layout, p.C) * p.itemsize
        slices, rows, across = (
            np.arange(size) if boundary == ZERO else source_indices(boundary, size, *pads)
            for size, boundary, pads in zip(p.spatial, p.boundary, p.padding, strict=True)
        )
        met: list[list[int]] = [[] for _ in range(math.prod(p.spatial[:2]))]
        for i, (d, h) in enumerate(product(slices.tolist(), rows.tolist())):
            if OUTSIDE not in (d, h):
                met[d * p.spatial[1] + h].append(i)
        low = 0 if p.boundary[2] == ZERO else p.padding[2][0]
        first = np.cumsum([0, *map(len, met)]).astype(np.int64)
        columns = np.concatenate([across[:low], across[low + p.spatial[2] :]]).astype(np.int64)
        self._tables = first, np.array([i for found in met for i in found], np.int64), columns, source
        shared = (p.x_bytes + wide.x_bytes) / threads.BYTES > threads.SMALL
        self._tasks = threads.plan_threads() if shared else 1
        address = self._address = jit.data_address()
        x_row, y_row = wide.spatial[2] * pixel, p.spatial[2] * pixel
        x_plane = math.prod(wide.spatial[:2]) * x_row
        values = {
            "y": 0, "x": address(source), "planes": source.nbytes // x_plane if y_row else 0,
            "rows": len(met), "x_plane": x_plane, "x_row": x_row, "y_row": y_row,
            "pixel": pixel, "low": low, "high": len(columns) - low, "first": address(first),
            "sources": address(self._tables[1]), "columns": address(columns), "tasks": self._tasks,
        }  # fmt: skip
        self._record = np.array([tuple(values[n] for n in FOLDING_FIELDS.names or ())], FOLDING_FIELDS)
        self._fields = self._record.view(np.int64)
        self._kernel = fold_rows(p.itemsize, simd.lanes(p.itemsize))

    def __call__(self, y: np.ndarray) -> None:
        """y: C-contiguous, in the problem's layout."""
        self._fields[0] = self._address(y)
        jit.launch(self._kernel, self._address(self._record), self._tasks)
