"""Windows: a view of the padded input that shows each output's window, and one tensor product over it.

x (N, C, *padded) is seen as (N, C, *spatial_out, *kernel) without a copy, and NumPy's `tensordot` sums over C
and the taps. It copies the view into a matrix: im2col by NumPy, short to write, and never the fastest.

Source: Chellapilla et al. 2006, "High performance convolutional neural networks for document processing".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums
from convalgos.core.epilogue import finish
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.select.ranking import Candidate

CALLS = 1e-4  # seconds of the NumPy calls of a run
CACHED = 0.25  # of the bandwidth, at which NumPy copies windows; both on one Xeon


@dataclass(frozen=True)
class Windows(Algorithm):
    """One tensor product over all windows."""

    family: ClassVar[str] = "cpu.windows"
    needs: ClassVar[tuple[str, ...]] = ()
    equal_bits: ClassVar[bool] = False  # NumPy's BLAS does not promise it

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        return "sums over all channels, so it takes groups=1 only" if problem.groups > 1 else None

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        copied = machine.stream(2 * _matrix_bytes(problem)) / CACHED
        return CALLS + copied + problem.flops / machine.peak(problem.dtype)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return _matrix_bytes(problem) + math.prod(_padded(problem)) * problem.itemsize

    def error_bound(self, problem: ConvProblem) -> float:
        return error_of_sums(problem)

    def plan(self, problem: ConvProblem) -> Plan:
        return WindowsPlan(problem, self, self.workspace_bytes(problem))


def _padded(p: ConvProblem) -> tuple[int, ...]:
    return (p.N, p.C, *(n + low + high for n, (low, high) in zip(p.spatial, p.padding, strict=True)))


def _matrix_bytes(p: ConvProblem) -> int:
    return p.N * math.prod(p.spatial_out) * p.C * math.prod(p.kernel) * p.itemsize


class WindowsPlan(Plan):
    """Where the input lies in its padded copy, and how its windows are seen."""

    def __init__(self, problem: ConvProblem, algorithm: Algorithm, workspace_bytes: int):
        super().__init__(problem, algorithm, workspace_bytes)
        p = problem
        self._inside = tuple(slice(low, low + n) for n, (low, _) in zip(p.spatial, p.padding, strict=True))
        self._reach = tuple(d * (r - 1) + 1 for r, d in zip(p.kernel, p.dilation, strict=True))
        self._seen = (*(slice(None, None, s) for s in p.stride), *(slice(None, None, d) for d in p.dilation))

    def prepare_filter(self, w: Any) -> Any:
        """(K, C, *kernel), a copy: the caller may change w afterwards."""
        return w.copy()

    def new_workspace(self) -> Any:
        """The padded input with its border of zeros."""
        return np.zeros(_padded(self.problem), self._dtype)

    def run(self, x: Any, w: Any, bias: Any, activation: Any, y: Any, workspace: Any) -> None:
        p = self.problem
        last = p.layout == "channels_last"
        workspace[:, :, *self._inside] = np.moveaxis(x, -1, 1) if last else x  # (N, C, *padded)
        axes = tuple(range(2, 2 + p.ndim))
        windows = np.lib.stride_tricks.sliding_window_view(workspace, self._reach, axes)
        windows = windows[:, :, *self._seen]  # (N, C, *spatial_out, *kernel)
        taps = range(2 + p.ndim, 2 + 2 * p.ndim)
        sums = np.tensordot(w, windows, ((1, *range(2, 2 + p.ndim)), (1, *taps)))  # (K, N, *spatial_out)
        y[...] = np.moveaxis(sums, 0, -1 if last else 1)
        finish(y, bias, activation, p)


def cautious(problem: ConvProblem, candidates: Sequence[Candidate], machine: Machine) -> list[float]:
    """A ranker that trusts predictions of transforms less than those of sums."""
    return [c.predicted_s * (1.2 if c.algorithm.spreads_nan else 1.0) for c in candidates]


ALGORITHMS = (Windows(),)
