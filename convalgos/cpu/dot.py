"""Direct convolution on short numbers: int8 by processors' dot products, 16-bit floats with float32 sums.

y[pixel][filter] = sum over taps and words of x[pixel + offset[tap]][word] * w[tap][word][filter]; a word of
32 bits is the products that one instruction adds up: four of 8 bits, or two of 16 bits. `amx` multiplies
matrix tiles, `vnni` and `brain` vectors of filters with a word of x in all lanes, and `pairs`, on any
processor, int8 widened to 16 bits, whose products cannot overflow; `fma` float32, to which bfloat16 and
float16 are widened on the way: no array is converted as a whole. Channels are brought side by side and
behind borders block by block, or read in place channels last (`gemm.word_blocking`). Integers are exact: x
and w of any sign are brought to those that an instruction takes by adding 128, which the output step takes
away again. Sums of bfloat16 are rounded to float32 at each instruction; denormal numbers count as zero.

Wins on dense and pointwise layers of more than a few channels.

Source: indirect convolution (Dukhan 2019, arXiv:1907.02129), with words in the place of elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums
from convalgos.core.allocator import aligned_zeros
from convalgos.core.element_types import HALF_DTYPES
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.core.quantization import OutputStep
from convalgos.cpu.compile.code_generation import has
from convalgos.cpu.gemm import word_outputs
from convalgos.cpu.gemm.word_blocking import WordBlocking, word_blocking
from convalgos.cpu.gemm.word_cost import least_seconds, word_seconds
from convalgos.cpu.gemm.word_product import WordProduct
from convalgos.cpu.gemm.word_tiles import ENGINES, PAIRS, Engine
from convalgos.cpu.runtime import half, jit
from convalgos.cpu.runtime.array_pass import CompiledPass
from convalgos.cpu.runtime.integer_record_plan import BEHIND, IntegerRecordPlan, RecordWorkspace
from convalgos.cpu.runtime.threads import worth_sharing
from convalgos.cpu.vectors.requantise import stays_in_words

TYPES = {name: tuple(x for n, x in ENGINES if n == name) for name, _ in ENGINES}  # of x, by instructions

# --- plans -----------------------------------------------------------------------------------


class WordFilter(NamedTuple):
    """A filter in words, and what its form asks of the output step."""

    w: np.ndarray
    zero_points: np.ndarray | None  # int32, times the sums of windows
    correction: np.ndarray  # int32 (K,), for x that has 128 added
    ones: np.ndarray | None  # the filter that sums windows


class IntegerDotPlan(IntegerRecordPlan):
    new_scratch = staticmethod(aligned_zeros)  # what lies behind channels must be finite

    def __init__(self, problem: ConvProblem, algorithm: Algorithm, cut: WordBlocking):
        form = word_outputs.output_form(True, problem.y_dtype, False)
        self._product = WordProduct(cut, form)
        super().__init__(problem, algorithm, cut.scratch_bytes, self._product.tasks)
        self._cut, self._shifts = cut, problem.dtype == cut.engine.flips
        self._record, self._driver = self._product.record, self._product.driver
        self._quick = self.quick_call(problem)

    def pack(self, w: np.ndarray, w_zero_point: np.ndarray | None) -> WordFilter:
        p, product = self.problem, self._product
        if self._cut.engine.kind == PAIRS:
            wide = w.astype(np.int16)
            if w_zero_point is not None:
                wide -= w_zero_point.astype(np.int16).reshape(-1, *(1,) * (w.ndim - 1))
            return WordFilter(product.pack(wide), None, np.zeros(p.K, np.int32), None)
        zero = np.zeros(p.K, np.int32) if w_zero_point is None else w_zero_point
        if w.dtype == np.uint8:
            w, zero = (w ^ 0x80).view(np.int8), zero - 128
        correction = np.zeros(p.K, np.int32)
        if self._shifts:
            sums = self.filter_sums(w) - p.gemm_k * zero
            correction = (-128 * sums).astype(np.int32)
        if not zero.any():
            return WordFilter(product.pack(w), None, correction, None)
        padded = np.zeros(p.K + BEHIND, np.int32)
        padded[: p.K] = zero
        return WordFilter(product.pack(w), padded, correction, product.ones(w.dtype))

    def settings(self, packed: WordFilter, pad: int, output: OutputStep | None) -> dict[str, Any]:
        product, zero = self._product, packed.zero_points is not None
        shifted = output is not None and output.before != 0
        packs = output is not None and not zero and stays_in_words(output.multiplier, output.before)
        panel, last = product.stores(zero, shifted, packs)
        found = {"w": packed.w, "pad": product.padding(pad), "store_panel": panel, "store_last": last}
        if not zero:
            return found | {"one_tiles": 0, "one_tile": 0}
        sums = {"one_tiles": product.sums(1, product.cut.together), "one_tile": product.sums(1, 1)}
        return found | {"zero_points": packed.zero_points, "ones": packed.ones} | sums

    def correction(self, packed: WordFilter) -> np.ndarray:
        return packed.correction


class HalfDotPlan(CompiledPass, Plan):
    """bfloat16 and float16."""

    def __init__(self, problem: ConvProblem, algorithm: Algorithm, cut: WordBlocking):
        form = word_outputs.output_form(False, problem.y_dtype, has("avx512bf16", "avx512vl"))
        self._product = WordProduct(cut, form)
        super().__init__(problem, algorithm, cut.scratch_bytes)
        self._parallel = worth_sharing(problem)
        self._address = jit.data_address()

    def new_workspace(self) -> RecordWorkspace:
        return RecordWorkspace(
            self._product.record, aligned_zeros(self.workspace_bytes, np.uint8), self.problem.K
        )

    def prepare_filter(self, w: np.ndarray) -> np.ndarray:
        if self._product.cut.engine.item_bytes == 2:
            return self._product.pack(w.view(np.int16))
        wide = np.empty(w.shape, np.float32)
        half.convert(w, wide)
        return self._product.pack(wide)

    def run(
        self, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, activation: str | None, y: np.ndarray,
        workspace: RecordWorkspace,
    ) -> None:  # fmt: skip
        a = workspace.arguments
        a.x, a.y, a.w = self._address(x), self._address(y), self._address(w)
        workspace.starts.view(np.float32)[: self.problem.K] = 0 if bias is None else bias
        a.relu = activation is not None
        jit.launch(self._product.driver, workspace.address, self._product.tasks, self._parallel)


# --- algorithms ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dot(Algorithm):
    instructions: str  # amx, vnni, brain, pairs, fma

    family: ClassVar[str] = "cpu.dot"
    widens: ClassVar[bool] = True

    @property
    def dtypes(self) -> tuple[str, ...]:  # type: ignore[override]
        return TYPES[self.instructions]

    @property
    def variant(self) -> str:
        return self.instructions

    def engine(self, problem: ConvProblem) -> Engine | None:
        """What multiplies x's type, or None."""
        return ENGINES.get((self.instructions, problem.dtype))

    def why_not(self, problem: ConvProblem) -> str | None:
        narrow = problem.dtype in HALF_DTYPES and problem.y_dtype == "float32"
        asked = problem.replace(y_dtype=problem.dtype) if narrow else problem  # both are written
        if reason := super().why_not(asked):
            return reason
        engine = self.engine(problem)
        return None if engine is None else engine.missing()

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        engine = self.engine(problem)
        assert engine is not None, "why_not says so"
        return word_seconds(problem, word_blocking(problem, engine), machine)

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        engine = self.engine(problem)
        if engine is None:
            return float("inf")
        return least_seconds(problem, engine, machine)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        engine = self.engine(problem)
        return 0 if problem.is_empty or engine is None else word_blocking(problem, engine).scratch_bytes

    def error_bound(self, problem: ConvProblem) -> float:
        if problem.dtype not in HALF_DTYPES:
            return 2 * problem.eps  # of the output step, in float32
        rounded = problem.eps if problem.y_dtype != "float32" else 0.0
        return rounded + error_of_sums(problem.replace(dtype="float32", y_dtype="float32"))

    def plan(self, problem: ConvProblem) -> Plan:
        engine = self.engine(problem)
        assert engine is not None, "why_not says so"
        kind = HalfDotPlan if problem.dtype in HALF_DTYPES else IntegerDotPlan
        return kind(problem, self, word_blocking(problem, engine))


ALGORITHMS = tuple(Dot(name) for name in TYPES)
