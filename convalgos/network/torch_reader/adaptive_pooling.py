"""Torch's pooling to given sizes: windows of one size, or of two where they do not divide a map."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import fx

from convalgos.network.torch_reader.shapes import known_sizes, only_first_read, sizes_of, spatial_dimensions
from convalgos.network.torch_reader.translation import Arguments, Translate, Translation, Value


def adaptive_pooling_nodes(op: str) -> Translate:
    """By `MaxPool` or `AveragePool`; of maxima, their places must not be read."""

    def translate(t: Translation, node: fx.Node, a: Arguments) -> Value | list[Value]:
        only_first_read(node)
        sizes = sizes_of(a["output_size"], spatial_dimensions(a["self"]))
        made = _pooled(t, op, t.value(a["self"]), sizes)
        return [made] if isinstance(node.meta["val"], tuple | list) else made

    return translate


def _pooled(t: Translation, op: str, x: Value, sizes: list[int]) -> Value:
    lead, own = t.shape(x)[:2], t.shape(x)[2:]
    if (*sizes,) == own:
        return x
    if {*sizes} == {1}:
        return t.between(f"Global{op}", [x], (*lead, *sizes))
    kernel = [1 if n % m else n // m for n, m in zip(known_sizes(own), sizes, strict=True)]
    if max(kernel) > 1:
        fewer = [n // k for n, k in zip(own, kernel, strict=True)]
        x = t.between(op, [x], (*lead, *fewer), kernel_shape=kernel, strides=kernel)
    for axis, (n, m) in enumerate(zip(own, sizes, strict=True)):
        if n % m:
            x = _unevenly_pooled(t, op, x, axis, m)
    return x


def _unevenly_pooled(t: Translation, op: str, x: Value, axis: int, count: int) -> Value:
    """Along one dimension: all windows of each size there is, side by side, and of these those asked for."""
    shape: list[Any] = list(t.shape(x))
    ndim, place, n = len(shape) - 2, axis + 2, shape[axis + 2]
    begins = [i * n // count for i in range(count)]
    lengths = [-(-(i + 1) * n // count) - begin for i, begin in enumerate(begins)]
    parts: list[Value] = []
    first: dict[int, int] = {}  # of the windows of each size, where they begin
    for length in sorted({*lengths}):
        first[length] = sum(t.shape(part)[place] for part in parts)
        kernel = [length if i == axis else 1 for i in range(ndim)]
        shape[place] = n - length + 1
        parts.append(t.between(op, [x], shape, kernel_shape=kernel, strides=[1] * ndim))
    shape[place] = sum(t.shape(part)[place] for part in parts)
    windows = parts[0] if len(parts) == 1 else t.between("Concat", parts, shape, axis=place)
    shape[place] = count
    numbers = np.array([first[length] + begin for length, begin in zip(lengths, begins, strict=True)])
    return t.between("Gather", [windows, t.constant(numbers)], shape, axis=place)
