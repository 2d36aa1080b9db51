"""The convolutions of an ONNX model, by shape inference.

Only shapes are read, so a model whose weights lie in files that are absent will do. A symbolic batch
dimension takes the size asked for. Nodes that are convolutions but cannot be read as a `ConvProblem` are
handed back with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from convalgos.algorithm import Unsupported, missing
from convalgos.arguments import Pads, Shape
from convalgos.problem import ConvProblem
from convalgos.suites import Layer

DTYPES = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}  # onnx.TensorProto.DataType
ONNX_DOMAINS = ("", "ai.onnx")

Dims = tuple[int | str | None, ...]  # a number, a symbol, or nothing known
Tensors = dict[str, tuple[str | int, Dims]]  # name -> (dtype, or ONNX's number where we have none, dims)


def read_model(path: Path, batch: int | None = None) -> tuple[tuple[Layer, ...], dict[str, str]]:
    """The Conv nodes of a model as layers, equal ones merged into one with a count.

    Args:
        path: an .onnx file.
        batch: size of the batch dimension; by default what the model says, and 1 where that is symbolic.

    Returns:
        layers: named after their (first) node. skipped: node name -> why it is not among them.

    Raises:
        ValueError: not an ONNX model. Unsupported: `onnx` is not installed. OSError: cannot be read.
    """
    if reason := missing("onnx"):
        raise Unsupported(f"reading {path} {reason}")
    graph, fixed_batch = _inferred(path, batch)
    suite = path.stem
    layers: dict[ConvProblem, Layer] = {}
    skipped: dict[str, str] = {}
    for node, tensors in _nodes(graph, {}):
        if "Conv" not in node.op_type:
            continue
        name = node.name or (node.output[0] if node.output else node.op_type)
        if node.op_type != "Conv" or node.domain not in ONNX_DOMAINS:
            skipped[name] = f"{node.op_type} is another operator than Conv"
            continue
        try:
            problem = _problem(node, tensors)
        except ValueError as error:
            skipped[name] = str(error)
            continue
        if batch is not None and fixed_batch and problem.N % fixed_batch == 0:
            n = problem.N // fixed_batch * batch
            problem = problem.replace(x_shape=(n, *problem.x_shape[1:]))
        first = layers.get(problem)
        layers[problem] = replace(first, count=first.count + 1) if first else Layer(suite, name, problem)
    return tuple(layers.values()), skipped


def conv_problem(
    x_shape: Shape,
    w_shape: Shape,
    dtype: str,
    *,
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    group: int | None = None,
    auto_pad: str | None = None,
) -> ConvProblem:
    """The problem of a Conv node, from its attributes as ONNX defines them; None is an absent one.

    Raises:
        ValueError: they are not valid.
    """
    pads = pads or [0] * (2 * (len(x_shape) - 2))  # every low, then every high
    padding: Any = tuple(zip(pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True))
    if auto_pad not in (None, "NOTSET"):
        padding = "valid" if auto_pad == "VALID" else "same"
    problem = ConvProblem(
        x_shape, w_shape, strides or 1, padding, dilations or 1, 1 if group is None else group, dtype=dtype
    )
    if auto_pad == "SAME_LOWER":
        problem = problem.replace(padding=_swapped(problem.padding))
    return problem


def _inferred(path: Path, batch: int | None) -> tuple[Any, int | None]:
    """(the model's graph with the shapes of its tensors, its batch size where the model fixes one)."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(str(path), load_external_data=False)
        if model.functions:
            from onnx.inliner import inline_local_functions

            model = inline_local_functions(model)
        if not model.HasField("graph"):
            raise DecodeError("it holds no graph")
        fixed = _set_batch(model.graph, 1 if batch is None else batch)
        return onnx.shape_inference.infer_shapes(model, data_prop=True).graph, fixed
    except (DecodeError, onnx.shape_inference.InferenceError, RuntimeError) as error:
        raise ValueError(f"{path} cannot be read as an ONNX model: {error}") from None


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
        for attribute in node.attribute:
            for body in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _nodes(body, tensors)


def _problem(node: Any, tensors: Tensors) -> ConvProblem:
    """The problem of a Conv node; ValueError says what is not known or not valid."""
    import onnx

    dtype, x_shape = _known("input", node.input[0], tensors)
    _, w_shape = _known("filter", node.input[1], tensors)
    if not isinstance(dtype, str):
        raise ValueError(f"its element type is {onnx.TensorProto.DataType.Name(dtype)}")
    given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    given.pop("kernel_shape", None)  # says again what the shape of the filter says
    if "auto_pad" in given:
        given["auto_pad"] = given["auto_pad"].decode()
    return conv_problem(x_shape, w_shape, dtype, **given)


def _known(what: str, name: str, tensors: Tensors) -> tuple[str | int, Shape]:
    """The dtype and shape of a tensor, all of whose dimensions must be numbers."""
    dtype, dims = tensors.get(name, ("", None))
    if dims is None:
        raise ValueError(f"the shape of its {what} {name!r} is not known")
    if not all(isinstance(d, int) for d in dims):
        shape = ", ".join("?" if d is None else str(d) for d in dims)
        raise ValueError(f"the shape ({shape}) of its {what} {name!r} is not all numbers")
    return dtype, tuple(d for d in dims if isinstance(d, int))


def _swapped(padding: Pads) -> Pads:
    return tuple((high, low) for low, high in padding)
