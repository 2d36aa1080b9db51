"""Vectors of filters dealt evenly to the panels of a product, some of which have one less.

No vector is padding alone: 22 vectors are 4 panels of 4 and 2 of 3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from convalgos.core import profiles
from convalgos.core.machine import vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import microkernel, simd

WIDE = 64  # bytes of the vectors of which halves are summed


class DealtPanels:
    """The panels of a cut: a base of what has these fields."""

    problem: ConvProblem
    panels: int  # of one group

    @property
    def vectors_of(self) -> int:
        """Of the filters of a group, the last one with lanes of padding."""
        return -(-self.problem.gemm_n // simd.lanes(self.problem.itemsize))

    @property
    def vectors(self) -> int:
        """Of the widest panel."""
        return -(-self.vectors_of // self.panels)

    @property
    def panel(self) -> int:
        """Filters of the widest panel."""
        return self.vectors * simd.lanes(self.problem.itemsize)


@lru_cache(1024)
def panel_tile(filters: int, dtype_bytes: int) -> tuple[int, int]:
    """(rows of the micro-kernel, panels) of so many filters: large tiles, as few of them as can be."""
    needed = max(1, -(-filters // simd.lanes(dtype_bytes)))
    counts = {v: (rows, -(-needed // v)) for v, rows in microkernel.REGISTER_TILES[vector_bytes()].items()}
    fitting = [(rows, count) for v, (rows, count) in counts.items() if -(-needed // count) == v]
    return min(fitting, key=lambda tile: (tile[1] / tile[0], tile[1]))  # fewest waits


def panel_widths(needed: int, count: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """(panels, vectors of each) of the wider and of the narrower panels of so many vectors."""
    narrow, wider = divmod(needed, count)
    return (wider, narrow + 1), (count - wider, narrow)


def sums_halves() -> bool:
    """Whether half of a vector is summed where the rest is padding."""
    return vector_bytes() == WIDE and profiles.units_are_narrow()


def ends_in_half(filters: int, dtype_bytes: int) -> bool:
    """Whether half of the last vector of filters is summed."""
    lanes = simd.lanes(dtype_bytes)
    return 0 < filters % lanes <= lanes // 2 and sums_halves()


def summed_widths(filters: int, count: int, dtype_bytes: int) -> list[tuple[int, float]]:
    """(panels, vectors of each that are summed): of `panel_widths`, and of the last panel where it ends in
    half of one."""
    (wider, wide), (fewer, narrow) = panel_widths(-(-filters // simd.lanes(dtype_bytes)), count)
    half = ends_in_half(filters, dtype_bytes)
    if half and wider:
        found = [(wider - 1, wide), (1, wide - 0.5), (fewer, narrow)]
    else:
        found = [(wider, wide), (fewer - half, narrow), (int(half), narrow - 0.5)]
    return [(n, vectors) for n, vectors in found if n]


def panels_of_parts(vectors: int, count: int, parts: int) -> int:
    """Of at least so many panels, as many for each part of the filters."""
    return min(max(1, vectors), -(-count // parts) * parts)


class PanelExtent(NamedTuple):
    """What a panel holds, and what sums it."""

    first: int  # filter, of those of its group
    filters: int
    width: int  # filters with those of padding
    w: int  # where its packed filters are
    kernel: int


@jit.helper
def panel_extent(a: Any, group: int, panel: int) -> PanelExtent:
    """Of a panel of a group; `a` has the fields of `panel_kernels`."""
    first = a.vectors * panel // a.panels * a.lanes
    width = a.vectors * (panel + 1) // a.panels * a.lanes - first
    kernel = a.sum_panel if width == a.widest else a.sum_narrow
    w = a.w + (group * a.vectors * a.lanes + first) * a.taps * a.size
    return PanelExtent(first, min(width, a.filters - first), width, w, kernel)


def panel_kernels(
    factory: Callable[..., int], size: int, rows: int, vectors: int, panels: int, *soon: int
) -> dict[str, int]:
    """The fields by which `panel_extent` finds a panel of all `vectors`, and its kernel."""
    lanes = simd.lanes(size)
    widest = -(-vectors // panels)
    return {
        "vectors": vectors, "panels": panels, "widest": widest * lanes, "lanes": lanes,
        "sum_panel": factory(size, lanes, rows, widest, *soon),
        "sum_narrow": factory(size, lanes, rows, vectors // panels, *soon),
    }  # fmt: skip
