"""Layer functions by libraries: MKL's product of matrices on copied windows, convalgos, and torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import convalgos as ca
from convalgos.core.epilogue import Activation
from convalgos.cpu.elementwise.plan import ElementwisePlan
from convalgos.cpu.runtime import mkl
from convalgos.select.measure.timing import runner
from convalgos.studies.layer_functions import (
    EPSILON,
    KERNEL,
    MAX_WINDOW,
    MEAN_WINDOW,
    PAD,
    POOL_STRIDE,
    UP_PAD,
    UP_STRIDE,
    LayerCall,
    LayerData,
)
from convalgos.studies.numpy_functions import sum_of_windows, windows_of


def mkl_calls(data: LayerData) -> dict[str, LayerCall]:
    """Those of the functions that are products of matrices, windows copied as NumPy does."""
    d, s = data, data.sizes
    area, taps = s.size**2, s.channels * KERNEL**2
    flat = np.ascontiguousarray(d.w.reshape(s.filters, taps))
    of_filter = np.broadcast_to(flat, (s.batch, *flat.shape))
    turned = np.broadcast_to(np.ascontiguousarray(flat.T), (s.batch, taps, s.filters))
    up = np.ascontiguousarray(d.up_w.reshape(s.channels, -1).T)  # (K * 16, C)
    dy, x = d.dy.reshape(s.batch, s.filters, area), d.x.reshape(s.batch, s.channels, area)

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        c = np.empty((len(a), a.shape[1], b.shape[2]), np.float32)
        mkl.gemm(a, b, c)
        return c

    def convolution() -> Any:
        columns = windows_of(d.x, KERNEL, 1, PAD).reshape(s.batch, taps, area)
        return product(of_filter, columns).reshape(d.dy.shape) + d.b[:, None, None]

    def convolution_dx() -> np.ndarray:
        columns = product(turned, dy).reshape(s.batch, s.channels, KERNEL, KERNEL, s.size, s.size)
        return sum_of_windows(columns, s.size, 1, PAD)

    def convolution_dw() -> Any:
        columns = windows_of(d.x, KERNEL, 1, PAD).reshape(s.batch, taps, area)
        sums = product(dy, np.ascontiguousarray(columns.swapaxes(1, 2)))
        return sums.sum(0).reshape(d.w.shape)

    def transposed() -> np.ndarray:
        columns = product(np.broadcast_to(up, (s.batch, *up.shape)), x)
        kernel = d.up_w.shape[2]
        shape = (s.batch, s.filters, kernel, kernel, s.size, s.size)
        return sum_of_windows(columns.reshape(shape), UP_STRIDE * s.size, UP_STRIDE, UP_PAD)

    rows_w, scores_t = np.ascontiguousarray(d.rows_w.T), np.ascontiguousarray(d.scores_dy.T)
    return {
        "convolution": convolution,
        "convolution dx": convolution_dx,
        "convolution dw": convolution_dw,
        "transposed convolution": transposed,
        "linear": lambda: product(d.rows[None], rows_w[None])[0] + d.rows_b,
        "linear dx": lambda: product(d.scores_dy[None], d.rows_w[None])[0],
        "linear dw": lambda: product(scores_t[None], d.rows[None])[0],
    }


def convalgos_calls(data: LayerData) -> dict[str, LayerCall]:
    """Those that convalgos computes, planned once, filters prepared where they stay the same."""
    d = data
    conv = ca.ConvProblem(d.x.shape, d.w.shape, padding=PAD)
    up = ca.ConvProblem(
        (len(d.x), d.up_w.shape[1], *(UP_STRIDE * n for n in d.x.shape[2:])), d.up_w.shape, stride=UP_STRIDE,
        padding=UP_PAD, direction="backward_data",
    )  # fmt: skip
    linear = ca.ConvProblem((*d.rows.shape, 1), (*d.rows_w.shape, 1))
    rows, rows_w, scores_dy = d.rows[..., None], d.rows_w[..., None], d.scores_dy[..., None]
    folded = d.w * d.scale[:, None, None, None]
    relu = ElementwisePlan("identity", (d.x.shape,), "channels_first", Activation("relu"))
    y, pooled = np.empty_like(d.x), np.empty_like(d.max_dy)
    halved = np.empty_like(d.mean_dy)

    def rectified() -> np.ndarray:
        relu.run((d.x,), y)
        return y

    def dw(problem: ca.ConvProblem, x: np.ndarray, dy: np.ndarray) -> LayerCall:
        plan = ca.plan(problem.replace(direction="backward_weights"), weights_constant=False)
        out = np.empty(problem.w_shape, np.float32)
        return lambda: plan(x, dy, out=out)

    return {
        "convolution": _planned(conv, d.x, d.w, d.b),
        "convolution dx": _planned(conv.replace(direction="backward_data"), d.dy, d.w),
        "convolution dw": dw(conv, d.x, d.dy),
        "transposed convolution": _planned(up, d.x, d.up_w),
        "max pooling": lambda: ca.max_pool(d.x, MAX_WINDOW, stride=POOL_STRIDE, out=pooled),
        "max pooling dx": lambda: ca.max_pool_backward(d.max_dy, d.x, MAX_WINDOW, stride=POOL_STRIDE, out=y),
        "average pooling": lambda: ca.avg_pool(d.x, MEAN_WINDOW, stride=POOL_STRIDE, out=halved),
        "average pooling dx": lambda: ca.avg_pool_backward(
            d.mean_dy, d.x.shape, MEAN_WINDOW, stride=POOL_STRIDE, out=y
        ),
        "linear": _planned(linear, rows, rows_w, d.rows_b),
        "linear dx": _planned(linear.replace(direction="backward_data"), scores_dy, rows_w),
        "linear dw": dw(linear, rows, scores_dy),
        "ReLU": rectified,
        "convolution, norm, ReLU": _planned(conv, d.x, folded, d.scale * d.b + d.shift, "relu"),
    }


def torch_calls(data: LayerData, threads: int) -> dict[str, LayerCall]:
    """Those of torch on the CPU, as arrays."""

    def as_array(step: Callable[[], Any]) -> LayerCall:
        return lambda: np.asarray(step())

    return {name: as_array(step) for name, step in torch_steps(data, threads, "cpu").items()}


def torch_steps(data: LayerData, threads: int, device: str) -> dict[str, Callable[[], Any]]:
    """Functions of `torch.nn.functional`, and their gradients by autograd, as tensors of a device."""
    import torch
    from torch.nn import functional as f

    torch.set_num_threads(threads)
    t = {name: torch.from_numpy(a).to(device) for name, a in data.arrays().items()}
    zeros, one = torch.zeros_like(t["b"]), torch.ones_like(t["b"])

    def forward(compute: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with torch.no_grad():
                return compute()

        return run

    def gradient(compute: Callable[[Any], Any], at: Any, dy: Any) -> Callable[[], Any]:
        leaf = at.clone().requires_grad_()
        y = compute(leaf)
        return lambda: torch.autograd.grad(y, leaf, dy, retain_graph=True)[0]

    def norm(x: Any) -> Any:
        return f.batch_norm(x, None, None, t["gamma"], t["beta"], training=True, eps=EPSILON)

    def fixed() -> Any:
        y = f.conv2d(t["x"], t["w"], t["b"], padding=PAD)
        return f.batch_norm(y, zeros, one, t["scale"], t["shift"], eps=0.0).relu_()

    def pooled(x: Any) -> Any:
        return f.max_pool2d(x, MAX_WINDOW, POOL_STRIDE)

    def halved(x: Any) -> Any:
        return f.avg_pool2d(x, MEAN_WINDOW, POOL_STRIDE)

    x, w = t["x"], t["w"]
    return {
        "convolution": forward(lambda: f.conv2d(x, w, t["b"], padding=PAD)),
        "convolution dx": gradient(lambda x: f.conv2d(x, w, padding=PAD), x, t["dy"]),
        "convolution dw": gradient(lambda w: f.conv2d(x, w, padding=PAD), w, t["dy"]),
        "transposed convolution": forward(
            lambda: f.conv_transpose2d(x, t["up_w"], stride=UP_STRIDE, padding=UP_PAD)
        ),
        "max pooling": forward(lambda: pooled(x)),
        "max pooling dx": gradient(pooled, x, t["max_dy"]),
        "average pooling": forward(lambda: halved(x)),
        "average pooling dx": gradient(halved, x, t["mean_dy"]),
        "linear": forward(lambda: f.linear(t["rows"], t["rows_w"], t["rows_b"])),
        "linear dx": gradient(lambda rows: f.linear(rows, t["rows_w"]), t["rows"], t["scores_dy"]),
        "linear dw": gradient(lambda w: f.linear(t["rows"], w), t["rows_w"], t["scores_dy"]),
        "ReLU": forward(lambda: f.relu(x)),
        "ReLU dx": gradient(f.relu, x, t["dx"]),
        "batch norm": forward(lambda: norm(x)),
        "batch norm dx": gradient(norm, x, t["dx"]),
        "softmax": forward(lambda: f.softmax(t["scores"], 1)),
        "softmax dx": gradient(lambda scores: f.softmax(scores, 1), t["scores"], t["scores_dy"]),
        "convolution, norm, ReLU": forward(fixed),
    }


def _planned(
    problem: ca.ConvProblem, x: np.ndarray, w: np.ndarray, bias: Any = None, activation: Any = None
) -> LayerCall:
    plan = ca.plan(problem)
    y = np.empty(problem.result_shape, np.float32)
    if bias is None:
        call: Any = runner(plan, x, w, y)
        return call  # type: ignore[no-any-return]
    prepared = plan.prepare(w)
    return lambda: plan(x, prepared, bias=bias, activation=activation, out=y)
