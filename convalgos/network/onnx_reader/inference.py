"""Types of the values of an ONNX model, inferred as ONNX infers them, where its operators are usual ones.

To ask ONNX itself takes 20 MB and 0.15 s, most of it for the schemas of all operators that there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from convalgos.network.onnx_reader.messages import (
    Dim,
    array_of,
    constant_tensor,
    dims_of,
    node_attributes,
)
from convalgos.network.onnx_reader.move_types import MOVES
from convalgos.network.onnx_reader.size_values import MOST, Sizes, held_sizes
from convalgos.network.onnx_reader.types import BOOL, INT64, NotInferred, TensorType, TypedNode, broadcast
from convalgos.network.onnx_reader.window_types import WINDOWS

OLDEST = 7  # opset: those before broadcast by other rules
OWN = ("", "ai.onnx")  # names of ONNX's own domain
LARGEST = 1 << 10  # numbers of a constant that tells sizes


def inferred_types(model: Any, kinds: Sequence[int] = (INT64,)) -> dict[str, TensorType] | None:
    """The types of the inputs of a ModelProto and of all that its nodes write.

    Sizes that are open and have no name get one, as they have by ONNX: what is elementwise keeps it.

    Args:
        kinds: types of values that hold sizes, those of ONNX's own inference by default.

    Returns:
        None where this cannot tell all that ONNX can.
    """
    opset = opset_of(model)
    types: dict[str, TensorType] = {}
    sizes: dict[str, Sizes] = {}
    constants: dict[str, Any] = {}  # TensorProtos

    def note(name: str, tensor: Any) -> None:
        types[name], constants[name] = TensorType(tensor.data_type, tuple(tensor.dims)), tensor
        if tensor.data_type in kinds and math.prod(tensor.dims) <= MOST:
            sizes[name] = array_of(tensor).astype(object)

    for tensor in model.graph.initializer:
        note(tensor.name, tensor)
    for value in model.graph.input:
        if not value.type.HasField("tensor_type"):
            return None
        types[value.name] = _named(value.name, type_of(value.type))
    given = {tensor.name for tensor in model.graph.initializer} - {v.name for v in model.graph.input}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.domain in OWN:
            tensor = constant_tensor(node)
            if tensor is None:
                return None
            note(node.output[0], tensor)
            continue
        found = inferred_outputs(node, opset, types, constants, sizes)
        if found is None:
            return None
        held = held_sizes(
            node.op_type, node.input, node_attributes(node), sizes,
            lambda name: types[name].dims if name in types else None, kinds,
        )  # fmt: skip
        if held is not None and held.size <= MOST:
            sizes[node.output[0]] = held
        for name, of in found.items():
            types[name] = _named(name, of)
    return {name: of for name, of in types.items() if name not in given}


def inferred_outputs(
    node: Any, opset: int, types: Mapping[str, TensorType], constants: Mapping[str, Any],
    sizes: Mapping[str, Sizes],
) -> dict[str, TensorType] | None:  # fmt: skip
    """The types of what a NodeProto writes, by name; None where this cannot tell all that ONNX can.

    Args:
        types: of what it reads.
        constants: TensorProtos of what is constant.
        sizes: of values that hold such.
    """
    of = OPERATORS.get(node.op_type) if node.domain in OWN and opset >= OLDEST else None
    if of is None:
        return None

    def constant(i: int) -> np.ndarray | None:
        tensor = constants.get(node.input[i])
        return array_of(tensor) if tensor is not None and math.prod(tensor.dims) <= LARGEST else None

    inputs = [types.get(name) if name else None for name in node.input]
    if any(name and of is None for name, of in zip(node.input, inputs, strict=True)):
        return None
    attributes = node_attributes(node)
    typed = TypedNode(
        node.op_type,
        opset,
        inputs,
        attributes,
        constant,
        lambda i: sizes.get(node.input[i]),
        len(node.output),
    )
    try:
        found = of(typed)
    except (NotInferred, LookupError, TypeError, ValueError):  # not as its operator has it: for ONNX to tell
        return None
    if len(found) < len(node.output):
        return None
    return {name: made for name, made in zip(node.output, found, strict=False) if name}


def opset_of(model: Any) -> int:
    """The version of ONNX's own operators that a ModelProto imports."""
    return max((o.version for o in model.opset_import if o.domain in OWN), default=1)


