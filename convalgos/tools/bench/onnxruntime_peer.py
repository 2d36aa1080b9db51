"""ONNX Runtime as a peer."""

from __future__ import annotations

import numpy as np

from convalgos.core.problem import ConvProblem
from convalgos.tools.bench.peer import PeerCall


def onnxruntime_call(problem: ConvProblem, x: np.ndarray, w: np.ndarray, threads: int) -> PeerCall:
    """A model of one node; the filter is an initializer, so that it is packed once; y is allocated once."""
    import onnxruntime
    from onnx import helper, numpy_helper

    dtype = helper.np_dtype_to_tensor_dtype(x.dtype)
    node = helper.make_node(
        "Conv",
        ["x", "w"],
        ["y"],
        strides=problem.stride,
        dilations=problem.dilation,
        pads=[low for low, _ in problem.padding] + [high for _, high in problem.padding],
        group=problem.groups,
    )
    graph = helper.make_graph(
        [node],
        "conv",
        [helper.make_tensor_value_info("x", dtype, x.shape)],
        [helper.make_tensor_value_info("y", dtype, problem.y_shape)],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors are raised already
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    y = np.empty(problem.y_shape, x.dtype)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, x.dtype, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, y.dtype, y.shape, y.ctypes.data)

    def call(x: np.ndarray = x) -> np.ndarray:  # binding knows only the address of x: keep the array
        session.run_with_iobinding(binding)
        return y

    return call
