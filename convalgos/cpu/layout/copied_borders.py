"""Borders of maps in copies of their rows: what lies beyond an edge is copied from what it is a copy of.

Kernels copy the input under a block of outputs with zeros around it. Where tables say so, elements beyond the
edges are copies of others, which are read from the map itself: they may lie far from the block.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.core.boundaries import COPIES, ZERO, source_indices
from convalgos.core.problem import ConvProblem
from convalgos.cpu.layout.strided_rows import RowRange, place_plane
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors.simd import carray, pointer

COPIED_BORDERS = (ZERO, *COPIES)
BORDER_FIELDS = "sources_d sources_h sources_w end_w"  # of a record that also has sizes and padding


def border_tables(problem: ConvProblem) -> dict[str, Any]:
    """`BORDER_FIELDS` of a 3-D problem: of each place from the first of padding on; 0 of a border of zeros.
    `end_w`: behind the last column of padding, from the first of the map on."""
    p, found = problem, {}
    for i, axis in enumerate("dhw"):
        copies = p.boundary[i] in COPIES
        table = source_indices(p.boundary[i], p.spatial[i], *p.padding[i]) if copies else None
        found[f"sources_{axis}"] = 0 if table is None else table.astype(np.int64)
    return {**found, "end_w": p.spatial[2] + p.padding[2][1]}


@jit.helper
def place_source(table: int, pad: int, size: int, at: int) -> int:
    """The element at a place along an axis, or a negative number where there is none."""
    if 0 <= at < size:
        return at
    if table == 0:
        return -1
    return int(carray(pointer(table), at + pad + 1, np.int64)[at + pad])


@jit.helper
def copy_one(size: int, source: int, target: int) -> None:
    if size == 4:
        carray(pointer(target), 1, np.int32)[0] = carray(pointer(source), 1, np.int32)[0]
    else:
        carray(pointer(target), 1, np.int64)[0] = carray(pointer(source), 1, np.int64)[0]


@jit.helper
def copy_outer_columns(
    a: Any, row: int, w0: int, first: int, last: int, target: int, phase: int, stride: int, kept: int
) -> None:
    """Elements of a row at some places from column w0 on, all beyond its ends."""
    for place in range(first, last):
        source = place_source(a.sources_w, a.pad_w, a.width, w0 + place)
        of_phase, at = (place % stride, place // stride) if stride > 1 else (0, place)
        if source >= 0 and of_phase < kept:
            copy_one(a.size, row + source * a.size, target + (of_phase * phase + at) * a.size)


@jit.helper
def copy_bordered_plane(
    a: Any, x: int, x_row: int, rows: RowRange, w0: int, columns: int, before: int, inside: int, target: int,
    target_row: int, phase: int, stride: int, kept: int,
) -> None:  # fmt: skip
    """`strided_rows.copy_plane` with what lies beyond the edges. x: of the first row and column;
    columns: those of a row that are read, from w0 on.

    Rows are copied from the first to the last, as they may write zeros behind their ends; then columns.
    """
    first = x + max(0, w0) * a.size
    for j in range(rows.number):
        at = rows.h + j * rows.step
        to, count, there = target + j * target_row * a.size, 1, inside
        if rows.above < j < rows.below:
            continue
        if j == rows.above and rows.below > rows.above:
            count = rows.below - rows.above
        else:
            at = place_source(a.sources_h, a.pad_h, a.height, at)
            there = inside if at >= 0 else 0
        some = RowRange(at, rows.step, count, 0, count)
        place_plane(
            a.copy_rows,
            a.size,
            a.size,
            first,
            x_row,
            some,
            before,
            there,
            to,
            target_row,
            phase,
            stride,
            kept,
        )
    if not a.sources_w:
        return
    end = min(columns, a.end_w - w0)
    for j in range(rows.number):
        at = place_source(a.sources_h, a.pad_h, a.height, rows.h + j * rows.step)
        if at >= 0:
            row, to = x + at * x_row * a.size, target + j * target_row * a.size
            copy_outer_columns(a, row, w0, 0, min(before, end), to, phase, stride, kept)
            copy_outer_columns(a, row, w0, before + max(0, inside), end, to, phase, stride, kept)
