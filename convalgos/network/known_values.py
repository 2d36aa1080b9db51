"""Values of a plan that follow from the sizes of its inputs alone: computed once, and constants of all runs.

Positions, masks and targets of reshapes are such: networks compute them of shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.array_functions import ARRAY_FUNCTIONS
from convalgos.core.layouts import array_shape
from convalgos.network.array_functions import ArrayFunction
from convalgos.network.graph import Foreign, Step
from convalgos.network.planned import Planned, PlannedStep
from convalgos.network.sharing import value_bytes

Call = Callable[[PlannedStep, list[np.ndarray], list[np.ndarray]], None]
MOST = 1 << 20  # bytes of a value that is kept: others are computed where they share memory


def known_steps(planned: Planned, moving: set[str]) -> tuple[PlannedStep, ...]:
    """Those whose outputs are known when the sizes of the inputs are.

    Args:
        moving: values whose arrays are other ones in each run.
    """
    known: set[str] = set()
    found: list[PlannedStep] = []
    for planned_step in planned.steps:
        step = planned_step.step
        if not (known.issuperset(step.inputs) or _reads_shapes(step)) or isinstance(step, Foreign):
            continue
        if len(step.outputs) > 1 or step.output in moving or value_bytes(planned, step.output) > MOST:
            continue
        known.add(step.output)
        found.append(planned_step)
    return tuple(found)


def may_be_known(planned_step: PlannedStep) -> bool:
    """Whether it may be the first of `known_steps`."""
    return not planned_step.step.inputs or _reads_shapes(planned_step.step)


def known_arrays(planned: Planned, steps: tuple[PlannedStep, ...], call: Call) -> Mapping[str, np.ndarray]:
    """The outputs of these steps that others read.

    Args:
        steps: of `known_steps`.
        call: runs a step on arrays, its inputs and outputs.
    """
    arrays: dict[str, np.ndarray] = {}
    for planned_step in steps:
        step = planned_step.step
        shape = array_shape(planned.layouts.get(step.output, "channels_first"), planned.shapes[step.output])
        if planned_step.plan is None:
            arrays[step.output] = arrays[step.inputs[0]].reshape(shape)
            continue
        unread = np.zeros((), np.int8)  # of whose elements nothing is asked
        x = [
            arrays[name] if name in arrays else np.broadcast_to(unread, planned.shapes[name])
            for name in step.inputs
        ]
        y = arrays[step.output] = aligned_empty(math.prod(shape), planned.dtype(step.output)).reshape(shape)
        call(planned_step, x, [y])
    read = {name for s in planned.steps if s.step.output not in arrays for name in s.step.inputs}
    return _each_once({name: array for name, array in arrays.items() if name in read})


def _each_once(arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Those that are equal as one array: each layer of a network computes the same mask."""
    found: dict[str, np.ndarray] = {}
    kept: dict[tuple[object, ...], np.ndarray] = {}
    for name, array in arrays.items():
        bits = array.reshape(-1).view(np.uint8)
        found[name] = kept.setdefault((array.shape, array.dtype, bits.tobytes()), array)
    return found


def _reads_shapes(step: Step) -> bool:
    """Whether a step reads no elements."""
    return isinstance(step, ArrayFunction) and ARRAY_FUNCTIONS[step.function].of_shapes
