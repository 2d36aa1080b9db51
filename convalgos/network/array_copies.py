"""Copies of arrays that kernels make, between the launches of other steps."""

from __future__ import annotations

import numpy as np

from convalgos.core.bound_run import BoundRun
from convalgos.core.errors import Unsupported
from convalgos.cpu.elementwise.bound_steps import FLOAT
from convalgos.cpu.elementwise.plan import passed
from convalgos.cpu.runtime.array_pass import ArrayPass
from convalgos.network.array_plans import ArrayFunctionPlan
from convalgos.network.graph import Foreign
from convalgos.network.planned import PlannedStep
from convalgos.network.typed_plans import run_that_copies_bytes


def takes_copies(planned_step: PlannedStep) -> bool:
    """Whether kernels may need copies of arrays that move: what Python runs takes any arrays."""
    step, plan = planned_step.step, planned_step.plan
    return hasattr(plan, "bind") and not isinstance(step, Foreign) and not isinstance(plan, ArrayFunctionPlan)


def bound_copy(source: np.ndarray, target: np.ndarray) -> BoundRun | None:
    """A run that copies a contiguous array to one of as many bytes, whatever they are, and that is told where
    both lie; None where one is not contiguous, or there is no kernel.

    Example:
        >>> x, y = np.arange(4).reshape(2, 2), np.zeros(4, int)
        >>> bound_copy(x, y).run()
        >>> y.tolist()
        [0, 1, 2, 3]
    """
    if not source.flags.c_contiguous or not target.flags.c_contiguous:
        return None
    words = source.nbytes % FLOAT.itemsize == 0 and source.flags.aligned and target.flags.aligned
    x, y = (array.reshape(-1).view(FLOAT if words else np.uint8) for array in (source, target))
    try:
        return passed(ArrayPass(x, None, y, None)) if words else run_that_copies_bytes(x, y)
    except Unsupported:  # a process that cannot compile
        return None
