"""Plans that multiply words of four bytes: their weights, workspaces and runs."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.plan import Named
from convalgos.core.problem import ConvProblem
from convalgos.core.quantization import OutputStep
from convalgos.cpu.compile import code_generation
from convalgos.cpu.dwconv.window_sums import PAIRS, SCALED, SIGNED, SUMS, UNSIGNED, VNNI
from convalgos.cpu.runtime.half import in_float32
from convalgos.cpu.runtime.integer_record_plan import IntegerRecordPlan
from convalgos.cpu.runtime.packs import packs_words
from convalgos.cpu.runtime.threads import plan_threads, worth_sharing
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.requantise import stays_in_words

KINDS = {"int32": SUMS, "float32": SCALED, "int8": SIGNED, "uint8": UNSIGNED}
WORD_BYTES = {VNNI: 4, PAIRS: 8}
REPEAT = 0x01010101  # a byte in all four of a word
MOST_PARTS = 3  # of a weight that exceeds a byte: of -255 to 255


class ByteWeights(NamedTuple):
    """A filter as words of four weights."""

    array: np.ndarray  # int8, or int16 for pairs
    parts: int  # what of it a kernel goes through: taps, or parts
    shift: np.ndarray | int  # int32 (K,): what signed x, read as unsigned, adds too much


class BytePlan(IntegerRecordPlan):
    """Subclasses implement `pack` by `weight_parts`, and call `use_driver`.

    Records have the fields `parts` (see `ByteWeights`), pad, multiplier and step.
    """

    def __init__(self, problem: ConvProblem, algorithm: Named, scratch_bytes: int):
        tasks = plan_threads()
        super().__init__(problem, algorithm, tasks * scratch_bytes, tasks)
        self._parallel = sharing_threads(problem) > 1
        self._way, self._kind = way(), KINDS[problem.y_dtype]
        self._of_bytes = self._kind in (SIGNED, UNSIGNED)
        self._flip = (0x80 if problem.dtype == "int8" else 0) * REPEAT

    def use_driver(self, driver: int, kind: np.dtype, values: dict[str, int]) -> None:
        """A driver and its record; what no plan sets is 0."""
        self._driver = driver
        self._record = np.array([tuple(values.get(name, 0) for name in kind.names or ())], kind)
        self._quick = self.quick_call(self.problem)

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
        return ByteWeights(packed, parts, shift)

    def settings(self, packed: ByteWeights, pad: int, output: OutputStep | None) -> dict[str, Any]:
        plain = not self._of_bytes or output is None or stays_in_words(output.multiplier, output.before)
        found = {"w": packed.array, "parts": packed.parts, "pad": (pad & 0xFF) * REPEAT}
        return found | self.sum_kernels(plain)

    @abstractmethod
    def sum_kernels(self, plain: bool) -> dict[str, int]:
        """The kernels of sums, by their fields of the record. plain: see `requantise.narrowing`."""

    def correction(self, packed: ByteWeights) -> np.ndarray | int:
        return packed.shift


def sharing_threads(problem: ConvProblem) -> int:
    """Threads that share a problem: where they share the same one in float32, which is not much slower."""
    return plan_threads() if worth_sharing(in_float32(problem)) else 1


def way() -> int:
    """How words are multiplied here."""
    wide = simd.lanes(4) >= 16
    vnni = code_generation.has("avx512vnni") if wide else code_generation.has("avxvnni")
    return VNNI if vnni else PAIRS


def not_here() -> str | None:
    """Why this processor does not run such kernels, or None."""
    if packs_words():
        return None
    return "packs sums to bytes by instructions of x86 processors"
