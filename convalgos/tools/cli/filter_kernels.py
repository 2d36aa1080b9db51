"""The kernels of filters of images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np

from convalgos.cpu.filtering import (
    block_kernels,
    byte_sums,
    column_rates,
    decimated_sums,
    grid_lines,
    line_drivers,
    line_elements,
    line_endings,
    line_passes,
    line_sums,
    panel_passes,
    plane_products,
    recursive_gaussians,
    recursive_kernels,
    row_sums,
    separable_calls,
    settled_windows,
    settling,
    short_passes,
    short_sums,
    small_rates,
    small_windows,
    term_sums,
    whole_sums,
    window_kernels,
)
from convalgos.cpu.runtime import recent_calls, record_launch
from convalgos.cpu.runtime.packs import packs_words
from convalgos.cpu.vectors import simd


def filter_kernels(dtypes: Sequence[str]) -> Iterator[tuple[Callable[..., object], tuple[int, ...]]]:
    """(factory, what it is given) of filters along axes, whose sums are float32 or float64."""
    yield small_windows.filter_small, ()
    yield record_launch.launch_record, ()
    yield recent_calls.find_call, ()
    yield separable_calls.filter_separable, ()
    yield small_rates.filter_rates, ()
    if "int8" in dtypes:
        for along, size in product((0, 1), (1, 2, 4, 8)):
            yield small_windows.small_windows, (small_windows.INTEGERS, along, size, simd.lanes(size))
        for logical, size in ((0, 1), (0, 2), (0, 4), (0, 8), (1, 1)):
            yield term_sums.add_terms, (logical, size, simd.lanes(size))
    yield from short_kernels()
    for size, dtype in ((4, "float32"), (8, "float64")):
        if dtype not in dtypes:
            continue
        kinds = size, simd.lanes(size)
        for kind, along in product((small_windows.REALS, small_windows.COMPLEX), (0, 1)):
            yield small_windows.small_windows, (kind, along, *kinds)
        yield from rate_kernels(kinds)
        for pairs in recursive_gaussians.POLES:
            yield recursive_kernels.filter_recursively, (*kinds, pairs)
            yield recursive_kernels.filter_windows, (*kinds, pairs)
        yield line_drivers.rows_share, (size,)
        yield line_drivers.columns_share, (size,)
        yield line_drivers.cross_share, (size,)
        yield line_drivers.volume_share, (size,)
        yield settled_windows.windows_share, (size,)
        for name in ("uint8", "int16", "uint16")[: 1 if size == 4 else 3]:
            yield settling.settle_window, (line_elements.KINDS.index(name), *kinds)
        yield window_kernels.sum_windows, (size,)
        yield row_sums.sum_rows, (size,)
        yield row_sums.spread_rows, kinds
        yield panel_passes.filter_panels, kinds
        yield from grid_kernels(kinds)
        yield block_kernels.filter_blocks, (size, *block_kernels.block_tiles(size))
        for name in ("uint8", "int16", "uint16") if size == 4 else ():
            for ends in (line_sums.sum_lines_of, line_elements.store_within):
                yield ends, (line_elements.KINDS.index(name), *kinds)
        for order in (window_kernels.FUSED, window_kernels.IN_ORDER)[: 1 if size == 4 else 2]:
            yield window_kernels.sum_window_tile, (order, *kinds, window_kernels.vectors())
            yield window_kernels.sum_listed, (order, *kinds)
        in_order = line_sums.IN_ORDER, line_sums.SYMMETRIC, line_sums.ANTISYMMETRIC
        for order in (line_sums.FUSED, *(in_order if size == 8 else ())):
            yield line_sums.sum_lines, (order, *kinds)
        for kind, order in product((line_elements.FLOAT, line_elements.KINDS.index("uint8")), in_order):
            if size == 4:
                yield whole_sums.whole_sums, (kind, order, *kinds)
        for name, order in product(("float64", "int16", "uint16"), in_order if size == 8 else ()):
            yield whole_sums.settled_sums, (line_elements.KINDS.index(name), order, *kinds)
        for ending, single in product(range(1, 5), (0, 1)[size == 4 :]):
            yield line_endings.end_line, (ending, (line_elements.DOUBLE, line_elements.FLOAT)[single], *kinds)
        for number, name in enumerate(line_elements.KINDS):
            yield line_elements.load_line, (number, *kinds)
            if name != dtype:
                yield line_elements.store_line, (number, *kinds)
            settled = "float" not in name and (size == 8 or np.dtype(name) in line_passes.SINGLE)
            for order in in_order if settled else ():
                yield settling.settle_line, (number, order, *kinds)


def grid_kernels(kinds: tuple[int, int]) -> Iterator[tuple[Callable[..., object], tuple[int, ...]]]:
    """Those of lines by coarse grids, of numbers of a size and so many in a vector."""
    for lines in (1, grid_lines.MANY):
        yield grid_lines.filter_grid_lines, (*kinds, lines)
    yield grid_lines.filter_grid_planes, kinds
    for vectors in range(1, plane_products.VECTORS + 1):
        yield plane_products.filter_planes, (*kinds, vectors)
    names = ("float32", "uint8", "int16", "uint16") if kinds[0] == 4 else ("float64",)
    for name, rows in product(names, range(2, row_sums.GROUP + 1)):
        yield row_sums.sum_grouped_rows, (line_elements.KINDS.index(name), *kinds, rows)
    for back in (0, 1):
        yield recursive_kernels.turn_panel, (*kinds, back)


def rate_kernels(kinds: tuple[int, int]) -> Iterator[tuple[Callable[..., object], tuple[int, ...]]]:
    """Those of signals up- and downsampled, of numbers of a size and so many in a vector."""
    for numbers in (1, 2):  # of an element: real and complex ones
        yield small_rates.small_rates, (numbers, *kinds)
    for wide, cross in ((1, 0), (2, 0), (2, 1)):  # numbers of a sample, and whether taps are complex
        yield decimated_sums.sum_apart, (wide, cross, *kinds)
        for vectors in (1, small_rates.AT_ONCE):
            yield column_rates.sum_lines_beside, (wide, cross, *kinds, vectors)


def short_kernels() -> Iterator[tuple[Callable[..., object], tuple[int, ...]]]:
    """Those of filters of 16-bit integers, and of bytes."""
    if not packs_words():
        return
    lanes = simd.lanes(4)
    for size in (1, 2):
        yield line_drivers.rows_share, (size,)
        yield line_drivers.columns_share, (size,)
        yield short_sums.copy_line, (size,)
    yield byte_sums.smooth_bytes, (simd.lanes(2),)
    yield short_sums.wrapped_sums, (lanes,)
    for signed in (0, 1):
        yield short_sums.fixed_sums, (signed, lanes, int(short_passes.sums_pairs()))
