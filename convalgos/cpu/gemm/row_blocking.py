"""How an output is cut into blocks of rows of pixels, and where a block's input lies in scratch.

The input of a block lies there as [c][d][h][phase][pitch], with its zero border and split into the phases of
the stride (`phases`), so that every tap of a vector of pixels is a vector. The last block along a dimension
may be short: for each way of being so, tables say where the vectors of a block begin and go.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from convalgos.core.allocator import whole_lines
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import cache_sizes, vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.core.problem_views import in_a_row
from convalgos.cpu.gemm import packed_blocking
from convalgos.cpu.gemm.blocking import block_lengths, busiest
from convalgos.cpu.layout import streaming, strided_rows
from convalgos.cpu.runtime.threads import cached_by_threads, plan_threads
from convalgos.cpu.vectors import microkernel, simd

PIXELS = 896  # of a block: enough to reuse the filters of a tile, few enough for scratch in L2; Zen 5
FEW = 8  # tasks for each thread, up to which their sizes are weighed one by one
SUMS = 1.1  # cycles of two products of vectors; Xeon (Granite Rapids)
BEGIN_ROW = 32  # elements copied in the time that the copy of a row begins and ends; Xeon (Granite Rapids)


@dataclass(frozen=True)
class RowBlocking:
    """How the output is cut. Sizes are per dimension (O, P, Q) of the 3-D view."""

    problem: ConvProblem  # the 3-D view
    images: int  # of a block; more than one only where pixels are one run without kernel and border
    block: tuple[int, int, int]  # outputs of a block
    blocks: tuple[int, int, int, int]  # number of them along (N, O, P, Q)
    vectors_of: int  # of pixels of a whole block
    vectors: int  # of pixels of the micro-kernel
    filter_parts: int  # into which the filters of a block are cut to feed all threads

    @cached_attribute
    def lanes(self) -> int:
        return simd.lanes(self.problem.itemsize)

    def busiest(self, threads: int) -> float:
        """Vectors of pixels that the busiest of some threads sums for all filters of a group."""
        p = self.problem
        tasks = math.prod(self.blocks) * p.groups * self.filter_parts
        if tasks >= FEW * threads:
            return self.vectors_of * -(-tasks // threads) / self.filter_parts
        if self.images == 1 and p.spatial_out[:2] == (1, 1):
            cut = p.spatial_out[2], self.block[2], self.lanes, p.N * p.groups
            return _busiest_of_runs(*cut, self.filter_parts, threads) / self.filter_parts
        sizes, block = (p.N, *p.spatial_out), (self.images, *self.block)
        along = [block_lengths(size, n) for size, n in zip(sizes, block, strict=True)]
        work = [-(-n * q // self.lanes) * o * h for n, o, h, q in product(*along)] * p.groups
        return busiest(work, self.filter_parts, threads) / self.filter_parts

    # --- input in scratch: [c][d][h][phase][pitch] -------------------------------------------

    @cached_attribute
    def steps(self) -> tuple[int, int]:
        """Input slices and rows between those copied: where there is one tap, only those it reads."""
        p = self.problem
        return tuple(s if r == 1 else 1 for s, r in zip(p.stride[:2], p.kernel[:2], strict=True))  # type: ignore[return-value]

    @cached_attribute
    def copied(self) -> tuple[int, int]:
        """Input slices and rows of a block."""
        p = self.problem
        return tuple(
            n if step > 1 or r == 1 else (n - 1) * s + e
            for n, r, s, e, step in zip(
                self.block, p.kernel, p.stride, p.kernel_extent, self.steps, strict=False
            )
        )  # type: ignore[return-value]

    @cached_attribute
    def kept(self) -> int:
        """Phases of a row that some tap reads."""
        p = self.problem
        return 1 if p.kernel[2] == 1 or p.dilation[2] % p.stride[2] == 0 else p.stride[2]

    @cached_attribute
    def phase(self) -> int:
        """Elements of a phase of a row: whole vectors."""
        p = self.problem
        columns: int = self.block[2] + (p.kernel_extent[2] - 1) // p.stride[2]
        return -(-columns // self.lanes) * self.lanes

    @cached_attribute
    def strides(self) -> tuple[int, int, int, int]:
        """Elements between neighbours along (N, C, D, H) of scratch.

        Images of a run follow one another without a gap; channels lie a line off a power of two.
        """
        line = 64 // self.problem.itemsize
        if self.images > 1:
            image = self.block[2]
            return image, -(-self.images * image // line) * line + line, 0, 0
        row = self.kept * self.phase
        slices, rows = self.copied
        return 0, slices * rows * row + line, rows * row, row

    @property
    def input_elements(self) -> int:
        """Of scratch; the last tile reads a little beyond."""
        reach = self.problem.kernel_extent[2] + 5 * self.lanes
        return self.problem.w_shape[1] * self.strides[1] + self.phase + reach

    # --- output ------------------------------------------------------------------------------

    @cached_attribute
    def rows(self) -> int:
        """Filters of the micro-kernel: tiles of so many and of one less make up those of a group."""
        return -(-self.problem.gemm_n // self.tiles)

    @cached_attribute
    def tiles(self) -> int:
        """Of the filters of a group."""
        return _tiles_of(self.problem.gemm_n, self.vectors)

    @cached_attribute
    def streams(self) -> bool:
        """Whether y is too large for the caches, and stored around them."""
        return streams_pixels(self.problem)

    @cached_attribute
    def staged(self) -> int:
        """Elements of a row of finished pixels in scratch, before they go to y; 0 where they go at once."""
        if not (self.streams or self.images > 1):
            return 0
        pixels = self.images * math.prod(self.block)
        return (-(-pixels // self.lanes) + 1) * self.lanes

    @property
    def scratch_bytes(self) -> int:
        """Per task."""
        elements = self.input_elements + self.rows * self.staged
        return whole_lines(elements * self.problem.itemsize)


def streams_pixels(problem: ConvProblem) -> bool:
    """Whether y is too large for the caches, and stored around them."""
    return streaming.outgrows_caches(problem.y_bytes, streaming.STREAMED_PIXELS)


@cached_by_threads(256)
def row_blocking(problem: ConvProblem) -> RowBlocking:
    """The cut of a problem that keeps the input of a block in L2, and all threads busy."""
    flat = problem.is_plain_product
    p = in_a_row(problem, (1, 1, math.prod(problem.spatial))) if flat else problem.as_3d
    threads, lanes = plan_threads(), simd.lanes(p.itemsize)
    room = cache_sizes()[1] // 2 // (p.itemsize * max(1, p.w_shape[1]))  # input pixels
    pixels = max(4 * lanes, min(PIXELS, room // math.prod(p.stride)))
    while pixels > 4 * lanes and p.groups * p.gemm_m / pixels < threads:
        pixels //= 2
    run = 0
    if flat and 2 * p.spatial_out[2] > pixels:
        run = _even_run(p, min(PIXELS, max(4 * lanes, room)), lanes, threads)
    kernel = _KernelRows(p.kernel[2], p.stride[2], p.kernel[1], p.stride[1], p.kernel_extent[1])
    cut = _cut_outputs((p.N, *p.spatial_out), pixels, flat, run, kernel, lanes, threads)
    blocks, parts = math.prod(cut.blocks) * p.groups, 1
    if blocks % threads and blocks < 8 * threads:
        parts = min(threads, _tiles_of(p.gemm_n, cut.vectors))
    return RowBlocking(p, *cut, parts)


def _tiles_of(filters: int, vectors: int) -> int:
    """Tiles of the filters of a group, beside so many vectors of pixels."""
    return -(-filters // microkernel.REGISTER_TILES[vector_bytes()][vectors])


class _Cut(NamedTuple):
    """Fields of a `RowBlocking` that depend on the sizes of a map only."""

    images: int
    block: tuple[int, int, int]
    blocks: tuple[int, int, int, int]
    vectors_of: int
    vectors: int


class _KernelRows(NamedTuple):
    """What tells how much of the input a block of some rows and columns reads."""

    taps: int  # of a row
    stride: int
    rows: int  # of the kernel,
    row_stride: int
    row_reach: int  # and of the input under them


@lru_cache(4096)
def _cut_outputs(
    sizes: tuple[int, int, int, int],
    pixels: int,
    flat: bool,
    run: int,
    kernel: _KernelRows,
    lanes: int,
    threads: int,
) -> _Cut:
    """Blocks of about `pixels` outputs. Kept for the next layer on a map of these sizes.

    Args:
        sizes: along (N, O, P, Q).
        flat: whether an image is one run of pixels,
        run: of which a block takes so many; 0 for whole images.
    """
    n, o, p, q = sizes
    images = 1
    if run:
        block = 1, 1, run
    elif flat:
        images = max(1, min(pixels // q, -(-n // threads)))
        shares = -(-n // images)
        images = -(-n // min(n, -(-shares // threads) * threads))  # as many blocks for each thread
        block = 1, 1, q
    else:
        block = _cut_map(pixels, (o, p, q), kernel, lanes)
    blocks = (-(-n // images), -(-o // block[0]), -(-p // block[1]), -(-q // block[2]))
    vectors_of = -(-images * block[2] // lanes) * block[0] * block[1]
    most = max(microkernel.REGISTER_TILES[vector_bytes()])
    return _Cut(images, block, blocks, vectors_of, -(-vectors_of // -(-vectors_of // most)))


def _even_run(p: ConvProblem, most: int, lanes: int, threads: int) -> int:
    """Pixels of a run of neighbours, at most so many: the run that the busiest thread is done with first."""
    image, maps, taps = p.spatial_out[2], p.N * p.groups, p.w_shape[1]

    def cycles(run: int) -> float:
        """Of the busiest thread, for a tap."""
        blocks = -(-image // run) * maps
        parts = threads if blocks % threads else 1  # of the filters
        most = _busiest_of_runs(image, run, lanes, maps, parts, threads)
        begun = blocks * packed_blocking.BLOCK / threads
        if parts == 1 and blocks > maps:
            begun += packed_blocking.waiting(p, threads)
        copied = most * strided_rows.VECTOR_CYCLES  # for each part again
        return most / parts * p.gemm_n / 2 * SUMS + copied + begun / taps

    fewest = -(-image // most)
    counts = range(fewest, fewest + (1 if maps * fewest >= FEW * threads else 2 * threads))
    return min((min(image, -(-image // (n * lanes)) * lanes) for n in counts), key=cycles)


def _busiest_of_runs(image: int, run: int, lanes: int, maps: int, parts: int, threads: int) -> float:
    """`blocking.busiest`, in vectors, of maps of `image` pixels in blocks of `run`; nothing is added up."""
    whole, rest = divmod(image, run)
    full, last = -(-run // lanes), -(-rest // lanes)
    blocks, of_map = whole + (rest > 0), whole * full + last
    most = before = 0
    for thread in range(1, threads + 1):
        done, more = divmod(blocks * maps * parts * thread // threads, parts)
        maps_done, begun = divmod(done, blocks)
        end = (maps_done * of_map + begun * full) * parts + more * (full if begun < whole else last)
        most, before = max(most, end - before), end
    return float(most)


def _cut_map(
    pixels: int, sizes: tuple[int, int, int], kernel: _KernelRows, lanes: int
) -> tuple[int, int, int]:
    """A block of about `pixels` outputs, in whole rows where they are not too long."""
    slices, height, width = sizes
    if width > pixels or kernel.taps == 1 < kernel.rows:
        width = _piece(pixels, height, width, kernel, lanes)
    rows = max(1, min(height, round(pixels / width)))
    rows = -(-height // -(-height // rows))
    if (rows, width) != sizes[1:]:
        return 1, rows, width
    slices = max(1, min(slices, round(pixels / (rows * width))))
    return -(-sizes[0] // -(-sizes[0] // slices)), rows, width


def _piece(pixels: int, height: int, width: int, kernel: _KernelRows, lanes: int) -> int:
    """Outputs of a piece of a long row: about `pixels`, as long runs are stored faster than short ones.

    A kernel of one column is one in depth, read as a plane of few long rows. There most of the input is
    copied once where a block holds many rows.
    """
    parts = max(1, round(width / pixels))
    finer = (1, 2, 4, 8) if kernel.taps == 1 else (1,)
    pieces = [min(width, math.ceil(width / (parts * n) / lanes) * lanes) for n in finer]

    def copied(piece: int) -> float:
        """Inputs for each output, and what it takes to begin a row."""
        rows = max(1, min(height, round(pixels / piece)))
        read = rows if kernel.rows == 1 else (rows - 1) * kernel.row_stride + kernel.row_reach
        return read * (piece * kernel.stride + BEGIN_ROW) / (rows * piece)

    return min(pieces, key=copied)
