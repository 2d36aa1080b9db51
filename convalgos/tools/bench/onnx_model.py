"""The convolutions of an ONNX model, by shape inference.

Only shapes are read: the files with the weights may be absent. A symbolic batch dimension takes the size
that was asked for. A convolution that cannot be read as a `ConvProblem` is returned with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from convalgos.core.arguments import Shape
from convalgos.core.element_types import INTEGERS
from convalgos.core.errors import Unsupported, missing
from convalgos.core.problem import ConvProblem
from convalgos.network.onnx_reader.local_functions import with_functions_inlined
from convalgos.network.onnx_reader.order import bodies_of
from convalgos.onnx.attributes import CONV, checked_attributes, conv_problem
from convalgos.tools.bench.suites import Layer

DTYPES = {  # onnx.TensorProto.DataType
    1: "float32",
    2: "uint8",
    3: "int8",
    10: "float16",
    11: "float64",
    16: "bfloat16",
}
INPUTS = {  # operator -> how many inputs it has, at least and at most, and what they are
    "Conv": (2, 3, "an input, a filter and perhaps a bias"),
    "QLinearConv": (8, 9, "x, w and y with their scales and zero points, and perhaps a bias"),
    "ConvInteger": (2, 4, "an input, a filter and perhaps their zero points"),
}
ONNX_DOMAINS = ("", "ai.onnx")

Dims = tuple[int | str | None, ...]  # a number, a symbol, or nothing known
Tensors = dict[str, tuple[str | int, Dims]]  # name -> (dtype, or ONNX's number where we have none, dims)


def read_model(path: Path, batch: int | None = None) -> tuple[tuple[Layer, ...], dict[str, str]]:
    """The nodes Conv, QLinearConv and ConvInteger of a model as layers, equal ones merged, with a count.

    Those of a model in QDQ form are QLinearConv where `convalgos.onnx.fuse_quantized` makes them that.

    Args:
        path: an .onnx file.
        batch: size of the batch dimension; by default what the model says, and 1 where that is symbolic.

    Returns:
        layers: named after their (first) node. skipped: node name -> why it is not among them.

    Raises:
        ValueError: not an ONNX model, or none that can be read; says why. Unsupported: `onnx` is not
            installed. OSError: the file cannot be read.
    """
    if reason := missing("onnx"):
        raise Unsupported(f"reading {path} {reason}")
    graph, fixed_batch, skipped = _inferred(path, batch)
    suite = path.stem
    layers: dict[ConvProblem, Layer] = {}
    for node, tensors in _nodes(graph, {}):
        operator, name = _text(node.op_type), _name(node)
        if not _is_conv(node):
            if "Conv" in operator:
                skipped[name] = f"{operator} is another operator than Conv"
            continue
        try:
            problem = _problem(node, tensors)
        except ValueError as error:
            skipped[name] = " ".join(str(error).split())
            continue
        if batch is not None and fixed_batch and problem.N % fixed_batch == 0:
            n = problem.N // fixed_batch * batch
            problem = problem.replace(x_shape=(n, *problem.x_shape[1:]))
        first = layers.get(problem)
        layers[problem] = replace(first, count=first.count + 1) if first else Layer(suite, name, problem)
    return tuple(layers.values()), skipped


def _inferred(path: Path, batch: int | None) -> tuple[Any, int | None, dict[str, str]]:
    """(the graph with the shapes of its tensors, its batch size where it fixes one, the nodes taken out)."""
    import onnx

    from convalgos.onnx.fusion import fuse_quantized

    try:
        model = onnx.load(str(path), load_external_data=False)
        if not model.HasField("graph"):
            raise ValueError("it holds no graph")
        model = with_functions_inlined(model)
        fixed = _set_batch(model.graph, 1 if batch is None else batch)
        unsound = _take_out_unsound(model.graph)
        if any(node.op_type == "QuantizeLinear" for node in model.graph.node):
            model = fuse_quantized(model)
        return onnx.shape_inference.infer_shapes(model, data_prop=True).graph, fixed, unsound
    except OSError:
        raise
    except Exception as error:  # of onnx, which raises what it likes where a file is not sound
        told = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} cannot be read as an ONNX model: {told}") from None


def _take_out_unsound(graph: Any) -> dict[str, str]:
    """Remove convolutions that are not valid as such, at which ONNX would stop for all; name -> reason."""
    found: dict[str, str] = {}
    for i in reversed(range(len(graph.node))):
        node = graph.node[i]
        for body in bodies_of(node):
            found |= _take_out_unsound(body)
        if _is_conv(node):
            try:
                _attributes(node)
            except ValueError as error:
                found[_name(node)] = " ".join(str(error).split())
                del graph.node[i]
    return found


def _set_batch(graph: Any, batch: int) -> int | None:
    """Put `batch` in place of the symbol that leads the inputs; or else return the number that does."""
    weights = {tensor.name for tensor in graph.initializer}
    shapes = [i.type.tensor_type.shape.dim for i in graph.input if i.name not in weights]
    leading = [dims[0] for dims in shapes if dims]
    symbols = {dim.dim_param for dim in leading if not dim.HasField("dim_value")}
    for dim in (dim for dims in shapes for dim in dims):
        if not dim.HasField("dim_value") and dim.dim_param and dim.dim_param in symbols:
            dim.dim_value = batch
    for dim in leading:  # those without even a name
        if not dim.HasField("dim_value"):
            dim.dim_value = batch
    numbers = {dim.dim_value for dim in leading}
    return numbers.pop() if not symbols and len(numbers) == 1 else None


def _nodes(graph: Any, outer: Tensors) -> Iterator[tuple[Any, Tensors]]:
    """Every node with the tensors it sees, those of the bodies of If, Loop and Scan too."""
    tensors = dict(outer)
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type.tensor_type
        if kind.HasField("shape"):
            dims = tuple(
                d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in kind.shape.dim
            )
            tensors[value.name] = (DTYPES.get(kind.elem_type, kind.elem_type), dims)
    for tensor in graph.initializer:
        dtype = DTYPES.get(tensor.data_type, tensor.data_type)
        tensors[tensor.name] = (dtype, tuple(tensor.dims))
    for node in graph.node:
        yield node, tensors
        for body in bodies_of(node):
            yield from _nodes(body, tensors)


def _problem(node: Any, tensors: Tensors) -> ConvProblem:
    """The problem of a convolution; ValueError says what is not known or not valid."""
    import onnx

    operator = _text(node.op_type)
    dtype, x_shape = _known("input", node.input[0], tensors)
    w_dtype, w_shape = _known("filter", node.input[3 if operator == "QLinearConv" else 1], tensors)
    if isinstance(dtype, str) and (dtype in INTEGERS) == (operator == "Conv"):
        raise ValueError(f"its element type is {dtype.upper()}")
    if not isinstance(dtype, str):
        known = onnx.TensorProto.DataType.values()
        told = onnx.TensorProto.DataType.Name(dtype) if dtype in known else f"{dtype}, which is none of ONNX"
        raise ValueError(f"its element type is {told}")
    types: dict[str, Any] = {}
    if operator == "QLinearConv":
        y_dtype, _ = _known("zero point of y", node.input[7], tensors)
        _, scale = _known("scale of the filter", node.input[4], tensors)
        types = {"y_dtype": y_dtype, "scales": "per_channel" if math.prod(scale) > 1 else "per_tensor"}
    if operator != "Conv":
        types["w_dtype"] = w_dtype
    return conv_problem(x_shape, w_shape, dtype, **_attributes(node), **types)


def _attributes(node: Any) -> dict[str, Any]:
    """The attributes of a convolution; ValueError where they, or its inputs, are not valid."""
    import onnx

    operator = _text(node.op_type)
    least, most, told = INPUTS[operator]
    if not least <= len(node.input) <= most:
        raise ValueError(f"it has {len(node.input)} inputs; a {operator} has {told}")
    return checked_attributes(
        {_text(a.name): onnx.helper.get_attribute_value(a) for a in node.attribute}, CONV
    )


def _known(what: str, name: str, tensors: Tensors) -> tuple[str | int, Shape]:
    """The dtype and shape of a tensor, all of whose dimensions must be numbers."""
    dtype, dims = tensors.get(name, ("", None))
    if dims is None:
        raise ValueError(f"the shape of its {what} {name!r} is not known")
    if not all(isinstance(d, int) for d in dims):
        shape = ", ".join("?" if d is None else str(d) for d in dims)
        raise ValueError(f"the shape ({shape}) of its {what} {name!r} is not all numbers")
    return dtype, tuple(d for d in dims if isinstance(d, int))


def _is_conv(node: Any) -> bool:
    return _text(node.op_type) in INPUTS and _text(node.domain) in ONNX_DOMAINS


def _name(node: Any) -> str:
    """That of a node, or of what it gives."""
    return _text(node.name) or (_text(node.output[0]) if node.output else _text(node.op_type))


def _text(value: str | bytes) -> str:
    """A text of a file, which protobuf leaves as bytes where it is none."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
