"""Calls of `pooling` with arrays on a GPU: answers are of their kind, on their device and stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from convalgos.api.pool_kind import PoolKind
from convalgos.core import arguments
from convalgos.core.arrays import device_of, empty_like, moveaxis
from convalgos.core.pool_problem import PoolProblem
from convalgos.gpu import device as gpu
from convalgos.gpu.device import Device
from convalgos.gpu.pooling.plan import GpuPoolPlan


class _DeviceView(NamedTuple):
    """x, or dy, as kernels read it."""

    device: Device
    array: Any  # contiguous, in the order of `memory`
    memory: str  # layout
    layout: str  # of the call

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, C, *spatial)"""
        shape = self.array.shape
        return shape if self.memory == "channels_first" else (shape[0], shape[-1], *shape[1:-1])

    def in_its_order(self, array: Any) -> Any:
        """An array of the call, contiguous in the order of `memory`."""
        return self.device.xp.ascontiguousarray(_turned(array, self.layout, self.memory))

    def delivered(self, result: Any, given: Any, out: Any) -> Any:
        """A result in the order of `memory`, as the caller's kind of array, or in `out`."""
        result = _turned(result, self.memory, self.layout)
        target = out
        if out is None:
            target = empty_like(given, result.shape, result.dtype.name)
            if target is None:
                return result
        view = self.device.as_array("out", target)
        if view.shape != result.shape:
            raise ValueError(f"out has shape {view.shape}; it must be {result.shape}")
        if view.dtype != result.dtype:
            raise TypeError(f"out has dtype {view.dtype}; it must be {result.dtype}, as the other arrays")
        view[...] = result
        return target


def pool(x: Any, kind: PoolKind, layout: str, out: Any, return_indices: bool) -> Any:
    """y, or (y, places of maxima)."""
    with _viewed("x", x, layout) as view:
        problem = kind.problem(view.shape, view.memory, view.array.dtype.name)
        xp, shape = view.device.xp, problem.laid(problem.y_shape)
        y = xp.empty(shape, view.array.dtype)
        places = xp.empty(shape, np.int32) if return_indices else None
        _gpu_pool_plan(problem, view.device.name).run(view.array, y, places)
        found = view.delivered(y, x, out)
        return found if places is None else (found, view.delivered(places.astype(np.int64), x, None))


def max_gradient(dy: Any, x: Any, kind: PoolKind, layout: str, out: Any) -> Any:
    with _viewed("x", x, layout) as view:
        name = view.array.dtype.name
        if view.array.dtype.kind in "iu":
            raise TypeError(f"x has dtype {name}, which has no gradient; give floating-point numbers")
        problem = kind.problem(view.shape, view.memory, name)
        given = _of_outputs(view, dy, problem)
        dx = view.device.xp.empty(view.array.shape, view.array.dtype)
        _gpu_pool_plan(problem, view.device.name).max_gradient(view.array, given, dx)
        return view.delivered(dx, dy, out)


def mean_gradient(dy: Any, x_shape: Any, kind: PoolKind, layout: str, out: Any) -> Any:
    with _viewed("dy", dy, layout) as view:
        shape = arguments.shape("x_shape", x_shape)
        first = shape if layout == "channels_first" or len(shape) < 2 else (shape[0], shape[-1], *shape[1:-1])
        problem = kind.problem(first, view.memory, view.array.dtype.name)
        if view.shape != problem.y_shape:
            raise ValueError(f"dy has {view.shape} as (N, C, *spatial); it must have {problem.y_shape}")
        dx = view.device.xp.empty(problem.laid(problem.x_shape), view.array.dtype)
        _gpu_pool_plan(problem, view.device.name).mean_gradient(view.array, dx)
        return view.delivered(dx, dy, out)


def _of_outputs(view: _DeviceView, dy: Any, problem: PoolProblem) -> Any:
    """dy as the kernels of x's view read it."""
    given = view.device.as_array("dy", dy)
    expected = _turned_shape(problem.laid(problem.y_shape), view.memory, view.layout)
    if given.shape != expected:
        raise ValueError(f"dy has shape {given.shape}; it must be {expected}")
    if given.dtype != view.array.dtype:
        raise TypeError(f"dy has dtype {given.dtype}; it must be {view.array.dtype}, as the other arrays")
    return view.in_its_order(given)


@contextmanager
def _viewed(name: str, array: Any, layout: str) -> Iterator[_DeviceView]:
    """An argument in the order of its memory; within it, work goes to its device and stream."""
    arguments.one_of("layout", layout, arguments.LAYOUTS)
    device = gpu.named(device_of(array))
    with device.active(), device.stream_of(array):
        given = device.as_array(name, array)
        if not 3 <= given.ndim <= 5:
            raise ValueError(
                f"{name} has shape {given.shape}: it must have 3, 4 or 5 dimensions, (N, C, *spatial)"
            )
        other = "channels_last" if layout == "channels_first" else "channels_first"
        turned = _turned(given, layout, other)
        if turned.flags.c_contiguous and not given.flags.c_contiguous:
            yield _DeviceView(device, turned, other, layout)
        else:
            yield _DeviceView(device, device.xp.ascontiguousarray(given), layout, layout)


@lru_cache(256)
def _gpu_pool_plan(problem: PoolProblem, device: str) -> GpuPoolPlan:
    return GpuPoolPlan(problem)


def _turned(array: Any, source: str, target: str) -> Any:
    """A view in another layout."""
    if source == target:
        return array
    return moveaxis(array, 1, -1) if target == "channels_last" else moveaxis(array, -1, 1)


def _turned_shape(shape: tuple[int, ...], source: str, target: str) -> tuple[int, ...]:
    if source == target:
        return shape
    if target == "channels_last":
        return (shape[0], *shape[2:], shape[1])
    return (shape[0], shape[-1], *shape[1:-1])
