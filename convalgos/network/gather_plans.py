"""Plans of gathers and scatters, of which x or the places may be constant."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from convalgos.core.bound_run import BoundRun
from convalgos.core.errors import Unsupported
from convalgos.cpu.elementwise.bound_steps import BoundStep
from convalgos.cpu.elementwise.embedding_bags import EmbeddingBagPlan
from convalgos.cpu.elementwise.gathering import GatherPlan
from convalgos.cpu.elementwise.scattering import ScatterSumPlan
from convalgos.network.array_functions import ArrayFunction
from convalgos.network.graph import Shapes

SCATTERS = {
    "scatter_elements": (0, 1, 2),
    "scatter_expanded": (0, 1, 3),
}  # x, places and updates among operands
GATHERS = frozenset(("gather", "gather_elements", "gather_expanded", *SCATTERS))


class OfOperands(BoundStep):
    """A plan of some of the operands of a function, which are inputs or constants."""

    def __init__(self, step: ArrayFunction, plan: BoundStep, read: Sequence[int] = (0, 1)):
        self._step, self._plan, self._read = step, plan, read
        self.told = plan.told

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        *inputs, y = arrays
        operands = self._step.operands(inputs)
        return self._plan.bind(*(np.asarray(operands[i]) for i in self._read), y)


def gather_plan(step: ArrayFunction, shapes: Shapes, dtype: str) -> BoundStep | None:
    """Kernels that gather; None where NumPy does.

    Args:
        dtype: of the first input.
    """
    operands = step.operands(step.inputs)[:2]
    if step.function in SCATTERS:
        return _scatter_plan(step, shapes, dtype)
    x_shape, places_shape = (o.shape if isinstance(o, np.ndarray) else shapes[o] for o in operands)
    x_dtype = np.dtype(dtype)
    if isinstance(x := operands[0], np.ndarray):
        x_dtype = x.dtype
        if not x.flags.c_contiguous:
            return None
    if not x_shape:
        return None
    axis = dict(step.options)["axis"] % max(1, len(x_shape))
    y_shape = None if step.function == "gather" else shapes[step.output]
    try:
        moving = "x" if isinstance(operands[0], str) else "places"
        plan = GatherPlan(x_shape, places_shape, axis, y_shape, x_dtype, moving)
    except Unsupported:
        return None
    return OfOperands(step, plan)


def bag_plan(step: ArrayFunction, shapes: Shapes) -> BoundStep | None:
    """Kernels that combine rows of a constant table; None where NumPy does."""
    (table, places, *weights), options = step.operands(step.inputs), dict(step.options)
    wanted = options["pad"], options["least"]
    if not isinstance(table, np.ndarray) or not all(isinstance(o, str) for o in (places, *weights)):
        return None
    shape = shapes[places]
    try:
        return EmbeddingBagPlan(
            table, shape, options["axis"] % len(shape), options["of"], shapes[step.output], *wanted
        )
    except Unsupported:
        return None


def _scatter_plan(step: ArrayFunction, shapes: Shapes, dtype: str) -> BoundStep | None:
    """Of sums of float32."""
    operands, options = step.operands(step.inputs), dict(step.options)
    read = SCATTERS[step.function]
    own = [operands[i] for i in read]
    floats = [o for o in (own[0], own[2]) if isinstance(o, np.ndarray)]
    is_float = dtype == "float32" if isinstance(own[0], str) else own[0].dtype == np.float32
    plain = all(o.flags.c_contiguous and o.flags.aligned for o in floats)
    if options["reduction"] != "add" or not is_float or not plain:
        return None
    x, places, updates = (o.shape if isinstance(o, np.ndarray) else shapes[o] for o in own)
    try:
        plan = ScatterSumPlan(x, places, updates, options["axis"] % max(1, len(x)))
    except Unsupported:
        return None
    return OfOperands(step, plan, read)
