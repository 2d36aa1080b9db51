"""What is computed on one block: a plan of the library, by the algorithm that the whole would be computed by.

So the answers of blocks have the bits of the whole wherever that algorithm sums each output alike. Where this
algorithm cannot serve a block, or a worker of another kind does not have it, the block picks its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from convalgos.api import planning
from convalgos.core import epilogue
from convalgos.core.algorithm import Algorithm
from convalgos.core.allocator import aligned_empty
from convalgos.core.bound_run import has_whole_rows
from convalgos.core.errors import Unsupported
from convalgos.core.layouts import laid
from convalgos.core.plan import Plan, result_dtype
from convalgos.core.plan_cache import PlanCache
from convalgos.core.prepared_filter import PreparedFilter
from convalgos.core.problem import ConvProblem, Shape
from convalgos.dask.axes import Window
from convalgos.dask.tasks import only, prepared, threads_of_task
from convalgos.select import choose


@dataclass(frozen=True)
class How:
    """What all blocks of a call share."""

    direction: str
    algorithm: str  # of every block
    forced: bool  # whether the caller named it: then it is never replaced
    stride: Shape
    dilation: Shape
    filters: int  # of a group, or 0 where there is one group
    mode: str
    layout: str
    dtypes: tuple[str, str, str]  # of x, w and y
    blocks: int  # how many there are
    limits: tuple[tuple[str, Any], ...] = ()  # those of `plan` that are set
    in_tiles: Algorithm | None = None  # the same algorithm, with the tiles of the whole

    def groups(self, filters: int) -> int:
        """Those that lie in a block of so many filters."""
        return filters // self.filters if self.filters else 1

    def plan(self, x_shape: Shape, w_shape: Shape, padding: tuple[tuple[int, int], ...]) -> Plan:
        """That of a block; shapes are logical."""
        of_x, of_w, of_y = self.dtypes
        problem = ConvProblem(
            x_shape, w_shape, self.stride, padding, self.dilation, self.groups(w_shape[0]), mode=self.mode,
            layout=self.layout, dtype=of_x, w_dtype=of_w, y_dtype=of_y, direction=self.direction,
        )  # fmt: skip
        key = (problem, self.algorithm, self.in_tiles, self.limits)
        if (kept := _plans.find(key)) is None:
            kept = self._planned(problem)
            _plans.add(key, kept)
        return kept

    def _planned(self, problem: ConvProblem) -> Plan:
        limits = dict(self.limits)
        if self.in_tiles is not None and self.in_tiles.why_not(problem) is None:
            return choose.planned(self.in_tiles, problem, "cpu")
        try:
            return planning.plan(problem, "cpu", self.algorithm, **limits)
        except Unsupported:
            if self.forced:
                raise
            return planning.plan(problem, "cpu", **limits)

    def logical(self, shape: Shape) -> Shape:
        """(N, channels, *spatial) of a map in the layout."""
        return (shape[0], shape[-1], *shape[1:-1]) if self.layout == "channels_last" else shape


@dataclass(frozen=True)
class ForwardBlock:
    """A block of y, from those of x, w, the bias and the residual, and a window for each dimension."""

    how: How
    activation: Any
    partial: bool  # whether it is one of several that are summed, along a first dimension

    def __call__(self, x: Any, w: Any, bias: Any, residual: Any, *rows: Any) -> np.ndarray:
        w, how, windows = only(w), self.how, windows_in(rows)
        x = only(x)
        with threads_of_task(how.blocks):
            plan = how.plan(how.logical(x.shape), w.shape, padding_of(windows))
            y = run_block(plan, x, prepared(plan, w), bias, residual, self.activation)
        return y[None] if self.partial else y


@dataclass(frozen=True)
class InputGradientBlock:
    """A block of dx, from those of dy and w; or of a transposed convolution, with bias and activation."""

    how: How
    activation: Any
    partial: bool

    def __call__(self, dy: Any, w: Any, bias: Any, *rows: Any) -> np.ndarray:
        w, how, windows = only(w), self.how, windows_in(rows)
        dy = only(dy)
        with threads_of_task(how.blocks):
            shape = (dy.shape[0], w.shape[1] * how.groups(w.shape[0]), *(window.size for window in windows))
            plan = how.plan(shape, w.shape, padding_of(windows))
            dx = plan(dy, prepared(plan, w), bias=bias, activation=self.activation)
        return dx[None] if self.partial else dx  # type: ignore[no-any-return]


@dataclass(frozen=True)
class FilterGradientBlock:
    """What a block of x and dy adds to dw: (1 for each dimension that is summed, K, C/groups, *kernel)."""

    how: How
    kernel: Shape

    def __call__(self, x: Any, dy: Any, *rows: Any) -> np.ndarray:
        how, windows = self.how, windows_in(rows)
        shape, filters = how.logical(x.shape), how.logical(dy.shape)[1]
        with threads_of_task(how.blocks):
            channels = shape[1] // how.groups(filters)
            plan = how.plan(shape, (filters, channels, *self.kernel), padding_of(windows))
            dw = plan(x, dy)
        return dw.reshape((1,) * (1 + len(windows)) + dw.shape)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class SummedStep:
    """activation(sums + bias + residual) of a block whose sums came from several."""

    dtype: np.dtype
    layout: str
    activation: Any

    def __call__(self, sums: Any, bias: Any, residual: Any) -> np.ndarray:
        y = np.array(sums, order="C")
        if bias is not None:
            shape = (1, -1, *(1,) * (y.ndim - 2))
            y += laid(bias.reshape(shape), self.layout).astype(y.dtype)
        if residual is not None or self.activation is not None:
            residual = None if residual is None else np.ascontiguousarray(residual)
            epilogue.add_and_activate(y, residual, epilogue.activation_of(self.activation))
        return y.astype(self.dtype, copy=False)


def run_block(plan: Plan, x: Any, w: PreparedFilter, bias: Any, residual: Any, activation: Any) -> np.ndarray:
    """A call of a plan, which reads x where it lies if its kernels can: a block amid a larger array."""
    if type(x) is not np.ndarray or x.flags.c_contiguous or not (plan.rows_apart and has_whole_rows(x)):
        return plan(x, w, bias=bias, residual=residual, activation=activation)  # type: ignore[no-any-return]
    shape = plan.problem.array_shapes[2]
    y = aligned_empty(math.prod(shape), result_dtype(plan.problem)).reshape(shape)
    residual = None if residual is None else np.ascontiguousarray(residual)
    plan.bind(x, w, y, bias, activation, residual).run()
    return y


def windows_in(rows: Sequence[Any]) -> list[Window]:
    """Those of a block, from what Dask hands over of `maps.window_rows`."""
    return [Window(*map(int, only(row)[0])) for row in rows]


def padding_of(windows: Sequence[Window]) -> tuple[tuple[int, int], ...]:
    """(low, high) of each dimension."""
    return tuple((window.low, window.high) for window in windows)


_plans = PlanCache()
