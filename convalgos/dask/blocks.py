"""What is computed on one block: a plan of the library, by the algorithm that the whole would be computed by.

So the answers of blocks have the bits of the whole wherever that algorithm sums each output alike. Where this
algorithm cannot serve a block, or a worker of another kind does not have it, the block picks its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

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
from convalgos.dask import inner
from convalgos.dask.axes import Window
from convalgos.dask.block_parts import BlockParts
from convalgos.dask.tasks import only, prepared, threads_of_task
from convalgos.select import choose, registry


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
    boundary: tuple[str, ...]  # of the map; a block that does not lie at an end has no padding there
    fill_value: float
    dtypes: tuple[str, str, str]  # of x, w and y
    blocks: int = field(compare=False)  # how many there are
    limits: tuple[tuple[str, Any], ...] = ()  # those of `plan` that are set
    in_tiles: Algorithm | None = None  # the same algorithm, with the tiles of the whole

    def groups(self, filters: int) -> int:
        """Those that lie in a block of so many filters."""
        return filters // self.filters if self.filters else 1

    def plan(self, x_shape: Shape, w_shape: Shape, padding: tuple[tuple[int, int], ...]) -> Plan:
        """That of a block; shapes are logical."""
        key = self, x_shape, w_shape, padding
        if (kept := _plans.find(key)) is not None:
            return kept
        of_x, of_w, of_y = self.dtypes
        problem = ConvProblem(
            x_shape, w_shape, self.stride, padding, self.dilation, self.groups(w_shape[0]), mode=self.mode,
            layout=self.layout, dtype=of_x, w_dtype=of_w, y_dtype=of_y, direction=self.direction,
            boundary=self.boundary, fill_value=self.fill_value,
        )  # fmt: skip
        found = self._planned(problem)
        _plans.add(key, found)
        return found

    def _planned(self, problem: ConvProblem) -> Plan:
        limits = dict(self.limits)
        if self.in_tiles is not None and self.in_tiles.why_not(problem) is None:
            return choose.planned(self.in_tiles, problem, "cpu")
        try:
            return planning.plan(problem, "cpu", self.algorithm, **limits)
        except (Unsupported, ValueError):  # it does not serve a block, or is none of this worker
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
    takes_parts: ClassVar[bool] = True  # x may be one that is not put together

    def __call__(
        self, x: Any, w: Any, bias: Any, residual: Any, *windows: Window, out: np.ndarray | None = None
    ) -> np.ndarray:
        w, how = only(w), self.how
        x = only(x)
        with threads_of_task(how.blocks):
            if isinstance(x, BlockParts):
                y = None if residual is not None else self._in_boxes(x, w, bias, windows, out)
                if y is not None:
                    return y[None] if self.partial else y
                x = x.joined()
            plan = how.plan(how.logical(x.shape), w.shape, padding_of(windows))
            y = run_block(plan, x, prepared(plan, w), bias, residual, self.activation, out)
        return y[None] if self.partial else y

    def _in_boxes(
        self, x: BlockParts, w: np.ndarray, bias: Any, windows: Sequence[Window], out: np.ndarray | None
    ) -> np.ndarray | None:
        """y, of x where its parts lie but for its borders; None where x is to be put together."""
        how = self.how
        if how.layout != "channels_first" or not all(
            type(a) is np.ndarray and has_whole_rows(a) for a in x.arrays
        ):
            return None
        plan = how.plan(tuple(ends[-1] for ends in x.ends()), w.shape, padding_of(windows))
        if not plan.rows_apart or not plan.problem.is_zero_padded:
            return None
        starts = (how.in_tiles or registry.find_algorithm(plan.algorithm, plan.problem)).block_starts(
            plan.problem
        )
        starts = (*starts[:-1], max(starts[-1], inner.VECTOR if starts[-1] == 1 else 1))
        taps = [
            inner.WindowSteps(*of) for of in zip(how.stride, plan.problem.kernel_extent, starts, strict=True)
        ]
        pieces = inner.split_around_halos(x, taps, windows)
        if pieces is None:
            return None
        shapes = [(*plan.problem.x_shape[:2], *(b - a for a, b in piece.inputs)) for piece in pieces]
        plans = [how.plan(shape, w.shape, piece.padding) for shape, piece in zip(shapes, pieces, strict=True)]
        if any(each.algorithm != plan.algorithm for each in plans):  # its bits would differ
            return None
        out = result_memory(plan) if out is None else out
        whole = [(0, n) for n in plan.problem.x_shape[:2]]
        for each, piece in zip(plans, pieces, strict=True):
            part = x.box((*whole, *piece.inputs))
            y = out[inner.slices(piece.outputs)]
            run_block(each, part, prepared(each, w), bias, None, self.activation, y)
        return out


@dataclass(frozen=True)
class InputGradientBlock:
    """A block of dx, from those of dy and w; or of a transposed convolution, with bias and activation."""

    how: How
    activation: Any
    partial: bool

    def __call__(
        self, dy: Any, w: Any, bias: Any, *windows: Window, out: np.ndarray | None = None
    ) -> np.ndarray:
        w, how = only(w), self.how
        dy = only(dy)
        with threads_of_task(how.blocks):
            shape = (dy.shape[0], w.shape[1] * how.groups(w.shape[0]), *(window.size for window in windows))
            plan = how.plan(shape, w.shape, padding_of(windows))
            dx = run_block(plan, dy, prepared(plan, w), bias, None, self.activation, out)
        return dx[None] if self.partial else dx


@dataclass(frozen=True)
class FilterGradientBlock:
    """What a block of x and dy adds to dw: (1 for each dimension that is summed, K, C/groups, *kernel)."""

    how: How
    kernel: Shape

    def __call__(self, x: Any, dy: Any, *windows: Window) -> np.ndarray:
        how = self.how
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


def run_block(
    plan: Plan, x: Any, w: PreparedFilter, bias: Any, residual: Any, activation: Any, out: np.ndarray | None
) -> np.ndarray:
    """A call of a plan, which reads and writes parts of larger arrays where they lie, if its kernels can."""
    apart = [a for a in (x, out) if a is not None and not (type(a) is np.ndarray and a.flags.c_contiguous)]
    if not apart or not (plan.rows_apart and all(type(a) is np.ndarray and has_whole_rows(a) for a in apart)):
        y = plan(x, w, bias=bias, residual=residual, activation=activation, out=out)
        return y  # type: ignore[no-any-return]
    out = result_memory(plan) if out is None else out
    residual = None if residual is None else np.ascontiguousarray(residual)
    plan.bind(x, w, out, bias, activation, residual).run()
    return out


def result_memory(plan: Plan) -> np.ndarray:
    """Memory for what a plan of the forward pass gives."""
    shape = plan.problem.array_shapes[2]
    return aligned_empty(math.prod(shape), result_dtype(plan.problem)).reshape(shape)


def padding_of(windows: Sequence[Window]) -> tuple[tuple[int, int], ...]:
    """(low, high) of each dimension."""
    return tuple((window.low, window.high) for window in windows)


_plans = PlanCache()
