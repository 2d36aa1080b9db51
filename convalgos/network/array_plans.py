"""Plans of functions of whole arrays: NumPy's, and kernels of what is done to maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from convalgos.core.array_bags import BAGS
from convalgos.core.array_functions import ARRAY_FUNCTIONS
from convalgos.core.array_resampling import repeats
from convalgos.core.bound_run import BoundRun
from convalgos.cpu.elementwise.bound_steps import BoundStep
from convalgos.cpu.elementwise.extremes import LargestChannelPlan
from convalgos.cpu.elementwise.plan import ConstantOperandPlan, UpsamplingPlan
from convalgos.cpu.elementwise.resizing import ResizePlan
from convalgos.cpu.elementwise.sampling import SamplingPlan
from convalgos.cpu.elementwise.summing import SumPlan
from convalgos.cpu.elementwise.top import MOST_FOUND, TopPlan
from convalgos.network.arithmetic_plans import OPERATION, arithmetic_plan, concatenation_plan
from convalgos.network.array_functions import ArrayFunction
from convalgos.network.gather_plans import GATHERS, bag_plan, gather_plan
from convalgos.network.graph import Shapes
from convalgos.network.typed_plans import typed_plan

LINEAR = {  # what `ResizePlan` calls the coordinates that it knows
    "half_pixel": "half_pixel", "align_corners": "align_corners", "asymmetric": "asymmetric",
    "pytorch_half_pixel": "half_pixel",  # but where one pixel is made
}  # fmt: skip
FEW = 1 << 10  # elements in rows whose largest ones kernels find one after the other, before NumPy is called,
SHORT = 32  # but for rows of up to so many, at each of which NumPy begins anew; Xeon
WIDEST = 1 << 20  # pixels of a map that kernels count in float32, with a share between two
VIEWS = frozenset(("same", "reshape", "squeeze", "unsqueeze", "flatten"))  # which move nothing


def array_function_plan(step: ArrayFunction, shapes: Shapes, dtype: str) -> Any:
    """What runs a function for these shapes of all values; None of what moves nothing.

    Args:
        dtype: of its first input.
    """
    if step.function in VIEWS and (not step.constants or step.constants[0] is None):
        return None
    if step.function in GATHERS and not step.planned and (gathers := gather_plan(step, shapes, dtype)):
        return gathers
    takes = (dtype == "float32" or step.function in BAGS) and step.inputs and not step.planned
    make = KERNELS.get(step.function) if takes else None
    kernels = None if make is None else make(step, shapes)
    if kernels is None:
        return (None if step.planned else typed_plan(step, shapes, dtype)) or ArrayFunctionPlan(step)
    return kernels if step.function in OF_ALL_INPUTS else OfFirstInput(kernels)


class ArrayFunctionPlan:
    """Runs a function of whole arrays, of whatever shapes."""

    def __init__(self, step: ArrayFunction):
        self.step = step

    def run(self, inputs: Sequence[np.ndarray], y: np.ndarray) -> None:
        """Write y."""
        if not self.step.planned:
            self.step.compute(inputs, y)

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        """A run on these very arrays, the inputs and y."""
        *inputs, y = arrays
        if self.step.planned:
            return BoundRun(lambda: None, ())
        operands, options = self.step.operands(inputs), dict(self.step.options)
        function = ARRAY_FUNCTIONS[self.step.function].compute

        def run() -> None:
            with np.errstate(all="ignore"):
                function(y, *operands, **options)

        return BoundRun(run)


class OfFirstInput(BoundStep):
    """A step that reads its first input alone: the others are sizes, which planning knew.

    Args:
        plan: of one input.
    """

    def __init__(self, plan: BoundStep):
        self._plan, self.told = plan, plan.told

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        return self._plan.bind(arrays[0], arrays[-1])


def _largest(step: ArrayFunction, shapes: Shapes) -> BoundStep | None:
    """Kernels that find the largest of what lies side by side."""
    x, y, options = shapes[step.inputs[0]], shapes[step.output], dict(step.options)
    axis = options["axis"] % max(1, len(x))
    count, behind = x[axis], math.prod(x[axis + 1 :])
    if options["of"] != "max" or options["last"] or not count:
        return None
    if behind == 1 and count > SHORT and math.prod(x) > FEW:  # NumPy has vectors along the axis
        return None
    return LargestChannelPlan((math.prod(x[:axis]), count, behind), (x, y))


def _top(step: ArrayFunction, shapes: Shapes) -> BoundStep | None:
    """Kernels that find a few of the largest or least of what lies side by side."""
    x, y, options = shapes[step.inputs[0]], shapes[step.output], dict(step.options)
    axis = options["axis"] % max(1, len(x))
    if axis < len(x) - 1 or 0 in y or y[axis] > MOST_FOUND:
        return None
    return TopPlan(x, y[axis], options["largest"])


def _sampling(step: ArrayFunction, shapes: Shapes) -> BoundStep | None:
    """Kernels that read images and volumes at places, which may be constant."""
    x, y, options = shapes[step.inputs[0]], shapes[step.output], dict(step.options)
    image, grid = step.constants or (None, None)
    of_maps = 4 <= len(x) <= 5 and image is None
    if not of_maps or options["padding"] == "reflection" or 0 in (*x, *y):
        return None
    if max(x[2:]) > WIDEST:
        return None
    plan = SamplingPlan(
        x, y, options["mode"] == "nearest", options["padding"] == "border", options["corners"]
    )
    return plan if grid is None else ConstantOperandPlan(plan, np.ascontiguousarray(grid))


def _resizing(step: ArrayFunction, shapes: Shapes) -> BoundStep | None:
    """Kernels that resize maps to sizes, where they do."""
    x, y = shapes[step.inputs[0]], shapes[step.output]
    options, to_sizes = dict(step.options), step.constants[1] is not None and not step.constants[1].size
    if not to_sizes or not 3 <= len(x) <= 5 or x[:2] != y[:2] or 0 in (*x, *y):
        return None
    if options["mode"] == "nearest":
        each = zip(x[2:], y[2:], strict=True)
        whole = all(repeats(options["coordinates"], options["rounded"], *sizes) for sizes in each)
        factors = tuple(m // n for n, m in zip(x[2:], y[2:], strict=True))
        return UpsamplingPlan(x, factors, "channels_first") if whole else None
    coordinates = LINEAR.get(options["coordinates"])
    if options["mode"] != "linear" or coordinates is None or len(x) > 4:
        return None
    if options["coordinates"] == "pytorch_half_pixel" and 1 in y[2:]:
        return None
    return ResizePlan(x, y[2:], "channels_first", coordinates)


def _sums(step: ArrayFunction, shapes: Shapes) -> BoundStep | None:
    """Kernels that reduce dimensions next to each other."""
    x, y, options = shapes[step.inputs[0]], shapes[step.output], dict(step.options)
    axes = sorted({axis % max(1, len(x)) for axis in options["axes"] or range(len(x))})
    if options["of"] not in ("sum", "mean", "max") or not axes or 0 in x:
        return None
    first, behind, largest = axes[0], axes[-1] + 1, options["of"] == "max"
    if axes != [*range(first, behind)] or (largest and math.prod(x[behind:]) == 1):
        return None
    scale = 1 / math.prod(x[first:behind]) if options["of"] == "mean" else 1.0
    return SumPlan(x, first, behind, y, scale, largest)


KERNELS = dict.fromkeys(OPERATION, arithmetic_plan) | {
    "concatenate": concatenation_plan, "reduce": _sums, "resize": _resizing, "place_of_extreme": _largest,
    "places_of_top": _top, **dict.fromkeys(BAGS, bag_plan),
    "grid_sample": _sampling,
}  # fmt: skip
OF_ALL_INPUTS = frozenset(("grid_sample", "concatenate", *BAGS, *OPERATION))
