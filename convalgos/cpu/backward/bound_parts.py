"""Plans whose sub-problems read parts of x: bound as launches where these parts need no copy."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import ArrayLike

from convalgos.core.bound_run import BoundRun
from convalgos.core.epilogue import ActivationLike
from convalgos.core.plan import Plan
from convalgos.core.prepared_filter import PreparedFilter
from convalgos.cpu.runtime.array_pass import CompiledPass


class BoundParts(CompiledPass, Plan):
    """A run without a residual, on parts that are contiguous, is launches; any other is a call."""

    def bind(
        self, x: np.ndarray, w: ArrayLike | PreparedFilter, y: np.ndarray, bias: np.ndarray | None = None,
        activation: ActivationLike = None, residual: np.ndarray | None = None,
        scratch: np.ndarray | None = None,
    ) -> BoundRun:  # fmt: skip
        self._check_bound(x, y, residual)
        added, fused, left, rest = self._output_step(bias, activation, residual)
        parts = self._parts(x)
        if left is None and rest is None and all(part.flags.c_contiguous for part in parts):
            w = self._own_filter(w)
            if run := self._launched(x, parts, w, y, added, fused, scratch):
                return run
        return super().bind(x, w, y, bias, activation, residual, scratch)

    @abstractmethod
    def _parts(self, x: np.ndarray) -> list[np.ndarray]:
        """What the sub-problems read, views of x."""

    @abstractmethod
    def _launched(
        self, x: np.ndarray, parts: list[np.ndarray], w: PreparedFilter, y: np.ndarray,
        bias: np.ndarray | None, activation: str | None, scratch: np.ndarray | None,
    ) -> BoundRun | None:  # fmt: skip
        """The run on these arrays; None where there is more to it than kernels."""
