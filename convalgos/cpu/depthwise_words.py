"""Depthwise convolution of bytes with channels in the lanes: four rows of a kernel in each word.

Pixels of a block of channels are copied once, with their border, to whole vectors; those of four rows are
interleaved to words, of which one instruction sums four products. Outputs of a row stay in registers over the
whole kernel. Reads and writes channels_last as it is; channels_first is turned by squares of bytes. Wins on
channels_last and on small maps; `cpu.depthwise.windows` wins on wide channels_first maps.

Source: the depthwise scheme of Zhang, Lo and Lu (AAAI 2020), with words in the place of floats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.allocator import whole_lines
from convalgos.core.machine import Machine, cache_sizes
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.dwconv.byte_plan import WORD_BYTES, BytePlan, ByteWeights, not_here, way
from convalgos.cpu.dwconv.byte_turns import turn_bytes, turn_words
from convalgos.cpu.dwconv.row_words import PIXELS, USUAL, sums_of_channel_words
from convalgos.cpu.dwconv.row_words_driver import ROW_WORD_FIELDS, WORD_BAND, sum_row_words
from convalgos.cpu.dwconv.window_sums import VNNI
from convalgos.cpu.runtime.integer_record_plan import INTEGER_CALL
from convalgos.cpu.runtime.threads import THREAD_UNITS, cached_by_threads, plan_threads, worth_sharing
from convalgos.cpu.vectors import simd

ROWS = 4  # of a word
MOST_SCRATCH = 16 << 20  # bytes for each thread: rows are not cut
RECORD = 512  # bytes of scratch for what the driver tells the kernel

# Cycles of a thread; Xeon (Granite Rapids) with AVX-512
PLACE, TURN = 2.0, 12.0  # to place a pixel of a block, and to turn it
STORE, STORE_WORDS = 22.0, 24.0  # to finish and to store it
BAND = 200  # to begin a band

# --- shapes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class WordBands:
    """How maps are cut: blocks of as many channels as a vector has bytes, and bands of output rows."""

    problem: ConvProblem  # the 3-D view
    rows: int  # of outputs of a band

    @property
    def block(self) -> int:
        """Channels of a block, and bytes of a pixel."""
        return 4 * simd.lanes(4)

    @property
    def blocks(self) -> int:
        return -(-self.problem.C // self.block)

    @property
    def columns(self) -> int:
        """Of x with its border, that some output meets."""
        p = self.problem
        return int((p.spatial_out[2] - 1) * p.stride[2] + p.kernel_extent[2])

    @property
    def words(self) -> int:
        """For the rows of a kernel."""
        return -(-self.problem.kernel[1] // ROWS)

    def rows_under(self, rows: int) -> int:
        p = self.problem
        return int((rows - 1) * p.stride[1] + p.kernel_extent[1])

    @property
    def slice_pitch(self) -> int:
        """Bytes of a slice. Words reach beyond the last row of the kernel."""
        p = self.problem
        beyond = (ROWS * self.words - p.kernel[1]) * p.dilation[1]
        return (self.rows_under(self.rows) + beyond) * self.columns * self.block

    @property
    def sums(self) -> int:
        """Where outputs are in scratch, before they are turned."""
        return RECORD + int(self.problem.kernel[0]) * self.slice_pitch

    @property
    def y_bytes(self) -> int:
        if self.problem.layout == "channels_last":
            return 0
        outputs = -(-self.rows * self.problem.spatial_out[2] // 16) * 16
        return outputs * self.block * (1 if self.problem.y_dtype in ("int8", "uint8") else 4)

    @property
    def scratch_bytes(self) -> int:
        return whole_lines(self.sums + self.y_bytes)

    @property
    def pixels(self) -> int:
        """Of a row, that are summed at a time."""
        return max(n for n in PIXELS if n <= self.problem.spatial_out[2])

    def bands(self) -> np.ndarray:
        """`WORD_BAND` of all bands of an image."""
        p = self.problem
        height, width = p.spatial_out[1:]
        found = []
        for o, row in product(range(p.spatial_out[0]), range(0, height, self.rows)):
            rows = min(self.rows, height - row)
            at = o * p.stride[0] - p.padding[0][0], row * p.stride[1] - p.padding[1][0]
            found.append((*at, rows, self.rows_under(rows), (o * height + row) * width))
        return np.array(found, WORD_BAND)


@cached_by_threads(256)
def word_bands(problem: ConvProblem) -> WordBands:
    p = problem.as_3d
    height, budget = p.spatial_out[1], cache_sizes()[1] // 4
    one = WordBands(p, 1)
    row_bytes = p.kernel[0] * p.stride[1] * one.columns * one.block + one.y_bytes
    rows = max(1, budget // row_bytes - (p.kernel_extent[1] - 1) // p.stride[1])
    units = p.N * one.blocks * p.spatial_out[0]
    wanted = -(-THREAD_UNITS * plan_threads() // units)
    bands = max(-(-height // rows), min(wanted, max(1, height // max(4, p.kernel_extent[1]))))
    return replace(one, rows=-(-height // bands))


# --- plan ------------------------------------------------------------------------------------


class RowWordsPlan(BytePlan):
    def __init__(self, problem: ConvProblem, algorithm: RowWords):
        cut = word_bands(problem)
        super().__init__(problem, algorithm, cut.scratch_bytes)
        self._cut, p = cut, cut.problem
        lanes, last = simd.lanes(4), p.layout == "channels_last"
        x_pixels, y_pixels = math.prod(p.spatial), math.prod(p.spatial_out)
        (x_c, x_pixel), (y_k, y_pixel) = ((1, p.C), (1, p.K)) if last else ((x_pixels, 1), (y_pixels, 1))
        row = p.kernel[2], p.stride[2], p.dilation[2]
        code = row if row in USUAL else (0, 0, 0)
        self._bands = bands = cut.bands()
        values: dict[str, int] = {
            "tasks": self._tasks, "images": p.N, "blocks": cut.blocks, "channels": p.C,
            "bands": bands.ctypes.data, "band_count": len(bands), "size_y": 1 if self._of_bytes else 4,
            "x_image": p.C * x_pixels, "y_image": p.K * y_pixels, "x_c": x_c, "x_pixel": x_pixel,
            "y_k": y_k, "y_pixel": y_pixel, "sums": cut.sums,
            "turn_in": 0 if last else turn_bytes(lanes),
            "turn_out": 0 if last else (turn_bytes if self._of_bytes else turn_words)(lanes),
            "slices": p.kernel[0], "slice_step": p.dilation[0], "depth": p.spatial[0],
            "height": p.spatial[1], "width": p.spatial[2], "columns": cut.columns,
            "pad_left": min(p.padding[2][0], cut.columns), "flip": self._flip,
            "pitch": cut.columns * cut.block, "slice_pitch": cut.slice_pitch,
            "row_stride": p.stride[1], "row_dilation": p.dilation[1], "stride": p.stride[2],
            "dilation": p.dilation[2], "kernel_columns": p.kernel[2], "words": cut.words,
            "outputs": p.spatial_out[2], "scratch_bytes": cut.scratch_bytes,
            "w_block": p.kernel[0] * cut.words * p.kernel[2] * cut.block * WORD_BYTES[self._way],
            "sum": sums_of_channel_words(lanes, cut.pixels, *code, self._way, self._kind),
        }  # fmt: skip
        self.use_driver(sum_row_words(lanes), ROW_WORD_FIELDS, values)

    def pack(self, w: np.ndarray, w_zero_point: np.ndarray | None) -> ByteWeights:
        """(blocks, parts, T, words, S, 4, halves, lanes): channels in the order of `interleaved_bytes`."""
        p, cut = self._cut.problem, self._cut
        numbers = self.numbers(w, w_zero_point)  # (K, 1, T, R, S)
        taps = np.zeros((p.K, p.kernel[0], cut.words * ROWS, p.kernel[2]), np.int16)
        taps[:, :, : p.kernel[1]] = numbers[:, 0]
        taps = taps.reshape(p.K, p.kernel[0], cut.words, ROWS, p.kernel[2]).swapaxes(3, 4)
        first = np.minimum(np.arange(cut.blocks) * cut.block, max(0, p.K - cut.block))
        places = np.arange(cut.block).reshape(-1, 4, 4).swapaxes(0, 1).ravel()  # of the channels in vectors
        channels = np.add.outer(first, places)  # (blocks, block)
        parts = []
        for part in self.weight_parts(taps):  # (K, T, words, S, 4)
            chosen = np.where((channels < p.K)[..., None, None, None, None], part[channels % p.K], 0)
            chosen = np.moveaxis(chosen, 1, -2)  # (blocks, T, words, S, block, 4)
            if self._way != VNNI:  # two halves of each vector
                chosen = chosen.reshape(*chosen.shape[:4], 4, -1, 2, 2).swapaxes(5, 6)
            parts.append(chosen)
        return self.weights(np.stack(parts, 1), len(parts), numbers)


@dataclass(frozen=True)
class RowWords(Algorithm):
    family: ClassVar[str] = "cpu.depthwise"
    dtypes: ClassVar[tuple[str, ...]] = ("int8", "uint8")

    @property
    def variant(self) -> str:
        return "words"

    def why_not(self, problem: ConvProblem) -> str | None:
        return super().why_not(problem) or not_here() or _unsuited(problem)

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        cut = word_bands(problem)
        cycles = machine.peak("float32") / (4 * simd.lanes(4))  # a second, of all cores
        memory = machine.stream(problem.x_bytes + problem.y_bytes, problem.bytes)
        shared = worth_sharing(problem)
        summed = word_cycles(cut, way()) / cycles * (1 if shared else machine.threads)
        return INTEGER_CALL + machine.launch * shared + summed + memory

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else plan_threads() * word_bands(problem).scratch_bytes

    def error_bound(self, problem: ConvProblem) -> float:
        return 4 * problem.eps

    def plan(self, problem: ConvProblem) -> Plan:
        return RowWordsPlan(problem, self)


def word_cycles(cut: WordBands, way: int) -> float:
    """Of all images on one core, of filters of bytes."""
    p = cut.problem
    outputs, of_bytes = math.prod(p.spatial_out), p.y_dtype in ("int8", "uint8")
    bands = -(-p.spatial_out[1] // cut.rows) * p.spatial_out[0]
    placed = bands * p.kernel[0] * cut.rows_under(cut.rows) * cut.columns
    turned = p.layout == "channels_first"
    reach = (cut.pixels - 1) * p.stride[2] + p.kernel[2] if p.dilation[2] == 1 else cut.pixels * p.kernel[2]
    shuffles = 8 * min(reach / cut.pixels, p.kernel[2])
    words = p.kernel[0] * cut.words * (shuffles + p.kernel[2] * 4 * (1 if way == VNNI else 5))
    stored = (STORE if of_bytes else STORE_WORDS) + (TURN * (1 if of_bytes else 4) if turned else 0)
    tiles = -(-p.spatial_out[2] // cut.pixels) * cut.pixels / p.spatial_out[2]  # the last overlaps
    cycles = (
        placed * (PLACE + (TURN if turned else 0)) + outputs * tiles * (words / 2 + stored) + BAND * bands
    )
    return p.N * cut.blocks * cycles


def _unsuited(problem: ConvProblem) -> str | None:
    if problem.w_shape[1] > 1 or problem.gemm_n > 1 or problem.C == 1:
        return "filters every channel by itself, with one filter"
    if not problem.is_empty and (nbytes := word_bands(problem).scratch_bytes) > MOST_SCRATCH:
        return f"copies whole rows, here {nbytes} bytes for each thread and at most {MOST_SCRATCH}"
    return None


ALGORITHMS = (RowWords(),)
