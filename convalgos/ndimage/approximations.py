"""Wide Gaussians that are less exact than SciPy's, where callers allow an error.

Short integers are filtered along all axes as float32, and cut off to integers once: SciPy does so after each
axis. Sums that should be whole numbers stay these (`coarse_grids.NUDGED`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from convalgos.core.arguments import Shape, shown
from convalgos.cpu.filtering.coarse_gaussians import (
    CoarseAxis,
    coarse_chain,
    steps_within,
)
from convalgos.cpu.filtering.coarse_grids import NUDGED, WHOLE
from convalgos.cpu.filtering.coarse_lines import is_long_line
from convalgos.cpu.filtering.recursive_gaussians import (
    Recursion,
    parts_of_lines,
    recurse_along,
    recursions_within,
)
from convalgos.ndimage import arguments
from convalgos.ndimage.conversions import holds
from convalgos.ndimage.known_calls import Write

WIDE = 24  # radius from which less exact ways take less time; Zen 4
RECURSED = 32  # and that of recursions, with lines in all lanes of their vectors; Sapphire Rapids
SHORT = frozenset(("int8", "uint8", "int16", "uint16"))  # integers that float32 holds

Smoothed = tuple[int, float, int, Any, int]  # (axis, sigma, order, mode, radius)


def approximated(
    x: np.ndarray, smoothed: Sequence[Smoothed], output: Any, cval: Any, max_rel_error: float
) -> Callable[[Shape], Write | None] | None:
    """What finds what fills an array of a shape within the error: None where nothing less exact does, or
    would be faster. None where that is so of arrays of all shapes.

    Raises:
        ValueError: max_rel_error is no number above 0.
    """
    if not 0 < max_rel_error < np.inf:
        raise ValueError(f"max_rel_error={shown(max_rel_error)} must be a number above 0, or None")
    asked = np.dtype(x.dtype if output is None else getattr(output, "dtype", output)).newbyteorder("=")
    widest = max((radius for *_, radius in smoothed), default=0)
    if widest < WIDE or any(order for _, _, order, _, _ in smoothed):
        return None
    boundaries = [arguments.boundary_of(mode) for *_, mode, _ in smoothed]
    beyond = arguments.real_number("cval", cval) if "constant" in boundaries else 0.0
    if asked.name in SHORT and x.dtype == asked and holds(beyond, asked):
        dtype = np.dtype(np.float32)
        max_rel_error -= NUDGED - 1
    elif asked.char in "fd" and (x.dtype.kind in "biu" or x.dtype == asked):
        dtype = asked
    else:
        return None
    of, filters = x.dtype, [(sigma, radius) for _, sigma, _, _, radius in smoothed]

    def write_of(shape: Shape) -> Write | None:
        write = _coarse(shape, of, dtype, asked, smoothed, boundaries, beyond, max_rel_error)
        if write is None and not _few_lines(shape, dtype, smoothed):
            found = recursions_within(filters, dtype, max_rel_error)
            if found is not None:
                write = _recursive(dtype, [axis for axis, *_ in smoothed], found, boundaries, beyond)
        return write

    return write_of


def _coarse(
    shape: Shape, x: np.dtype, dtype: np.dtype, asked: np.dtype, smoothed: Sequence[Smoothed],
    boundaries: list[str], beyond: float, max_rel_error: float,
) -> Write | None:  # fmt: skip
    """By coarser grids."""
    filters = [(sigma, radius) for _, sigma, _, _, radius in smoothed]
    last = max(axis for axis, *_ in smoothed)
    size = shape[last]
    lies_in_rows = math.prod(shape[last + 1 :]) == 1
    lines_of = math.prod(shape) // size
    in_blocks = [
        lies_in_rows and axis == last and is_long_line(lines_of, size, sigma) for axis, sigma, *_ in smoothed
    ]
    lines = [
        (WHOLE if whole else boundary, shape[axis])
        for boundary, (axis, *_), whole in zip(boundaries, smoothed, in_blocks, strict=True)
    ]
    steps = steps_within(filters, lines, dtype, max_rel_error)
    if steps is None:
        return None
    axes = sorted(
        CoarseAxis(axis, boundary, *each, step, whole)
        for (axis, *_), boundary, each, step, whole in zip(
            smoothed, boundaries, filters, steps, in_blocks, strict=True
        )
    )
    is_read = x.name in SHORT and dtype.itemsize == 4 and holds(beyond, x)
    of = x if is_read else None
    chain = coarse_chain(shape, dtype, tuple(axes), beyond, of, asked if asked != dtype else None)
    if is_read or x == dtype:
        return chain.run
    return lambda x, y: chain.run(x.astype(dtype), y)


def _few_lines(shape: Shape, dtype: np.dtype, smoothed: Sequence[Smoothed]) -> bool:
    """Whether sums take less time than recursions, which take as long for one line as for many."""
    count = math.prod(shape)
    sums = count * sum(radius for *_, radius in smoothed)
    elements = 0
    for axis, _, _, _, radius in smoothed:
        size = shape[axis]
        elements += parts_of_lines(count // size, size, radius, dtype.itemsize)[1]
    return sums < RECURSED * elements


def _recursive(
    dtype: np.dtype, axes: list[int], found: list[Recursion], boundaries: list[str], beyond: float
) -> Write:
    """By recursions along one axis after the other."""
    each = zip(axes, found, boundaries, strict=True)
    return _in_floats(
        dtype,
        [
            partial(recurse_along, axis=axis, by=by, boundary=boundary, fill=beyond)
            for axis, by, boundary in each
        ],
    )


def _in_floats(dtype: np.dtype, passes: Sequence[Write]) -> Write:
    """Passes one after the other, by sums of a float dtype that are cut off to integers at last."""

    def write(x: np.ndarray, y: np.ndarray) -> None:
        source = x.astype(dtype, copy=False)
        sums = y if y.dtype == dtype else np.empty(y.shape, dtype)
        for one in passes:
            one(source, sums)
            source = sums
        if sums is not y:
            sums *= NUDGED
            limits = np.iinfo(y.dtype)
            y[...] = np.clip(sums, limits.min, limits.max, out=sums)

    return write
