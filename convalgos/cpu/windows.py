"""Integer convolution of few channels a group: four columns of a kernel in each word, pixels in the lanes.

Instructions for short integers add four products of bytes to a word. Depthwise layers, small groups and first
layers have too few channels for the four; they have columns of a kernel. A row of x is made into words of
four neighbouring bytes once, and every row of every filter that meets it reads them. Signed bytes are read as
unsigned ones that are larger by 128, which the start of a sum takes back. Without such instructions words are
multiplied as two pairs of 16 bits, which is exact, too.

Source: vpdpbusd as in oneDNN's int8 kernels; columns of taps in words as in XNNPACK's first layers.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import ClassVar, NamedTuple

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.allocator import aligned_empty
from convalgos.core.integer_plan import IntegerFilter, IntegerPlan
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.compile import code_generation
from convalgos.cpu.dwconv.byte_rows import COPIED, LOADED, TURNED, place_rows_of_band
from convalgos.cpu.dwconv.byte_turns import turn_bytes, turn_words
from convalgos.cpu.dwconv.window_driver import WINDOW_FIELDS, sum_window_bands
from convalgos.cpu.dwconv.window_sums import PAIRS, SCALED, SIGNED, SUMS, UNSIGNED, VNNI, sums_of_windows
from convalgos.cpu.dwconv.window_tiling import WINDOW, WindowTiling, window_tiling
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import CALL, by_name
from convalgos.cpu.runtime.threads import plan_threads, worth_sharing
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.requantise import STEP_FIELDS

MOST_CHANNELS = 32  # of a group
# Cycles of a thread; Xeon (Granite Rapids) with AVX-512
ROW, ROW_VECTOR = 3, 2  # to place a row, and each vector of it
GROUP, FILTERS = 60, 40  # to begin with the groups that are placed at once, and with some filters of them
LOAD = 1.0  # of a vector for a tap: most cross cache lines
STORE, STORE_WORDS = 4, 3  # to finish and to store a vector
TILE = 8  # to begin a tile
KINDS = {"int32": SUMS, "float32": SCALED, "int8": SIGNED, "uint8": UNSIGNED}
REPEAT = 0x01010101  # a byte in all four of a word


class WindowWeights(NamedTuple):
    """A filter as words of four weights."""

    array: np.ndarray  # (groups, parts of the filters, taps, filters, 4) int8, or int16 for pairs
    address: int
    taps: int
    shift: np.ndarray | int  # int32 (K,): what signed x, read as unsigned, adds too much


# --- plan ------------------------------------------------------------------------------------


class WindowsPlan(IntegerPlan):
    def __init__(self, problem: ConvProblem, algorithm: Windows):
        cut = window_tiling(problem)
        p = cut.problem
        self._tasks = tasks = plan_threads()
        super().__init__(problem, algorithm, tasks * cut.scratch_bytes)
        self._cut, self._way, self._kind = cut, way(), KINDS[p.y_dtype]
        lanes = cut.lanes
        of_bytes = self._kind in (SIGNED, UNSIGNED)
        compress = int(lanes >= 16 and (not of_bytes or code_generation.has("avx512vbmi2")))
        bands, self._stores = cut.bands(4 * lanes if of_bytes else lanes)
        self._bands, self._offsets = bands, np.tile(cut.offsets, MOST_PARTS)
        sum_one, sum_two, sum_four = (
            sums_of_windows(lanes, n, cut.vectors, cut.step, self._way, self._kind, compress)
            if n in filter_counts(p.gemm_n, cut.filters)
            else 0
            for n in (1, 2, 4)
        )
        x_pixels, y_pixels = math.prod(p.spatial), math.prod(p.spatial_out)
        (x_c, x_pixel), (y_k, y_pixel) = ((1, p.C), (1, p.K)) if cut.last else ((x_pixels, 1), (y_pixels, 1))
        placing = TURNED if cut.last else LOADED if lanes >= 16 else COPIED
        values = dict.fromkeys(WINDOW_FIELDS.names or (), 0) | {
            "tasks": tasks, "images": p.N, "groups": p.groups, "channels": p.w_shape[1], "filters": p.gemm_n,
            "size_y": 1 if of_bytes else 4, "bands": bands.ctypes.data, "band_count": len(bands),
            "x_image": p.C * x_pixels, "y_image": p.K * y_pixels, "x_c": x_c, "x_pixel": x_pixel,
            "y_k": y_k, "y_pixel": y_pixel, "y_plane": cut.y_plane, "sums": cut.sums,
            "group_blocks": -(-p.groups // cut.groups), "at_once": cut.groups,
            "slices": p.kernel[0], "slice_step": p.dilation[0], "depth": p.spatial[0],
            "height": p.spatial[1], "width": p.spatial[2], "vectors": cut.row_vectors,
            "flip": (0x80 if p.dtype == "int8" else 0) * REPEAT, "phases": cut.phases, "pitch": cut.pitch,
            "plane": cut.plane, "planes": cut.planes,
            "scratch_bytes": cut.scratch_bytes, "offsets": self._offsets.ctypes.data,
            "way": WORD_BYTES[self._way], "most": cut.filters,
            "place": place_rows_of_band(lanes, placing), "turn_in": turn_bytes(lanes) if cut.last else 0,
            "turn_out": (turn_bytes if of_bytes else turn_words)(lanes) if cut.last else 0,
            "sum_four": sum_four, "sum_two": sum_two, "sum_one": sum_one,
        }  # fmt: skip
        self._record = np.array([tuple(values[name] for name in WINDOW_FIELDS.names or ())], WINDOW_FIELDS)
        self._address = jit.data_address()
        self._driver, self._parallel = sum_window_bands(), worth_sharing(problem)

    def pack(self, w: np.ndarray, w_zero_point: np.ndarray | None) -> WindowWeights:
        p, cut = self._cut.problem, self._cut
        numbers = w.reshape(p.w_shape).astype(np.int16)  # (K, C/groups, T, R, S)
        if w_zero_point is not None:
            numbers = numbers - w_zero_point.astype(np.int16).reshape(-1, 1, 1, 1, 1)
        taps = np.zeros((*numbers.shape[:-1], len(cut.windows), WINDOW), np.int16)
        for number, columns in enumerate(cut.windows):
            for column in columns:
                taps[..., number, (column - columns[0]) * p.dilation[2]] = numbers[..., column]
        taps = taps.reshape(p.K, -1, WINDOW)  # (K, C/groups * T * R * windows, 4)
        if self._way == VNNI:
            parts: list[np.ndarray] = []
            rest = taps
            while not parts or rest.any():  # what exceeds a byte is the sum of two or three
                parts.append(np.clip(rest, -128, 127))
                rest = rest - parts[-1]
            taps = np.concatenate(parts, 1).astype(np.int8)
        else:
            taps = taps[:, :, [0, 2, 1, 3]]
        packed = aligned_empty(taps.size, taps.dtype)
        done = 0
        by_group = taps.reshape(p.groups, p.gemm_n, *taps.shape[1:])
        of_group = [0, *accumulate(filter_counts(p.gemm_n, cut.filters))]
        target = packed.reshape(p.groups, -1)
        for first, end in pairwise(of_group):
            part = by_group[:, first:end].swapaxes(1, 2).reshape(p.groups, -1)  # (groups, taps * filters * 4)
            target[:, done : done + part.shape[1]] = part
            done += part.shape[1]
        shift = 0
        if p.dtype == "int8":
            shift = (-128 * numbers.reshape(p.K, -1).sum(1, dtype=np.int64)).astype(np.int32)
        return WindowWeights(packed, self._address(packed), taps.shape[1], shift)

    def new_workspace(self) -> WindowsWorkspace:
        return WindowsWorkspace(self._record, self.workspace_bytes, self.problem.K)

    def run_integers(
        self, x: np.ndarray, w: IntegerFilter, y: np.ndarray, workspace: WindowsWorkspace
    ) -> None:
        a = workspace.arguments
        words = w.packed
        np.add(w.offset, words.shift, out=workspace.starts)
        a.x, a.y, a.w, a.taps = self._address(x), self._address(y), words.address, words.taps
        a.pad = (w.pad & 0xFF) * REPEAT
        if w.output is not None:
            o = w.output
            a.multiplier = self._address(o.multiplier)
            STEP.pack_into(workspace.step.data, 0, o.before, o.low, o.high, o.after)
        jit.launch(self._driver, workspace.address, self._tasks, self._parallel)
        if self._kind == SCALED and w.output is not None and w.output.low > -np.inf:
            np.maximum(y, np.float32(w.output.low), out=y)


class WindowsWorkspace:
    """Of one run at a time: its record, scratch, what sums start from, and the output step."""

    def __init__(self, record: np.ndarray, scratch_bytes: int, filters: int):
        self.record = record.copy()
        self.address = self.record.ctypes.data
        self.arguments = by_name(self.record)
        self.scratch = aligned_empty(scratch_bytes, np.uint8)
        self.starts = np.empty(filters, np.int32)
        self.step = np.zeros(1, STEP_FIELDS)
        self.arguments.scratch = self.scratch.ctypes.data
        self.arguments.bias = self.starts.ctypes.data
        self.arguments.step = self.step.ctypes.data


STEP = struct.Struct("fffi")  # `STEP_FIELDS`
MOST_PARTS = 3  # of a weight that exceeds a byte: of -255 to 255
WORD_BYTES = {VNNI: 4, PAIRS: 8}


def way() -> int:
    """How words are multiplied here."""
    wide = simd.lanes(4) >= 16
    vnni = code_generation.has("avx512vnni") if wide else code_generation.has("avxvnni")
    return VNNI if vnni else PAIRS


def map_cycles(cut: WindowTiling, way: int) -> float:
    """Of all images on one core, of filters of bytes."""
    p, vectors = cut.problem, cut.vectors
    height, width = p.spatial_out[1:]
    bands = p.N * p.groups * p.spatial_out[0] * -(-width // cut.columns)
    rows = [min(cut.rows, height - row) for row in range(0, height, cut.rows)]
    tiles = bands * sum(map(cut.tiles, rows))
    placed = bands * sum(map(cut.rows_under, rows)) * cut.planes * (ROW + cut.row_vectors * ROW_VECTOR)
    cycles = float(placed + bands * len(rows) * GROUP)
    products = 0.5 if way == VNNI else 2.5
    for filters in filter_counts(p.gemm_n, cut.filters):
        of_tap = max(LOAD * vectors, filters * vectors * products) + filters / 2
        stored = filters * vectors * (STORE if p.y_dtype in ("int8", "uint8") else STORE_WORDS)
        cycles += tiles * (len(cut.offsets) * of_tap + stored + TILE) + bands * len(rows) * FILTERS
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
    family: ClassVar[str] = "cpu.windows"
    dtypes: ClassVar[tuple[str, ...]] = ("int8", "uint8")

    def why_not(self, problem: ConvProblem) -> str | None:
        return super().why_not(problem) or _unsuited(problem)

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        cut = window_tiling(problem)
        cycles = machine.peak("float32") / (4 * cut.lanes)  # a second, of all cores
        memory = machine.stream(problem.x_bytes + problem.y_bytes, problem.bytes)
        return CALL + machine.launch + map_cycles(cut, way()) / cycles + memory

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
