"""Blocks of outputs of a product of words, and where its taps lie.

A block is rows of pixels of one slice of the map, for one group. Its input is read in place where x is words
already and has no border, or brought to words in scratch that stays in L2 (`word_rows`). Micro-kernels take
tiles of pixels at equal distances: those of a row of y; or, where rows are short, those of all rows of the
block, for which every column of the kernel has a copy of its own, without what lies between rows. The last
tile of a run begins so that it ends with the run: what overlaps is computed twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate

import numpy as np

from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import cache_sizes, vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.core.problem_views import in_a_row
from convalgos.cpu.gemm.word_rows import words_form
from convalgos.cpu.gemm.word_tiles import Engine, register_tile
from convalgos.cpu.layout.strides import map_strides
from convalgos.cpu.runtime.threads import cached_by_threads, plan_threads
from convalgos.cpu.vectors import matrix_tiles
from convalgos.cpu.vectors.simd import LINE

MOST_COLUMNS = 1024  # of a block
L2_SHARE = 4  # of the second cache, that the input of a block takes
# Cycles of a matrix product by rows of its tile, over those of 16 rows, with what it loads; Granite Rapids
TILE_BASE, TILE_ROW, TILE_LEAST = 0.64, 0.0225, 0.81
COPIES = 0.9  # copies of columns are worth it where they take this of the tiles away
BATCH = 4  # tiles of sums that are finished at once
UNEVEN = 4  # units for each thread, from which on the work is even enough
WASTE = {1: 1.5, 2: 1.1, 3: 1.0, 4: 1.0}  # of registers, by vectors of filters


@dataclass(frozen=True)
class WordBlocking:
    """How outputs are cut, and how x and w lie. Sizes are per dimension of the 3-D view."""

    problem: ConvProblem  # the 3-D view
    engine: Engine
    blocks: tuple[int, int]  # of rows, and of columns of a row
    parts: int  # of the filters of a group
    in_place: bool
    flat: bool  # tiles over all rows of a block
    joined: bool  # the taps of a row of the kernel are one run of words
    words: int  # of a chunk
    pixel_words: int  # of a pixel, for a group
    tile: int  # pixels of a tile
    vectors: int  # of filters of a panel

    @property
    def lanes(self) -> int:
        return vector_bytes() // 4

    @property
    def rows(self) -> int:
        """Of a block, at most."""
        return -(-self.problem.spatial_out[1] // self.blocks[0])

    @property
    def columns(self) -> int:
        return -(-self.problem.spatial_out[2] // self.blocks[1])

    @property
    def panel(self) -> int:
        return self.vectors * self.lanes

    @property
    def panels(self) -> int:
        return -(-self.problem.gemm_n // self.panel)

    @property
    def last_vectors(self) -> int:
        """Of the last panel."""
        return -(-(self.problem.gemm_n - (self.panels - 1) * self.panel) // self.lanes)

    @property
    def row_slots(self) -> int:
        """Rows of scratch between two rows of outputs."""
        return self.problem.stride[1] if self.problem.kernel[1] > 1 else 1

    @property
    def phases(self) -> int:
        """Of the rows of scratch, where rows of outputs are to lie one behind the other."""
        return self.row_slots if self.flat else 1

    @property
    def slots_of_phase(self) -> int:
        reach = self.problem.kernel_extent[1]
        return -(-((self.rows - 1) * self.row_slots + reach) // self.phases)

    @property
    def span(self) -> int:
        """Columns of x under a block."""
        return (self.columns - 1) * self.problem.stride[2] + self.problem.kernel_extent[2]

    @cached_attribute
    def strides(self) -> tuple[int, int, int, int]:
        """Bytes of scratch between slices, columns of the kernel (flat), rows and pixels."""
        pixel, copies = 4 * self.pixel_words, self.problem.kernel[2] if self.flat else 1
        row = pixel * (self.columns if self.flat else self.span)
        copy = row * self.slots_of_phase * self.phases
        return copy * copies, copy, row, pixel

    @property
    def input_bytes(self) -> int:
        """Of scratch; whole tiles may be read or written at its end."""
        if self.in_place:
            return 0
        return self.problem.kernel[0] * self.strides[0] + 16 * self.strides[3]

    @property
    def tiles(self) -> int:
        """Of a block, at most."""
        if self.flat:
            return -(-self.rows * self.columns // self.tile)
        return self.rows * -(-self.columns // self.tile)

    @property
    def together(self) -> int:
        """Tiles of pixels that are summed at once."""
        return matrix_tiles.ACROSS if self.engine.matrix else 1

    @cached_attribute
    def scratch(self) -> tuple[int, int, int, int, int]:
        """Bytes of a task's scratch before a row of x in words (flat), the sums of tiles, the table of
        tiles, and the sums of windows, and of all of it."""
        row = (self.span + self.lanes) * 4 * self.pixel_words if self.flat else 0
        sums = (BATCH * self.tile + self.lanes) * 4 * self.panel  # whole squares are read
        windows = self.tiles * self.tile * 4 * self.lanes
        sizes = (-(-n // LINE) * LINE for n in (self.input_bytes, row, sums, 16 * self.tiles, windows))
        return tuple(accumulate(sizes))  # type: ignore[return-value]

    @property
    def scratch_bytes(self) -> int:
        """Of all tasks."""
        return plan_threads() * self.scratch[-1]

    @cached_attribute
    def offsets(self) -> np.ndarray:
        """(chunks,) bytes from a pixel to the words of each chunk."""
        p = self.problem
        (taps_d, taps_h, taps_w), (_, step_h, step_w) = p.kernel, p.dilation
        if self.in_place:
            _, _, d, h, w = (s * p.itemsize for s in map_strides(p.layout, p.C, p.spatial))
            depths, rows, columns = (
                np.arange(n) * step * s for n, step, s in zip(p.kernel, p.dilation, (d, h, w), strict=True)
            )
        else:
            slice_, copy, row, pixel = self.strides
            reach = np.arange(taps_h) * step_h
            rows = (reach % self.phases * self.slots_of_phase + reach // self.phases) * row
            columns = np.arange(taps_w) * (copy if self.flat else step_w * pixel)
            depths = np.arange(taps_d) * slice_
        run = self.pixel_words * (taps_w if self.joined else 1)
        pieces = np.arange(run // self.words) * self.words * 4
        parts = [depths, rows, pieces] if self.joined else [depths, rows, columns, pieces]
        return reduce(np.add.outer, parts).ravel().astype(np.int64)

    @property
    def words_of_filter(self) -> int:
        return len(self.offsets) * self.words


@cached_by_threads(512)
def word_blocking(problem: ConvProblem, engine: Engine) -> WordBlocking:
    """How a problem is cut for the threads of a plan made now."""
    p = problem.as_3d
    if problem.is_plain_product:
        p = in_a_row(problem, (1, 1, math.prod(problem.spatial)))
    each = 4 // engine.item_bytes
    least = -(-p.w_shape[1] // each)  # words of a pixel
    plain = engine.item_bytes == p.itemsize and p.dtype != engine.flips
    lies = p.layout == "channels_last" and plain and p.w_shape[1] % each == 0
    tile, flat = _tile(p, engine)
    pixel_words, words, joined = _chunks(p, engine, least, flat)
    in_place = lies and not flat and pixel_words == least and not np.any(p.padding)
    joined = joined and not (in_place and p.groups > 1)
    if in_place and not joined:
        words = _split(least, engine)
    vectors = _vectors(p.gemm_n, engine)
    if not engine.matrix:
        tile = min(tile, register_tile(vector_bytes())[vectors])
        tile = -(-p.spatial_out[2] // -(-p.spatial_out[2] // tile))
    blocks, parts = _cut(p, pixel_words * 4, vectors, flat)
    shortest = p.spatial_out[2] // blocks[1]
    tile = min(tile, shortest) if in_place else tile
    return WordBlocking(p, engine, blocks, parts, in_place, flat, joined, words, pixel_words, tile, vectors)


def _tile(p: ConvProblem, engine: Engine) -> tuple[int, bool]:
    """(pixels of a tile, whether it runs over all rows of a block)."""
    _, rows, columns = p.spatial_out
    most = matrix_tiles.ROWS if engine.matrix else 8

    def run(pixels: int) -> tuple[int, float]:
        tiles = -(-pixels // most)
        tile = -(-pixels // tiles)
        return tile, tiles * max(TILE_LEAST, TILE_BASE + TILE_ROW * tile)

    (tile, time), (of_all, together) = run(columns), run(rows * columns)
    if engine.matrix and columns <= 4 * most and together < COPIES * rows * time:
        return of_all, True
    strided_points = p.kernel[1:] == (1, 1) and max(p.stride[1:]) > 1 and p.layout == "channels_first"
    return tile, bool(engine.matrix and strided_points and columns <= 4 * most)


def _split(words: int, engine: Engine) -> int:
    """Words of a chunk, of so many in a run."""
    return -(-words // -(-words // matrix_tiles.WORDS)) if engine.matrix else words


def _chunks(p: ConvProblem, engine: Engine, least: int, flat: bool) -> tuple[int, int, bool]:
    """(words of a pixel, words of a chunk, whether the taps of a row of the kernel are one run)."""
    taps = p.kernel[2]
    words = _split(least, engine)
    alone = words * -(-least // words)
    joins = taps > 1 and p.dilation[2] == 1 and not flat
    if not joins:
        return alone, words, False
    if not engine.matrix:
        return least, least * taps, True
    for pixel in range(least, least + matrix_tiles.WORDS):
        run = _split(pixel * taps, engine)
        if pixel * taps % run == 0:
            return (
                (pixel, run, True) if pixel * taps // run < alone // words * taps else (alone, words, False)
            )
    return alone, words, False


def _vectors(filters: int, engine: Engine) -> int:
    """Vectors of filters of a panel."""
    lanes = vector_bytes() // 4
    if engine.matrix:
        return 2 if filters > lanes else 1
    vectors = -(-filters // lanes)
    return min(register_tile(vector_bytes()), key=lambda v: (-(-vectors // v) * v * WASTE[v], -v))


def _cut(p: ConvProblem, pixel_bytes: int, vectors: int, flat: bool) -> tuple[tuple[int, int], int]:
    """((blocks of rows, blocks of columns), parts of the filters)."""
    slices, rows, columns = p.spatial_out
    threads = plan_threads()
    room = cache_sizes()[1] // L2_SHARE
    most = max(1, room // (pixel_bytes * p.kernel[0]))  # pixels of input under a block
    span = columns * p.stride[2] * (p.kernel[2] if flat else 1)
    of_q = 1 if flat else max(1, -(-columns // MOST_COLUMNS), -(-span * p.kernel_extent[1] // most))
    of_p = min(rows, max(1, -(-rows * p.stride[1] * span // of_q // most)))
    units = p.N * slices * p.groups
    if units * of_p * of_q >= UNEVEN * threads:
        return (of_p, of_q), 1
    panels = -(-p.gemm_n // (vectors * (vector_bytes() // 4)))
    short = threads // math.gcd(units * of_p * of_q, threads)
    if p.w_bytes > p.x_bytes and panels >= short:
        return (of_p, of_q), short
    if rows >= 2 * of_p * short:
        return (of_p * short, of_q), 1
    if not flat and columns >= 32 * of_q * short:
        return (of_p, of_q * short), 1
    return (of_p, of_q), min(short, panels)


def element_form(cut: WordBlocking) -> int:
    """What is done to the elements of x."""
    return words_form(cut.problem.dtype, cut.engine.item_bytes, cut.engine.flips)
