"""The kernels of problems of integers that `kernel_set` lists beside those of floating-point types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from convalgos.core.machine import vector_bytes
from convalgos.cpu import winograd_int16
from convalgos.cpu.compile import code_generation
from convalgos.cpu.dwconv import (
    byte_plan,
    byte_rows,
    byte_turns,
    row_words,
    window_driver,
    window_sums,
)
from convalgos.cpu.elementwise import byte_kernels, byte_means
from convalgos.cpu.layout import byte_pixels, reorder, reorder_kernels
from convalgos.cpu.runtime import filter_sums, quantise
from convalgos.cpu.tiled import (
    fixed_point_transforms,
    integer_transforms,
    quantised_products,
    row_products,
)
from convalgos.cpu.tiled.short_schedule import sums_words
from convalgos.cpu.vectors import microkernel, simd

Listed = tuple[Callable[..., int], tuple[int, ...]]  # a factory and what it is given


def integer_kernels() -> Iterator[Listed]:
    """Those of all algorithms of integers."""
    yield from _of_tiles()
    yield from _of_windows()
    yield from _of_channel_words()
    yield from _of_networks()
    for factory in (quantise.range_of, quantise.bytes_of_floats):
        yield factory, (simd.lanes(4),)
    for signed in (0, 1):
        yield filter_sums.sum_filters, (simd.lanes(4), signed)


def _of_networks() -> Iterator[Listed]:
    """Of steps on maps of integers."""
    lanes, wide = simd.lanes(4), simd.lanes(1)
    for operation in (byte_kernels.QUANTISE, byte_kernels.DEQUANTISE):
        yield byte_kernels.change_share, (lanes, operation)
    for operation, packs in product((byte_kernels.ADD, byte_kernels.MULTIPLY), (0, 1)):
        yield byte_kernels.combine_bytes_share, (lanes, operation, packs)
    permutes = wide == 64 and code_generation.has("avx512vbmi")
    yield byte_kernels.look_up_share, (wide, int(permutes))
    yield byte_kernels.copy_runs, ()
    yield byte_means.mean_share, (lanes,)
    turning = reorder_kernels.reorder_rows, reorder_kernels.reorder_pixels, reorder_kernels.turn_matrices
    for kernel in turning:
        yield kernel, (1, reorder.BYTES)
    for few, to_last in product(range(2, reorder.FEW + 1), (0, 1)):
        yield reorder_kernels.reorder_few, (1, reorder.BYTES, few, to_last)


def _of_tiles() -> Iterator[Listed]:
    """Of Winograd's tiles."""
    shorts, words = simd.lanes(2), simd.lanes(4)
    yield row_products.multiply_words, ()
    yield quantised_products.multiply_rounded, (shorts,)
    for signed in (0, 1):
        for shift in (0, fixed_point_transforms.SHIFT):
            yield byte_pixels.gather_bytes, (signed, shorts, shift)
    for kind in (byte_pixels.WORDS, byte_pixels.BYTES, byte_pixels.FLOATS):
        yield byte_pixels.scatter_sums, (kind, words)
    for a, dims in product(winograd_int16.ALGORITHMS, (1, 2)):
        yield integer_transforms.integer_input_tiles, (shorts, a.m, dims)
        for shared in (0, 1):
            yield integer_transforms.integer_output_tiles, (words, a.m, dims, shared)
        yield fixed_point_transforms.fixed_point_input_tiles, (shorts, a.m, dims)
        yield fixed_point_transforms.rounded_output_tiles, (words, a.m, dims)
    for vectors, most in microkernel.REGISTER_TILES[vector_bytes()].items():
        for rows in range(1, most + 1):
            yield row_products.sum_pairs, (words, rows, vectors, int(sums_words()))
            if sums_words():
                yield quantised_products.sum_bytes, (words, rows, vectors)


def _of_windows() -> Iterator[Listed]:
    """Of `cpu.depthwise.windows`: kernel columns in words."""
    lanes, way = simd.lanes(4), byte_plan.way()
    yield window_driver.sum_window_bands, ()
    for placing in (byte_rows.LOADED if lanes >= 16 else byte_rows.COPIED, byte_rows.TURNED):
        yield byte_rows.place_rows_of_band, (lanes, placing)
    for factory in (byte_turns.turn_bytes, byte_turns.turn_words):
        yield factory, (lanes,)
    tiles = ((1, 4), (1, 8), (2, 4), (4, 4))  # filters, vectors
    for (filters, vectors), step, (kind, plain) in product(tiles, (window_sums.LINES, 1, 2, 4), _outputs()):
        of_bytes = kind in (window_sums.SIGNED, window_sums.UNSIGNED)
        compress = lanes >= 16 and (not of_bytes or code_generation.has("avx512vbmi2"))
        yield window_sums.sums_of_windows, (lanes, filters, vectors, step, way, kind, int(compress), plain)


def _outputs() -> list[tuple[int, int]]:
    """What sums of words become, and whether by the plain output step."""
    of_bytes = (window_sums.SIGNED, window_sums.UNSIGNED)
    return [
        (kind, plain) for kind in byte_plan.KINDS.values() for plain in (0, 1) if plain or kind in of_bytes
    ]


def _of_channel_words() -> Iterator[Listed]:
    """Of `cpu.depthwise.words`: kernel rows in words, channels in lanes."""
    widest, way = simd.lanes(4), byte_plan.way()
    rows = (*row_words.USUAL, (0, 0, 0))
    for lanes in (n for n in (4, 8, 16) if n <= widest):
        yield row_words.sum_row_words, (lanes,)
        for flip in (0, 1):
            yield row_words.words_of_rows, (lanes, flip)
        for pixels, row, output in product(row_words.PIXELS, rows, _outputs()):
            kind, plain = output
            yield row_words.sums_of_channel_words, (lanes, pixels, *row, way, kind, plain)
