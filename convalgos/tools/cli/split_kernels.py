"""The kernels of products of float32 that are split for matrix tiles, where the processor has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from convalgos.cpu.gemm import (
    digit_driver,
    digit_filter,
    digit_tiles,
    split_driver,
    split_filter,
    split_tiles,
)
from convalgos.cpu.gemm.split_forms import BRAIN_FLOATS, DIGITS
from convalgos.cpu.tiled import digit_products, split_products
from convalgos.cpu.vectors import matrix_tiles

Compiled = tuple[Callable[..., object], tuple[int, ...]]  # a factory of `jit.specialise` and what it is given
ALONE = {  # of one kind
    BRAIN_FLOATS: (
        split_driver.sum_split, split_filter.pack_split, split_products.multiply_split,
        split_products.pack_points,
    ),
    DIGITS: (
        digit_driver.sum_digits, digit_filter.pack_filter_digits, digit_products.multiply_digits,
        digit_products.pack_point_digits,
    ),
}  # fmt: skip
TILE_SUMS = {BRAIN_FLOATS: split_tiles.sum_split_tiles, DIGITS: digit_tiles.sum_digit_tiles}


def split_kernels(lanes: int) -> Iterator[Compiled]:
    """Of both forms of terms."""
    across = range(1, matrix_tiles.ACROSS + 1)
    for form in (form for form in TILE_SUMS if form.engine.missing() is None):
        yield from ((factory, ()) for factory in ALONE[form])
        yield from ((TILE_SUMS[form], (lanes, *tiles)) for tiles in product(across, repeat=2))
