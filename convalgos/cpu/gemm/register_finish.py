"""The output step of plans whose kernels add the residual, and limit outputs, before they store them."""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.core.epilogue import RELU
from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime.plan import KernelPlan


class RegisterFinish(KernelPlan):
    """Sums begin with the residual, and end within limits; other activations are left to `finish`.

    The record has `unlimited`, the limits of none and of ReLU, `limits`, those of this run, and `adds`,
    whether there is a residual.
    """

    finishes = adds_first = True

    @staticmethod
    def limit_fields(problem: ConvProblem) -> dict[str, int | np.ndarray]:
        """Their values where there is no output step."""
        limits = np.array([-np.inf, np.inf, 0, np.inf], problem.dtype)
        return {"unlimited": limits, "limits": limits, "adds": 0}

    def run_finished(self, *given: Any) -> None:
        fields = given[-1].arguments  # of the workspace
        try:
            super().run_finished(*given)
        finally:
            fields.adds, fields.limits = 0, fields.unlimited

    def _set_finish(self, fields: Any, y: int, residual: Any, activation: Any) -> np.ndarray:
        numbers = super()._set_finish(fields, y, residual, activation)
        fields.adds = residual is not None
        if activation == RELU:
            fields.limits = fields.unlimited + 2 * self._dtype.itemsize
        elif activation is not None and activation.name == "clip":
            fields.limits = fields.finish_numbers
        elif activation is not None:
            return numbers
        fields.finish = 0
        return numbers
