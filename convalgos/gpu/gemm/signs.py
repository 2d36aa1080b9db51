"""Products of +1 and -1 on tensor cores: channels packed in bits, filters of bits, and borders.

Of -1 as set bits, x and w differ where one of them is -1, and

    sum x w = sum w + 4 (in how many places both are -1) - 2 (in how many x is).

Both counts are products of bits, the second with a filter of ones. The instruction `and.popc` makes them on
8.0 and 9.0 alike; on 9.0 `xor.popc`, which needs one count only, is two of it. Eight channels are one byte,
so that a packed map is to the kernel a map of bytes, channels last, in whole 16 of them. Beyond the border x
is computed as +1; `borders` takes off what that adds where it is 0 or -1.

Source: Rastegari et al. 2016, "XNOR-Net", arXiv:1603.05279; NVIDIA's PTX ISA, mma.sync with .b1.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.prepared_filter import PreparedFilter
from convalgos.core.problem import ConvProblem
from convalgos.core.quantization import Quantization
from convalgos.core.signs import checked_factors
from convalgos.gpu.compile.module import Build
from convalgos.gpu.launch.fallback import GpuFilter
from convalgos.gpu.launch.grid import ceil_div
from convalgos.gpu.launch.integer_plan import IntegerSumsPlan, QuantizedFilter
from convalgos.gpu.launch.kernel_records import DIVISOR, record_of

CHUNK, WORD = 128, 64  # channels of 16 bytes, and of a word of `convalgos.binary.pack`
THREADS = 256  # of a block that packs, as in pack_signs.cu
PACK_SIGNS = Build.of("pack_signs.cu")

# `Signs` of pack_signs.cu.
SIGNS = np.dtype(
    [
        ("x_image", np.int64),
        *((name, np.int32) for name in ("x_channel", "x_pixel", "channels", "last", "whole")),
        ("threads", np.uint32),
        *((name, DIVISOR) for name in ("chunks", "groups", "pixels")),
        ("unused", np.uint32),
    ]
)


@lru_cache(256)
def of_bytes(problem: ConvProblem) -> ConvProblem:
    """The problem of the packed arrays, whose elements are bytes of eight channels."""
    p, each = problem, ceil_div(problem.w_shape[1], CHUNK) * (CHUNK // 8)
    return p.replace(
        x_shape=(p.N, each * p.groups, *p.spatial), w_shape=(p.K, each, *p.kernel), dtype="int8",
        y_dtype="int32", layout="channels_last", density=1.0, pattern="unstructured",
    )  # fmt: skip


def pack_threads(problem: ConvProblem) -> int:
    return of_bytes(problem).x_bytes // (CHUNK // 8)


class Border(NamedTuple):
    """Which taps of which outputs meet padding."""

    patterns: np.ndarray  # (pixels of an image,) int32: a row of `outside` for each
    outside: np.ndarray  # (rows, taps) whether they do; of row 0 none does


def border_of(problem: ConvProblem) -> Border:
    patterns, inside = np.zeros(1, np.int32), np.ones((1, 1), bool)
    for size, (low, _), out, stride, taps, dilation in zip(
        problem.spatial, problem.padding, problem.spatial_out, problem.stride, problem.kernel,
        problem.dilation, strict=True,
    ):  # fmt: skip
        places = np.arange(out)[:, None] * stride - low + np.arange(taps) * dilation  # (outputs, taps)
        met = np.concatenate([np.ones((1, taps), bool), (places >= 0) & (places < size)])
        kinds, which = np.unique(~met, axis=0, return_inverse=True)  # none outside comes first
        patterns = (patterns[:, None] * len(kinds) + which.ravel()[1:]).ravel()
        inside = (inside[:, None, :, None] & ~kinds[:, None, :]).reshape(len(inside) * len(kinds), -1)
    return Border(patterns.astype(np.int32), ~inside)


class SignsPlan(IntegerSumsPlan):
    """A plan of +1 and -1 whose kernels multiply bits. x and w may be int8, float32, of which the signs are
    taken, or packed (`convalgos.binary.pack`)."""

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
        if quantization is not None:
            raise ValueError(f"quantization must be None: {self.problem} has no zero points")
        factors = checked_factors(self.problem, padding_value, scale)
        with self.device.active(), self.device.stream_of(w):
            w = self.device.xp.array(self._checked("w", w, self._w_shape), order="C")
            return GpuFilter(self._key, self._of_bits(self._turned(w), padding_value, factors), None)

    def prepare_filter(self, w: Any) -> QuantizedFilter:
        return self._of_bits(w, 0, np.ones((), np.float32))

    @abstractmethod
    def rows(self, w: Any) -> Any:
        """The filter as the kernel reads it, from bytes of eight channels (K, bytes of C/groups, *kernel)."""

    def _record(self, w: QuantizedFilter, activation: Any, problem: ConvProblem) -> np.ndarray:
        """Of packed x, and of y in its own layout."""
        record = super()._record(w, activation, of_bytes(self.problem))
        if self.problem.layout == "channels_first":
            record["y_channel"], record["y_pixel"] = math.prod(self.problem.spatial_out), 1
        return record

    def _of_bits(self, w: Any, padding_value: int, scale: np.ndarray) -> QuantizedFilter:
        p, table, xp = self.problem, self.device.table, self.device.xp
        each = of_bytes(p).w_shape[1]
        bits = xp.zeros((p.K, each * 8, math.prod(p.kernel)), np.uint8)
        bits[:, : p.w_shape[1]] = self._bits(w).reshape(p.K, p.w_shape[1], -1)
        eights = bits.reshape(p.K, each, 8, -1) << table(np.arange(8, dtype=np.uint8)[:, None])
        of_taps = p.w_shape[1] - 2 * bits.sum(1, dtype=np.int32)  # (K, taps): sums of w
        border = border_of(p) if padding_value < 1 and any(map(any, p.padding)) else None
        return QuantizedFilter(
            self.rows(eights.sum(2, dtype=np.uint8).view(np.int8).reshape(p.K, each, *p.kernel)),
            Quantization(w_scale=scale),
            of_taps.sum(1, dtype=np.int32),
            table(np.array(np.broadcast_to(scale, p.K))),
            table(np.zeros(16, np.int8)),
            None if border is None else table(border.patterns),
            None if border is None else self._borders(of_taps, border.outside, padding_value),
        )

    def _bits(self, w: Any) -> Any:
        """(K, C/groups, *kernel) bool: where a filter is -1."""
        if w.dtype != np.uint64:
            return w < 0
        places = self.device.table(np.arange(WORD, dtype=np.uint64).reshape(-1, *(1,) * (w.ndim - 2)))
        bits = w[:, :, None] >> places & self.device.table(np.ones(1, np.uint64))  # (K, words, 64, *kernel)
        return bits.reshape(len(w), -1, *w.shape[2:])[:, : self.problem.w_shape[1]] != 0

    def _borders(self, of_taps: Any, outside: np.ndarray, padding_value: int) -> Any:
        """(rows of `outside`, K) int32: what sums take too much where the taps outside meet +1."""
        xp, table = self.device.xp, self.device.table(outside.astype(np.int32))
        found = xp.zeros((len(outside), self.problem.K), np.int32)
        for i in range(1, len(outside)):
            found[i] = (of_taps * table[i]).sum(1, dtype=np.int32) * (padding_value - 1)
        return found

    # --- x -----------------------------------------------------------------------------------

    def packer(self, kind: str) -> tuple[Any, Any]:
        """The kernel that packs x of a type into (images, pixels, groups, bytes), and its record."""
        p, last = self.problem, self.problem.layout == "channels_last"
        each = ceil_div(p.w_shape[1], WORD) if kind == "uint64" else p.w_shape[1]
        channels, pixels, size = each * p.groups, math.prod(p.spatial), np.dtype(kind).itemsize
        record = record_of(SIGNS, {
            "x_image": channels * pixels, "x_channel": 1 if last else pixels,
            "x_pixel": channels if last else 1, "channels": each, "last": last,
            "whole": last and each * size % 16 == 0, "threads": pack_threads(p),
            "chunks": of_bytes(p).w_shape[1] * 8 // CHUNK, "groups": p.groups, "pixels": pixels,
        })  # fmt: skip
        blocks = ceil_div(pack_threads(p), THREADS)
        return self.launch(PACK_SIGNS, f"pack_{kind}", (blocks,), THREADS), self.by_value(record)

    def _checked(self, name: str, array: Any, shape: tuple[int, ...]) -> Any:
        """x and w may be int8, float32, or packed."""
        if name not in ("x", "w"):
            return super()._checked(name, array, shape)
        array = self.device.as_array(name, array)
        if array.dtype == np.uint64:
            p, words = self.problem, ceil_div(self.problem.w_shape[1], WORD)
            of_x = p.array_shape((p.N, p.groups * words, *p.spatial))
            expected = of_x if name == "x" else (p.K, words, *p.kernel)
            if array.shape != expected:
                raise ValueError(f"packed {name} has shape {array.shape}, but the problem {p} has {expected}")
            return array
        return (
            array
            if array.dtype == np.float32 and array.shape == shape
            else super()._checked(name, array, shape)
        )
