"""The kernels of products of float32 that are split for matrix tiles, where the processor has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from convalgos.cpu.gemm import (
    digit_driver,
    digit_tiles,
    split_driver,
    split_filter,
    split_tiles,
    streamed_digits,
)
from convalgos.cpu.gemm.split_forms import BRAIN_FLOATS, DIGITS
from convalgos.cpu.tiled import digit_products, split_filters, split_products
from convalgos.cpu.vectors import matrix_tiles

Compiled = tuple[Callable[..., object], tuple[int, ...]]  # a factory of `jit.specialise` and what it is given
DRIVERS = {
    BRAIN_FLOATS: (split_driver.sum_split, split_products.multiply_split),
    DIGITS: (digit_driver.sum_digits, digit_products.multiply_digits),
}
PACKING = split_filter.pack_split, split_filters.transform_split
TILE_SUMS = {
    BRAIN_FLOATS: (split_tiles.sum_split_tiles,),
    DIGITS: (digit_tiles.sum_digit_tiles, streamed_digits.stream_digits),
}


def split_kernels(lanes: int) -> Iterator[Compiled]:
    """Of both forms of terms."""
    across = range(1, matrix_tiles.ACROSS + 1)
    for form in (form for form in TILE_SUMS if form.engine.missing() is None):
        yield from ((factory, ()) for factory in DRIVERS[form])
        yield from ((factory, (form.channels, int(form.scaled))) for factory in PACKING)
        tiles = product(across, repeat=2)
        yield from ((factory, (lanes, *tile)) for tile, factory in product(tiles, TILE_SUMS[form]))
