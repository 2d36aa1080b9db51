"""What of the gradient of a filter a task computes at a time, and where it lies in dw."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors.simd import carray, copy_bytes, pointer


class Unit(NamedTuple):
    """A part of the pixels, a group, and a block of its rows and panels: what a task computes at a time."""

    part: int
    group: int
    row: int
    rows: int
    panel: int
    panels: int


@jit.helper
def unit_at(a: Any, item: int) -> Unit:
    """Parts are outermost, blocks of panels innermost."""
    panel_block = item % a.panel_blocks
    row_block = item // a.panel_blocks % a.row_blocks
    row = a.rows * row_block // a.row_blocks
    panel = a.panels * panel_block // a.panel_blocks
    return Unit(
        item // (a.panel_blocks * a.row_blocks * a.groups),
        item // (a.panel_blocks * a.row_blocks) % a.groups,
        row, a.rows * (row_block + 1) // a.row_blocks - row,
        panel, a.panels * (panel_block + 1) // a.panel_blocks - panel,
    )  # fmt: skip


@jit.helper
def is_in_place(a: Any, panel: int) -> Any:
    """Whether the sums of a panel are those of a part of dw, in its order: a whole panel's."""
    return a.in_place and (panel + 1) * a.panel <= a.filters


@jit.helper
def place_in_dw(a: Any, unit: Unit, panel: int) -> Any:
    """The address of the first row of a unit and panel in dw, or in its part of dw."""
    place = unit.group * a.dw_group + panel * a.panel * a.dw_filter + unit.row * a.dw_row
    return a.y + (unit.part * a.dw_elements + place) * a.size


@jit.helper
def order_rows(a: Any, unit: Unit, sums: int, ordered: int) -> None:
    """The sums of a panel, whose rows lie as `WeightsBlocking.row_order` tells, in the order of dw."""
    order = carray(pointer(a.row_order), a.rows, np.int64)
    row_bytes = a.panel * a.size
    for i in range(unit.rows):
        copy_bytes(ordered + order[unit.row + i] * row_bytes, sums + i * row_bytes, row_bytes)
