"""OpenVINO as a peer, on integers: a model in QDQ form, which it computes in integers as far as it can."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np

from convalgos.core.problem import ConvProblem
from convalgos.select.measure.accuracy import usual_y_scale
from convalgos.tools.bench.onnxruntime_peer import attributes_of, model_of
from convalgos.tools.bench.peer import PeerCall


def openvino_call(problem: ConvProblem, x: np.ndarray, w: np.ndarray, threads: int) -> PeerCall:
    """A request of the compiled model, which reads x where it lies."""
    import openvino

    core = openvino.Core()
    model = core.read_model(BytesIO(_qdq_model(problem, w).SerializeToString()))
    compiled = core.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": threads})
    request = compiled.create_infer_request()
    request.set_input_tensor(openvino.Tensor(x, shared_memory=True))

    def call(x: np.ndarray = x) -> Any:  # the tensor does not keep the array
        request.infer()
        return request.get_output_tensor().data

    return call


def _qdq_model(problem: ConvProblem, w: np.ndarray) -> Any:
    """Of its QLinearConv with a scale for each filter, OpenVINO reads only those of one dimension too few."""
    from onnx import helper

    of_filters = problem.K if problem.scales == "per_channel" else ()
    constants = {
        "one": np.ones((), np.float32),
        "x_zero": np.zeros((), problem.dtype),
        "y_scale": np.array(usual_y_scale(problem), np.float32),
        "y_zero": np.zeros((), problem.y_dtype),
        "w": w,
        "w_scale": np.ones(of_filters, np.float32),
        "w_zero": np.zeros(of_filters, problem.w_dtype),
    }
    along: dict[str, Any] = {"axis": 0} if of_filters else {}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "one", "x_zero"], ["x_real"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["w_real"], **along),
        helper.make_node("Conv", ["x_real", "w_real"], ["y_real"], **attributes_of(problem)),
        helper.make_node("QuantizeLinear", ["y_real", "y_scale", "y_zero"], ["y"]),
    ]
    return model_of(problem, nodes, constants)


def only_requantised(problem: ConvProblem) -> str | None:
    """Why OpenVINO is not compared on a problem of integers, or None."""
    if problem.y_dtype not in ("int8", "uint8"):
        return f"OpenVINO is compared where y is int8 or uint8, not {problem.y_dtype}"
    return None
