"""Pooling on the device: y and gradients beside those of NumPy, and how much of the bandwidth it reaches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from convalgos.core.arguments import LAYOUTS
from convalgos.core.pool_problem import PoolProblem
from convalgos.gpu.device import Device
from convalgos.gpu.pooling.plan import GpuPoolPlan
from convalgos.select.measure.backends import GpuBackend
from convalgos.tools.gpu_check.results import OutOfTime, Result, told
from convalgos.tools.gpu_check.steps import NOTHING, Skip

BOUND = 1e-6  # of y, relative to the largest
WINDOWS: tuple[tuple[str, tuple[int, ...], dict[str, Any]], ...] = (
    ("resnet", (8, 64, 112, 112), {"kernel": 3, "stride": 2, "padding": 1}),
    ("inception", (4, 33, 35, 37), {"kernel": 3, "stride": 1, "padding": 1}),
    ("odd", (3, 5, 17, 23), {"kernel": (4, 3), "stride": (3, 2), "padding": (1, 2), "ceil_mode": True}),
    ("3-D", (2, 16, 9, 20, 21), {"kernel": 2, "stride": 2, "dilation": (1, 2, 1)}),
    ("global", (16, 512, 7, 7), {}),
)


def check_pooling(device: Device, until: float, skip: Skip = NOTHING) -> Iterator[Result | OutOfTime]:
    """Every reduction and layout on some windows."""
    cases = [(w, reduction, la) for w in WINDOWS for reduction in ("max", "mean") for la in LAYOUTS]
    for done, ((title, shape, how), reduction, layout) in enumerate(cases):
        if time.monotonic() > until:
            yield OutOfTime(len(cases) - done)
            return
        problem = PoolProblem.of(shape, reduction=reduction, layout=layout, **how)
        name = f"{title}, {reduction}, {layout}"
        try:
            yield from _checked(device, name, problem)
        except Exception as failure:
            yield Result(f"pooling/{name}", "", "gpu.pooling", "y", failure=told(failure))


def _checked(device: Device, name: str, problem: PoolProblem) -> Iterator[Result]:
    """y, and dx by what linear functions share with their transpose: its sum with x is that of dy with y."""
    backend, plan = GpuBackend(device), GpuPoolPlan(problem)
    rng = np.random.default_rng(0)
    x = rng.standard_normal(problem.laid(problem.x_shape), np.float32)
    dy = rng.standard_normal(problem.laid(problem.y_shape), np.float32)
    y = _reduced(x, problem)
    there, of_dy = backend.put(x), backend.put(dy)
    of_y, of_dx = backend.empty(y.shape, y.dtype), backend.empty(x.shape, x.dtype)
    plan.run(there, of_y)
    seconds = device.elapsed(lambda: plan.run(there, of_y))
    share = (x.nbytes + y.nbytes) / seconds / device.figures.bandwidth
    error = float(np.abs(backend.get(of_y) - y).max() / np.abs(y).max())
    what = f"y, at {share:.0%} of the bandwidth"
    yield Result(f"pooling/{name}", "", "gpu.pooling", what, error, BOUND)
    if problem.reduction == "max":
        plan.max_gradient(there, of_dy, of_dx)
    else:
        plan.mean_gradient(of_dy, of_dx)
    left, right = np.vdot(backend.get(of_dx), x.astype(np.float64)), np.vdot(dy, y.astype(np.float64))
    error = abs(float(left - right)) / float(np.linalg.norm(dy) * np.linalg.norm(y))
    yield Result(f"pooling/{name}", "", "gpu.pooling", "dx", error, 10 * BOUND)


def _reduced(x: np.ndarray, problem: PoolProblem) -> np.ndarray:
    """y by NumPy, one dimension after the other."""
    reduce = np.max if problem.reduction == "max" else np.sum
    for dim, w in enumerate(problem.windows):
        axis = dim + (1 if problem.layout == "channels_last" else 2)
        ends = w.first + w.taps * w.dilation
        cut = (np.arange(a, b, w.dilation) for a, b in zip(w.first, ends, strict=True))
        x = np.stack([reduce(x.take(taps, axis), axis) for taps in cut], axis)
        if problem.reduction == "mean":
            x = x / w.divisor.astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 1 - axis))
    return x
