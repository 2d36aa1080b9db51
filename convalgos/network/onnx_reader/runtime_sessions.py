"""Sessions of ONNX Runtime: those that work beside this library's threads, and others that are alone."""

from __future__ import annotations

from functools import cache
from typing import Any

from convalgos.network.onnx_reader.runtime_types import runtime_errors, runtime_sessions

AS_ASKED_FOR = {"arena_extend_strategy": 1}  # else an arena doubles each time that it grows
WRONG_OF_VECTORS = ["MatmulTransposeFusion"]  # of ONNX Runtime: it leaves the transpose out


def runtime_session(model: Any, threads: int, is_alone: bool = False) -> Any:
    """ONNX Runtime's session of a ModelProto, of the bytes of one, or of a path.

    Args:
        is_alone: as it is by itself; else this library's threads work beside its runs.

    Raises:
        ValueError: it refuses the model; its words name the node.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors
    if not is_alone:
        # the pattern takes all memory once more as one piece, from the second run on, and threads that wait
        # for work would keep the cores from the steps that follow
        options.enable_mem_pattern = False
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if _shares_memory():
            options.add_session_config_entry("session.use_env_allocators", "1")
    is_read = not isinstance(model, str | bytes)
    multiplies = not is_read or _may_multiply_vectors(model.graph)
    try:
        return runtime_sessions()(
            model.SerializeToString() if is_read else model, options, providers=["CPUExecutionProvider"],
            disabled_optimizers=WRONG_OF_VECTORS if multiplies else None,
        )  # fmt: skip
    except runtime_errors() as error:
        raise ValueError(f"ONNX Runtime does not take what is left to it: {error}") from None


def _may_multiply_vectors(graph: Any) -> bool:
    """Whether a MatMul reads what is of one dimension, or of a number that only ONNX Runtime knows."""
    ranks = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    ranks |= {value.name: len(value.type.tensor_type.shape.dim) for value in graph.input}
    products = (node for node in graph.node if node.op_type == "MatMul")
    return any(ranks.get(name, 1) < 2 for node in products for name in node.input)


@cache
def _shares_memory() -> bool:
    """Whether sessions take what they compute in from one arena: each would keep one of its own, else.

    A network may have dozens of regions, and only one of them runs at a time.
    """
    import onnxruntime

    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    try:
        onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg(AS_ASKED_FOR))
    except runtime_errors():  # the program has one already, which serves
        return False
    return True
