"""The plan of a step of a network that is no convolution, in the layout that was chosen for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.epilogue import add_and_activate
from convalgos.core.errors import Unsupported
from convalgos.core.layouts import array_shape, laid
from convalgos.cpu.elementwise.attention import AttentionPlan
from convalgos.cpu.elementwise.byte_steps import ByteConcatenationPlan
from convalgos.cpu.elementwise.functions import FunctionPlan
from convalgos.cpu.elementwise.norms import GroupNormPlan, LayerNormPlan, LrnPlan, SoftmaxPlan
from convalgos.cpu.elementwise.pixel_moves import PixelMovePlan
from convalgos.cpu.elementwise.plan import (
    ConcatenationPlan,
    ConstantOperandPlan,
    ElementwisePlan,
    UpsamplingPlan,
)
from convalgos.cpu.elementwise.products import MatmulPlan
from convalgos.cpu.elementwise.rearranging import RearrangementPlan
from convalgos.cpu.elementwise.recurrent import RecurrentPlan
from convalgos.cpu.elementwise.resizing import ResizePlan
from convalgos.cpu.elementwise.selections import SelectionPlan
from convalgos.cpu.layout.reorder import Reorder, is_same
from convalgos.cpu.pooling.plan import PoolPlan
from convalgos.network.array_functions import ArrayFunction
from convalgos.network.array_plans import array_function_plan
from convalgos.network.attention import Attention, Product, Rearrangement
from convalgos.network.dynamic_convolutions import DynamicConvolution
from convalgos.network.dynamic_plans import DynamicConvolutionPlan
from convalgos.network.functions import ElementFunction
from convalgos.network.graph import (
    ChannelSelection,
    Concatenation,
    Elementwise,
    Foreign,
    LayerNormalization,
    LocalResponseNormalization,
    Pooling,
    Resizing,
    Shapes,
    Step,
    Transpose,
    Upsampling,
    View,
)
from convalgos.network.group_norms import GroupNormalization
from convalgos.network.pixel_moves import DepthToSpace, PixelMove
from convalgos.network.planned import PlanLimits
from convalgos.network.quantized_plans import ON_INTEGERS, quantized_plan
from convalgos.network.recurrence import Recurrence
from convalgos.network.softmax import Softmax

SHORT = 16  # pixels of maps that are gone through in one piece, with a constant that has all elements,
SPREAD = 1 << 14  # of up to so many
ANY = PlanLimits()
NUMPY: dict[str, Any] = {
    "multiply": np.multiply, "subtract": np.subtract, "divide": np.divide,
    "slope": lambda a, b, out: np.copyto(out, np.where(a < 0, a * b, a)),
}  # fmt: skip


def plan_of(step: Step, shapes: Shapes, layout: str, dtype: str = "float32", limits: PlanLimits = ANY) -> Any:
    """The plan of a step that is no convolution, whose maps lie in one layout; None of what moves nothing.

    Args:
        dtype: of what it reads. limits: of convolutions whose filters are computed.
    """
    if isinstance(step, ON_INTEGERS):
        return quantized_plan(step, shapes, layout)
    if isinstance(step, Pooling):
        problem = step.problem(shapes[step.inputs[0]], dtype)
        return PoolPlan(problem.in_layout(layout))
    if isinstance(step, Foreign):
        return step.region
    if isinstance(step, View | Transpose):
        return None
    if isinstance(step, ArrayFunction):
        return array_function_plan(step, shapes, dtype)
    read = [shapes[name] for name in step.inputs]
    if isinstance(step, Upsampling):
        return UpsamplingPlan(read[0], step.factors, layout)
    if isinstance(step, LayerNormalization):
        of = step.scale, step.shift, step.epsilon, step.centred, step.largest
        return LayerNormPlan(read[0], layout, *of)
    if isinstance(step, Softmax):
        return SoftmaxPlan(read[0], layout, step.logs)
    if isinstance(step, Attention):
        return AttentionPlan(read, step.moves, step.scale, step.views, step.constants)
    if isinstance(step, Product):
        return MatmulPlan(step.operands(shapes), step.moves, step.scale, step.constant)
    if isinstance(step, DynamicConvolution):
        return DynamicConvolutionPlan(step.problem(shapes), limits, step.bias, step.activation)
    if isinstance(step, ElementFunction):
        return FunctionPlan(step.function, array_shape(layout, read[0]))
    if isinstance(step, Recurrence):
        more = step.bias, step.turned, step.given, step.with_cells, step.rectified, step.reset_first
        return RecurrentPlan(read[0], step.weights, step.gates, *more)
    if isinstance(step, Rearrangement):
        return RearrangementPlan(read[0], step.moves)
    if isinstance(step, GroupNormalization):
        return GroupNormPlan(
            read[0], layout, step.groups, step.scale, step.shift, step.epsilon, step.activation
        )
    if isinstance(step, Resizing):
        sizes = step.output_shape(shapes)[2:]
        return ResizePlan(read[0], sizes, layout, step.coordinates, step.scales or None)
    if isinstance(step, PixelMove):
        to_space = isinstance(step, DepthToSpace)
        larger = step.output_shape(shapes) if to_space else read[0]
        return PixelMovePlan(larger, step.factors, layout, to_space, step.order)
    if isinstance(step, LocalResponseNormalization):
        return LrnPlan(read[0], layout, step.size, step.alpha, step.beta, step.bias)
    if isinstance(step, ChannelSelection) and step.order is not None:
        return SelectionPlan(read, step.order, layout)
    if isinstance(step, Concatenation):
        return (ConcatenationPlan if dtype == "float32" else ByteConcatenationPlan)(read, layout)
    if not isinstance(step, Elementwise):
        raise TypeError(f"step {step.name!r} of {type(step).__name__} has no plan")
    return _elementwise_plan(step, read, layout)


def step_plan_like(known: Any, step: Step, shapes: Shapes, layout: str) -> Any:
    """A plan made from the one for other sizes of the maps, in the same layout; None of other kinds, or where
    more than the sizes is different."""
    kind, x = type(known), shapes[step.inputs[0]] if step.inputs else ()
    if kind is ElementwisePlan:
        return known.on_maps(*[shapes[name] for name in step.inputs])
    if kind is LayerNormPlan or kind is SoftmaxPlan:
        return known.on_map(x)
    if kind is ConstantOperandPlan and math.prod(x[2:]) >= SHORT:
        return known.on_map(x)
    return None


def _elementwise_plan(step: Elementwise, read: list[Shape], layout: str) -> Any:
    """Of kernels, or of NumPy where they do not broadcast so."""
    constant = step.constant
    if constant is not None and 1 < math.prod(read[0][2:]) < SHORT and math.prod(read[0]) <= SPREAD:
        constant = np.broadcast_to(constant, np.broadcast_shapes(constant.shape, read[0]))
    b = None if constant is None else np.ascontiguousarray(laid(constant, layout))
    shapes = read if constant is None else [*read, constant.shape]
    try:
        plan = ElementwisePlan(step.operation, shapes, layout, step.activation)
    except Unsupported:
        return NumpyStep(step, b)
    return plan if b is None else ConstantOperandPlan(plan, b)


def reorder_of(shape: Shape, source: str, target: str, itemsize: int) -> Reorder | None:
    """The plan of a change of layout of a map; None where both are the same memory."""
    return None if is_same(shape, source, target) else Reorder(shape, itemsize, source, target)


def reorder_like(known: Reorder | None, shape: Shape, source: str, target: str, dtype: str) -> Reorder | None:
    """`reorder_of`, made from that of a map of another size."""
    if known is None or math.prod(shape[2:]) <= 1:  # both may be the same memory
        return reorder_of(shape, source, target, np.dtype(dtype).itemsize)
    return known.on_map(shape)


class NumpyStep:
    """An elementwise step of arrays that kernels do not broadcast, by NumPy."""

    def __init__(self, step: Elementwise, constant: np.ndarray | None = None):
        self.step, self._constant = step, constant

    def run(self, inputs: Sequence[np.ndarray], y: np.ndarray) -> None:
        """Write y."""
        a, b = inputs if self._constant is None else (*inputs, self._constant)
        with np.errstate(all="ignore"):
            NUMPY.get(self.step.operation, np.add)(a, b, out=y)
        if self.step.activation is not None:
            add_and_activate(y, None, self.step.activation)
