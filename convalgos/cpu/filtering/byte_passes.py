"""A pass over bytes that smooths them by three taps, as small Gaussians do: lines are summed as they lie."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from convalgos.cpu.filtering.byte_sums import FRACTION, SHIFT, SMOOTHING, smooth_bytes
from convalgos.cpu.filtering.line_steps import CLOSE, LineStep, order_of_sums
from convalgos.cpu.filtering.line_sums import SYMMETRIC
from convalgos.cpu.filtering.short_passes import WholePass
from convalgos.cpu.runtime.packs import packs_words
from convalgos.cpu.vectors import simd

TAPS, LEVELS = 3, 256


def why_not_bytes(x: np.dtype, y: np.dtype, steps: Sequence[LineStep]) -> str | None:
    """Why these steps are no `BytePass`; None where they are."""
    if not x == y == np.uint8 or not packs_words():
        return "it takes bytes, and gives the same, on x86 processors"
    for step in steps:
        if not (0 <= step.fill < LEVELS and step.fill.is_integer()):
            return "what lies outside is no byte"
        if len(step.weights) != TAPS or smoothing(step.weights) is None:
            return "fixed point does not tell the whole part of its sums"
    return None


@lru_cache(256)
def smoothing(weights: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray] | None:
    """(`SMOOTHING`, table of bits) for `smooth_bytes`; None where it would not give SciPy's integers."""
    outer, middle = weights[0], weights[1]
    if order_of_sums(weights) != SYMMETRIC or not 0 < outer < 0.5 or abs(2 * outer + middle - 1) > 1e-9:
        return None
    b, both = np.arange(LEVELS)[:, None], np.arange(2 * LEVELS - 1)
    sums = (b * middle + both * outer).astype(np.int64)  # (256, 511), in SciPy's order
    d = both - 2 * b
    falls = b[:, 0] - sums[b[:, 0], 2 * b[:, 0]]  # where d is 0
    if not ((falls == 0) | (falls == 1)).all():
        return None
    near = int(outer * 2 ** (FRACTION - SHIFT))
    for weight in (near, near + 1):
        product = (np.abs(d) << SHIFT) * weight >> FRACTION
        found = b + np.where(d < 0, -1 - product, product) - np.where(d == 0, falls[:, None], 0)
        if weight < 2**16 and (found == sums).all():
            table = np.packbits(falls.astype(np.uint8), bitorder="little")
            return np.array([(weight, falls.any())], SMOOTHING), table
    return None


class BytePass(WholePass):
    """Steps for which `why_not_bytes` has no objection."""

    def _set_numbers(self) -> None:
        self.size, self.dtype, self.lanes = 1, self.y_dtype, simd.lanes(1)
        self.ways = dict.fromkeys(self.sources, CLOSE)

    def _found(self, step: LineStep) -> tuple[np.ndarray, np.ndarray]:
        found = smoothing(step.weights)
        assert found is not None
        return found

    def _weights(self, step: LineStep) -> np.ndarray:
        return self._found(step)[0]

    def _sums(self, step: LineStep) -> int:
        return smooth_bytes(simd.lanes(2))

    def _settling(self, step: LineStep) -> tuple[int, int, int]:
        return 0, self._table(self._found(step)[1]), 0
