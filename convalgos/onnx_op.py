"""ONNX models on convalgos: the operators Conv and ConvTranspose for `onnx.reference.ReferenceEvaluator`.

Importing this module needs `onnx` (pip install 'convalgos[bench]').
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from onnx.reference.op_run import OpRun

from convalgos.api import conv
from convalgos.onnx_model import conv_problem
from convalgos.problem import ConvProblem

Choice = str | Callable[[ConvProblem], str]


def ops(algorithm: Choice = "auto") -> list[type[OpRun]]:
    """The operators, to be given to an evaluator of a model.

    Args:
        algorithm: "auto"; or an id, and a node that it cannot serve raises `Unsupported`; or a function
            that names one of these for each problem.

    Example:
        >>> evaluator = ReferenceEvaluator("model.onnx", new_ops=ops("cpu.direct"))  # doctest: +SKIP
        >>> outputs = evaluator.run(None, {"data": x})  # doctest: +SKIP
    """
    choose = algorithm if callable(algorithm) else lambda problem: algorithm
    return [type(op.__name__, (op,), {"choose": staticmethod(choose)}) for op in (Conv, ConvTranspose)]


class _ConvOp(OpRun):
    op_domain = ""
    choose: ClassVar[Callable[[ConvProblem], str]]

    def _conv(self, p: ConvProblem, x: np.ndarray, w: np.ndarray, b: np.ndarray | None) -> np.ndarray:
        return conv(
            x, w, b, stride=p.stride, padding=p.padding, dilation=p.dilation, groups=p.groups, mode=p.mode,
            algorithm=type(self).choose(p),
        )  # fmt: skip


class Conv(_ConvOp):
    """https://onnx.ai/onnx/operators/onnx__Conv.html"""

    def _run(
        self,
        X: np.ndarray,  # (N, C, *spatial)
        W: np.ndarray,  # (K, C/group, *kernel)
        B: np.ndarray | None = None,  # (K,)
        auto_pad: str | None = None,
        dilations: Sequence[int] | None = None,
        group: int | None = None,
        kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[np.ndarray]:
        problem = conv_problem(
            X.shape, W.shape, X.dtype.name,
            strides=strides, pads=pads, dilations=dilations, group=group, auto_pad=auto_pad,
        )  # fmt: skip
        return (self._conv(problem, X, W, B),)


class ConvTranspose(_ConvOp):
    """https://onnx.ai/onnx/operators/onnx__ConvTranspose.html

    Computed as what it means: the convolution of x, with stride - 1 zeros between its elements, padded by
    the reach of the filter less `pads`.
    """

    def _run(
        self,
        X: np.ndarray,  # (N, C, *spatial)
        W: np.ndarray,  # (C, K/group, *kernel)
        B: np.ndarray | None = None,  # (K,)
        auto_pad: str | None = None,
        dilations: Sequence[int] | None = None,
        group: int | None = None,
        kernel_shape: Sequence[int] | None = None,
        output_padding: Sequence[int] | None = None,
        output_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[np.ndarray]:
        ndim = X.ndim - 2
        groups = group or 1
        stride, dilation = strides or [1] * ndim, dilations or [1] * ndim
        extra = output_padding or [0] * ndim
        apart = [s * max(0, n - 1) + 1 for n, s in zip(X.shape[2:], stride, strict=True)]
        reach = [d * (r - 1) for r, d in zip(W.shape[2:], dilation, strict=True)]
        if output_shape is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            output_shape = [n * s for n, s in zip(X.shape[2:], stride, strict=True)]
        if output_shape is None:
            pads = pads or [0] * (2 * ndim)
            low, high = pads[:ndim], pads[ndim:]
        else:
            total = [a + r + e - o for a, r, e, o in zip(apart, reach, extra, output_shape, strict=True)]
            less, more = [t // 2 for t in total], [t - t // 2 for t in total]
            low, high = (less, more) if auto_pad == "SAME_UPPER" else (more, less)

        spread = np.zeros((*X.shape[:2], *apart), X.dtype)  # (N, C, *apart)
        every: Any = [slice(None, None, s) for s in stride]
        spread[(..., *every)] = X
        w = W.reshape(groups, -1, *W.shape[1:]).swapaxes(1, 2)  # (groups, K/group, C/group, *kernel)
        w = w.reshape(-1, *w.shape[2:])  # (K, C/group, *kernel)
        around = [(r - a, r - b + e) for r, a, b, e in zip(reach, low, high, extra, strict=True)]
        problem = ConvProblem(
            spread.shape,
            w.shape,
            padding=[(max(0, a), max(0, b)) for a, b in around],
            dilation=dilation,
            groups=groups,
            mode="convolution",
            dtype=X.dtype.name,
        )
        y = self._conv(problem, spread, w, B)
        inside: Any = [  # padding below zero takes outputs away
            slice(max(0, -a), size - max(0, -b)) for (a, b), size in zip(around, y.shape[2:], strict=True)
        ]
        return (np.ascontiguousarray(y[(..., *inside)]),)
