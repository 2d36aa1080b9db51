"""A pass over 16-bit integers whose sums are integers, too: lines are summed as they lie in memory.

Twice as many elements go into a vector as of float32, and four times as many as of float64, which sums of
them with weights that are no whole numbers would take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from convalgos.cpu.compile import code_generation
from convalgos.cpu.filtering import short_sums
from convalgos.cpu.filtering.line_passes import LinePass
from convalgos.cpu.filtering.line_steps import CLOSE, EXACT, LineStep, order_of_sums, way_of_sums
from convalgos.cpu.filtering.short_sums import BOUNDS, FRACTION
from convalgos.cpu.runtime.packs import packs_words
from convalgos.cpu.vectors import simd

BITS = 16  # of the integers
MOST_NEAR = 256  # of 2**15 sums, that are summed again


class FixedWeights(NamedTuple):
    """Weights of `short_sums.fixed_sums`.

    words: (pairs of taps, 2) int32; bounds: a record `BOUNDS`.
    """

    words: np.ndarray
    bounds: np.ndarray


def why_not_short(x: np.dtype, y: np.dtype, steps: Sequence[LineStep]) -> str | None:
    """Why these steps are no `ShortPass`; None where they are."""
    if x != y or x.kind not in "iu" or 8 * x.itemsize != BITS:
        return "it takes integers of 16 bits, and gives the same"
    if not packs_words():
        return "words are packed by instructions of x86 processors"
    for step in steps:
        found = way_of_sums(step, x, 8)
        limits = np.iinfo(x)
        if not (limits.min <= step.fill <= limits.max and step.fill.is_integer()):
            return "what lies outside is no such integer"
        if found == EXACT and not _is_whole(step):
            return "its sums are multiples of a fraction"
        if found not in (EXACT, CLOSE) or (
            found == CLOSE and fixed_weights(step.weights, x.kind == "i") is None
        ):
            return "fixed point does not tell the whole part of its sums"
    return None


def _is_whole(step: LineStep) -> bool:
    """Whether weights are integers whose sums a word holds, as SciPy casts float64 to one first."""
    whole = all(w.is_integer() for w in step.weights)
    return whole and math.fsum(map(abs, step.weights)) * 2**BITS < 2**31


@lru_cache(256)
def fixed_weights(weights: tuple[float, ...], signed: bool) -> FixedWeights | None:
    """Weights in fixed point; None where sums may lie beyond 16 bits, or too many are near whole numbers."""
    w = np.array(weights)
    largest = 2 ** (BITS - 1) if signed else 2**BITS - 1
    if largest * math.fsum(map(abs, weights)) >= largest + 0.5 or (not signed and w.min() < 0):
        return None
    for bits in range(16, 5, -1):
        parts = np.rint(np.ldexp(w, FRACTION + bits)).astype(np.int64)
        low = ((parts + (1 << bits - 1)) & ((1 << bits) - 1)) - (1 << bits - 1)
        if np.abs(low).sum() < 2**16 - 1:
            break
    high = (parts - low) >> bits
    if np.abs(high).max() >= 2 ** (BITS - 1):
        return None
    lost = float(np.abs(w - np.ldexp(parts, -FRACTION - bits)).sum()) + (1 + len(w) ** 2) * 2.0**-50
    units = math.ceil(np.ldexp(lost, BITS - 1 + FRACTION)) + 1  # of the last digit of sums
    near = 1 << (2 * units - 1).bit_length()
    if near > MOST_NEAR:
        return None
    pairs = np.zeros((-(-len(w) // 2), 2, 2), np.int16)  # (pair, part, tap)
    for part, values in enumerate((high, low)):
        pairs[:, part, 0], pairs[: len(w) // 2, part, 1] = values[::2], values[1::2]
    begin = 0 if signed else round(math.ldexp(math.fsum((*weights, -1)), BITS - 1 + FRACTION + bits))
    digits = (1 << FRACTION) - near
    bounds = (begin >> bits) + units, begin & ((1 << bits) - 1), bits, digits, order_of_sums(weights)
    return FixedWeights(pairs.reshape(-1, 4).view(np.int32), np.array([bounds], BOUNDS))


def sums_pairs() -> bool:
    """Whether one instruction multiplies pairs and adds them to sums, of whole vectors."""
    wide = simd.lanes(4) >= 16
    return code_generation.has("avx512vnni") if wide else code_generation.has("avxvnni")


class WholePass(LinePass):
    """Steps whose sums are integers of the type that is summed, which is that of x and y."""

    def _load(self, dtype: np.dtype) -> int:
        return short_sums.copy_line(self.size)

    def _arrange(self) -> None:
        super()._arrange()
        self.values["whole"], self.values["row_whole"] = self.values["sums"], self.values["row_sums"]

    def _fuse(self, across: LineStep, along: LineStep | None) -> None:
        """Sums are whole as they are."""


class ShortPass(WholePass):
    """Steps for which `why_not_short` has no objection."""

    def _set_numbers(self) -> None:
        self.size, self.dtype, self.lanes = 2, self.y_dtype, simd.lanes(2)
        self.ways = {step: way_of_sums(step, self.y_dtype, 8) for step in self.sources}

    def _fixed(self, step: LineStep) -> FixedWeights:
        found = fixed_weights(step.weights, self.y_dtype.kind == "i")
        assert found is not None
        return found

    def _weights(self, step: LineStep) -> np.ndarray:
        if self.ways[step] == EXACT:
            return np.array(step.weights).astype(np.int64).astype(np.int16)
        return self._fixed(step).words

    def _sums(self, step: LineStep) -> int:
        if self.ways[step] == EXACT:
            return short_sums.wrapped_sums(simd.lanes(4))
        return short_sums.fixed_sums(int(self.y_dtype.kind == "i"), simd.lanes(4), int(sums_pairs()))

    def _settling(self, step: LineStep) -> tuple[int, int, int]:
        if self.ways[step] == EXACT:
            return 0, 0, 0
        return 0, self._table(np.array(step.weights)), self._table(self._fixed(step).bounds)
