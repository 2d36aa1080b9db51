"""Nodes of an ONNX model with known inputs, computed: usual ones by NumPy, all others by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from convalgos.core.array_functions import ARRAY_FUNCTIONS
from convalgos.core.array_operands import Operand
from convalgos.core.errors import missing
from convalgos.network.onnx_reader.lists import as_lists
from convalgos.network.onnx_reader.messages import (
    array_of,
    dtype_of,
    kind_of_dtype,
    messages,
    node_attributes,
    value_info,
)
from convalgos.network.onnx_reader.resize_options import resize_options
from convalgos.network.onnx_reader.runtime_types import runtime_errors, runtime_sessions

Arrays = Sequence[np.ndarray]
Attributes = dict[str, Any]
FUNCTIONS = {
    "Abs": np.absolute, "Add": np.add, "And": np.logical_and, "Ceil": np.ceil, "Cos": np.cos,
    "Equal": np.equal, "Exp": np.exp, "Floor": np.floor, "Greater": np.greater, "Less": np.less,
    "Log": np.log, "Max": np.maximum, "Min": np.minimum, "Mul": np.multiply, "Neg": np.negative,
    "Not": np.logical_not, "Or": np.logical_or, "Pow": np.power, "Sin": np.sin, "Sub": np.subtract,
}  # fmt: skip
NUMBERS = "biuf"  # kinds of NumPy types that hold some


def computed(
    node: Any, inputs: Sequence[np.ndarray | None], opsets: Sequence[Any]
) -> list[np.ndarray] | None:
    """The outputs of a node; None where nothing here computes them.

    Args:
        inputs: None for those that it leaves out.
        opsets: those that the model imports.
    """
    if any(x is not None and x.dtype.kind not in NUMBERS for x in inputs):
        return None
    inputs = as_lists(node.op_type, inputs)
    if node.op_type == "Resize" and inputs[0] is not None and inputs[0].dtype.kind == "f":
        resized = _resized(inputs[0], inputs[2:], node, opsets)
        if resized is not None:
            return [resized]
    if node.op_type in BY_NUMPY and all(x is not None for x in inputs):
        attributes = node_attributes(node)
        try:
            with np.errstate(all="ignore"):  # as a run tells of none
                found = BY_NUMPY[node.op_type]([x for x in inputs if x is not None], attributes)
        except (ValueError, LookupError, TypeError):  # not of this kind: it is for others to tell
            found = None
        if found is not None:
            return [np.asarray(found)]
    return _by_runtime(node, inputs, opsets)


def _by_runtime(
    node: Any, inputs: Sequence[np.ndarray | None], opsets: Sequence[Any]
) -> list[np.ndarray] | None:
    if missing("onnxruntime"):
        return None
    import onnxruntime

    given = {name: x for name, x in zip(node.input, inputs, strict=True) if x is not None}
    declared = [value_info(name, kind_of_dtype(x.dtype), x.shape) for name, x in given.items()]
    outputs = [messages().ValueInfoProto(name=name) for name in node.output if name]
    graph = messages().GraphProto(name="constant", node=[node], input=declared, output=outputs)
    model = messages().ModelProto(graph=graph, opset_import=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1  # fatal ones only
    try:
        session = runtime_sessions()(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found = session.run(None, given)
    except runtime_errors():
        return None
    arrays = iter(found)
    return [next(arrays) if name else np.empty(0) for name in node.output]


# --- by NumPy --------------------------------------------------------------------------------


def _axes(x: Arrays, attributes: Attributes) -> tuple[int, ...] | None:
    """Of a node that has them as an attribute, in later opsets as an input."""
    axes = x[1] if len(x) > 1 else attributes.get("axes")
    return None if axes is None else tuple(int(a) for a in axes)


def _cast(x: Arrays, attributes: Attributes) -> np.ndarray | None:
    dtype = dtype_of(attributes["to"])
    if dtype.kind not in NUMBERS or (x[0].dtype.kind == "f" and dtype.kind in "iu"):  # which may not fit
        return None
    return x[0].astype(dtype)


def _constant_of_shape(x: Arrays, attributes: Attributes) -> np.ndarray:
    value = array_of(attributes["value"]) if "value" in attributes else np.zeros(1, np.float32)
    return np.broadcast_to(value.reshape(-1)[0], tuple(x[0]))  # which takes the memory of one element


def _divided(x: Arrays, attributes: Attributes) -> np.ndarray | None:
    return x[0] / x[1] if x[0].dtype.kind == "f" else None  # whole numbers: towards zero


def _expanded(x: Arrays, attributes: Attributes) -> np.ndarray:
    shape = np.broadcast_shapes(x[0].shape, tuple(x[1]))
    return np.ascontiguousarray(np.broadcast_to(x[0], shape)).reshape(shape)


def _gathered(x: Arrays, attributes: Attributes) -> np.ndarray:
    return np.take(x[0], x[1], attributes.get("axis", 0))


def _range(x: Arrays, attributes: Attributes) -> np.ndarray | None:
    begin, end, step = (int(n) for n in x)
    return np.arange(begin, end, step, dtype=x[0].dtype) if x[0].dtype.kind == "i" else None


def _reshaped(x: Arrays, attributes: Attributes) -> np.ndarray | None:
    if attributes.get("allowzero") and 0 in x[1]:
        return None
    return x[0].reshape([x[0].shape[i] if n == 0 else int(n) for i, n in enumerate(x[1])])


def _resized(
    x: np.ndarray, others: Sequence[np.ndarray | None], node: Any, opsets: Sequence[Any]
) -> np.ndarray | None:
    """By scales or to sizes, those of `others` that are there."""
    opset = max((o.version for o in opsets if not o.domain), default=1)
    options, function = resize_options("Resize", node_attributes(node), opset), ARRAY_FUNCTIONS["resize"]
    given = [np.array([], np.float32) if array is None else array for array in (*others, None, None)[:2]]
    if options is None or opset < 11 or not any(array.size for array in given):
        return None
    y = np.empty(function.shape(*(Operand(a.shape, a) for a in (x, *given)), **options), x.dtype)
    function.compute(y, x, *given, **options)
    return y


def _scattered(x: Arrays, attributes: Attributes) -> np.ndarray | None:
    if attributes.get("reduction", b"none") != b"none":
        return None
    y = x[0].copy()
    y[tuple(np.moveaxis(x[1], -1, 0))] = x[2]
    return y


def _sliced(x: Arrays, attributes: Attributes) -> np.ndarray | None:
    if len(x) < 3:  # opsets in which they are attributes
        return None
    axes = x[3] if len(x) > 3 else np.arange(len(x[1]))
    steps = x[4] if len(x) > 4 else np.ones(len(x[1]), np.int64)
    cut = [slice(None)] * x[0].ndim
    for axis, *of in zip(axes, x[1], x[2], steps, strict=True):
        cut[axis] = slice(*map(int, of))
    return x[0][tuple(cut)]


def _transposed(x: Arrays, attributes: Attributes) -> np.ndarray:
    return x[0].transpose(attributes.get("perm"))


def _unsqueezed(x: Arrays, attributes: Attributes) -> np.ndarray:
    return np.expand_dims(x[0], _axes(x, attributes) or ())


def _elementwise(of: Callable[..., Any]) -> Callable[[Arrays, Attributes], np.ndarray | None]:
    """A ufunc; None where it would change the type, as ONNX never does."""

    def applied(x: Arrays, attributes: Attributes) -> np.ndarray | None:
        dtypes = {array.dtype for array in x}
        found = np.asarray(of(*x)) if len(dtypes) == 1 else None
        return found if found is not None and found.dtype in (*dtypes, np.bool_) else None

    return applied


def _reduced(of: Callable[..., Any]) -> Callable[[Arrays, Attributes], np.ndarray | None]:
    def applied(x: Arrays, attributes: Attributes) -> np.ndarray | None:
        axes = _axes(x, attributes)
        if not axes and attributes.get("noop_with_empty_axes"):
            return None
        keep = bool(attributes.get("keepdims", 1))
        return np.asarray(of(x[0], axis=axes or None, keepdims=keep), x[0].dtype)

    return applied


BY_NUMPY: dict[str, Callable[[Arrays, Attributes], np.ndarray | None]] = {
    **{op: _elementwise(function) for op, function in FUNCTIONS.items()},
    "ReduceMax": _reduced(np.max),
    "ReduceMin": _reduced(np.min),
    "ReduceProd": _reduced(np.prod),
    "ReduceSum": _reduced(np.sum),
    "Tile": lambda x, attributes: np.tile(x[0], x[1]),
    "Cast": _cast,
    "Concat": lambda x, attributes: np.concatenate(x, attributes["axis"]),
    "ConstantOfShape": _constant_of_shape,
    "Div": _divided,
    "Expand": _expanded,
    "Gather": _gathered,
    "Identity": lambda x, attributes: x[0],
    "Range": _range,
    "Reshape": _reshaped,
    "ScatterND": _scattered,
    "Shape": lambda x, attributes: np.array(
        x[0].shape[slice(attributes.get("start"), attributes.get("end"))], np.int64
    ),
    "Slice": _sliced,
    "Sqrt": lambda x, attributes: np.sqrt(x[0]) if x[0].dtype.kind == "f" else None,
    "Transpose": _transposed,
    "Unsqueeze": _unsqueezed,
    "Where": lambda x, attributes: np.where(*x) if x[1].dtype == x[2].dtype else None,
}
