"""All kernels of the CPU: which there are, and compiling them ahead of time.

Kernels take sizes as arguments; what they are compiled for are a few small numbers - bytes of an element,
lanes, rows and vectors of a tile - whose values are listed here. So the kernels can be counted, and no
problem, whatever its size, needs one that is not among them; but of tiles of blocks of channels only the
usual ones are: maps of few pixels, and bands of separable blocks, have tiles of fewer rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import import_module
from itertools import product
from multiprocessing import get_context
from typing import NamedTuple

from convalgos.core.element_types import HALF_DTYPES, INTEGERS
from convalgos.core.machine import vector_bytes
from convalgos.cpu import direct, direct_phases, direct_weights, indirect, smm
from convalgos.cpu.backward import filter_rotation, per_thread, upsampled_rows
from convalgos.cpu.dwconv import (
    block_activations,
    channel_blocking,
    channel_forms,
    channel_kernels,
    padded_planes,
    plane_copies,
    row_kernels,
    row_tiling,
    weight_kernels,
)
from convalgos.cpu.gemm import (
    blocked_cut,
    blocked_plan,
    blocked_tiles,
    dealt_panels,
    gemv,
    lowered_plan,
    lowering,
    offset_tables,
    outer_blocking,
    outer_driver,
    packed_plan,
    packed_tiles,
    panel_packing,
    panels,
    patches,
    row_driver,
    row_panels,
    row_tables,
    row_tiles,
    scaled_plan,
    strassen_cut,
    strassen_driver,
    strassen_scheme,
    strassen_tiles,
    tile_sums,
    unpacked_rows,
    unpacked_rows_cut,
    word_driver,
    word_outputs,
    word_packing,
    word_rows,
    word_tiles,
)
from convalgos.cpu.layout import (
    channel_vectors,
    half_pixels,
    half_rows,
    reorder,
    reorder_kernels,
    streaming,
    strided_rows,
)
from convalgos.cpu.runtime import array_calls, array_pass, compile_notice, finish, half, jit, mkl, packs
from convalgos.cpu.separable import band_kernels
from convalgos.cpu.spconv import blocking as sparse_blocking
from convalgos.cpu.spconv import kernels as sparse_kernels
from convalgos.cpu.spectral import kernels as spectral_kernels
from convalgos.cpu.spectral import line_kernels, residue_kernels, residues
from convalgos.cpu.tiled import driver, reading, weights_driver, writing
from convalgos.cpu.tiled import filters as tiled_filters
from convalgos.cpu.vectors import halves, matrix_tiles, microkernel, simd
from convalgos.cpu.vectors.activations import CLIP
from convalgos.tools.cli.binary_kernels import binary_kernels
from convalgos.tools.cli.border_kernels import border_kernels
from convalgos.tools.cli.filter_kernels import filter_kernels
from convalgos.tools.cli.integer_kernels import integer_kernels
from convalgos.tools.cli.phase_kernels import phase_kernels
from convalgos.tools.cli.pooling_kernels import pooling_kernels
from convalgos.tools.cli.sliding_kernels import sliding_kernels
from convalgos.tools.cli.split_kernels import split_kernels
from convalgos.tools.cli.step_kernels import step_kernels
from convalgos.tools.cli.transform_kernels import transform_kernels

BYTES = {"float32": 4, "float64": 8}
SHORT = {"float16": ("float16",), "bfloat16": ("bfloat16",), "int8": ("int8", "uint8")}  # types of x
DTYPES = (*BYTES, *SHORT, "binary")


class Kernel(NamedTuple):
    """A factory of `jit.specialise` and what it is given."""

    module: str
    name: str
    parameters: tuple[int, ...]

    def compile(self) -> None:
        """Only from disk, where it is there."""
        compile_notice.say_nothing()
        getattr(import_module(self.module), self.name)(*self.parameters)


def kernels(
    dtypes: Sequence[str] = ("float32", "float64", "float16", "int8"), groups: bool = True
) -> list[Kernel]:
    """The kernels that problems of some dtypes may need.

    Args:
        groups: with those of grouped layers, which are compiled for the channels and filters of a group.
    """
    found = [*map(_kernel, _OF_ALL), _kernel(indirect.multiply_indirectly, lowered_plan.PIECE_PIXELS)]
    found += [_kernel(factory, kind) for factory in _CONVERSIONS for kind in (0, 1)]
    others = *border_kernels(), *phase_kernels(0), *(binary_kernels() if "binary" in dtypes else ())
    found += [_kernel(factory, *parameters) for factory, parameters in others]
    if "int8" in dtypes:  # and floats of 8 bits, which are widened
        found += [_kernel(array_calls.integer_call), *(_kernel(half.widen_bytes, kind) for kind in (0, 1))]
        found += [_kernel(factory, *parameters) for factory, parameters in integer_kernels()]
        lanes = simd.lanes(residue_kernels.WORD)
        found += [_kernel(residue_kernels.residue_share, lanes, size) for size in (4, 8)]  # longer integers
        primes = [(n, 8) for n in range(1, len(residues.PRIMES) + 1)]
        primes += [(n, 4) for n in residues.PRIMES_OF_BYTES]
        found += [_kernel(residue_kernels.garner_share, lanes, *of) for of in primes]
    for of in (pooling_kernels, filter_kernels, sliding_kernels):
        found += [_kernel(factory, *parameters) for factory, parameters in of(dtypes)]
    for size in (BYTES[dtype] for dtype in dtypes if dtype in BYTES):
        found += _of_size(size, simd.lanes(size), groups)
    for form in (half.map_form(dtype) for dtype in dtypes if dtype in HALF_DTYPES):
        found += _of_halves(form, simd.lanes(4), groups)
    for dtype in (x for short in dtypes for x in SHORT.get(short, ())):
        found += _of_words(dtype)
    return list(dict.fromkeys(found))


def compile_kernels(wanted: Sequence[Kernel], processes: int, done: Callable[[Kernel], None]) -> None:
    """Compile kernels, in processes of their own as the compiler is locked; what is on disk is read from
    there.

    Args:
        done: is told each kernel when it is there.
    """
    if processes == 1:
        for kernel in wanted:
            kernel.compile()
            done(kernel)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(kernel.compile): kernel for kernel in wanted}
        for task in as_completed(running):
            task.result()
            done(running[task])


def _kernel(factory: Callable[..., object], *parameters: int) -> Kernel:
    return Kernel(factory.__module__, factory.__name__, parameters)


_CONVERSIONS = half.widen, half.narrow
_OF_ALL: tuple[Callable[..., object], ...] = (
    row_kernels.filter_depthwise_planes, tiled_filters.transform_filters, reading.read_box,
    driver.multiply_box, writing.write_box, driver.run_each_box, driver.share_box, direct.sum_blocks,
    channel_kernels.filter_channel_blocks, weight_kernels.correlate_planes, patches.fill_channels_last,
    row_driver.sum_row_blocks, direct_weights.sum_gradients, spectral_kernels.run_chunks,
    outer_driver.sum_channels, outer_driver.store_channels, row_tiles.fill_tiles, jit.of_borrowed,
    packed_plan.sum_packed_blocks, blocked_plan.sum_blocked, patches.multiply_patches,
    band_kernels.run_separable_bands, weights_driver.share_weight_box,
    jit.data_address, jit.of_threads, jit.table_address, array_pass.finish_share, array_calls.array_call,
    mkl.multiply_by_mkl, direct_phases.sum_phase_tiles, sparse_kernels.sum_sparse,
    upsampled_rows.sum_upsampled_planes, per_thread.run_slices, lowered_plan.multiply_lowered,
    smm.multiply_planes_by_weights, offset_tables.fill_tables, row_tables.fill_row_tables,
    unpacked_rows.multiply_unpacked_rows,
)  # fmt: skip

_OF_LANES: tuple[Callable[..., object], ...] = (
    streaming.stream, weight_kernels.sum_lanes, row_driver.store_staged, direct_weights.pack_run,
    panel_packing.pack_panels, panels.store_run, row_panels.turn_weights,
    spectral_kernels.forward_chunk, spectral_kernels.backward_chunk, line_kernels.filter_line_blocks,
    channel_vectors.gather, channel_vectors.place, channel_vectors.scatter, filter_rotation.rotate_filters,
)  # fmt: skip


def _of_size(size: int, lanes: int, groups: bool) -> Iterator[Kernel]:
    """Those of elements of so many bytes."""
    wide = vector_bytes()
    yield from (_kernel(factory, size, lanes) for factory in _OF_LANES)
    for factory, parameters in (*phase_kernels(size), *outer_blocking.outer_kernels(size)):
        yield _kernel(factory, *parameters)
    yield from _of_copies(size, lanes)
    yield _kernel(sparse_kernels.store_rows, size, lanes)
    for sharing, vectors in sparse_blocking.list_kernels():
        yield _kernel(sparse_kernels.sum_sparse_tiles, size, lanes, sharing, vectors)
    packers = row_panels.pack_tiles, patches.fill_channels_first, lowering.lower_map
    yield from (_kernel(factory, size) for factory in packers)
    for vectors, most in microkernel.REGISTER_TILES[wide].items():
        for width in {vectors, max(1, vectors - 1)}:  # a narrower panel has the rows of the wider one
            yield _kernel(indirect.sum_indirect, size, lanes, most, width)
        for rows in range(1, most + 1):
            if size == 4 and rows in unpacked_rows_cut.TILE_ROWS[wide][vectors]:
                yield _kernel(unpacked_rows.sum_row_tile, size, lanes, rows, vectors)
            for soon in (0, microkernel.PREFETCH_TAPS):
                yield _kernel(panels.sum_panel, size, lanes, rows, vectors, soon)
                yield _kernel(row_panels.sum_pixels, size, lanes, rows, vectors, soon, halves.SAME)
            yield _kernel(weights_driver.sum_outer_products, size, lanes, rows, vectors)
            yield _kernel(direct_weights.add_panel, size, lanes, rows, vectors)
    packed = {
        (v - narrow, rows)
        for v, most in microkernel.PACKED_TILES[wide].items()
        for rows in range(most * 3 // 4 + 1, most + 1)
        for narrow in (0, 1)
    }
    yield from (_kernel(packed_tiles.sum_packed_tiles, size, lanes, n, v) for v, n in sorted(packed))
    yield from (_kernel(packed_tiles.pack_pixel_tiles, size, lanes, n) for n in {n for _, n in packed})
    yield from _of_blocks(size, lanes)
    for vectors in strassen_cut.vectors_of_tiles():
        for rows in range(1, strassen_cut.most_rows(vectors) + 1):
            yield _kernel(strassen_tiles.sum_step, size, lanes, rows, vectors)
        for side in strassen_scheme.SIDES:
            yield _kernel(strassen_tiles.sum_filter_panels, size, lanes, side, vectors)
    for side, masked in product(strassen_scheme.SIDES, (0, 1)):
        yield _kernel(strassen_tiles.pack_sums, size, lanes, side, masked)
    of_sums = tile_sums.add_tile, strassen_tiles.store_summed, strassen_driver.sum_parts
    yield from (_kernel(factory, size, lanes) for factory in of_sums)
    yield from (_kernel(gemv.multiply_rows, size, lanes, rows) for rows in gemv.ROWS)
    for rows, columns in product(range(1, padded_planes.ADDRESSES), repeat=2):
        if rows * columns <= padded_planes.TAP_SUMS[wide] and rows + columns <= padded_planes.ADDRESSES:
            yield _kernel(weight_kernels.correlate_taps, size, lanes, rows, columns)
    for few, to_last in product(range(2, reorder.FEW + 1), range(2)):
        yield _kernel(reorder_kernels.reorder_few, size, lanes, few, to_last)
    reorders = reorder_kernels.reorder_rows, reorder_kernels.reorder_pixels, reorder_kernels.reorder_blocks
    yield from (_kernel(kernel, size, lanes) for kernel in reorders)
    yield from _of_output_steps(size, lanes)
    yield from (_kernel(factory, *given) for factory, given in transform_kernels(size, lanes))
    yield from _of_depthwise(size, lanes, halves.SAME, groups)


def _of_blocks(size: int, lanes: int) -> Iterator[Kernel]:
    """Of tiles of blocked layouts."""
    tiles, halved = blocked_cut.BLOCKED_TILES[size * lanes].items(), range(1 + dealt_panels.sums_halves())
    for (v, most), *kind in product(tiles, (lanes, 2 * lanes), halved):
        for n in range(most - most // 6, most + 1):
            yield _kernel(blocked_tiles.sum_block_tile, size, lanes, 1, n, v, *kind)


def _of_copies(size: int, lanes: int) -> Iterator[Kernel]:
    """Of rows and planes that are copied to scratch, taken apart by a stride."""
    yield _kernel(reorder_kernels.turn_matrices, size, lanes)
    for factory in (plane_copies.border_pixels, plane_copies.border_transposed):
        yield _kernel(factory, size, lanes, 0)
    for stride in range(1, strided_rows.MOST_STRIDE + 1):
        for kept in {1, stride}:
            yield _kernel(strided_rows.copy_rows, size, lanes, stride, kept)
        yield _kernel(plane_copies.border_rows, size, lanes, stride, 0)
    yield _kernel(strided_rows.copy_rows, size, lanes, 0, 0)
    yield _kernel(plane_copies.border_rows, size, lanes, 0, 0)


def _of_output_steps(size: int, lanes: int) -> Iterator[Kernel]:
    """Of activations, and of the steps of networks, which are float32."""
    for kind in finish.CODES:
        yield _kernel(finish.finish_elements, size, lanes, kind)
    if size == 4:
        yield _kernel(scaled_plan.scale_filter_rows, size, lanes)
        yield _kernel(band_kernels.sum_vectors, size, lanes)
        yield _kernel(band_kernels.finish_means, size, lanes)
        both = step_kernels(), split_kernels(lanes)
        yield from (_kernel(factory, *parameters) for found in both for factory, parameters in found)


def _of_words(dtype: str) -> Iterator[Kernel]:
    """Of the dot products of a short type of x, with each of the instructions that are here."""
    lanes, tiles = simd.lanes(4), microkernel.REGISTER_TILES[vector_bytes()]
    for factory in (word_rows.word_filler, word_rows.pixel_picker):
        yield _kernel(factory, lanes)
    yield from (_kernel(word_packing.pack_words, size, lanes) for size in (1, 2, 4))
    for engine in (e for (_, x), e in word_tiles.ENGINES.items() if x == dtype and not e.missing()):
        yield _kernel(word_driver.sum_word_blocks, engine.matrix, lanes)
        across = range(1, matrix_tiles.ACROSS + 1)
        most = dict.fromkeys(across, matrix_tiles.ACROSS) if engine.matrix else tiles
        for vectors, pixels in most.items():
            for count in range(1, pixels + 1):
                yield _kernel(word_tiles.sum_word_tile, engine.kind, lanes, count, vectors)
        for last in (0, 1):
            form = word_rows.words_form(dtype, engine.item_bytes, engine.flips)
            yield _kernel(word_rows.row_converter, form, lanes, last)
            if engine.item_bytes == 4:
                yield _kernel(word_rows.row_widener, form, lanes)
            outputs = word_outputs.forms_of(dtype)
            for output, zero, vectors in product(outputs, (0, 1) if dtype in INTEGERS else (0,), most):
                yield _kernel(word_outputs.store_word_tile, output, zero, lanes, vectors, last)
        if dtype in INTEGERS and packs.packs_words():
            for form, vectors in product((word_outputs.PACKED_UNSIGNED, word_outputs.PACKED_SIGNED), most):
                yield _kernel(word_outputs.store_word_tile, form, 0, lanes, vectors, 1)


def _of_halves(form: int, lanes: int, groups: bool) -> Iterator[Kernel]:
    """Of maps of 16 bits, that kernels widen and round; see `halves`."""
    yield _kernel(streaming.stream, 2, simd.lanes(2))
    yield from (_kernel(factory, *parameters) for factory, parameters in phase_kernels(2))
    pixels = halves.HALF if form == halves.HALF else halves.BRAIN
    for turn in (half_pixels.gather_halves, half_pixels.place_halves):
        yield _kernel(turn, pixels, lanes)
    for stride in range(1, strided_rows.MOST_STRIDE + 1):
        for kept in {1, stride}:
            yield _kernel(half_rows.copy_half_rows, pixels, lanes, stride, kept)
    for vectors, most in microkernel.REGISTER_TILES[vector_bytes()].items():
        for rows, soon in product(range(1, most + 1), (0, microkernel.PREFETCH_TAPS)):
            yield _kernel(row_panels.sum_pixels, 4, lanes, rows, vectors, soon, pixels)
    yield _kernel(row_driver.store_staged, 2, simd.lanes(2))
    yield from _of_depthwise(4, lanes, form, groups)


def _of_depthwise(size: int, lanes: int, form: int, groups: bool) -> Iterator[Kernel]:
    """`filter_row_tiles`, `filter_folded_row` and `filter_block`: usual kernels and all others, for layers
    with one channel and filter in a group, and with any numbers that a vector holds."""
    usual = row_kernels.SQUARE_KERNELS if form == halves.SAME else row_kernels.HALF_SQUARE_KERNELS
    for (step, stride), tile_rows in row_kernels.TILE_ROWS.items():
        for r, taps in product(tile_rows, (0, *usual[stride]) if step else (0,)):
            if r <= row_tiling.tile_rows(stride, taps > 0):
                yield _kernel(row_kernels.filter_row_tiles, size, lanes, form, r, step, stride, taps, 0)
    for stride in (1, 2):
        for rows in row_tiling.folded_rows(stride):
            yield _kernel(row_kernels.filter_folded_row, size, lanes, form, rows, stride)
    most, block = channel_blocking.MOST_PIXELS[vector_bytes()], channel_kernels.filter_block
    for vectors, sizes in channel_forms.BLOCK_PIXELS.items():
        for pixels, row in product((n for n in sizes if n <= most[vectors]), channel_forms.DEPTHWISE_ROWS):
            kernel = size, lanes, form, 1, 1, vectors, pixels, *row, 0
            yield from (_kernel(block, *kernel, kind) for kind in block_activations.kinds_of_block(kernel))
    if not groups:
        return
    for channels, filters in product(range(1, lanes + 1), repeat=2):
        if (channels, filters) != (1, 1):
            known = [n for n in channel_forms.pixels_known(channels, filters, 1) if n <= most[1]]
            for pixels, row in product(known, channel_forms.rows_known(channels, filters)):
                yield _kernel(block, size, lanes, form, channels, filters, 1, pixels, *row, 0, CLIP)
