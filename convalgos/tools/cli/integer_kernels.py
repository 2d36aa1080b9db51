"""The kernels of problems of integers that `kernel_set` lists beside those of floating-point types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from convalgos.core.machine import vector_bytes
from convalgos.cpu import winograd_int16
from convalgos.cpu.layout import byte_pixels
from convalgos.cpu.tiled import integer_transforms, row_products
from convalgos.cpu.tiled.short_schedule import sums_words
from convalgos.cpu.vectors import microkernel, simd

Listed = tuple[Callable[..., int], tuple[int, ...]]  # a factory and what it is given


def integer_kernels() -> Iterator[Listed]:
    """Those of all algorithms of integers."""
    yield from _of_tiles()


def _of_tiles() -> Iterator[Listed]:
    """Of Winograd's tiles."""
    shorts, words = simd.lanes(2), simd.lanes(4)
    yield row_products.multiply_words, ()
    for signed in (0, 1):
        yield byte_pixels.gather_bytes, (signed, shorts)
    for kind in (byte_pixels.WORDS, byte_pixels.BYTES, byte_pixels.FLOATS):
        yield byte_pixels.scatter_sums, (kind, words)
    for a, dims in product(winograd_int16.ALGORITHMS, (1, 2)):
        yield integer_transforms.integer_input_tiles, (shorts, a.m, dims)
        for shared in (0, 1):
            yield integer_transforms.integer_output_tiles, (words, a.m, dims, shared)
    for vectors, most in microkernel.REGISTER_TILES[vector_bytes()].items():
        for rows in range(1, most + 1):
            yield row_products.sum_pairs, (words, rows, vectors, int(sums_words()))
