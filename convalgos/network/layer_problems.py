"""The problems of a network's layers, each found once for maps of a size, and checked once for all sizes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from convalgos.core.arguments import Pads, Shape
from convalgos.core.boundaries import ZERO
from convalgos.core.pool_problem import PoolProblem
from convalgos.core.problem import ConvProblem
from convalgos.core.problem_views import on_map


@lru_cache(4096)
def convolution_problem(
    x_shape: Shape,
    w_shape: Shape,
    stride: Shape,
    padding: Pads | str,
    dilation: Shape,
    groups: int,
    dtype: np.dtype,
    direction: str = "forward",
    boundary: str | tuple[str, ...] = ZERO,
    fill_value: float = 0.0,
) -> ConvProblem:
    """The problem of a convolution; a network has many a one several times, and asks again for each shape."""
    known = _problems(w_shape, stride, padding, dilation, groups, dtype, direction, boundary, fill_value)
    fixed = known and not isinstance(padding, str) and known[0].is_zero_padded
    if fixed and (len(x_shape), x_shape[1]) == (len(known[0].x_shape), known[0].C):
        other: ConvProblem = on_map(known[0], x_shape)
        return other
    made = ConvProblem(
        x_shape, w_shape, stride or 1, padding or 0, dilation or 1, groups, dtype=dtype, direction=direction,
        boundary=boundary, fill_value=fill_value,
    )  # fmt: skip
    known[:] = [made]
    return made


@lru_cache(1024)
def _problems(*layer: Any) -> list[Any]:
    """Those of a layer, on maps of any sizes, that were checked from the ground up."""
    return []


@lru_cache(1024)
def pool_problem(x_shape: Shape, kernel: Shape | None, **layer: Any) -> PoolProblem:
    """Likewise the problem of `PoolProblem.of`; windows are checked once for all sizes.

    Where less than a stride is missing for the first window, it is cut to what is there, as by ONNX Runtime,
    which rounds towards zero how many windows there are.
    """
    if kernel is not None and (cut := _cut_window(x_shape[2:], kernel, **layer)) != kernel:
        return pool_problem(x_shape, cut, **layer)
    known = _problems(kernel, *layer.items())
    for other in known:
        found: PoolProblem | None = None
        if kernel is None:
            found = other.of_whole(x_shape)
        elif not isinstance(layer.get("padding"), str) and len(x_shape) == len(other.x_shape):
            found = other.of_shape(x_shape)
        if found is not None:
            return found
    made = PoolProblem.of(x_shape, kernel, **layer)
    known[:] = [made]
    return made


def _cut_window(spatial: Shape, kernel: Shape, **layer: Any) -> Shape:
    """The sizes of a window: of one that reaches beyond a map by less than a stride, as much as is there."""
    if not isinstance(kernel, tuple) or len(kernel) != len(spatial) or isinstance(layer.get("padding"), str):
        return kernel
    if layer.get("ceil_mode"):  # which has such windows
        return kernel
    found = list(kernel)
    for i, (n, k) in enumerate(zip(spatial, kernel, strict=True)):
        pads, apart = (
            _of_dimension(layer.get("padding") or 0, i),
            _of_dimension(layer.get("dilation") or 1, i),
        )
        there = n + (sum(pads) if isinstance(pads, tuple) else 2 * pads)
        lacking = apart * (k - 1) + 1 - there
        if 0 < lacking < _of_dimension(layer.get("stride") or k, i) and n:
            found[i] = (there - 1) // apart + 1
    return tuple(found)


def _of_dimension(given: Any, i: int) -> Any:
    """What a layer has along a dimension: one for all, or one for each."""
    return given[i] if isinstance(given, tuple) else given
