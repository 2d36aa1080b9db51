"""Pooling of maps in chunks; a window that lies across a border reads its neighbours' elements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from convalgos.api import pooling
from convalgos.api.pool_kind import PoolKind
from convalgos.api.types import Array, Layout, Padding, Sizes
from convalgos.core.arguments import Shape
from convalgos.core.errors import Unsupported
from convalgos.dask.axes import Axis, Window
from convalgos.dask.blocks import padding_of
from convalgos.dask.engine import DaskArray
from convalgos.dask.maps import CHANNELS, as_dask, lengthened, order_of, window_arguments
from convalgos.dask.tasks import only, threads_of_task
from convalgos.dask.written import blockwise, uncut_in_memory


@uncut_in_memory
def max_pool(
    x: Array,
    kernel: Sizes | None = None,
    *,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    layout: Layout = "channels_first",
) -> DaskArray:
    """The maximum of each window, block by block; arguments are those of `convalgos.max_pool`.

    Example:
        >>> import dask.array as da, convalgos.dask as cd
        >>> cd.max_pool(da.ones((1, 2, 9, 9), chunks=(1, 2, 5, 4)), 3).chunks
        ((1,), (2,), (2, 1), (1, 2))
    """
    return _pooled(x, PoolKind(kernel, stride, padding, dilation, ceil_mode, "max"), layout)


@uncut_in_memory
def avg_pool(
    x: Array,
    kernel: Sizes | None = None,
    *,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    count_padding: bool = True,
    layout: Layout = "channels_first",
) -> DaskArray:
    """The mean of each window, block by block; arguments are those of `convalgos.avg_pool`.

    Raises:
        Unsupported: ceil_mode together with count_padding, of which blocks do not know what counts.

    Example:
        >>> import dask.array as da, convalgos.dask as cd
        >>> cd.avg_pool(da.ones((1, 2, 8, 8), chunks=(1, 1, 4, 8)), 2).chunks
        ((1,), (1, 1), (2, 2), (4,))
    """
    if ceil_mode and count_padding:
        raise Unsupported("ceil_mode=True goes with count_padding=False, of arrays in chunks")
    kind = PoolKind(kernel, stride, padding, dilation, ceil_mode, "mean", count_padding)
    return _pooled(x, kind, layout)


@dataclass(frozen=True)
class PoolBlock:
    """The windows of a block."""

    reduction: str
    kernel: Shape
    stride: Shape
    dilation: Shape
    count_padding: bool
    layout: Any
    blocks: int

    def __call__(self, x: Any, *windows: Window, out: np.ndarray | None = None) -> np.ndarray:
        padding = padding_of(windows)
        x = only(x)
        how: dict[str, Any] = {
            "stride": self.stride,
            "padding": padding,
            "dilation": self.dilation,
            "out": out,
        }
        with threads_of_task(self.blocks):
            if self.reduction == "max":
                y = pooling.max_pool(x, self.kernel, layout=self.layout, **how)
            else:
                how["count_padding"] = self.count_padding
                y = pooling.avg_pool(x, self.kernel, layout=self.layout, **how)
        return y  # type: ignore[no-any-return]


def _pooled(given: Any, kind: PoolKind, layout: str) -> DaskArray:
    x = as_dask("x", given)
    order = order_of(layout, "x", x)
    problem = kind.problem(order.logical(x.shape), layout, x.dtype.name)
    chunks = order.logical(x.chunks)
    splits = [
        Axis(w.size, len(w.first), w.stride, w.before, extent).forward(sizes)
        for w, extent, sizes in zip(problem.windows, problem.extent, chunks[2:], strict=True)
    ]
    long = lengthened(x, order, splits, chunks[1])
    blocks = math.prod(map(len, (*chunks[:2], *(s.windows for s in splits))))
    block = PoolBlock(
        kind.reduction, problem.kernel, problem.stride, problem.dilation, kind.count_padding, layout, blocks
    )
    labels = order.labels(CHANNELS)
    sizes = {label: s.sizes for label, s in zip(order.spatial, splits, strict=True)}
    return blockwise(
        block, labels, long, labels, *window_arguments(splits), adjust_chunks=sizes,
        dtype=x.dtype, meta=np.empty((0,) * x.ndim, x.dtype), token=f"{kind.reduction}-pool",
    )  # fmt: skip
