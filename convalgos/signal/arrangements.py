"""How two arrays that are convolved over some axes become one problem of ours, as far as their shapes tell.

Axes that are not convolved become batch, groups or filters, and the mode becomes padding. It is found once
for the shapes that came last.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from convalgos.signal.modes import larger, wanted_of

KEPT = 4096  # shapes that came last
FEW_TAPS = 512  # of a single output, whose products NumPy sums sooner than a plan

Shape = tuple[int, ...]
Axes = tuple[int, ...]
Wanted = tuple[tuple[int, int], ...]  # (first, count) along each axis that is convolved


class Sides(NamedTuple):
    """Which of two arrays is the map, and along which axes the other one is its filter."""

    convolved: Axes
    others: Axes
    turned: bool  # the first one is the filter
    wanted: Wanted  # of the full convolution
    cut: tuple[tuple[int, int, int], ...]  # (axis, first, count) of what SciPy keeps along other axes
    single: bool  # all that is wanted is one product of both


@lru_cache(KEPT)
def sides_of(x_shape: Shape, w_shape: Shape, mode: str, axes: frozenset[int] | None) -> Sides | None:
    """Those of arrays of two shapes over some axes, all by default; None where no problem is theirs."""
    pairs = list(zip(x_shape, w_shape, strict=True))
    # along axes of length 1 a convolution is a product, for which broadcasting is enough
    convolved = tuple(i for i, pair in enumerate(pairs) if (axes is None or i in axes) and 1 not in pair)
    others = tuple(i for i in range(len(pairs)) if i not in convolved)
    if not 1 <= len(convolved) <= 3:
        return None
    if any(pairs[i][0] != pairs[i][1] and 1 not in pairs[i] for i in others):
        return None
    of_x, of_w = (tuple(shape[i] for i in convolved) for shape in (x_shape, w_shape))
    turned, single = False, False
    if mode == "valid":
        which = larger(of_x, of_w)
        if which is None:
            return None
        turned, single = which == 1, of_x == of_w and math.prod(of_x) <= FEW_TAPS and axes is not None
    first, second = (of_w, of_x) if turned else (of_x, of_w)
    wanted = tuple(wanted_of(mode, *pair) for pair in zip(first, second, strict=True))
    # the larger one is the map, the smaller one the filter
    turned ^= math.prod(first) < math.prod(second)
    cut = []
    for i in others if mode == "same" else ():  # SciPy centres on in1 here too, where in2 broadcasts
        size, count = max(pairs[i]), x_shape[i]
        if size != count:
            cut.append((i, (size - count) // 2, count))
    return Sides(convolved, others, turned, wanted, tuple(cut), single)


class Arrangement(NamedTuple):
    """A map and a filter as those of a problem."""

    kept: tuple[slice, ...]  # what the outputs that are wanted read of the map
    order: Axes  # of the map and of the result: batch, groups, filters, and what is convolved
    images: Shape  # (N, G, *spatial)
    kernel_order: Axes
    kernels: Shape  # (G*K, 1, *kernel)
    padding: tuple[tuple[int, int], ...]
    groups: int
    whole: Shape  # of the result, in that order
    back: Axes  # the order of its axes as they were
    in_order: bool  # the axes lie in that order


@lru_cache(KEPT)
def arranged(x_shape: Shape, w_shape: Shape, convolved: Axes, others: Axes, wanted: Wanted) -> Arrangement:
    """That of a map and of a filter, of which elements `wanted` of the full convolution are computed."""
    batch = [i for i in others if w_shape[i] == 1]
    filters = [i for i in others if x_shape[i] == 1 and w_shape[i] != 1]
    groups = [i for i in others if i not in batch + filters]
    n, g = (math.prod(x_shape[i] for i in axes) for axes in (batch, groups))
    k = math.prod(w_shape[i] for i in filters)
    # element e of the full convolution is the sum of x[e - t] * w[t]: drop what none of the wanted ones
    # reads, pad what they miss
    kept, padding, spatial = [slice(None)] * len(x_shape), [], []
    for i, (first, count) in zip(convolved, wanted, strict=True):
        low = first - w_shape[i] + 1
        kept[i] = slice(max(0, low), first + count)
        spatial.append(len(range(x_shape[i])[kept[i]]))
        padding.append((max(0, -low), max(0, first + count - x_shape[i])))
    order = (*batch, *groups, *filters, *convolved)
    whole = [x_shape[i] for i in batch + groups] + [w_shape[i] for i in filters]
    whole += [count for _, count in wanted]
    return Arrangement(
        kept=tuple(kept),
        order=order,
        images=(n, g, *spatial),
        kernel_order=(*groups, *filters, *batch, *convolved),
        kernels=(g * k, 1, *(w_shape[i] for i in convolved)),
        padding=tuple(padding),
        groups=g,
        whole=tuple(whole),
        back=tuple(np.argsort(order).tolist()),
        in_order=order == tuple(sorted(order)),
    )
