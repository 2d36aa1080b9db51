"""ONNX Runtime as a peer: Conv, and on integers QLinearConv and ConvInteger."""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.core.element_types import INTEGERS
from convalgos.core.plan import numpy_dtype, result_dtype
from convalgos.core.problem import ConvProblem
from convalgos.select.measure.accuracy import usual_y_scale
from convalgos.tools.bench.peer import PeerCall

SERVED = (  # types of x, w and y of its QLinearConv, and of ConvInteger
    ("uint8", "int8", "uint8"),
    ("uint8", "uint8", "uint8"),
    ("int8", "int8", "int8"),
    ("uint8", "int8", "int32"),
    ("uint8", "uint8", "int32"),
)


def onnxruntime_call(problem: ConvProblem, x: np.ndarray, w: np.ndarray, threads: int) -> PeerCall:
    """The model of a convolution, in which the filter is packed once; y is allocated once."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors are raised already
    session = onnxruntime.InferenceSession(
        _conv_model(problem, w).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    y = np.empty(problem.y_shape, result_dtype(problem))
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, x.dtype, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, y.dtype, y.shape, y.ctypes.data)

    def call(x: np.ndarray = x) -> np.ndarray:  # binding knows only the address of x: keep the array
        session.run_with_iobinding(binding)
        return y

    return call


def _conv_model(problem: ConvProblem, w: np.ndarray) -> Any:
    """A model of one node, whose filter is an initializer; the scale of y is our own."""
    from onnx import helper

    operator, constants = _operands(problem, w)
    node = helper.make_node(operator, ["x", *constants], ["y"], **attributes_of(problem))
    return model_of(problem, [node], constants)


def attributes_of(problem: ConvProblem) -> dict[str, Any]:
    """A problem as the attributes of a Conv node."""
    return {
        "strides": problem.stride,
        "dilations": problem.dilation,
        "pads": [low for low, _ in problem.padding] + [high for _, high in problem.padding],
        "group": problem.groups,
    }


def model_of(problem: ConvProblem, nodes: list[Any], constants: dict[str, np.ndarray]) -> Any:
    """The model of nodes that make the y of a problem of its x and of constants."""
    from onnx import helper, numpy_helper

    dtypes = numpy_dtype(problem.dtype), result_dtype(problem)
    of_x, of_y = map(helper.np_dtype_to_tensor_dtype, dtypes)
    graph = helper.make_graph(
        nodes,
        "conv",
        [helper.make_tensor_value_info("x", of_x, problem.x_shape)],
        [helper.make_tensor_value_info("y", of_y, problem.y_shape)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _operands(problem: ConvProblem, w: np.ndarray) -> tuple[str, dict[str, np.ndarray]]:
    """The operator, and its constant inputs after x by name."""
    if problem.dtype not in INTEGERS:
        return "Conv", {"w": w}
    if problem.y_dtype == "int32":
        return "ConvInteger", {"w": w}
    of_filters = problem.K if problem.scales == "per_channel" else ()
    return "QLinearConv", {
        "x_scale": np.ones((), np.float32),
        "x_zero_point": np.zeros((), problem.dtype),
        "w": w,
        "w_scale": np.ones(of_filters, np.float32),
        "w_zero_point": np.zeros(of_filters, problem.w_dtype),
        "y_scale": np.array(usual_y_scale(problem), np.float32),
        "y_zero_point": np.zeros((), problem.y_dtype),
    }


def only_served_types(problem: ConvProblem) -> str | None:
    """Why ONNX Runtime is not compared on a problem of integers, or None."""
    types = problem.dtype, problem.w_dtype, problem.y_dtype
    if problem.dtype in INTEGERS and types not in SERVED:
        return f"ONNX Runtime has no convolution of {types[0]} with {types[1]} to {types[2]}"
    return None
