"""Blocks of outputs of a product of words, and where its taps lie.

A block is rows of pixels of one slice of the map, for one group. Its input is read in place where x is words
already and has no border, or brought to words in scratch that stays in L2 (`word_rows`). Micro-kernels take
tiles of pixels at equal distances: those of a row of y; or, where rows are short, those of all rows of the
block (flat), for which every output has a copy of what a row of the kernel meets. The last
tile of a run begins so that it ends with the run: what overlaps is computed twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import cache_sizes, vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.core.problem_views import in_a_row
from convalgos.cpu.gemm.word_rows import words_form
from convalgos.cpu.gemm.word_tiles import SINGLES, Engine, register_tile
from convalgos.cpu.layout.strides import map_strides
from convalgos.cpu.runtime.threads import cached_by_threads, plan_threads
from convalgos.cpu.vectors import matrix_tiles
from convalgos.cpu.vectors.simd import LINE

MOST_COLUMNS = 1024  # of a block
L2_SHARE = 4  # of the second cache, that the input of a block takes, and as much its outputs
# Cycles of a matrix product by rows of its tile, over those of 16 rows, with what it loads; Granite Rapids
TILE_BASE, TILE_ROW, TILE_LEAST = 0.64, 0.0225, 0.81
TILE = 16  # cycles of that
COPIED, CONVERTED, SQUARED = 2.0, 4.0, 10.0  # of a vector of words: copied, converted, transposed
CROWDED = 1.15  # times the cycles where copies for all outputs of a map do not stay in the second cache
MOST_FLAT = 64  # outputs of a row
BATCH = 4  # tiles of sums that are finished at once,
DEEP_BATCH = 8  # and where pieces of the filter meet them in turn
L1_SHARE = 2  # of the first cache, that such a piece takes
TWICE_READ = 1.05  # times the work of even blocks of rows, up to which filters are rather read by one thread
UNEVEN = 4  # units for each thread, from which on the work is even enough
WAITS = {1: 1.7, 2: 1.2, 3: 1.0, 4: 1.12}  # times the cycles, by vectors of filters; Granite Rapids


@dataclass(frozen=True)
class WordBlocking:
    """How outputs are cut, and how x and w lie. Sizes are per dimension of the 3-D view."""

    problem: ConvProblem  # the 3-D view
    engine: Engine
    blocks: tuple[int, int]  # of rows, and of columns of a row
    parts: int  # of the filters of a group
    in_place: bool
    planes: bool  # x in scratch is channels first: words of a pixel lie apart
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
    def strides(self) -> tuple[int, int, int]:
        """Bytes of scratch between slices, rows and pixels; flat, a pixel is all that a row of the kernel
        meets."""
        pixel = 4 * (1 if self.planes else self.pixel_words) * (self.problem.kernel[2] if self.flat else 1)
        row = pixel * (self.columns if self.flat else self.span)
        planes = self.pixel_words if self.planes else self.phases
        return row * self.slots_of_phase * planes, row, pixel

    @property
    def word_bytes(self) -> int:
        """Between neighbouring words of a pixel."""
        return self.strides[1] * self.slots_of_phase if self.planes else 4

    @property
    def spills(self) -> bool:
        """Whether the last tile of a run goes on behind it, so that vectors of pixels are neighbours."""
        return self.problem.layout == "channels_first" and not self.engine.matrix

    @property
    def input_bytes(self) -> int:
        """Of scratch; whole tiles may be read or written at its end."""
        if self.in_place:
            return 0
        return self.problem.kernel[0] * self.strides[0] + 16 * self.problem.stride[2] * self.strides[2]

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
    def pieces(self) -> int:
        """Of a panel of filters, which tiles meet one after the other: they stay in the first cache."""
        chunk = 4 * self.words * self.panel
        most = max(1, cache_sizes()[0] // L1_SHARE // chunk)  # chunks
        return -(-len(self.offsets) // most) if self.engine.matrix else 1

    @property
    def batch(self) -> int:
        """Tiles of sums that are finished at once."""
        return DEEP_BATCH if self.pieces > 1 or self.spills else BATCH

    @cached_attribute
    def scratch(self) -> tuple[int, int, int, int, int]:
        """Bytes of a task's scratch before a row of x in words (flat), the sums of tiles, the table of
        tiles, and the sums of windows, and of all of it."""
        row = (self.span + self.lanes) * 4 * self.pixel_words if self.flat else 0
        sums = (self.batch * self.tile + self.lanes) * 4 * self.panel  # whole squares are read
        windows = self.tiles * self.tile * 4 * self.lanes
        table = 16 * (self.tiles + self.batch * self.tile // self.lanes + 1)
        sizes = (-(-n // LINE) * LINE for n in (self.input_bytes, row, sums, table, windows))
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
            slice_, row, pixel = self.strides
            reach = np.arange(taps_h) * step_h
            rows = (reach % self.phases * self.slots_of_phase + reach // self.phases) * row
            columns = np.arange(taps_w) * step_w * pixel
            depths = np.arange(taps_d) * slice_
        run = self.pixel_words * (taps_w if self.joined else 1)
        pieces = np.arange(run // self.words) * self.words * self.word_bytes
        parts = [depths, rows, pieces] if self.joined else [depths, rows, columns, pieces]
        return reduce(np.add.outer, parts).ravel().astype(np.int64)

    @property
    def words_of_filter(self) -> int:
        return len(self.offsets) * self.words


class WordForm(NamedTuple):
    """A way to lay x out in words, and to run over it."""

    flat: bool
    in_place: bool
    joined: bool
    words: int  # of a chunk
    pixel_words: int
    tile: int
    cycles: float  # of a slice of the map, about


@cached_by_threads(512)
def word_blocking(problem: ConvProblem, engine: Engine) -> WordBlocking:
    """How a problem is cut for the threads of a plan made now."""
    p = problem.as_3d
    if problem.is_plain_product:
        p = in_a_row(problem, (1, 1, math.prod(problem.spatial)))
    vectors = _vectors(p.gemm_n, p.spatial_out[2], engine)
    form = _form(p, engine, vectors, flat=False)
    if engine.matrix and p.spatial_out[2] <= MOST_FLAT:
        form = min(form, _form(p, engine, vectors, flat=True), key=lambda f: f.cycles)
    flat, in_place, joined, words, pixel_words, tile, _ = form
    planes = engine.kind == SINGLES and p.layout == "channels_first"
    blocks, parts = _cut(p, engine, pixel_words * 4, vectors, flat)
    if in_place:  # nothing is read beyond the end of x
        tile = min(tile, p.spatial_out[2] // blocks[1])
    return WordBlocking(
        p, engine, blocks, parts, in_place, planes, flat, joined, words, pixel_words, tile, vectors
    )


def _form(p: ConvProblem, engine: Engine, vectors: int, flat: bool) -> WordForm:
    each, taps = 4 // engine.item_bytes, p.kernel[2]
    least = -(-p.w_shape[1] // each)  # words of a pixel
    plain = engine.item_bytes == p.itemsize and p.dtype != engine.flips
    last = p.layout == "channels_last"
    lies = last and plain and p.w_shape[1] % each == 0 and not np.any(p.padding) and not flat
    apart = (lies and p.groups > 1) or (engine.kind == SINGLES and not last)
    joined = flat or (p.dilation[2] == 1 and not apart)
    pixel_words, words = _chunks(least, taps if joined else 1, engine)
    in_place = lies and pixel_words == least
    _, rows, columns = p.spatial_out
    tile, tiles = _tile(rows * columns if flat else columns, engine, vectors)
    chunks = p.gemm_k // p.w_shape[1] * pixel_words // words
    product = TILE * max(TILE_LEAST, TILE_BASE + TILE_ROW * tile)
    filters = -(-p.gemm_n // (vector_bytes() // 4)) * p.groups
    cycles = tiles * (1 if flat else rows) * filters * chunks * product
    if not in_place:
        read = p.kernel[0] * rows * p.stride[1] * p.groups * pixel_words / matrix_tiles.WORDS  # vectors
        cycles += read * columns * (p.stride[2] * (CONVERTED if last else SQUARED) + flat * taps * COPIED)
    if flat and p.kernel[0] * rows * columns * taps * pixel_words * 4 > _room() * plan_threads():
        cycles *= CROWDED
    return WordForm(flat, in_place, joined, words, pixel_words, tile, cycles)


def _room() -> int:
    """Bytes of the second cache for the input of a block."""
    return cache_sizes()[1] // L2_SHARE


def _tile(pixels: int, engine: Engine, vectors: int) -> tuple[int, int]:
    """(pixels of a tile, tiles) of a run of pixels."""
    most = matrix_tiles.ROWS if engine.matrix else register_tile(vector_bytes())[vectors]
    tiles = -(-pixels // most)
    return -(-pixels // tiles), tiles


def _split(words: int, engine: Engine) -> int:
    """Words of a chunk, of so many in a run."""
    return -(-words // -(-words // matrix_tiles.WORDS)) if engine.matrix else words


def _chunks(least: int, taps: int, engine: Engine) -> tuple[int, int]:
    """(words of a pixel, words of a chunk) of runs of `taps` pixels, which are whole chunks."""
    if not engine.matrix:
        return least, least * taps
    sizes = range(least, least + matrix_tiles.WORDS)
    whole = [n for n in sizes if n * taps % _split(n * taps, engine) == 0]
    pixel = min(whole, key=lambda n: (n * taps // _split(n * taps, engine), n))  # fewest chunks
    return pixel, _split(pixel * taps, engine)


def _vectors(filters: int, columns: int, engine: Engine) -> int:
    """Vectors of filters of a panel: few filters, and few pixels of a row, are computed in vain."""
    lanes = vector_bytes() // 4
    if engine.matrix:
        return 2 if filters > lanes else 1
    vectors = -(-filters // lanes)

    def cycles(v: int) -> float:
        tile, tiles = _tile(columns, engine, v)
        return -(-vectors // v) * v * WAITS[v] * tile * tiles

    return min(register_tile(vector_bytes()), key=cycles)


def _cut(
    p: ConvProblem, engine: Engine, pixel_bytes: int, vectors: int, flat: bool
) -> tuple[tuple[int, int], int]:
    """((blocks of rows, blocks of columns), parts of the filters)."""
    slices, rows, columns = p.spatial_out
    threads = plan_threads()
    most = max(1, _room() // (pixel_bytes * p.kernel[0]))  # pixels of input under a block
    span = columns * p.stride[2] * (p.kernel[2] if flat else 1)
    of_q = 1 if flat else max(1, -(-columns // MOST_COLUMNS), -(-span * p.kernel_extent[1] // most))
    of_p = max(1, -(-rows * p.stride[1] * span // of_q // most))
    panels = -(-p.gemm_n // (vectors * (vector_bytes() // 4)))
    if panels > 1 and p.layout == "channels_last":  # every panel writes a part of each line of y
        outputs = p.y_bytes // (p.N * slices * p.groups)
        of_p = max(of_p, -(-outputs // of_q // max(_room(), p.w_bytes // p.groups)))
    of_p = min(rows, of_p)
    units = p.N * slices * p.groups
    if units * of_p * of_q >= UNEVEN * threads:
        return (of_p, of_q), 1
    short = threads // math.gcd(units * of_p * of_q, threads)
    uneven = _unevenness(panels, short) > TWICE_READ * _unevenness(rows, of_p * short)
    if p.w_bytes > p.x_bytes and panels >= short and (engine.matrix or not uneven):
        return (of_p, of_q), short
    if rows >= 2 * of_p * short:
        return (of_p * short, of_q), 1
    if not flat and columns >= 32 * of_q * short:
        return (of_p, of_q * short), 1
    return (of_p, of_q), min(short, panels)


def _unevenness(units: int, parts: int) -> float:
    """The largest of some parts over their mean."""
    return -(-units // parts) * parts / units


def element_form(cut: WordBlocking) -> int:
    """What is done to the elements of x."""
    return words_form(cut.problem.dtype, cut.engine.item_bytes, cut.engine.flips)
