"""PyTorch's quantised convolutions as a peer: an engine each, x of uint8 and the filter of int8."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from convalgos.core.problem import ConvProblem
from convalgos.select.measure.accuracy import usual_y_scale
from convalgos.tools.bench.peer import PeerCall


def torch_quantized_call(
    problem: ConvProblem, x: np.ndarray, w: np.ndarray, threads: int, *, engine: str
) -> PeerCall:
    """A quantised convolution with our own scale of y; x is channels last, as engines read."""
    import torch

    torch.set_num_threads(threads)
    with warnings.catch_warnings():  # that there will be other ones
        warnings.simplefilter("ignore")
        given = torch._make_per_tensor_quantized_tensor(torch.from_numpy(x), 1.0, 0)
        filters = _prepacked(problem, w, engine)
    if problem.ndim > 1:
        last = torch.channels_last if problem.ndim == 2 else torch.channels_last_3d
        given = given.contiguous(memory_format=last)
    y_scale = usual_y_scale(problem)
    conv = getattr(torch.ops.quantized, f"conv{problem.ndim}d")

    @torch.inference_mode()
    def call() -> Any:
        return _Quantized(conv(given, filters, y_scale, 0))

    return call


class _Quantized:
    """A quantised tensor, whose integers are copied only where they are looked at."""

    def __init__(self, tensor: Any):
        self._tensor = tensor

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        found: np.ndarray = self._tensor.int_repr().numpy()
        return found


def _prepacked(problem: ConvProblem, w: np.ndarray, engine: str) -> Any:
    """The filter of an engine, by which it will be run."""
    import torch

    low = [low for low, _ in problem.padding]
    previous, torch.backends.quantized.engine = torch.backends.quantized.engine, engine
    try:
        prepack = getattr(torch.ops.quantized, f"conv{problem.ndim}d_prepack")
        return prepack(_filter(problem, w), None, problem.stride, low, problem.dilation, problem.groups)
    finally:
        torch.backends.quantized.engine = previous


def _filter(problem: ConvProblem, w: np.ndarray) -> Any:
    import torch

    tensor = torch.from_numpy(w)
    if problem.scales == "per_tensor":
        return torch._make_per_tensor_quantized_tensor(tensor, 1.0, 0)
    ones, zeros = torch.ones(problem.K, dtype=torch.float64), torch.zeros(problem.K, dtype=torch.int64)
    return torch._make_per_channel_quantized_tensor(tensor, ones, zeros, 0)


def only_uint8_by_int8(problem: ConvProblem) -> str | None:
    """Why torch is not compared on a problem of integers, or None."""
    types = problem.dtype, problem.w_dtype, problem.y_dtype
    if types != ("uint8", "int8", "uint8"):
        return f"torch quantises x and y to uint8 and w to int8, not to {', '.join(types)}"
    if any(low != high for low, high in problem.padding):
        return "torch pads both sides alike where x is quantised"
    return None
