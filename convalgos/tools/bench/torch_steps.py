"""The steps of a network's graph by torch's functions: torch as a peer on models that it cannot read."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from convalgos.core.epilogue import Activation
from convalgos.core.errors import Unsupported
from convalgos.network.graph import (
    Concatenation,
    Convolution,
    Elementwise,
    NetworkGraph,
    Pooling,
    Step,
    TransposedConvolution,
    Upsampling,
    View,
)


class TorchSteps(nn.Module):
    """A graph as a module.

    Raises:
        Unsupported: a step of it is another library's.
    """

    def __init__(self, graph: NetworkGraph):
        super().__init__()
        self.graph = graph
        known = (
            Convolution, TransposedConvolution, Pooling, Elementwise, Concatenation, Upsampling, View,
        )  # fmt: skip
        for i, step in enumerate(graph.steps):
            if not isinstance(step, known):
                raise Unsupported(f"step {step.name} is a {type(step).__name__}, which is not torch's")
            if isinstance(step, Convolution | TransposedConvolution):
                self.register_buffer(f"w{i}", torch.from_numpy(step.w.copy()))
                bias = None if step.bias is None else torch.from_numpy(step.bias.copy())
                self.register_buffer(f"bias{i}", bias)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        values = dict(zip(self.graph.inputs, inputs, strict=True))
        for i, step in enumerate(self.graph.steps):
            values[step.output] = self._computed(i, step, [values[name] for name in step.inputs])
        return tuple(values[name] for name in self.graph.outputs)

    def _computed(self, i: int, step: Step, x: list[Tensor]) -> Tensor:
        if isinstance(step, Convolution | TransposedConvolution):
            y = self._convolved(i, step, x[0])
            return _activated(y + x[1] if len(x) > 1 else y, step.activation)
        if isinstance(step, Elementwise):
            a = x[0]
            if step.operation != "identity":
                a = a * x[1] if step.operation == "multiply" else a + x[1]
            return _activated(a, step.activation)
        if isinstance(step, Pooling):
            return _pooled(step, x[0])
        if isinstance(step, Concatenation):
            return torch.cat(x, 1)
        if isinstance(step, Upsampling):
            return F.interpolate(x[0], scale_factor=tuple(map(float, step.factors)))
        assert isinstance(step, View)
        return x[0].reshape([x[0].shape[d] if n == 0 else n for d, n in enumerate(step.shape)])

    def _convolved(self, i: int, step: Convolution | TransposedConvolution, x: Tensor) -> Tensor:
        w, bias = getattr(self, f"w{i}"), getattr(self, f"bias{i}")
        problem = step.problem(tuple(x.shape))
        pads, ndim = problem.padding, problem.ndim
        if isinstance(step, TransposedConvolution):
            if any(low != high for low, high in pads):
                raise Unsupported(f"step {step.name} pads its sides differently")
            transpose: Any = getattr(F, f"conv_transpose{ndim}d")
            low = [low for low, _ in pads]
            out: Tensor = transpose(
                x, w, bias, problem.stride, low, step.output_padding or 0, step.groups, problem.dilation
            )
            return out
        conv: Any = getattr(F, f"conv{ndim}d")
        if any(low != high for low, high in pads):
            x, pads = F.pad(x, [n for pair in reversed(pads) for n in pair]), ((0, 0),) * ndim
        y: Tensor = conv(
            x, w, bias, problem.stride, [low for low, _ in pads], problem.dilation, problem.groups
        )
        return y


def _pooled(step: Pooling, x: Tensor) -> Tensor:
    pixels = tuple(range(2, x.dim()))
    if step.kernel is None:
        return x.amax(pixels, keepdim=True) if step.reduction == "max" else x.mean(pixels, keepdim=True)
    p = step.problem(tuple(x.shape))
    low = [low for low, _ in p.padding]
    how = {"kernel_size": p.kernel, "stride": p.stride, "padding": low, "ceil_mode": step.ceil_mode}
    pool: Any = getattr(F, f"{'max' if step.reduction == 'max' else 'avg'}_pool{len(pixels)}d")
    if step.reduction == "mean":
        how["count_include_pad"] = step.count_padding
    y: Tensor = pool(x, **how)
    return y


def _activated(y: Tensor, activation: Activation | None) -> Tensor:
    if activation is None:
        return y
    functions: dict[str, Any] = {
        "relu": F.relu,
        "clip": lambda v: torch.clamp(v, activation.a, activation.b),
        "leaky_relu": lambda v: F.leaky_relu(v, activation.a),
        "sigmoid": torch.sigmoid,
        "silu": F.silu,
        "hard_swish": lambda v: (1 + activation.a) * F.hardswish(v) + activation.b,
        "gelu": F.gelu,
        "tanh": torch.tanh,
        "elu": lambda v: activation.b * F.elu(v, activation.a),
        "softplus": F.softplus,
        "mish": F.mish,
        "gelu_tanh": lambda v: F.gelu(v, approximate="tanh"),
    }
    found: Tensor = functions[activation.name](y)
    return found
