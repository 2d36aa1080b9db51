"""The kernels of borders that are not zero: maps extended by them, and gradients of such maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from convalgos.core.machine import vector_bytes
from convalgos.cpu.borders import extension, folding, outer_kernels, outer_sums
from convalgos.cpu.dwconv import folded_maps
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.microkernel import REGISTER_TILES

Compiled = tuple[Callable[..., object], tuple[int, ...]]  # a factory of `jit.specialise` and what it is given


def border_kernels() -> Iterator[Compiled]:
    """Those of all types of elements."""
    for pixel in (0, 1, 2, 4, 8):
        yield extension.extend_rows, (pixel,)
    for factory in (outer_kernels.gather_outputs, outer_kernels.add_outer):
        yield factory, ()
    for size in (4, 8):
        yield from _of_gradients(size, simd.lanes(size))


def _of_gradients(size: int, lanes: int) -> Iterator[Compiled]:
    """Of elements of so many bytes."""
    for factory in (folding.fold_rows, folded_maps.fold_map, outer_kernels.gather_stepped):
        yield factory, (size, lanes)
    for last in (0, 1):
        yield outer_kernels.add_to_targets, (size, lanes, last)
    yield outer_kernels.sum_outer_channels, (size, lanes, outer_sums.CHANNEL_ROWS)
    for vectors, rows in REGISTER_TILES[vector_bytes()].items():
        yield outer_kernels.sum_outer_pixels, (size, lanes, rows, vectors)
