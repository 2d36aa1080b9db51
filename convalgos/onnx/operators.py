"""ONNX models on convalgos: operators for `onnx.reference.ReferenceEvaluator`.

Importing this module needs `onnx` (pip install 'convalgos[bench]').
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

import numpy as np
from onnx.reference.op_run import OpRun

from convalgos.api.forward import conv
from convalgos.api.types import Mode
from convalgos.core.problem import ConvProblem
from convalgos.onnx import quantized_operators
from convalgos.onnx.attributes import CONV, CONV_TRANSPOSE, checked_attributes, conv_problem, sizes
from convalgos.onnx.nodes import NodeOp, check_dimensions, inputs_of

Choice = str | Callable[[ConvProblem], str]


def ops(algorithm: Choice = "auto") -> list[type[OpRun]]:
    """Conv, ConvTranspose, QLinearConv, ConvInteger, QuantizeLinear and DequantizeLinear for an evaluator.

    Those of integers give the bits of ONNX Runtime. A model in QDQ form, with DequantizeLinear and
    QuantizeLinear around its convolutions, does so after `convalgos.onnx.fuse_quantized`.

    Args:
        algorithm: "auto"; or an id, and a node that it cannot serve raises `Unsupported`; or a function
            that names one of these for each problem.

    Example:
        >>> evaluator = ReferenceEvaluator("model.onnx", new_ops=ops("cpu.direct"))  # doctest: +SKIP
        >>> outputs = evaluator.run(None, {"data": x})  # doctest: +SKIP
    """
    choose = algorithm if callable(algorithm) else lambda problem: algorithm
    operators = (Conv, ConvTranspose, *quantized_operators.OPERATORS)
    return [type(op.__name__, (op,), {"choose": staticmethod(choose)}) for op in operators]


class _ConvOp(NodeOp):
    known: ClassVar[tuple[str, ...]]  # its attributes

    def _serve(self, inputs: tuple[Any, ...], attributes: dict[str, Any]) -> np.ndarray:
        x, w, b = inputs_of(inputs, 2, 3, "an input, a filter and perhaps a bias")
        check_dimensions(x, w)
        return self._convolve(x, w, b, **checked_attributes(attributes, self.known))

    def _convolve(self, x: Any, w: Any, b: Any, **attributes: Any) -> np.ndarray:
        raise NotImplementedError

    def _conv(self, p: ConvProblem, x: np.ndarray, w: np.ndarray, b: np.ndarray | None) -> np.ndarray:
        y: np.ndarray = conv(
            x, w, b, stride=p.stride, padding=p.padding, dilation=p.dilation, groups=p.groups,
            mode=cast(Mode, p.mode), algorithm=type(self).choose(p),
        )  # fmt: skip
        return y


class Conv(_ConvOp):
    """https://onnx.ai/onnx/operators/onnx__Conv.html"""

    known = CONV

    def _convolve(
        self,
        x: np.ndarray,  # (N, C, *spatial)
        w: np.ndarray,  # (K, C/group, *kernel)
        b: np.ndarray | None,  # (K,)
        **attributes: Any,
    ) -> np.ndarray:
        return self._conv(conv_problem(x.shape, w.shape, x.dtype.name, **attributes), x, w, b)


class ConvTranspose(_ConvOp):
    """https://onnx.ai/onnx/operators/onnx__ConvTranspose.html

    Computed as what it means: the convolution of x, with stride - 1 zeros between its elements, padded by
    the reach of the filter less `pads`.
    """

    known = CONV_TRANSPOSE

    def _convolve(
        self,
        x: np.ndarray,  # (N, C, *spatial)
        w: np.ndarray,  # (C, K/group, *kernel)
        b: np.ndarray | None,  # (K,)
        **attributes: Any,
    ) -> np.ndarray:
        ndim, given = x.ndim - 2, attributes.get
        groups = given("group", 1)
        if w.shape[0] != x.shape[1] or w.shape[0] % groups:
            raise ValueError(
                f"filter {w.shape} must have the {x.shape[1]} channels of its input, in {groups} groups"
            )
        sizes("kernel_shape", kernel := given("kernel_shape"), ndim, 1, 0)
        if kernel and tuple(kernel) != w.shape[2:]:
            raise ValueError(f"kernel_shape={kernel} must be that of the filter {w.shape}")
        stride = sizes("strides", given("strides"), ndim, 1, 1)
        dilation = sizes("dilations", given("dilations"), ndim, 1, 1)
        extra = sizes("output_padding", given("output_padding"), ndim, 0, 0)
        auto_pad, output_shape = given("auto_pad"), given("output_shape")
        apart = [s * max(0, n - 1) + 1 for n, s in zip(x.shape[2:], stride, strict=True)]
        reach = [d * (r - 1) for r, d in zip(w.shape[2:], dilation, strict=True)]
        if output_shape is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            output_shape = [n * s for n, s in zip(x.shape[2:], stride, strict=True)]
        if output_shape is None:
            pads = sizes("pads", given("pads"), 2 * ndim, 0, None)
            low, high = pads[:ndim], pads[ndim:]
        else:
            output_shape = sizes("output_shape", output_shape, ndim, 0, 0)
            total = [a + r + e - o for a, r, e, o in zip(apart, reach, extra, output_shape, strict=True)]
            less, more = [t // 2 for t in total], [t - t // 2 for t in total]
            low, high = (less, more) if auto_pad == "SAME_UPPER" else (more, less)

        spread = np.zeros((*x.shape[:2], *apart), x.dtype)  # (N, C, *apart)
        every: Any = [slice(None, None, s) for s in stride]
        spread[(..., *every)] = x
        w = w.reshape(groups, -1, *w.shape[1:]).swapaxes(1, 2)  # (groups, K/group, C/group, *kernel)
        w = w.reshape(-1, *w.shape[2:])  # (K, C/group, *kernel)
        around = [(r - a, r - z + e) for r, a, z, e in zip(reach, low, high, extra, strict=True)]
        problem = ConvProblem(
            spread.shape,
            w.shape,
            padding=[(max(0, a), max(0, z)) for a, z in around],
            dilation=dilation,
            groups=groups,
            mode="convolution",
            dtype=x.dtype.name,
        )
        y = self._conv(problem, spread, w, b)
        inside: Any = [  # padding below zero takes outputs away
            slice(max(0, -a), size - max(0, -z)) for (a, z), size in zip(around, y.shape[2:], strict=True)
        ]
        return np.ascontiguousarray(y[(..., *inside)])
