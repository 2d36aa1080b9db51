"""Float32 steps between maps of integers, made steps on the integers themselves.

A model that is quantised has its steps between `Dequantize` and `Quantize`. What only moves elements does so
before these are dequantised; a convolution, a sum, a mean between them is computed on integers; and every
function of one element, however many steps it has, is one table of 256.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from convalgos.core.byte_scale import ByteScale
from convalgos.core.epilogue import Activation, activated
from convalgos.network.graph import (
    Concatenation,
    Convolution,
    Elementwise,
    NetworkGraph,
    Pooling,
    Step,
    Transpose,
    View,
)
from convalgos.network.passes import needed
from convalgos.network.quantized_filters import QuantizedConstants, quantized_convolution
from convalgos.network.quantized_graph import (
    Dequantize,
    Lookup,
    Quantize,
    QuantizedArithmetic,
    QuantizedConvolution,
    QuantizedMean,
)
from convalgos.network.quantized_tables import tables_joined
from convalgos.network.read_once import read_once

LIMITS = (None, "relu", "clip")  # activations that are limits of integers
Scaled = Mapping[str, tuple[str, ByteScale]]  # values that are dequantised: of which bytes, with which scale
OF_BYTES = ("identity", "add", "multiply")  # elementwise steps that integers have


def on_integers(graph: NetworkGraph, constants: QuantizedConstants) -> NetworkGraph:
    """The graph with what it can compute of integers computed so.

    Args:
        constants: what filters and biases were dequantised from.
    """
    if not any(isinstance(step, Quantize | Dequantize) for step in graph.steps):
        return graph
    graph = quantized_early(dequantized_late(graph))
    graph = needed(in_integers(graph, constants))
    return with_byte_types(needed(tables_joined(graph)))


def dequantized_late(graph: NetworkGraph) -> NetworkGraph:
    """Steps that only move elements do so before these are dequantised."""
    scaled: dict[str, tuple[str, ByteScale]] = {}
    wanted = _scales_of_readers(graph)
    steps: list[Step] = []
    for step in graph.steps:
        found = [scaled[name] for name in step.inputs if name in scaled]
        if isinstance(step, Dequantize):
            scaled[step.output] = step.inputs[0], step.x_scale
        if not _moves(step) or len(found) < len(step.inputs) or not found:
            steps.append(step)
            continue
        scale = found[0][1]
        if any(other != scale for _, other in found):
            if step.output not in wanted:
                steps.append(step)
                continue
            scale = wanted[step.output]
        inputs = []
        for i, (name, own) in enumerate(found):
            if own != scale:
                steps.append(Lookup(step.name, (name,), f"{step.output}/scaled{i}", rescaling(own, scale)))
                name = steps[-1].output
            inputs.append(name)
        moved = f"{step.output}/bytes"
        steps.append(replace(step, inputs=tuple(inputs), output=moved))
        steps.append(Dequantize(step.name, (moved,), step.output, scale))
        scaled[step.output] = moved, scale
    return needed(replace(graph, steps=tuple(steps)))


def quantized_early(graph: NetworkGraph) -> NetworkGraph:
    """Views and transposes of what is then quantised are those of integers."""
    changed = True
    while changed:
        changed, makers = False, read_once(graph)
        steps = {step.output: step for step in graph.steps}
        for step in graph.steps:
            view = steps.get(step.inputs[0]) if isinstance(step, Quantize) else None
            if isinstance(view, View | Transpose) and view.output in makers:
                moved = f"{view.output}/bytes"
                steps[view.output] = replace(step, inputs=view.inputs, output=moved)
                steps[step.output] = replace(view, inputs=(moved,), output=step.output)
                changed = True
                break
        graph = replace(graph, steps=tuple(steps.values()))
    return graph


def in_integers(graph: NetworkGraph, constants: QuantizedConstants) -> NetworkGraph:
    """Steps that read what is dequantised and whose output is quantised, on the integers."""
    readers = graph.readers()
    scaled = {s.output: (s.inputs[0], s.x_scale) for s in graph.steps if isinstance(s, Dequantize)}
    done: set[str] = set()
    steps: list[Step] = []
    for step in graph.steps:
        if step.output in done:
            continue
        if isinstance(step, Quantize) and step.inputs[0] in scaled:
            name, scale = scaled[step.inputs[0]]
            steps.append(Lookup(step.name, (name,), step.output, rescaling(scale, step.y_scale)))
            continue
        after = readers[step.output] if len(step.outputs) == 1 else []
        last = after[0] if len(after) == 1 and step.output not in graph.outputs else None
        if not all(name in scaled for name in step.inputs):
            made = None
        elif isinstance(last, Quantize):
            made = _quantized(step, last, scaled, constants)
        else:
            made = _with_float_output(step, scaled, constants)
        steps.append(made or step)
        if made is not None and isinstance(last, Quantize):
            done.add(last.output)
    return replace(graph, steps=tuple(steps))


def _quantized(step: Step, last: Quantize, scaled: Scaled, constants: QuantizedConstants) -> Step | None:
    """A step and the quantisation of its output, on the integers that it reads dequantised."""
    inputs, scales = zip(*(scaled[name] for name in step.inputs), strict=True)
    output, y_scale = last.output, last.y_scale
    if isinstance(step, Convolution) and len(inputs) == 1 and _limits(step.activation):
        return quantized_convolution(step, inputs[0], output, scales[0], y_scale, constants)
    if isinstance(step, Pooling) and step.reduction == "mean" and step.kernel is None:
        return QuantizedMean(step.name, inputs, output, scales[0], y_scale)
    if not isinstance(step, Elementwise) or step.operation not in OF_BYTES:
        return None
    if step.broadcasts or step.constant is not None:
        return None
    if step.operation == "identity":
        numbers = scales[0].numbers()
        with np.errstate(over="ignore", invalid="ignore"):
            numbers = numbers if step.activation is None else activated(numbers, step.activation)
        return Lookup(step.name, inputs, output, y_scale.integers(numbers))
    if not _limits(step.activation):
        return None
    return QuantizedArithmetic(
        step.name, inputs, output, step.operation, (*scales, y_scale), step.activation
    )  # fmt: skip


def _with_float_output(step: Step, scaled: Scaled, constants: QuantizedConstants) -> Step | None:
    """A convolution of integers whose sums nobody quantises."""
    if not isinstance(step, Convolution) or len(step.inputs) > 1:
        return None
    if step.activation is not None and step.activation.name != "relu":
        return None
    name, scale = scaled[step.inputs[0]]
    return quantized_convolution(step, name, step.output, scale, None, constants)


def rescaling(of: ByteScale, to: ByteScale) -> np.ndarray:
    """The table from integers of one scale to those of another."""
    return to.integers(of.numbers())


def with_byte_types(graph: NetworkGraph) -> NetworkGraph:
    """The graph with the types of all values of integers told."""
    types = dict(graph.dtypes)
    for step in graph.steps:
        if isinstance(step, QuantizedConvolution):
            types[step.output] = step.y_dtype
        elif isinstance(step, Quantize | QuantizedArithmetic | QuantizedMean):
            types[step.output] = "uint8"
        elif isinstance(step, Lookup):
            types.setdefault(step.output, "uint8")
        elif _moves(step) and step.inputs[0] in types:
            types[step.output] = types[step.inputs[0]]
    return replace(graph, dtypes={name: kind for name, kind in types.items() if kind != "float32"})


def _moves(step: Step) -> bool:
    """Whether elements of y are those of x, of bytes as of floats."""
    largest = isinstance(step, Pooling) and step.reduction == "max"
    return largest or isinstance(step, View | Transpose | Concatenation)


def _limits(activation: Activation | None) -> bool:
    return (activation and activation.name) in LIMITS


def _scales_of_readers(graph: NetworkGraph) -> dict[str, ByteScale]:
    """Of values that are quantised by all that read them, in one scale."""
    found = {}
    for name, readers in graph.readers().items():
        scales = {reader.y_scale for reader in readers if isinstance(reader, Quantize)}
        alone = all(isinstance(reader, Quantize) for reader in readers)
        if len(scales) == 1 and alone and name not in graph.outputs:
            found[name] = scales.pop()
    return found
