"""PyTorch as a peer: its convolutions and what autograd calls for their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from convalgos.core.arrays import like
from convalgos.core.problem import ConvProblem
from convalgos.gpu import device as gpu
from convalgos.tools.bench.peer import PeerCall


def torch_convolution(
    problem: ConvProblem, x: np.ndarray, w: np.ndarray, threads: int, *, channels_last: bool, device: str = ""
) -> PeerCall:
    """A convolution of torch, or one of its gradients, on the CPU or on a device."""
    import torch
    from torch.nn import functional

    x_tensor, w_tensor = _tensors(problem, (x, w), threads, channels_last, device)
    if problem.direction != "forward":
        return _torch_gradient(problem, x_tensor, w_tensor)
    conv = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[problem.ndim]
    padding: Any = tuple(low for low, _ in problem.padding)
    first: list[int] = []  # torch pads both sides alike; anything else its user has to pad before
    if any(low != high for low, high in problem.padding):
        padding, first = 0, [size for pair in reversed(problem.padding) for size in pair]

    @torch.inference_mode()
    def call() -> Any:
        padded = functional.pad(x_tensor, first) if first else x_tensor
        return conv(padded, w_tensor, None, problem.stride, padding, problem.dilation, problem.groups)

    return call


def torch_backward(
    problem: ConvProblem,
    x: np.ndarray,
    w: np.ndarray,
    dy: np.ndarray,
    threads: int,
    *,
    channels_last: bool,
    device: str = "",
) -> PeerCall:
    """Both gradients in one call, as autograd asks for them."""
    x_tensor, w_tensor, dy_tensor = _tensors(problem, (x, w, dy), threads, channels_last, device)
    return _aten_backward(problem, dy_tensor, x_tensor, w_tensor, (True, True))


def _tensors(
    problem: ConvProblem, arrays: Sequence[np.ndarray], threads: int, channels_last: bool, device: str
) -> list[Any]:
    """Arrays as torch takes them, with its threads and its cuDNN set as the problem asks for."""
    import torch

    found = [like(array, torch.empty(0)) for array in arrays]
    if device:
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = problem.compute_dtype == "tf32"
        found = [t.to(device) for t in found]
    else:
        torch.set_num_threads(threads)
    if channels_last:
        memory_format = {2: torch.channels_last, 3: torch.channels_last_3d}[problem.ndim]
        found = [t.to(memory_format=memory_format) for t in found]
    return found


def _torch_gradient(problem: ConvProblem, first: Any, second: Any) -> PeerCall:
    """What autograd calls for one of the gradients, of tensors in the order of `problem.arrays`."""
    import torch

    p, of_filter = problem, problem.direction == "backward_weights"
    # The array that is not there gives the shape of the gradient.
    dy, x, w = (second, first, None) if of_filter else (first, None, second)
    x = dy.new_empty(1).expand(p.x_shape) if x is None else x
    w = dy.new_empty(1).expand(p.w_shape) if w is None else w
    if first.is_contiguous(memory_format=torch.contiguous_format):
        x, w = x.contiguous(), w.contiguous()
    else:
        kept = torch.channels_last if p.ndim == 2 else torch.channels_last_3d
        x, w = x.contiguous(memory_format=kept), w.contiguous(memory_format=kept)
    backward = _aten_backward(p, dy, x, w, (not of_filter, of_filter))
    return lambda: backward()[int(of_filter)]


def _aten_backward(problem: ConvProblem, dy: Any, x: Any, w: Any, wanted: tuple[bool, bool]) -> PeerCall:
    """(dx, dw) of those that are wanted."""
    import torch

    p = problem
    low = [low for low, _ in p.padding]

    @torch.inference_mode()
    def call() -> Any:
        return torch.ops.aten.convolution_backward(
            dy, x, w, None, p.stride, low, p.dilation, False, [0] * p.ndim, p.groups, [*wanted, False]
        )[:2]

    return call


def no_uneven_gradients(problem: ConvProblem) -> str | None:
    """Why torch is not compared on a problem, channels first."""
    uneven = problem.direction != "forward" and any(low != high for low, high in problem.padding)
    return "torch pads both sides alike in its gradients" if uneven else None


def only_planes(problem: ConvProblem) -> str | None:
    """Why torch is not compared on a problem, channels last."""
    if problem.ndim == 1:
        return "torch has channels_last in 2-D and 3-D only"
    return no_uneven_gradients(problem)


def on_gpu(function: Callable[..., PeerCall], channels_last: bool) -> Callable[..., PeerCall]:
    """With torch's own search for the best of cuDNN, and TF32 only where the problem asks for it."""

    def build(*arguments: Any) -> PeerCall:
        return function(*arguments, channels_last=channels_last, device=gpu.current().name)

    return build
