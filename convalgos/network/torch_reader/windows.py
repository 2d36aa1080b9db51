"""Torch's windows as rows of their own: of any array along a dimension, of maps as columns, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import fx

from convalgos.network.torch_reader.moves import permuted, seen_as
from convalgos.network.torch_reader.shapes import known_sizes, rank_of_tensor, shape_of_tensor, sizes_of
from convalgos.network.torch_reader.translation import Arguments, Left, Translation, Value


def windows_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """Windows along a dimension, their elements along a last one of their own."""
    rank, (size, step) = rank_of_tensor(a["self"]), known_sizes([a["size"], a["step"]])
    if not rank:
        raise Left("is of one number")
    axis = int(a["dimension"] % rank)
    apart = _windows(t, t.value(a["self"]), axis, size, step)
    return permuted(t, apart, [i for i in range(rank + 1) if i != axis + 1] + [axis + 1])


def columns_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """(N, C, H, W) -> (N, C * R * S, windows)."""
    x, shape = t.value(a["self"]), shape_of_tensor(a["self"])
    if len(shape) != 4:
        raise Left("takes one map without a batch")
    kernel, stride, padding, dilation = _geometry(a)
    channels, *sizes = known_sizes(shape[1:])
    if any(padding):
        sizes = [n + 2 * p for n, p in zip(sizes, padding, strict=True)]
        pads = t.constant(np.array([0, 0, *padding, 0, 0, *padding], np.int64))
        zero = t.value(0.0, t.dtype(x))
        x = t.between("Pad", [x, pads, zero], (shape[0], channels, *sizes), t.dtype(x), mode=b"constant")
    for i in range(2):  # (N, C, P, R, Q, S) in the end
        x = _windows(t, x, 2 + 2 * i, kernel[i], stride[i], dilation[i])
    turned = permuted(t, x, [0, 1, 3, 5, 2, 4])
    return seen_as(t, turned, shape_of_tensor(node))


def maps_of_columns_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """(N, C * R * S, windows) -> (N, C, H, W), where windows lie side by side."""
    x, after = t.value(a["self"]), shape_of_tensor(node)
    kernel, stride, padding, dilation = _geometry(a)
    if len(after) != 4:
        raise Left("takes one map without a batch")
    channels, *sizes = known_sizes(after[1:])
    alone = kernel == stride and not any(padding) and {*dilation} == {1}
    if not alone or any(n % k for n, k in zip(sizes, kernel, strict=True)):
        raise Left("sums windows that overlap")
    counts = [n // k for n, k in zip(sizes, kernel, strict=True)]
    apart = seen_as(t, x, (after[0], channels, *kernel, *counts))
    return seen_as(t, permuted(t, apart, [0, 1, 4, 2, 5, 3]), after)


def _geometry(a: Arguments) -> tuple[list[int], list[int], list[int], list[int]]:
    kernel, stride, padding, dilation = (
        sizes_of(a[key], 2) for key in ("kernel_size", "stride", "padding", "dilation")
    )
    return kernel, stride, padding, dilation


def _windows(t: Translation, x: Value, axis: int, size: int, step: int, dilation: int = 1) -> Value:
    """Windows along a dimension, and their elements along the next: a view where all are read once."""
    shape: Sequence[Any] = t.shape(x)
    (n,) = known_sizes(shape[axis : axis + 1])
    count = (n - dilation * (size - 1) - 1) // step + 1
    after = (*shape[:axis], count, size, *shape[axis + 1 :])
    if (step, dilation) == (size, 1) and 0 < count * size == n:
        return seen_as(t, x, after)
    places = np.arange(count)[:, None] * step + np.arange(size) * dilation
    return t.between("Gather", [x, t.constant(places)], after, t.dtype(x), axis=axis)
