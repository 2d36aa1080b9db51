"""The kernels of binary problems that `kernel_set` lists beside those of other types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from convalgos.core.machine import vector_bytes
from convalgos.cpu.binconv import kernels, packing
from convalgos.cpu.binconv.blocking import TILES

Listed = tuple[Callable[..., int], tuple[int, ...]]  # a factory and what it is given


def binary_kernels() -> Iterator[Listed]:
    """Those that pack and those that count."""
    yield packing.fill_maps, ()
    yield kernels.sum_binary, ()
    lanes, vectors = TILES[vector_bytes()]
    for floats, last in product((0, 1), (0, 1)):
        yield kernels.sum_binary_tile, (lanes, vectors, floats, last)
    for size in packing.SIGNED.values():
        yield packing.pack_from_pixels, (size,)
        pixels = packing.LEAST_PIXELS
        while pixels <= vector_bytes():
            yield packing.pack_from_planes, (size, pixels)
            pixels *= 2
