"""Accuracy: the float64 answer of a problem, and how far from it a result lies."""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.core.plan import numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.cpu.reference import answer, answer_at, deviation, error_scale
from convalgos.measure.backends import CPU, Backend

WHOLE_REFERENCE_FLOPS = 2e10  # above it, and with long filters, y is checked at SAMPLED_OUTPUTS places
WHOLE_REFERENCE_TAPS = 2048
WHOLE_REFERENCE_BYTES = 1 << 27  # of all arrays, which the reference has several times in float64
BRIEF_FLOPS, BRIEF_TAPS = 2e7, 64  # the same for a brief check
SAMPLED_OUTPUTS = 512
BRIEF_PRODUCTS, BRIEF_OUTPUTS = 4e6, 256  # of a brief check of samples: products in all, and outputs at least


class AccuracyCheck:
    """Knows the float64 answer of a problem on given arrays, whole or at sampled outputs.

    Args:
        backend: where the candidates run.
        arrays: what they read first and second; the problem's `random_arrays` by default.
        brief: take no longer than some runs do: sample sooner, and fewer outputs of long sums.
    """

    def __init__(
        self,
        problem: ConvProblem,
        backend: Backend = CPU,
        arrays: tuple[np.ndarray, np.ndarray] | None = None,
        *,
        brief: bool = False,
    ):
        self.problem, self.backend = problem, backend
        self.x, self.w = arrays or random_arrays(problem)
        first, second = problem.logical(0, self.x), problem.logical(1, self.w)
        taps = problem.gemm_k // max(1, problem.w_shape[1])
        self._where: np.ndarray | None = None
        most_flops = BRIEF_FLOPS if brief else WHOLE_REFERENCE_FLOPS
        most_taps = BRIEF_TAPS if brief else WHOLE_REFERENCE_TAPS
        small = problem.bytes <= WHOLE_REFERENCE_BYTES and problem.flops <= most_flops
        if small and taps * problem.groups <= most_taps:
            self._answer = answer(problem, first, second)
        else:
            count = SAMPLED_OUTPUTS
            if brief:
                count = min(count, max(BRIEF_OUTPUTS, int(BRIEF_PRODUCTS / max(1, problem.reduction))))
            self._where = _sampled(problem.result_shape, count)
            self._answer = answer_at(problem, first, second, self._where)

        self._scale = error_scale(problem, first, second, self._answer) or 1.0

    def error(self, y: Any) -> float:
        """max|y - answer| over their `error_scale` of a y in the problem's layout; infinite where it is NaN.

        y: an array of the host, or of the backend of the check.
        """
        if not self._answer.size:
            return 0.0
        y = self.problem.logical(2, y)
        found = self.backend.get(y) if self._where is None else self.backend.at(y, self._where)
        worst = float(np.max(deviation(self.problem.dtype, found, self._answer)))
        return worst / self._scale if np.isfinite(worst) else float("inf")


def _sampled(shape: tuple[int, ...], count: int) -> np.ndarray:
    """(count, dimensions) Places of an array, many of them at its borders, where tails of tiles are."""
    rng = np.random.default_rng(1)
    where = np.stack([rng.integers(0, size, count) for size in shape], axis=1)
    at_end = rng.random(where.shape) < 1 / 8
    where[at_end] = np.broadcast_to(np.array(shape) - 1, where.shape)[at_end]
    where[rng.random(where.shape) < 1 / 16] = 0
    return where


def random_arrays(problem: ConvProblem, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """What a run of a problem reads: standard normal numbers, the second scaled for results of order 1."""
    rng = np.random.default_rng(seed)
    wide = np.float64 if problem.dtype == "float64" else np.float32
    first, second, _ = problem.array_shapes
    x = rng.standard_normal(first, wide)
    w = rng.standard_normal(second, wide)
    w /= wide(np.sqrt(max(1, problem.reduction)))
    dtype = numpy_dtype(problem.dtype)
    return x.astype(dtype, copy=False), w.astype(dtype, copy=False)
