"""Plans of gathers, of which x or the places may be constant."""

from __future__ import annotations

import numpy as np

from convalgos.core.bound_run import BoundRun
from convalgos.core.errors import Unsupported
from convalgos.cpu.elementwise.bound_steps import BoundStep
from convalgos.cpu.elementwise.gathering import GatherPlan
from convalgos.network.array_functions import ArrayFunction
from convalgos.network.graph import Shapes

GATHERS = frozenset(("gather", "gather_elements", "gather_expanded"))


class OfOperands(BoundStep):
    """A plan of the first two operands of a function, which are inputs or constants."""

    def __init__(self, step: ArrayFunction, plan: GatherPlan):
        self._step, self._plan = step, plan

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        *inputs, y = arrays
        return self._plan.bind(*map(np.asarray, self._step.operands(inputs)[:2]), y)


def gather_plan(step: ArrayFunction, shapes: Shapes, dtype: str) -> BoundStep | None:
    """Kernels that gather; None where NumPy does.

    Args:
        dtype: of the first input.
    """
    operands = step.operands(step.inputs)[:2]
    x_shape, places_shape = (o.shape if isinstance(o, np.ndarray) else shapes[o] for o in operands)
    x_dtype = np.dtype(dtype)
    if isinstance(x := operands[0], np.ndarray):
        x_dtype = x.dtype
        if not x.flags.c_contiguous:
            return None
    axis = dict(step.options)["axis"] % max(1, len(x_shape))
    y_shape = None if step.function == "gather" else shapes[step.output]
    try:
        plan = GatherPlan(x_shape, places_shape, axis, y_shape, x_dtype)
    except Unsupported:
        return None
    return OfOperands(step, plan)
