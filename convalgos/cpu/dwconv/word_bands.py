"""How maps are cut for `cpu.depthwise.words`, where words lie in scratch, and the cycles that this takes.

A row of words has four rows of x. One at every row would serve any row of outputs; one at every second or
every fourth row serves these, too, where weights are shifted by the rows between: words are not longer for
that than the kernel needs, as its rows seldom fill them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import cache_sizes
from convalgos.core.problem import ConvProblem
from convalgos.core.problem_views import reshaped
from convalgos.cpu.dwconv.byte_plan import MOST_PARTS, sharing_threads, way
from convalgos.cpu.dwconv.row_words import PIXELS, ROW_PLACE, WORD_BAND, WORDS_AT
from convalgos.cpu.dwconv.window_sums import VNNI
from convalgos.cpu.runtime.threads import cached_by_threads
from convalgos.cpu.vectors import simd

PER_DIMENSION = "stride", "dilation", "padding", "spatial_out", "kernel_extent"
ROWS = 4  # of a word
WORDS = 0.4  # of the first cache, for those of a band

# Cycles of a thread; Xeon (Granite Rapids) with AVX-512
PLACE, TURN = 1.5, 5.5  # to place a pixel of words, and to turn one of a block
WORD = 0.7  # to multiply a vector of words
STORE, STORE_WORDS = 8.0, 12.0  # to finish and to store a pixel of outputs
BAND = 300  # to begin a band
TAIL = 0.7  # of a block, that one of fewer channels takes


@dataclass(frozen=True)
class WordBands:
    """Blocks of as many channels as a vector has bytes, and bands of output rows."""

    problem: ConvProblem  # the 3-D view, `turned` where kernels have one row: words hold four rows
    lanes: int  # of words
    rows: int  # of outputs of a band
    tasks: int  # that run at once
    turned: bool = False  # whether rows of the view are columns of the map

    @property
    def block(self) -> int:
        """Channels of a block, and bytes of a pixel."""
        return 4 * self.lanes

    @property
    def blocks(self) -> int:
        return -(-self.problem.C // self.block)

    @property
    def tail(self) -> int:
        """Lanes of words of the last block, where fewer do for it; else 0."""
        rest = self.problem.C % self.block
        if self.blocks == 1 or rest == 0:
            return 0
        found = min(n for n in (4, 8, self.lanes) if 4 * n >= rest)
        return found if found < self.lanes else 0

    @property
    def columns(self) -> int:
        """Of x with its border, that some output meets."""
        p = self.problem
        return int((p.spatial_out[2] - 1) * p.stride[2] + p.kernel_extent[2])

    # --- words -------------------------------------------------------------------------------

    @property
    def words(self) -> int:
        """For the rows of a kernel."""
        return -(-self.problem.kernel[1] // ROWS)

    @cached_attribute
    def unit(self) -> int:
        """Rows of x from one row of words to the next."""
        p = self.problem
        if p.dilation[1] > 1:
            return 1
        room = ROWS * self.words - p.kernel[1]
        return max(unit for unit in (1, 2, 4) if unit - math.gcd(unit, p.stride[1]) <= room)

    @property
    def phases(self) -> int:
        """Rows of outputs until one begins at a row of words again."""
        return self.unit // math.gcd(self.unit, self.problem.stride[1])

    @property
    def word_rows(self) -> int:
        """Rows of words from one word of a kernel to the next."""
        return int(ROWS * self.problem.dilation[1] // self.unit)

    def groups(self, rows: int) -> int:
        """Rows of words that some rows of outputs meet."""
        return (rows - 1) * int(self.problem.stride[1]) // self.unit + (self.words - 1) * self.word_rows + 1

    def rows_under(self, rows: int) -> int:
        """Rows of x that these meet."""
        p = self.problem
        return int((rows - 1) * p.stride[1] + p.kernel_extent[1])

    # --- scratch -----------------------------------------------------------------------------

    @property
    def group_pitch(self) -> int:
        """Bytes of a row of words."""
        return self.columns * ROWS * self.block

    @property
    def slice_pitch(self) -> int:
        return self.groups(self.rows) * self.group_pitch

    @property
    def pixels(self) -> int:
        """Where rows of x are in scratch that were turned."""
        return WORDS_AT + int(self.problem.kernel[0]) * self.slice_pitch

    @property
    def sums(self) -> int:
        """Where outputs are before they are turned."""
        p = self.problem
        turned = 0 if self.last else min(p.spatial[1], self.rows_under(self.rows)) * p.spatial[2]
        return self.pixels + int(turned) * self.block

    @property
    def last(self) -> bool:
        return bool(self.problem.layout == "channels_last")

    @property
    def of_bytes(self) -> bool:
        return self.problem.y_dtype in ("int8", "uint8")

    @property
    def scratch_bytes(self) -> int:
        """Of one task. Whole squares of outputs are turned."""
        outputs = 0 if self.last else -(-self.rows * self.problem.spatial_out[2] // 16) * 16
        return whole_lines(int(self.sums + outputs * self.block * (1 if self.of_bytes else 4)))

    # --- tables ------------------------------------------------------------------------------

    @property
    def tile(self) -> int:
        """Pixels of a row that are summed at a time."""
        width = self.problem.spatial_out[2]
        return min((n for n in PIXELS if n <= width), key=lambda n: -(-width // n) * (n + 1))

    def places(self, w_row: int) -> np.ndarray:
        """`ROW_PLACE` of the rows of a band, whose weights of a row of words and a phase take some bytes."""
        step = int(self.problem.stride[1])
        found = [
            (row * step // self.unit * self.group_pitch, row % self.phases * w_row)
            for row in range(self.rows)
        ]
        return np.array(found, ROW_PLACE)

    def offsets(self) -> np.ndarray:
        """(parts * T * words,) bytes from the first words of an output to the others of its kernel."""
        slices = np.arange(self.problem.kernel[0]) * self.slice_pitch
        words = np.arange(self.words) * self.word_rows * self.group_pitch
        return np.tile(np.add.outer(slices, words).ravel(), MOST_PARTS).astype(np.int64)

    def bands(self) -> np.ndarray:
        """`WORD_BAND` of all bands of an image."""
        p = self.problem
        height, found = p.spatial_out[1], []
        for o, row in product(range(p.spatial_out[0]), range(0, height, self.rows)):
            rows = min(self.rows, height - row)
            x_row = row * p.stride[1] - p.padding[1][0]
            first = min(max(0, x_row), p.spatial[1])
            inside = max(0, min(x_row + self.rows_under(rows), p.spatial[1]) - first)
            slice_ = o * p.stride[0] - p.padding[0][0]
            found.append((slice_, x_row, self.groups(rows), first, inside, rows, o * height + row))
        return np.array(found, WORD_BAND)

    def shifted(self, taps: np.ndarray) -> np.ndarray:
        """(K, T, words, phases, S, 4) of taps (K, T, R, S): those of a word of each row of outputs."""
        p = self.problem
        found = np.zeros((*taps.shape[:2], self.phases, self.words * ROWS, taps.shape[3]), taps.dtype)
        for phase in range(self.phases):
            first = phase * p.stride[1] % self.unit
            found[:, :, phase, first : first + p.kernel[1]] = taps
        found = found.reshape(*taps.shape[:2], self.phases, self.words, ROWS, taps.shape[3])
        return np.ascontiguousarray(found.transpose(0, 1, 3, 2, 5, 4))

    # --- cost --------------------------------------------------------------------------------

    def cycles(self) -> float:
        """Until the last task is done, of filters of bytes."""
        p = self.problem
        width = p.spatial_out[2]
        bands = [min(self.rows, p.spatial_out[1] - row) for row in range(0, p.spatial_out[1], self.rows)]
        placed = p.kernel[0] * self.columns * sum(map(self.groups, bands))
        words = p.kernel[0] * self.words * p.kernel[2] * 4 * (1 if way() == VNNI else 5)
        turned = 0.0
        if not self.last:
            turned = TURN * p.kernel[0] * p.spatial[2] * sum(map(self.rows_under, bands))
            turned += TURN * (1 if self.of_bytes else 4) * width * sum(bands)
        tiles = -(-width // self.tile) * sum(bands)
        stored = STORE if self.of_bytes else STORE_WORDS
        of_map = BAND * len(bands) + PLACE * placed + turned + tiles * self.tile * (WORD * words + stored)
        units, tasks = p.N * self.blocks * p.spatial_out[0] * len(bands), self.tasks
        less = (self.tail > 0) * (1 - TAIL) / self.blocks
        return (1 - less) * p.N * self.blocks * p.spatial_out[0] * of_map / units * -(-units // tasks)


@cached_by_threads(256)
def word_bands(problem: ConvProblem) -> WordBands:
    """The bands that take the fewest cycles, of those whose words stay in the first cache."""
    p, lanes = problem.as_3d, simd.lanes(4)
    if turned := _has_lines(p, 4 * lanes):
        p = _turned(p)
    while lanes > 4 and 2 * lanes >= p.C:
        lanes //= 2
    one, height = WordBands(p, lanes, 1, sharing_threads(problem), turned), p.spatial_out[1]
    sizes = {-(-height // (bands * one.phases)) * one.phases for bands in range(1, height + 1)}
    cuts = [replace(one, rows=min(rows, height)) for rows in sorted(sizes)]
    room = WORDS * cache_sizes()[0]
    small = [cut for cut in cuts if cut.pixels <= room] or cuts[:1]
    if one.last:  # tasks that share rows would meet in their cache lines
        planes = p.N * p.spatial_out[0]
        small = [cut for cut in small if planes * -(-height // cut.rows) >= one.tasks] or small
    return min(small, key=WordBands.cycles)


def _has_lines(p: ConvProblem, block: int) -> bool:
    """Whether kernels are a row of a map channels last whose blocks stay in the first cache.

    Columns of larger ones are read from afar: 56x56 pixels of 64 channels, 1x7, took 1.18 of the time.
    """
    lines = p.spatial[0] == p.spatial_out[0] == p.kernel[0] == p.kernel[1] == 1 < p.kernel[2]
    nbytes = math.prod(p.spatial) * min(p.C, block)
    return lines and p.layout == "channels_last" and nbytes <= cache_sizes()[0]


def _turned(p: ConvProblem) -> ConvProblem:
    """The 3-D view with rows and columns exchanged."""

    def other(sizes: Any) -> tuple[Any, ...]:
        depth, height, width = sizes
        return depth, width, height

    turned: ConvProblem = reshaped(
        p,
        x_shape=(*p.x_shape[:2], *other(p.spatial)),
        w_shape=(*p.w_shape[:2], *other(p.kernel)),
        **{name: other(getattr(p, name)) for name in PER_DIMENSION},
    )
    return turned
