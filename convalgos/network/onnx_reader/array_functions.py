"""Nodes of ONNX as functions of whole arrays: what no other step computes, on values of any type."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from convalgos.network.array_functions import MOST, ArrayFunction
from convalgos.network.graph import Step
from convalgos.network.onnx_reader.channels import Steps
from convalgos.network.onnx_reader.gathers import gather_call, places_of_rows, scatter_call
from convalgos.network.onnx_reader.messages import array_of, dtype_of
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode
from convalgos.network.onnx_reader.resize_options import resize_options

Given = str | np.ndarray  # an operand: the name of a value, or what is not in the model
BY_NAME = {
    "Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "quotient", "Equal": "equal", "Less": "less",
    "Greater": "greater", "GreaterOrEqual": "greater_equal", "LessOrEqual": "less_equal", "Sum": "sum_of",
    "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor", "Not": "logical_not", "Neg": "negative",
    "Abs": "absolute", "Sign": "sign", "Floor": "floor", "Ceil": "ceil", "Round": "rint", "Sqrt": "sqrt",
    "Exp": "exp", "Log": "log", "Sin": "sin", "Cos": "cos", "Tan": "tan", "Asin": "arcsin", "Acos": "arccos",
    "Atan": "arctan", "Sinh": "sinh", "Cosh": "cosh", "Asinh": "arcsinh", "Acosh": "arccosh",
    "Atanh": "arctanh", "Reciprocal": "reciprocal", "IsNaN": "isnan", "Pow": "power", "Max": "maximum",
    "Min": "minimum", "Mean": "mean_of", "Where": "where", "Identity": "same", "Cast": "cast",
    "CastLike": "cast", "Expand": "expand", "Tile": "tile", "MatMul": "matmul", "Range": "range",
    "Tanh": "tanh", "IsInf": "isinf",
}  # fmt: skip
REDUCTIONS = {
    "ReduceMax": "max", "ReduceMin": "min", "ReduceSum": "sum", "ReduceMean": "mean", "ReduceProd": "prod",
    "ReduceL1": "l1", "ReduceL2": "l2", "ReduceSumSquare": "sum_square", "ReduceLogSum": "log_sum",
    "ReduceLogSumExp": "log_sum_exp",
}  # fmt: skip
ROUNDED = ("mean", "l2", "log_sum", "log_sum_exp")  # of whole numbers
OF_SHAPES = ("Shape", "Size")
PLANNED = {  # inputs that planning has to know, by the operator
    "Expand": (1,), "Tile": (1,), "Reshape": (1,), "Range": (0, 1, 2), "Slice": (1, 2, 3, 4), "TopK": (1,),
    "ConstantOfShape": (0,), "Resize": (1, 2, 3), "Upsample": (1,), "Pad": (1, 3), "OneHot": (1,),
    "Trilu": (1,), "If": (0,), "Loop": (0, 1), **dict.fromkeys(REDUCTIONS, (1,)),
    "Split": (1,), "SplitToSequence": (1,), "Squeeze": (1,), "Unsqueeze": (1,), "CumSum": (1,),
    "CumProd": (1,), "Col2Im": (1, 2), "AffineGrid": (1,), "CenterCropPad": (1,), "MaxUnpool": (2,),
    "STFT": (1, 3), "DFT": (1, 2), "HannWindow": (0,), "HammingWindow": (0,), "BlackmanWindow": (0,),
    "MelWeightMatrix": (0, 1),
}  # fmt: skip
# Which give as many as they find, or which only a run can tell
FOUND = ("NonMaxSuppression", "NonZero", "Unique", "Compress", "StringSplit", "ImageDecoder")


class FunctionCall(NamedTuple):
    """One function, and the operands of which it makes an output."""

    function: str
    operands: Sequence[Given]
    options: dict[str, Any] = {}  # noqa: RUF012 - which nobody changes


def array_functions(node: OnnxNode, model: OnnxModel) -> Steps:
    """A step for each output of a node; None where it has no such function."""
    make = CALLS.get(node.op)
    outputs = [name for name in node.outputs if name]
    if make is None or not outputs or any(model.shape(name) is None for name in outputs):
        return None
    if not all(_is_plain(model.dtype(name)) for name in (*filter(None, node.inputs), *outputs)):
        return None
    calls = make(node, model)
    if calls is None:
        return None
    each = [*zip(node.outputs, calls, strict=False)]  # the first may be made of the last
    return [_step(node, y, call, model) for y, call in reversed(each) if y]


def tells_shapes(node: OnnxNode, model: OnnxModel) -> bool:
    """Whether the shapes of what a node gives follow from those of what it reads."""
    planned = [name for i in PLANNED.get(node.op, ()) for name in node.inputs[i : i + 1] if name]
    return node.op not in FOUND and all(follows_from_shapes(name, model) for name in planned)


def follows_from_shapes(name: str, model: OnnxModel) -> bool:
    """Whether a value is known as soon as all shapes are."""
    if name not in model.followed:
        model.followed[name] = _follows(name, model)
    return model.followed[name]


def _follows(name: str, model: OnnxModel) -> bool:
    if model.is_constant(name):
        return True
    node = model.maker(name)
    if node is not None and node.op in OF_SHAPES:
        return True
    if node is None or node.op not in CALLS or not node.inputs or not _is_small(model.shape(name)):
        return False
    if not all(follows_from_shapes(n, model) for n in node.inputs if n):
        return False
    told = (model.tried_shape(name), model.shape(name))  # of trial sizes, which may not go together; of all
    shape = next((s for s in told if s is not None and all(isinstance(n, int) for n in s)), None)
    return shape is not None and _is_small(shape)


def _is_small(shape: Sequence[int | str] | None) -> bool:
    """Whether a value may have few elements, as far as its sizes are known."""
    return shape is None or math.prod(n for n in shape if isinstance(n, int)) <= MOST


def _is_plain(dtype: str) -> bool:
    """Whether NumPy has numbers of a type, and of its own: it rounds others to infinity."""
    return bool(dtype) and np.dtype(dtype).isbuiltin == 1 and np.dtype(dtype).kind in "biuf"


def _step(node: OnnxNode, y: str, call: FunctionCall, model: OnnxModel) -> Step:
    operands = [
        model.constant(o) if isinstance(o, str) and model.is_constant(o) else o for o in call.operands
    ]
    inputs = tuple(o for o in operands if isinstance(o, str))
    constants = tuple(None if isinstance(o, str) else o for o in operands)
    options = tuple(call.options.items())
    opens = not tells_shapes(node, model)
    return ArrayFunction(node.name, inputs, y, call.function, model.dtype(y), constants, options, opens=opens)


# --- each operator: calls of its outputs -----------------------------------------------------------

Calls = list[FunctionCall] | None
CallMaker = Callable[[OnnxNode, OnnxModel], Calls]


def _by_name(node: OnnxNode, model: OnnxModel) -> Calls:
    """A function of all inputs."""
    inputs = node.inputs[:1] if node.op in ("CastLike", "Cast") else node.inputs
    if not all(node.attributes.get(name, 1) for name in ("detect_negative", "detect_positive")):
        return None  # infinities of one sign
    return [FunctionCall(BY_NAME[node.op], inputs)] if all(inputs) else None


def _mod(node: OnnxNode, model: OnnxModel) -> Calls:
    return [FunctionCall("fmod" if node.attributes.get("fmod", 0) else "mod", node.inputs)]


def _clip(node: OnnxNode, model: OnnxModel) -> Calls:
    """Between ends that may be computed; one that is not there is that of the type."""
    dtype = np.dtype(model.dtype(node.inputs[0]))
    info: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    ends: list[Given] = []
    for i, name in enumerate(("min", "max")):
        given = node.inputs[i + 1] if len(node.inputs) > i + 1 else ""
        value = node.attributes.get(name, getattr(info, name))
        ends.append(given or np.array(value, dtype))
    return [FunctionCall("clip", [node.inputs[0], *ends])]


def _reduce(node: OnnxNode, model: OnnxModel) -> Calls:
    axes = model.axes(node)
    if axes is None and len(node.inputs) > 1 and node.inputs[1]:
        return None
    if not axes and node.attributes.get("noop_with_empty_axes", 0):
        return [FunctionCall("same", node.inputs[:1])]
    if REDUCTIONS[node.op] in ROUNDED and not _is_float(node, model):
        return None
    options = {"of": REDUCTIONS[node.op], "axes": tuple(map(int, axes)) if axes else None}
    return [
        FunctionCall(
            "reduce", node.inputs[:1], options | {"keepdims": bool(node.attributes.get("keepdims", 1))}
        )
    ]


def _extreme(node: OnnxNode, model: OnnxModel) -> Calls:
    given = node.attributes.get
    options = {
        "of": "max" if node.op == "ArgMax" else "min", "axis": given("axis", 0),
        "keepdims": bool(given("keepdims", 1)), "last": bool(given("select_last_index", 0)),
    }  # fmt: skip
    return [FunctionCall("place_of_extreme", node.inputs, options)]


def _top(node: OnnxNode, model: OnnxModel) -> Calls:
    """Values are gathered from their places."""
    places = node.outputs[1] if len(node.outputs) > 1 else ""
    if len(node.inputs) < 2 or not places:
        return None
    axis = node.attributes.get("axis", -1)
    found = FunctionCall(
        "places_of_top", node.inputs, {"axis": axis, "largest": bool(node.attributes.get("largest", 1))}
    )
    return [FunctionCall("gather_elements", [node.inputs[0], places], {"axis": axis}), found]


def _running_sum(node: OnnxNode, model: OnnxModel) -> Calls:
    axis = model.number(node.inputs[1])
    if axis is None:
        return None
    exclusive, reverse = (bool(node.attributes.get(name, 0)) for name in ("exclusive", "reverse"))
    options = {"axis": int(axis), "exclusive": exclusive, "reverse": reverse}
    return [FunctionCall("running_sum", node.inputs[:1], options)]


def _triangle(node: OnnxNode, model: OnnxModel) -> Calls:
    k: Given = node.inputs[1] if len(node.inputs) > 1 and node.inputs[1] else np.array(0)
    return [FunctionCall("triangle", [node.inputs[0], k], {"upper": bool(node.attributes.get("upper", 1))})]


def _reshape(node: OnnxNode, model: OnnxModel) -> Calls:
    if len(node.inputs) < 2:
        return None
    return [FunctionCall("reshape", node.inputs, {"allowzero": bool(node.attributes.get("allowzero", 0))})]


def _squeeze(node: OnnxNode, model: OnnxModel) -> Calls:
    axes = model.axes(node)
    if axes is None and (node.op == "Unsqueeze" or any(node.inputs[1:])):
        return None
    axes = None if axes is None else tuple(map(int, axes))
    return [FunctionCall(node.op.lower(), node.inputs[:1], {"axes": axes})]


def _flatten(node: OnnxNode, model: OnnxModel) -> Calls:
    return [FunctionCall("flatten", node.inputs, {"axis": node.attributes.get("axis", 1)})]


def _transpose(node: OnnxNode, model: OnnxModel) -> Calls:
    rank = len(model.shape(node.inputs[0]) or ())
    return [
        FunctionCall(
            "transpose", node.inputs, {"order": tuple(node.attributes.get("perm", range(rank)[::-1]))}
        )
    ]


def _concatenate(node: OnnxNode, model: OnnxModel) -> Calls:
    return [FunctionCall("concatenate", node.inputs, {"axis": node.attributes["axis"]})]


def _slice(node: OnnxNode, model: OnnxModel) -> Calls:
    """From opset 10 on with its numbers as inputs."""
    parts: list[Given] = [np.array(node.attributes[name]) for name in ("starts", "ends", "axes")
                          if name in node.attributes]  # fmt: skip
    none = np.array([], np.int64)
    return [FunctionCall("slice", [node.inputs[0], *(name or none for name in node.inputs[1:]), *parts])]


def _split(node: OnnxNode, model: OnnxModel) -> Calls:
    """Slices, each between two ends."""
    shape, axis = model.shape(node.inputs[0]) or (), node.attributes.get("axis", 0)
    sizes = node.attributes.get("split")
    if len(node.inputs) > 1 and node.inputs[1]:
        sizes = model.constant(node.inputs[1])
    elif sizes is None and shape and isinstance(n := shape[axis], int):
        part = -(-n // len(node.outputs))
        sizes = [part] * len(node.outputs)
    if sizes is None or len(sizes) != len(node.outputs):
        return None
    ends = np.cumsum(sizes)
    parts = [
        [np.array([end - n]), np.array([end]), np.array([axis])] for end, n in zip(ends, sizes, strict=True)
    ]
    return [FunctionCall("slice", [node.inputs[0], *part]) for part in parts]


def _pad(node: OnnxNode, model: OnnxModel) -> Calls:
    mode = node.attributes.get("mode", b"constant").decode()
    given = [*node.inputs, "", "", ""]
    axes = model.constant(given[3]) if given[3] else np.array([], np.int64)
    if mode not in ("constant", "reflect", "edge", "wrap") or axes is None:
        return None
    pads: Given = given[1] or np.array(node.attributes.get("pads", ()))
    value: Given = given[2] or np.array(node.attributes.get("value", 0))
    return [FunctionCall("pad", [node.inputs[0], pads, value], {"mode": mode, "axes": tuple(map(int, axes))})]


def _gather(node: OnnxNode, model: OnnxModel) -> Calls:
    function, operands = gather_call(node, model, tells_shapes)
    return [FunctionCall(function, operands, {"axis": node.attributes.get("axis", 0)})]


def _gather_slices(node: OnnxNode, model: OnnxModel) -> Calls:
    if (rows := places_of_rows(node, model)) is not None:
        return [FunctionCall("gather", [node.inputs[0], rows], {"axis": 0})]
    return [FunctionCall("gather_slices", node.inputs, {"batch_dims": node.attributes.get("batch_dims", 0)})]


def _scatter(node: OnnxNode, model: OnnxModel) -> Calls:
    reduction = node.attributes.get("reduction", b"none").decode()
    if node.op == "ScatterND":
        return [FunctionCall("scatter_slices", node.inputs, {"reduction": reduction})]
    options = {"axis": node.attributes.get("axis", 0), "reduction": reduction}
    function, operands = scatter_call(node, model, tells_shapes)
    return [FunctionCall(function, operands, options)]


def _one_hot(node: OnnxNode, model: OnnxModel) -> Calls:
    return [FunctionCall("one_hot", node.inputs, {"axis": node.attributes.get("axis", -1)})]


def _shape(node: OnnxNode, model: OnnxModel) -> Calls:
    start, end = (node.attributes.get(name) for name in ("start", "end"))
    return [FunctionCall("shape", node.inputs, {"start": start or 0, "end": end})]


def _resize(node: OnnxNode, model: OnnxModel) -> Calls:
    """By scales, or to sizes; from opset 11 on behind a region of interest."""
    options = resize_options(node.op, node.attributes, model.opset)
    inputs = node.inputs[1:] if node.op == "Upsample" or model.opset < 11 else node.inputs[2:]
    if options is None or not inputs or (options["mode"] != "nearest" and not _is_float(node, model)):
        return None
    scales, sizes = (name or np.array([], np.float32) for name in (*inputs, "")[:2])
    return [FunctionCall("resize", [node.inputs[0], scales, sizes], options)]


def _is_float(node: OnnxNode, model: OnnxModel) -> bool:
    """Whether it rounds nothing: between whole numbers each operator of ONNX Runtime has its own way."""
    return np.dtype(model.dtype(node.inputs[0])).kind == "f"


def _grid_sample(node: OnnxNode, model: OnnxModel) -> Calls:
    mode = {b"bilinear": "linear", b"linear": "linear", b"nearest": "nearest"}.get(
        node.attributes.get("mode", b"linear")
    )
    if mode is None or not _is_float(node, model):
        return None
    padding = node.attributes.get("padding_mode", b"zeros").decode()
    corners = bool(node.attributes.get("align_corners", 0))
    return [FunctionCall("grid_sample", node.inputs, {"mode": mode, "padding": padding, "corners": corners})]


def _size(node: OnnxNode, model: OnnxModel) -> Calls:
    return [FunctionCall("size", node.inputs)]


def _fill(node: OnnxNode, model: OnnxModel) -> Calls:
    value = node.attributes.get("value")
    array = np.zeros(1, np.float32) if value is None else array_of(value).astype(dtype_of(value.data_type))
    return [FunctionCall("fill", [node.inputs[0], array])]


CALLS: dict[str, CallMaker] = {
    **dict.fromkeys(BY_NAME, _by_name),
    **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys(("ArgMax", "ArgMin"), _extreme),
    **dict.fromkeys(("Squeeze", "Unsqueeze"), _squeeze),
    **dict.fromkeys(("Gather", "GatherElements"), _gather),
    **dict.fromkeys(("ScatterElements", "ScatterND"), _scatter),
    "Mod": _mod, "Clip": _clip, "TopK": _top, "CumSum": _running_sum, "Trilu": _triangle,
    "Reshape": _reshape, "Flatten": _flatten, "Transpose": _transpose, "Concat": _concatenate,
    "Slice": _slice, "Split": _split, "Pad": _pad, "GatherND": _gather_slices, "OneHot": _one_hot,
    **dict.fromkeys(("Resize", "Upsample"), _resize), "GridSample": _grid_sample, "Shape": _shape,
    "Size": _size, "ConstantOfShape": _fill,
}  # fmt: skip
