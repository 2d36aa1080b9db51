"""Plans of the steps of a network on maps of integers, and what they are predicted to take."""

from __future__ import annotations

import math
from typing import Any

from convalgos.cpu.elementwise.byte_steps import (
    ByteArithmeticPlan,
    ByteMeanPlan,
    DequantizePlan,
    LookupPlan,
    QuantizePlan,
)
from convalgos.network.graph import Shapes, Step
from convalgos.network.quantized_graph import (
    BYTEWISE,
    Dequantize,
    Lookup,
    Quantize,
    QuantizedArithmetic,
    QuantizedMean,
)

ON_INTEGERS = BYTEWISE | QuantizedMean  # steps that are planned here


def quantized_plan(step: Step, shapes: Shapes, layout: str) -> Any:
    """The plan of a step on integers that is no convolution, whose maps lie in one layout."""
    x = shapes[step.inputs[0]]
    if isinstance(step, Quantize):
        return QuantizePlan(x, layout, step.y_scale)
    if isinstance(step, Dequantize):
        return DequantizePlan(x, layout, step.x_scale)
    if isinstance(step, Lookup):
        return LookupPlan(math.prod(x), step.table)
    if isinstance(step, QuantizedMean):
        return ByteMeanPlan(x, layout, step.x_scale, step.y_scale)
    if isinstance(step, QuantizedArithmetic):
        read = [shapes[name] for name in step.inputs]
        return ByteArithmeticPlan(step.operation, read, layout, step.scales, step.activation)
    raise TypeError(f"step {step.name!r} of {type(step).__name__} has no plan")
