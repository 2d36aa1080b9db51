"""Integer convolution of few channels a group: four columns of a kernel in each word, pixels in the lanes.

Instructions for short integers add four products of bytes to a word. Depthwise layers, small groups and first
layers have too few channels for the four; they have columns of a kernel. Signed bytes are read as
unsigned ones that are larger by 128, which the start of a sum takes back. Without such instructions words are
multiplied as two pairs of 16 bits, which is exact, too.

Source: vpdpbusd as in oneDNN's int8 kernels; columns of taps in words as in XNNPACK's first layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.compile import code_generation
from convalgos.cpu.dwconv.byte_plan import (
    MOST_PARTS,
    WORD_BYTES,
    BytePlan,
    ByteWeights,
    not_here,
    sharing_threads,
    way,
)
from convalgos.cpu.dwconv.byte_rows import COPIED, LOADED, TURNED, place_rows_of_band
from convalgos.cpu.dwconv.byte_turns import turn_bytes, turn_words
from convalgos.cpu.dwconv.window_driver import WINDOW_FIELDS, sum_window_bands
from convalgos.cpu.dwconv.window_sums import LINES, VNNI, sums_of_windows
from convalgos.cpu.dwconv.window_tiling import WINDOW, WindowTiling, window_tiling
from convalgos.cpu.runtime.integer_record_plan import INTEGER_CALL
from convalgos.cpu.runtime.threads import plan_threads

MOST_CHANNELS = 32  # of a group
# Cycles of a thread; Xeon (Granite Rapids) with AVX-512
ROW, ROW_VECTOR = 1.5, 1.3  # to place a row, and each vector of it
GROUP, FILTERS = 50, 10  # to begin with the groups that are placed at once, and with some filters of each
TURN = 0.36  # of a byte of channels_last
LOAD = 0.9  # of a vector for a tap: most cross cache lines
INTERLEAVED = 2.5  # of a vector of words of four rows
STORE, STORE_WORDS = 1.5, 2.5  # to finish and to store a vector
TILE = 3  # to begin a tile

# --- plan ------------------------------------------------------------------------------------


class WindowsPlan(BytePlan):
    def __init__(self, problem: ConvProblem, algorithm: Windows):
        cut = window_tiling(problem)
        super().__init__(problem, algorithm, cut.scratch_bytes)
        self._cut, p = cut, cut.problem
        lanes = cut.lanes
        bands, self._stores = cut.bands(4 * lanes if self._of_bytes else lanes)
        self._bands, self._offsets = bands, np.tile(cut.offsets, MOST_PARTS)
        x_pixels, y_pixels = math.prod(p.spatial), math.prod(p.spatial_out)
        (x_c, x_pixel), (y_k, y_pixel) = ((1, p.C), (1, p.K)) if cut.last else ((x_pixels, 1), (y_pixels, 1))
        placing = TURNED if cut.last else LOADED if lanes >= 16 else COPIED
        values: dict[str, int] = {
            "tasks": self._tasks, "images": p.N, "groups": p.groups, "channels": p.w_shape[1],
            "filters": p.gemm_n,
            "size_y": 1 if self._of_bytes else 4, "bands": bands.ctypes.data, "band_count": len(bands),
            "x_image": p.C * x_pixels, "y_image": p.K * y_pixels, "x_c": x_c, "x_pixel": x_pixel,
            "y_k": y_k, "y_pixel": y_pixel, "y_plane": cut.y_plane, "sums": cut.sums,
            "group_blocks": -(-p.groups // cut.groups), "at_once": cut.groups,
            "slices": p.kernel[0], "slice_step": p.dilation[0], "depth": p.spatial[0],
            "height": p.spatial[1], "width": p.spatial[2], "vectors": cut.row_vectors,
            "flip": self._flip, "phases": cut.phases, "pitch": cut.pitch,
            "plane": cut.plane, "planes": cut.planes,
            "scratch_bytes": cut.scratch_bytes, "offsets": self._offsets.ctypes.data,
            "way": WORD_BYTES[self._way], "most": cut.filters,
            "place": place_rows_of_band(lanes, placing), "turn_in": turn_bytes(lanes) if cut.last else 0,
            "turn_out": (turn_bytes if self._of_bytes else turn_words)(lanes) if cut.last else 0,
        }  # fmt: skip
        self.use_driver(sum_window_bands(), WINDOW_FIELDS, values)

    def sum_kernels(self, plain: bool) -> dict[str, int]:
        cut, way, kind = self._cut, self._way, self._kind
        compress = int(cut.lanes >= 16 and (not self._of_bytes or code_generation.has("avx512vbmi2")))
        step = LINES if cut.lines else cut.step
        names, counts = (
            {1: "sum_one", 2: "sum_two", 4: "sum_four"},
            filter_counts(cut.problem.gemm_n, cut.filters),
        )
        return {
            names[n]: sums_of_windows(cut.lanes, n, cut.vectors, step, way, kind, compress, int(plain))
            for n in sorted(set(counts))
        }

    def pack(self, w: np.ndarray, w_zero_point: np.ndarray | None) -> ByteWeights:
        """(groups, some filters, parts of weights, taps, filters, 4); taps as in the table of offsets."""
        p, cut = self._cut.problem, self._cut
        numbers = self.numbers(w, w_zero_point)
        if cut.lines:
            spare = [(0, 0)] * 3 + [(0, -p.kernel[1] % WINDOW), (0, 0)]
            taps = np.pad(numbers, spare)
        else:
            taps = np.zeros((*numbers.shape[:-1], len(cut.windows), WINDOW), np.int16)
            for number, columns in enumerate(cut.windows):
                for column in columns:
                    taps[..., number, (column - columns[0]) * p.dilation[2]] = numbers[..., column]
        words = np.concatenate(self.weight_parts(taps.reshape(p.K, -1, WINDOW)), 1)  # (K, taps, 4)
        by_group = words.reshape(p.groups, p.gemm_n, *words.shape[1:])
        of_group = [0, *accumulate(filter_counts(p.gemm_n, cut.filters))]
        blocks = [by_group[:, a:b].swapaxes(1, 2).reshape(p.groups, -1) for a, b in pairwise(of_group)]
        return self.weights(np.concatenate(blocks, 1), words.shape[1], numbers)


def window_cycles(cut: WindowTiling, way: int) -> float:
    """Of all images on one core, of filters of bytes."""
    p, vectors = cut.problem, cut.vectors
    height, width = p.spatial_out[1:]
    bands = p.N * p.groups * p.spatial_out[0] * -(-width // cut.columns)
    rows = [min(cut.rows, height - row) for row in range(0, height, cut.rows)]
    tiles = bands * sum(map(cut.tiles, rows))
    placed = bands * sum(map(cut.rows_under, rows)) * cut.planes * (ROW + cut.row_vectors * ROW_VECTOR)
    cycles = placed + bands * len(rows) * (GROUP / cut.groups)
    if cut.last:
        squares = cut.planes * sum(map(cut.rows_under, rows)) * cut.pitch + p.gemm_n * sum(rows) * width
        cycles += bands * squares * TURN
    products = 0.5 if way == VNNI else 2.5
    words, load = len(cut.offsets), LOAD
    if cut.lines:
        words, load = words // WINDOW, INTERLEAVED
    for filters in filter_counts(p.gemm_n, cut.filters):
        of_tap = max(load * vectors, filters * vectors * products)
        stored = filters * vectors * (STORE if p.y_dtype in ("int8", "uint8") else STORE_WORDS)
        cycles += tiles * (words * of_tap + stored + TILE) + bands * len(rows) * FILTERS
    return cycles


def filter_counts(filters: int, most: int) -> list[int]:
    """Filters that are summed at a time, of a group."""
    counts = []
    while filters:
        counts.append(max(n for n in (1, 2, 4) if n <= min(filters, most)))
        filters -= counts[-1]
    return counts


@dataclass(frozen=True)
class Windows(Algorithm):
    family: ClassVar[str] = "cpu.depthwise.windows"
    dtypes: ClassVar[tuple[str, ...]] = ("int8", "uint8")

    def why_not(self, problem: ConvProblem) -> str | None:
        return super().why_not(problem) or not_here() or _unsuited(problem)

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        cut = window_tiling(problem)
        threads = sharing_threads(problem)
        cycles = machine.peak("float32") / (4 * cut.lanes) / machine.threads * threads
        memory = machine.stream(problem.x_bytes + problem.y_bytes, problem.bytes)  # half of it shows
        summed = window_cycles(cut, way()) / cycles
        return INTEGER_CALL + machine.launch * (threads > 1) + summed + memory / 2

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else plan_threads() * window_tiling(problem).scratch_bytes

    def error_bound(self, problem: ConvProblem) -> float:
        return 4 * problem.eps

    def plan(self, problem: ConvProblem) -> Plan:
        return WindowsPlan(problem, self)


def _unsuited(problem: ConvProblem) -> str | None:
    if problem.w_shape[1] > MOST_CHANNELS:
        return f"is for groups of at most {MOST_CHANNELS} channels, not {problem.w_shape[1]}"
    return None


ALGORITHMS = (Windows(),)
