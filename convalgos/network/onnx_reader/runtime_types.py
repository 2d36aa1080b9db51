"""Types of values behind operators that ONNX does not know, as ONNX Runtime infers them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from convalgos.core.errors import missing
from convalgos.network.onnx_reader.messages import messages, value_info


def types_by_runtime(model: Any, names: Sequence[str]) -> list[Any]:
    """The types of values of a ModelProto, of which outputs are made; none where ONNX Runtime refuses it.

    Returns:
        a ValueInfoProto of each that is a tensor.
    """
    if missing("onnxruntime"):
        return []
    import onnxruntime

    asked = messages().ModelProto()
    asked.CopyFrom(model)
    del asked.graph.output[:]
    asked.graph.output.extend(messages().ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4  # what is wrong with a model is told where it is run
    try:
        session = runtime_sessions()(asked.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except runtime_errors():
        return []
    found = []
    for value in session.get_outputs():
        kind = KINDS.get(value.type)
        if kind is not None:
            found.append(value_info(value.name, kind, value.shape))
    return found


def runtime_sessions() -> Any:
    """ONNX Runtime's `InferenceSession`, also where a program has put ours in its place in `onnxruntime`."""
    from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession

    return InferenceSession


def runtime_errors() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises: types of its own, which have no base but Exception, and those of Python."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    own = ("Fail", "InvalidArgument", "InvalidGraph", "NotImplemented", "RuntimeException", "InvalidProtobuf")
    return (RuntimeError, ValueError, *(getattr(state, name) for name in own))


KINDS = {  # of ONNX Runtime: TensorProto.DataType
    "tensor(float)": 1, "tensor(uint8)": 2, "tensor(int8)": 3, "tensor(int32)": 6, "tensor(int64)": 7,
    "tensor(bool)": 9, "tensor(float16)": 10, "tensor(double)": 11,
}  # fmt: skip
