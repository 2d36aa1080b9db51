"""The kernels of phases of a stride: those that sum them in registers, and those that interleave them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from convalgos.core.machine import vector_bytes
from convalgos.cpu.backward import interleave, phase_rows, phase_tiles, upsampled_pixels, upsampled_rows
from convalgos.cpu.vectors import simd

Compiled = tuple[Callable[..., object], tuple[int, ...]]  # a factory of `jit.specialise` and what it is given


def phase_kernels(size: int) -> Iterator[Compiled]:
    """Of elements of so many bytes; 0: of whole pixels."""
    lanes = simd.lanes(size) if size else 0
    for ways in (0, *range(2, interleave.most_woven(size) + 1)):
        yield interleave.interleave_rows, (size, lanes, ways)
    if size > 2:
        for ways in range(1, phase_tiles.most_ways() + 1):
            for tile in phase_tiles.phase_tile_sizes(ways):
                yield phase_tiles.sum_phases, (size, lanes, ways, *tile)
        for rows in phase_rows.phase_row_sizes():
            yield phase_rows.sum_phase_rows, (size, lanes, *rows)
    if size == 4:
        for displacements in (2, 3, 4):  # of 3x3, 5x5 and 7x7 kernels
            yield upsampled_rows.sum_upsampled_plane, (size, lanes, displacements)
            pairs = upsampled_pixels.MOST_PAIRS[vector_bytes()]
            yield upsampled_pixels.sum_upsampled_rows, (size, lanes, displacements, pairs)
