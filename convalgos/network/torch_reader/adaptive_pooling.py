"""Torch's pooling to given sizes: windows of one size, or of two where they do not divide a map."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from torch import fx

from convalgos.network.torch_reader.shapes import (
    are_same_sizes,
    known_sizes,
    only_first_read,
    sizes_of,
    spatial_dimensions,
)
from convalgos.network.torch_reader.translation import Arguments, Left, Translate, Translation, Value


def adaptive_pooling_nodes(op: str, ndim: int) -> Translate:
    """By `MaxPool` or `AveragePool`; of maxima, their places must not be read."""

    def translate(t: Translation, node: fx.Node, a: Arguments) -> Value | list[Value]:
        only_first_read(node)
        if spatial_dimensions(a["self"]) != ndim:
            raise Left("takes one map without a batch")
        sizes = sizes_of(a["output_size"], ndim)
        made = _pooled(t, op, t.value(a["self"]), sizes)
        return [made] if isinstance(node.meta["val"], tuple | list) else made

    return translate


class _Windows(NamedTuple):
    """Of one dimension."""

    begins: list[int]
    lengths: list[int]

    @classmethod
    def of(cls, size: int, count: int) -> _Windows:
        """So many, which reach from the first element to the last one."""
        begins = [i * size // count for i in range(count)]
        return cls(begins, [-(-(i + 1) * size // count) - begin for i, begin in enumerate(begins)])

    @property
    def even(self) -> tuple[int, int] | None:
        """Their length and the step from one to the next, where each has the same; a step is no 0."""
        steps = {after - before for before, after in pairwise(self.begins)} or {1}
        alike = len({*self.lengths}) == len(steps) == 1 and 0 not in steps
        return (self.lengths[0], steps.pop()) if alike else None


def _pooled(t: Translation, op: str, x: Value, sizes: list[int]) -> Value:
    lead, own = t.shape(x)[:2], t.shape(x)[2:]
    if are_same_sizes(sizes, own):
        return x
    if {*sizes} == {1}:
        return t.between(f"Global{op}", [x], (*lead, *sizes))
    if 0 in (known := known_sizes([*own, *sizes])):
        raise Left("is of no elements")
    windows = [_Windows.of(*ends) for ends in zip(known, sizes, strict=False)]
    kernel, steps = zip(*[w.even or (1, 1) for w in windows], strict=True)
    if max(kernel) > 1:
        after = [m if w.even else n for n, m, w in zip(own, sizes, windows, strict=True)]
        x = t.between(op, [x], (*lead, *after), kernel_shape=[*kernel], strides=[*steps])
    for axis, of_axis in enumerate(windows):
        if not of_axis.even:
            x = _unevenly_pooled(t, op, x, axis, of_axis)
    return x


def _unevenly_pooled(t: Translation, op: str, x: Value, axis: int, windows: _Windows) -> Value:
    """Along one dimension: all windows of each size there is, side by side, and of these those asked for."""
    shape: list[Any] = list(t.shape(x))
    ndim, place, n = len(shape) - 2, axis + 2, shape[axis + 2]
    parts: list[Value] = []
    first: dict[int, int] = {}  # of the windows of each size, where they begin
    for length in sorted({*windows.lengths}):
        first[length] = sum(t.shape(part)[place] for part in parts)
        kernel = [length if i == axis else 1 for i in range(ndim)]
        shape[place] = n - length + 1
        parts.append(t.between(op, [x], shape, kernel_shape=kernel, strides=[1] * ndim))
    shape[place] = sum(t.shape(part)[place] for part in parts)
    joined = parts[0] if len(parts) == 1 else t.between("Concat", parts, shape, axis=place)
    numbers = [first[length] + begin for begin, length in zip(*windows, strict=True)]
    shape[place] = len(numbers)
    return t.between("Gather", [joined, t.constant(np.array(numbers))], shape, axis=place)
