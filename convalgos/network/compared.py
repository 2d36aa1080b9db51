"""Convolutions whose channels are compared with each other: those before a softmax or an argmax.

Filters that are equal, as of classes that training never met, should come out equal there: a softmax of large
numbers shows the last bits of what it is given, and an argmax nothing else.
"""

from __future__ import annotations

from convalgos.network.array_functions import ArrayFunction
from convalgos.network.attention import Attention, Product
from convalgos.network.dynamic_convolutions import DynamicConvolution
from convalgos.network.graph import Convolution, Foreign, NetworkGraph, Step, TransposedConvolution
from convalgos.network.quantized_graph import QuantizedConvolution
from convalgos.network.softmax import Softmax

# Operators of ONNX and of torch, in lower case and without underscores
COMPARE = {
    "placeofextreme",
    "placesoftop",
    "softmax",
    "logsoftmax",
    "hardmax",
    "argmax",
    "argmin",
    "topk",
    "qlinearsoftmax",
}
MULTIPLY = {"matmul", "matmulinteger", "qlinearmatmul", "gemm", "einsum", "mm", "bmm", "addmm", "baddbmm"}


def compared(graph: NetworkGraph) -> frozenset[Step]:
    """The convolutions between which and a comparison stands no other one, nor a product of matrices."""
    makers = {name: step for step in graph.steps for name in step.outputs}
    left = [name for step in graph.steps if _first_of(step) in COMPARE for name in step.inputs]
    seen, found = set(left), set[Step]()
    while left:
        step = makers.get(left.pop())
        if isinstance(step, Convolution | TransposedConvolution | QuantizedConvolution):
            found.add(step)
        elif step is not None and _first_of(step) not in MULTIPLY:
            left += [name for name in step.inputs if name not in seen]
            seen.update(step.inputs)
    return frozenset(found)


def _first_of(step: Step) -> str:
    """The first operator of another library's region that compares or multiplies: what comes behind it reads
    what it gives. "" where there is none."""
    if isinstance(step, Softmax):
        return "softmax"
    if isinstance(step, Attention | Product | DynamicConvolution):
        return "matmul"
    operators = step.region.operators if isinstance(step, Foreign) and step.region is not None else ()
    if isinstance(step, ArrayFunction):
        operators = [step.function]
    names = (operator.rpartition(".")[2].replace("_", "").lower() for operator in operators)
    return next((name for name in names if name in COMPARE | MULTIPLY), "")
