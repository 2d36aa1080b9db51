"""Convolution of +1 and -1 by counting: channels packed in bits, xor, and population counts.

x is packed first, into a map of words with its border; then tiles of filters by vectors of pixels count in
registers in how many bits x and w differ. Sums are exact. x may be int8, float32, of which the signs are
taken, or packed (`convalgos.binary.pack`); what lies beyond the border is 0, +1 or -1, as the filter was
prepared. Padding of 0 costs no more: what it must not add is known ahead. A product takes a sixty-fourth of
an operation on words, so this wins wherever networks have such layers.

Source: Rastegari et al. 2016, "XNOR-Net", arXiv:1603.05279.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.allocator import aligned_empty, aligned_zeros
from convalgos.core.arrays import as_numpy
from convalgos.core.machine import Machine, vector_bytes
from convalgos.core.plan import Plan
from convalgos.core.prepared_filter import PreparedFilter
from convalgos.core.problem import ConvProblem
from convalgos.core.processor import cpu_flags
from convalgos.core.quantization import Quantization
from convalgos.core.signs import checked_factors
from convalgos.cpu.binconv import kernels, packing
from convalgos.cpu.binconv.blocking import binary_blocking
from convalgos.cpu.binconv.packing import WORD, pack_signs, unpack_signs
from convalgos.cpu.layout.strides import map_strides
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import CALL
from convalgos.cpu.runtime.records import by_name
from convalgos.cpu.runtime.threads import plan_threads, worth_sharing

# Cycles of a thread on a Xeon (Granite Rapids) with AVX-512: to count the bits of a vector that differ,
COUNT, EMULATED = 1.7, 8.0  # with an instruction for that, and without (an estimate);
FINISH = 5.0  # to finish a vector of outputs,
PACK = 4.0  # and to pack a vector of elements


class BinaryFilter(NamedTuple):
    """A filter as the kernels read it."""

    words: np.ndarray  # (groups, tiles, taps, filters of a tile) uint64
    begin: np.ndarray  # (patterns, groups * tiles * filters of a tile, lanes) int32
    scale: np.ndarray  # (K and some more,) float32
    padding_value: int


class BinaryWorkspace:
    """Records of both steps, maps and bias of one run at a time."""

    def __init__(self, plan: BinaryPlan):
        self.maps = aligned_zeros(plan.blocking.map_words, np.uint64)
        self.padding_value = 0  # that the border of the maps holds
        self.temp = aligned_empty(plan_threads() * plan.blocking.temp_bytes, np.uint8)
        self.bias = plan.no_bias.copy()
        self.fill_record, self.sum_record = plan.fill_record.copy(), plan.sum_record.copy()
        self.fill, self.sum = by_name(self.fill_record), by_name(self.sum_record)
        self.fill.maps = self.sum.maps = self.maps.ctypes.data
        self.fill.temp = self.temp.ctypes.data


class BinaryPlan(Plan):
    def __init__(self, problem: ConvProblem, algorithm: Binary):
        super().__init__(problem, algorithm, algorithm.workspace_bytes(problem))
        self.blocking = cut = binary_blocking(problem)
        p = cut.problem
        self._parallel = worth_sharing(problem)
        self.no_bias = np.zeros(problem.K + cut.lanes, np.int32)
        tasks, last = plan_threads(), problem.layout == "channels_last"
        pixels = math.prod(p.spatial_out)
        self._tables = {"offsets": cut.offsets()}
        names = ("starts", "places", "counts", "patterns", "slice_patterns")
        self._tables |= dict(zip(names, cut.vector_tables(), strict=True))
        steps = (cut.padded[1] * cut.row * p.stride[0], p.spatial_out[1] * p.spatial_out[2])
        shared = {"n": p.N, "groups": p.groups, "tasks": tasks}
        self.fill_record = _record(packing.MAP_ARGUMENTS, shared | {
            "words": cut.words, "channels": p.w_shape[1], "depth": p.spatial[0], "height": p.spatial[1],
            "width": p.spatial[2], "pad_d": p.padding[0][0], "pad_h": p.padding[1][0],
            "pad_w": p.padding[2][0], "map_d": cut.padded[0], "map_h": cut.padded[1],
            "phases": p.stride[2], "phase": cut.phase, "slabs": cut.slabs, "temp_stride": cut.temp_bytes,
        })  # fmt: skip
        self.sum_record = _record(kernels.SUM_ARGUMENTS, shared | {
            "filters": p.gemm_n, "slices": p.spatial_out[0], "pixels": steps[1], "tiles": cut.tiles,
            "tile_filters": cut.lanes, "tile_vectors": cut.vectors, "chunks": cut.chunks,
            "vectors": len(self._tables["starts"]) - cut.vectors, "taps": cut.taps,
            "map_n": p.groups * cut.words * cut.plane, "map_group": cut.words * cut.plane,
            "slice_words": steps[0], "begin_pattern": p.groups * cut.tiles * cut.lanes**2,
            "y_n": p.K * pixels, "y_k": 1 if last else pixels, "y_pixel": p.K if last else 1,
            "sum_tile": kernels.sum_binary_tile(
                cut.lanes, cut.vectors, int(problem.y_dtype == "float32"), int(last)
            ),
        } | {name: table.ctypes.data for name, table in self._tables.items()})  # fmt: skip
        self._fill, self._sum = packing.fill_maps(), kernels.sum_binary()

    # --- the filter --------------------------------------------------------------------------

    def prepare(
        self, w: Any, quantization: Quantization | None = None, *, padding_value: int = 0, scale: Any = None
    ) -> PreparedFilter:
        """Bring a filter into the plan's own form.

        Args:
            w: (K, C/groups, *kernel) of +1 and -1, int8 or float32, or packed: (K, words, *kernel) uint64.
            quantization: None.
            padding_value: 0, +1 or -1, what x is beyond its border.
            scale: (K,) or a number, which the sums of each filter are multiplied by, of a float32 y.
        """
        given = checked_factors(self.problem, padding_value, scale)
        prepared = self._in_own_form(self._checked("w", w, self._w_shape), quantization)
        factors = np.ones(self.problem.K + self.blocking.lanes, np.float32)
        factors[: self.problem.K] = given
        data = self._with_border(prepared.data, padding_value)
        return PreparedFilter(prepared.key, data._replace(scale=factors))

    def prepare_filter(self, w: np.ndarray) -> BinaryFilter:
        p, cut = self.blocking.problem, self.blocking
        packed = pack_signs(w.reshape(p.K, p.w_shape[1], -1))  # (K, words, kernel elements)
        each = np.zeros((p.groups, cut.tiles * cut.lanes, cut.taps), np.uint64)
        each[:, : p.gemm_n] = packed.reshape(p.groups, p.gemm_n, cut.taps)
        tiles = np.moveaxis(each.reshape(p.groups, cut.tiles, cut.lanes, cut.taps), 2, 3)
        words = aligned_empty(tiles.size, np.uint64).reshape(tiles.shape)
        words[...] = tiles
        sums = np.zeros((p.groups, cut.tiles * cut.lanes, w[0, 0].size), np.int64)
        signs = np.where(w < 0, -1, 1).reshape(p.groups, p.gemm_n, p.w_shape[1], -1)
        sums[:, : p.gemm_n] = signs.sum(axis=2)  # (groups, K/groups, kernel elements)
        outside = cut.outside().astype(np.int64)  # (patterns, lanes, kernel elements)
        added = np.tensordot(outside, sums.reshape(-1, sums.shape[-1]), (2, 1))  # (patterns, lanes, filters)
        begin = np.ascontiguousarray(np.moveaxis(p.gemm_k - added, 1, 2), np.int32)
        return BinaryFilter(words, begin, np.ones(p.K + cut.lanes, np.float32), 0)

    def _with_border(self, w: BinaryFilter, padding_value: int) -> BinaryFilter:
        """The filter for another border: the products with it are summed like all others."""
        if padding_value:
            w = w._replace(begin=np.full_like(w.begin, self.problem.gemm_k))
        return w._replace(padding_value=padding_value)

    # --- a call ------------------------------------------------------------------------------

    def new_workspace(self) -> BinaryWorkspace:
        return BinaryWorkspace(self)

    def run(
        self, x: np.ndarray, w: BinaryFilter, bias: np.ndarray | None, activation: str | None, y: np.ndarray,
        workspace: BinaryWorkspace,
    ) -> None:  # fmt: skip
        """1. The border, where another one is wanted. 2. The words of x. 3. The sums."""
        cut = self.blocking
        if workspace.padding_value != w.padding_value:
            words = workspace.maps[: -cut.lanes].reshape(cut.map_shape)
            words[...] = _border(self.problem.w_shape[1], cut.words, w.padding_value)[:, None]
            workspace.padding_value = w.padding_value
        if x.dtype != np.uint64 and self.problem.layout == "channels_first" and not cut.packs_planes:
            x = pack_signs(x, self.problem.groups)
        self._describe(workspace.fill, x)
        jit.launch(self._fill, workspace.fill_record.ctypes.data, plan_threads(), self._parallel)
        arguments = workspace.sum
        arguments.w, arguments.begin = w.words.ctypes.data, w.begin.ctypes.data
        arguments.scale, arguments.y = w.scale.ctypes.data, y.ctypes.data
        arguments.relu = activation is not None
        arguments.bias = self.no_bias.ctypes.data
        if bias is not None:
            workspace.bias[: self.problem.K] = bias
            arguments.bias = workspace.bias.ctypes.data
        jit.launch(self._sum, workspace.sum_record.ctypes.data, plan_threads(), self._parallel)

    def _describe(self, fill: Any, x: np.ndarray) -> None:
        """Tell the first step where the elements or words of x lie."""
        p, cut = self.blocking.problem, self.blocking
        packed, last = x.dtype == np.uint64, p.layout == "channels_last"
        channels = p.groups * cut.words if packed else p.C
        image, channel, _, _, pixel = (s * x.itemsize for s in map_strides(p.layout, channels, p.spatial))
        each = cut.words if packed else p.w_shape[1]
        fill.x, fill.kind = x.ctypes.data, 0 if packed else x.itemsize
        fill.x_n, fill.x_channel, fill.x_pixel = image, channel, pixel
        fill.x_group, fill.x_word = each * channel, (1 if packed else WORD) * channel
        if not packed:
            of_pixels = packing.pack_from_pixels
            fill.pack = of_pixels(x.itemsize) if last else packing.pack_from_planes(x.itemsize, cut.pixels)

    def _checked(self, name: str, array: Any, shape: tuple[int, ...]) -> Any:
        """x and w may be int8, float32, or packed."""
        if name not in ("x", "w"):
            return super()._checked(name, array, shape)
        array = as_numpy(name, array)
        if array.dtype == np.uint64:
            return self._packed(name, array)
        if array.dtype == np.float32 and array.shape == shape:
            return array
        return super()._checked(name, array, shape)

    def _packed(self, name: str, array: np.ndarray) -> np.ndarray:
        p, words = self.problem, self.blocking.words
        if name == "w":
            expected = p.K, words, *p.kernel
        else:
            expected = p.array_shape((p.N, p.groups * words, *p.spatial))
        if array.shape != expected:
            raise ValueError(f"packed {name} has shape {array.shape}, but the problem {p} has {expected}")
        return unpack_signs(array, p.w_shape[1]) if name == "w" else array


def _record(dtype: np.dtype, values: dict[str, int]) -> np.ndarray:
    """A record of these values, and of 0 for what a run sets."""
    record = np.zeros(1, dtype)
    for name, value in values.items():
        record[name] = value
    return record


def _border(channels: int, words: int, padding_value: int) -> np.ndarray:
    """(words,) of a pixel of padding."""
    bits = np.full((1, channels), padding_value, np.int8)
    found: np.ndarray = pack_signs(bits).reshape(words)
    return found


@dataclass(frozen=True)
class Binary(Algorithm):
    family: ClassVar[str] = "cpu.binary"
    dtypes: ClassVar[tuple[str, ...]] = ("binary",)

    def forms(self, problem: ConvProblem) -> tuple[ConvProblem, ...]:
        """As it is: borders belong to the problem that was given."""
        return (problem,)

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        cut = binary_blocking(problem)
        p = cut.problem
        vectors = p.N * math.prod(p.spatial_out[:2]) * -(-p.spatial_out[2] // cut.lanes)
        filled = vectors * p.groups * cut.tiles * cut.lanes
        count = COUNT if "avx512_vpopcntdq" in cpu_flags() and vector_bytes() == 64 else EMULATED
        packed = problem.x_bytes / vector_bytes() * PACK
        cycles = filled * (cut.taps * count + FINISH) + packed
        seconds = cycles * 4 * (vector_bytes() // 4) / machine.peak("float32")
        return CALL + 2 * machine.launch + seconds

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        cut = binary_blocking(problem)
        return cut.map_words * 8 + plan_threads() * cut.temp_bytes

    def filter_bytes(self, problem: ConvProblem) -> int:
        return 8 * problem.K * binary_blocking(problem).taps

    def error_bound(self, problem: ConvProblem) -> float:
        return 2 * problem.eps  # of the scale, and of y

    def plan(self, problem: ConvProblem) -> Plan:
        return BinaryPlan(problem, self)


ALGORITHMS = (Binary(),)