def type_of(proto: Any) -> TensorType:
    """What the TypeProto of a tensor tells."""
    dims = dims_of(proto.tensor_type)
    return TensorType(proto.tensor_type.elem_type, None if dims is None else tuple(dims))


def _named(value: str, of: TensorType) -> TensorType:
    """With names for sizes that have none."""
    if of.dims is None or None not in of.dims:
        return of
    return of._replace(dims=tuple(f"{value}.{i}" if n is None else n for i, n in enumerate(of.dims)))


# --- operators that go over elements, and products of matrices -------------------------------------


def _same(node: TypedNode) -> list[TensorType]:
    """The type of the first input."""
    return [TensorType(node.type(0).kind, node.dims(0))]


def _broadcast(node: TypedNode) -> list[TensorType]:
    return [TensorType(node.type(0).kind, broadcast([node.dims(i) for i in range(len(node.inputs))]))]


def _compared(node: TypedNode) -> list[TensorType]:
    return [TensorType(BOOL, broadcast([node.dims(0), node.dims(1)]))]


def _judged(node: TypedNode) -> list[TensorType]:
    return [TensorType(BOOL, node.dims(0))]


def _where(node: TypedNode) -> list[TensorType]:
    return [TensorType(node.type(1).kind, broadcast([node.dims(i) for i in range(3)]))]


def _cast(node: TypedNode) -> list[TensorType]:
    return [TensorType(node.attributes["to"], node.dims(0))]


def _dequantized(node: TypedNode) -> list[TensorType]:
    if node.attributes.get("output_dtype"):
        raise NotInferred
    return [TensorType(node.type(1).kind, node.dims(0))]


def _quantized(node: TypedNode) -> list[TensorType]:
    if not node.has(2) or node.attributes.get("output_dtype"):
        raise NotInferred
    return [TensorType(node.type(2).kind, node.dims(0))]


def _gemm(node: TypedNode) -> list[TensorType]:
    a, b = node.dims(0), node.dims(1)
    if len(a) != 2 or len(b) != 2:
        raise NotInferred
    turned = [node.attributes.get(name, 0) for name in ("transA", "transB")]
    return [TensorType(node.type(0).kind, (a[1 if turned[0] else 0], b[0 if turned[1] else 1]))]


def _product(node: TypedNode) -> list[TensorType]:
    """MatMul; a vector loses the dimension that it was given."""
    a, b = node.dims(0), node.dims(1)
    if not a or not b:
        raise NotInferred
    left, right = ((1, *a) if len(a) == 1 else a), ((*b, 1) if len(b) == 1 else b)
    if isinstance(left[-1], int) and isinstance(right[-2], int) and left[-1] != right[-2]:
        raise NotInferred
    rows, columns = left[-2:-1] if len(a) > 1 else (), right[-1:] if len(b) > 1 else ()
    ahead: tuple[Dim, ...] = broadcast([left[:-2], right[:-2]])
    return [TensorType(node.type(0).kind, (*ahead, *rows, *columns))]


def _of_names(of: Callable[[TypedNode], list[TensorType]], names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), of)


SHAPED_LIKE_THE_FIRST = """
    Abs Acos Acosh Asin Asinh Atan Atanh BatchNormalization Ceil
    Celu Clip Cos Cosh CumSum Dropout Elu Erf Exp Floor Gelu HardSigmoid HardSwish
    Identity InstanceNormalization LayerNormalization LeakyRelu Log LogSoftmax LRN Mish Neg Not PRelu
    Reciprocal Relu RMSNormalization Round ScatterElements ScatterND Selu Sigmoid Sign
    Sin Sinh Softmax Softplus Softsign Sqrt Tan Tanh Trilu"""
OPERATORS: dict[str, Callable[[TypedNode], Sequence[TensorType]]] = {
    **WINDOWS,
    **MOVES,
    **_of_names(_same, SHAPED_LIKE_THE_FIRST),
    **_of_names(_broadcast, "Add Sub Mul Div Mod Pow Max Min Sum Mean"),
    **_of_names(_compared, "Equal Greater Less GreaterOrEqual LessOrEqual And Or Xor"),
    **_of_names(_judged, "IsNaN IsInf"),
    "Where": _where, "Cast": _cast, "DequantizeLinear": _dequantized, "QuantizeLinear": _quantized,
    "Gemm": _gemm, "MatMul": _product,
}  # fmt: skip
