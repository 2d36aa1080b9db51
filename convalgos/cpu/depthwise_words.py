"""Depthwise convolution of bytes with channels in the lanes: four rows of a kernel in each word.

Pixels of four rows of a block of channels are interleaved once, with their border, to words in scratch, of
which one instruction sums four products. Outputs of a row stay in registers over the whole kernel. Reads and
writes channels_last as it is; channels_first is turned by squares of bytes. Wins on channels_last and on
small maps; `cpu.depthwise.windows` wins on wide channels_first maps.

Source: the depthwise scheme of Zhang, Lo and Lu (AAAI 2020), with words in the place of floats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.dwconv.byte_plan import WORD_BYTES, BytePlan, ByteWeights, not_here, sharing_threads
from convalgos.cpu.dwconv.byte_turns import turn_bytes, turn_words
from convalgos.cpu.dwconv.row_words import (
    ROW_WORD_FIELDS,
    USUAL,
    sum_row_words,
    sums_of_channel_words,
    words_of_rows,
)
from convalgos.cpu.dwconv.window_sums import VNNI
from convalgos.cpu.dwconv.word_bands import word_bands
from convalgos.cpu.runtime.integer_record_plan import INTEGER_CALL
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.vectors import simd

MOST_SCRATCH = 16 << 20  # bytes for each thread: rows are not cut

# --- plan ------------------------------------------------------------------------------------


class RowWordsPlan(BytePlan):
    def __init__(self, problem: ConvProblem, algorithm: RowWords):
        cut = word_bands(problem)
        super().__init__(problem, algorithm, cut.scratch_bytes)
        self._cut, p = cut, cut.problem
        widest, last = simd.lanes(4), cut.last
        x_pixels, y_pixels = math.prod(p.spatial), math.prod(p.spatial_out)
        (x_c, x_pixel), (y_k, y_pixel) = ((1, p.C), (1, p.K)) if last else ((x_pixels, 1), (y_pixels, 1))
        x_row, y_row = p.spatial[2] * x_pixel, p.spatial_out[2] * y_pixel
        if cut.turned:
            x_row, x_pixel = x_pixel, p.spatial[1] * x_pixel
            y_row, y_pixel = y_pixel, p.spatial_out[1] * y_pixel
        w_row = p.kernel[2] * cut.block * WORD_BYTES[self._way]
        self._tables = bands, places, offsets = cut.bands(), cut.places(w_row), cut.offsets()
        values: dict[str, int] = {
            "tasks": self._tasks, "images": p.N, "blocks": cut.blocks, "block": cut.block,
            "tail": 4 * cut.tail, "channels": p.C,
            "bands": bands.ctypes.data, "band_count": len(bands), "size_y": 1 if self._of_bytes else 4,
            "x_image": p.C * x_pixels, "y_image": p.K * y_pixels, "x_c": x_c, "x_pixel": x_pixel,
            "y_k": y_k, "y_pixel": y_pixel, "x_row": x_row, "y_row": y_row,
            "x_slice": p.spatial[1] * p.spatial[2] * x_pixel, "pixels": cut.pixels, "sums": cut.sums,
            "turn_in": 0 if last else turn_bytes(widest),
            "turn_out": 0 if last else (turn_bytes if self._of_bytes else turn_words)(widest),
            "slices": p.kernel[0], "slice_step": p.dilation[0], "depth": p.spatial[0],
            "height": p.spatial[1], "width": p.spatial[2], "columns": cut.columns,
            "pad_left": min(p.padding[2][0], cut.columns), "flip": self._flip, "unit": cut.unit,
            "row_dilation": p.dilation[1], "group_pitch": cut.group_pitch, "slice_pitch": cut.slice_pitch,
            "places": places.ctypes.data, "offsets": offsets.ctypes.data, "phases": cut.phases,
            "stride": p.stride[2], "dilation": p.dilation[2], "kernel_columns": p.kernel[2],
            "words": cut.words, "outputs": p.spatial_out[2], "scratch_bytes": cut.scratch_bytes,
            "w_row": w_row,
        }  # fmt: skip
        for name, lanes in self._block_lanes():
            values[f"interleave{name}"] = words_of_rows(lanes, int(self._flip != 0))
        self.use_driver(sum_row_words(cut.lanes), ROW_WORD_FIELDS, values)

    def sum_kernels(self, plain: bool) -> dict[str, int]:
        p, cut = self._cut.problem, self._cut
        row = p.kernel[2], p.stride[2], p.dilation[2]
        code = row if row in USUAL else (0, 0, 0)
        return {
            f"sum{name}": sums_of_channel_words(lanes, cut.tile, *code, self._way, self._kind, int(plain))
            for name, lanes in self._block_lanes()
        }

    def _block_lanes(self) -> list[tuple[str, int]]:
        """Of whole blocks and of the last one: what names of fields end in, and lanes."""
        cut = self._cut
        return [("", cut.lanes), ("_tail", cut.tail)] if cut.tail else [("", cut.lanes)]

    def pack(self, w: np.ndarray, w_zero_point: np.ndarray | None) -> ByteWeights:
        """(blocks, parts, T, words, phases, S, 4, halves, lanes); of the last block zeros are behind S."""
        p, cut = self._cut.problem, self._cut
        numbers = self.numbers(w, w_zero_point)  # (K, 1, T, R, S)
        numbers = numbers.swapaxes(3, 4) if cut.turned else numbers
        parts = self.weight_parts(cut.shifted(numbers[:, 0]))  # (K, T, words, phases, S, 4) each
        whole = cut.blocks - (cut.tail > 0)
        first = np.minimum(np.arange(whole) * cut.block, max(0, p.K - cut.block))
        packed = self._packed(parts, first, cut.block)
        if cut.tail:
            last = self._packed(parts, np.array([p.K - 4 * cut.tail]), 4 * cut.tail)
            behind = packed.shape[-1] - last.shape[-1]
            packed = np.concatenate([packed, np.pad(last, [(0, 0)] * 5 + [(0, behind)])])
        return self.weights(packed, len(parts), numbers)

    def _packed(self, parts: list[np.ndarray], first: np.ndarray, block: int) -> np.ndarray:
        """(blocks, parts, T, words, phases, elements) of blocks from some channels on."""
        filters = self._cut.problem.K
        places = np.arange(block).reshape(-1, 4, 4).swapaxes(0, 1).ravel()  # as in `interleaved_bytes`
        channels = np.add.outer(first, places)  # (blocks, block)
        found = np.stack([part[channels % filters] for part in parts], 1)
        found = np.where((channels < filters)[:, None, :, None, None, None, None, None], found, 0)
        found = np.moveaxis(found, 2, -2)  # (blocks, parts, T, words, phases, S, block, 4)
        if self._way != VNNI:  # two halves of each vector
            found = found.reshape(*found.shape[:6], 4, -1, 2, 2).swapaxes(7, 8)
        return found.reshape(*found.shape[:5], -1)


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
        cycles = machine.peak("float32") / (4 * simd.lanes(4)) / machine.threads  # a second
        memory = machine.stream(problem.x_bytes + problem.y_bytes, problem.bytes)
        shared = sharing_threads(problem) > 1
        return INTEGER_CALL + machine.launch * shared + cut.cycles() / cycles + memory

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else plan_threads() * word_bands(problem).scratch_bytes

    def error_bound(self, problem: ConvProblem) -> float:
        return 4 * problem.eps

    def plan(self, problem: ConvProblem) -> Plan:
        return RowWordsPlan(problem, self)


def _unsuited(problem: ConvProblem) -> str | None:
    if problem.w_shape[1] > 1 or problem.gemm_n > 1 or problem.C == 1:
        return "filters every channel by itself, with one filter"
    if not problem.is_empty and (nbytes := word_bands(problem).scratch_bytes) > MOST_SCRATCH:
        return f"copies whole rows, here {nbytes} bytes for each thread and at most {MOST_SCRATCH}"
    return None


ALGORITHMS = (RowWords(),)
