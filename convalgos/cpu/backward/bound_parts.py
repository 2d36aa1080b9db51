"""Plans whose sub-problems read parts of x: bound as launches where these parts need no copy."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import ArrayLike

from convalgos.core.bound_run import AddressWord, BoundRun, address_words, share_elements
from convalgos.core.epilogue import ActivationLike
from convalgos.core.plan import Plan
from convalgos.core.prepared_filter import PreparedFilter
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.array_pass import ArrayPass, CompiledPass
from convalgos.cpu.runtime.finish import compiled_for


class BoundParts(CompiledPass, Plan):
    """A run on parts that are contiguous is launches; any other, and one onto its residual, is a call."""

    def bind(
        self, x: np.ndarray, w: ArrayLike | PreparedFilter, y: np.ndarray, bias: np.ndarray | None = None,
        activation: ActivationLike = None, residual: np.ndarray | None = None,
        scratch: np.ndarray | None = None,
    ) -> BoundRun:  # fmt: skip
        self._check_bound(x, y, residual)
        added, fused, left, rest = self._output_step(bias, activation, residual)
        parts, passes = self._parts(x), left is not None or rest is not None
        overwritten = left is not None and share_elements(left, y)
        served = not passes or (compiled_for(self._y_dtype) and not overwritten)
        if served and all(part.flags.c_contiguous for part in parts):
            w = self._own_filter(w)
            if run := self._launched(x, parts, w, y, added, fused, scratch):
                return _with_pass(run, ArrayPass(y, left, y, rest), y, left) if passes else run
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


def _with_pass(run: BoundRun, after: ArrayPass, y: np.ndarray, residual: np.ndarray | None) -> BoundRun:
    """A run of launches, with a pass over y behind it; the residual must stay where it is."""
    y_places: tuple[AddressWord, ...] = ()
    if run.y_places and residual is None:
        y_places = (*run.y_places, *address_words(y, after.target_words))
    launches = (*(run.launches or ()), after.launch)
    return jit.bound_run(launches, run, after, x_places=run.x_places, y_places=y_places)
