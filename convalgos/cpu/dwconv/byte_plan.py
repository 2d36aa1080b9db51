"""Plans that multiply words of four bytes: their weights, workspaces and runs."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.integer_plan import IntegerFilter, IntegerPlan
from convalgos.core.plan import Named
from convalgos.core.problem import ConvProblem
from convalgos.cpu.compile import code_generation
from convalgos.cpu.dwconv.window_sums import PAIRS, SCALED, SIGNED, SUMS, UNSIGNED, VNNI
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import by_name
from convalgos.cpu.runtime.threads import plan_threads, worth_sharing
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.requantise import STEP_FIELDS

KINDS = {"int32": SUMS, "float32": SCALED, "int8": SIGNED, "uint8": UNSIGNED}
WORD_BYTES = {VNNI: 4, PAIRS: 8}
REPEAT = 0x01010101  # a byte in all four of a word
MOST_PARTS = 3  # of a weight that exceeds a byte: of -255 to 255
STEP = struct.Struct("fffi")  # `STEP_FIELDS`


class ByteWeights(NamedTuple):
    """A filter as words of four weights."""

    array: np.ndarray  # int8, or int16 for pairs
    address: int
    parts: int  # what of it a kernel goes through: taps, or parts
    shift: np.ndarray | int  # int32 (K,): what signed x, read as unsigned, adds too much


class BytePlan(IntegerPlan):
    """Subclasses set `_record`, of the driver's fields, and `_driver`; and `pack`, by `weight_parts`.

    The record has the fields x, y, w, bias, scratch, `parts` (see `ByteWeights`), pad, multiplier and step.
    """

    _record: np.ndarray
    _driver: int

    def __init__(self, problem: ConvProblem, algorithm: Named, scratch_bytes: int):
        self._tasks = plan_threads()
        super().__init__(problem, algorithm, self._tasks * scratch_bytes)
        self._way, self._kind = way(), KINDS[problem.y_dtype]
        self._of_bytes = self._kind in (SIGNED, UNSIGNED)
        self._flip = (0x80 if problem.dtype == "int8" else 0) * REPEAT
        self._address = jit.data_address()
        self._parallel = worth_sharing(problem)

    def set_record(self, kind: np.dtype, values: dict[str, int]) -> None:
        """The record of the driver; what no plan sets is 0."""
        self._record = np.array([tuple(values.get(name, 0) for name in kind.names or ())], kind)

    def numbers(self, w: np.ndarray, w_zero_point: np.ndarray | None) -> np.ndarray:
        """(K, C/groups, T, R, S) int16: the filter less its zero point."""
        found = w.reshape(self.problem.as_3d.w_shape).astype(np.int16)
        return (
            found if w_zero_point is None else found - w_zero_point.astype(np.int16).reshape(-1, 1, 1, 1, 1)
        )

    def weight_parts(self, words: np.ndarray) -> list[np.ndarray]:
        """Words (..., 4) of int16 as they are multiplied; bytes are the sum of one to three parts."""
        if self._way == PAIRS:
            return [words[..., [0, 2, 1, 3]]]
        parts: list[np.ndarray] = []
        while not parts or words.any():
            parts.append(np.clip(words, -128, 127).astype(np.int8))
            words = words - parts[-1]
        return parts

    def weights(self, array: np.ndarray, parts: int, numbers: np.ndarray) -> ByteWeights:
        """What `pack` returns."""
        packed = aligned_empty(array.size, array.dtype)
        packed[:] = array.reshape(-1)
        shift = 0
        if self.problem.dtype == "int8":
            shift = (-128 * numbers.reshape(len(numbers), -1).sum(1, dtype=np.int64)).astype(np.int32)
        return ByteWeights(packed, self._address(packed), parts, shift)

    def new_workspace(self) -> ByteWorkspace:
        return ByteWorkspace(self._record, self.workspace_bytes, self.problem.K)

    def run_integers(self, x: np.ndarray, w: IntegerFilter, y: np.ndarray, workspace: Any) -> None:
        a, weights, output = workspace.arguments, w.packed, w.output
        np.add(w.offset, weights.shift, out=workspace.starts)
        a.x, a.y, a.w, a.parts = self._address(x), self._address(y), weights.address, weights.parts
        a.pad = (w.pad & 0xFF) * REPEAT
        if output is not None:
            a.multiplier = self._address(output.multiplier)
            STEP.pack_into(workspace.step.data, 0, output.before, output.low, output.high, output.after)
        jit.launch(self._driver, workspace.address, self._tasks, self._parallel)
        if self._kind == SCALED and output is not None and output.low > -np.inf:
            np.maximum(y, np.float32(output.low), out=y)


class ByteWorkspace:
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


def way() -> int:
    """How words are multiplied here."""
    wide = simd.lanes(4) >= 16
    vnni = code_generation.has("avx512vnni") if wide else code_generation.has("avxvnni")
    return VNNI if vnni else PAIRS


def not_here() -> str | None:
    """Why this processor does not run such kernels, or None."""
    if code_generation.processor()[0].startswith(("x86", "i386", "i686")):
        return None
    return "packs sums to bytes by instructions of x86 processors"
