"""What is kept for signals up- and downsampled in one compiled call: how they lie, and the fastest way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from convalgos.core.boundaries import OUTSIDE, source_indices
from convalgos.cpu.filtering.column_rates import ColumnRates, are_columns, seconds_of_columns
from convalgos.cpu.filtering.decimated_sums import DecimatedSums, seconds_of_dots, seconds_of_phases
from convalgos.cpu.filtering.rate_records import Rates
from convalgos.cpu.filtering.small_rates import SmallRates, filter_rates
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.signal.extensions import MIXED, mixed_samples
from convalgos.signal.mixed_types import FLOATING
from convalgos.signal.small_calls import Function, Small

# Of products at two rates, times the threads that plans have, and of one line: up to here no plan is faster;
# Sapphire Rapids, two threads
BYTES_OF_RATES, BYTES_OF_LINE = 1 << 29, 1 << 22
SHARE_TURNED = 0.75  # of the time of other ways that lines which lie apart may take as columns; Zen 4

Way = type[ColumnRates] | type[DecimatedSums] | type[SmallRates]


def resampling_call(
    dtype: np.dtype, x: np.ndarray, taps: int, up: int, down: int, axis: int, mode: str, of_filter: np.dtype
) -> Small | None:
    """What is kept for `upfirdn` of arrays of up to three axes that lie as x does; None of large ones.

    Args:
        dtype: of x and the result; that of the filter may be the real one of the same precision.
    """
    n, call = x.shape[axis], filter_rates()
    if not x.size or not taps or up < 1 or down < 1 or dtype.char not in FLOATING or call is None:
        return None
    outputs = ((n - 1) * up + taps - 1) // down + 1
    common = math.gcd(up, down)
    products = x.size // n * outputs * -(-taps * common // up)
    if products * dtype.itemsize > BYTES_OF_RATES // plan_threads():
        return None
    shape = tuple(outputs if i == axis else size for i, size in enumerate(x.shape))
    taps, up, down = -(-taps // common), up // common, down // common
    if taps == up == 1:
        return Small(_decimated(down, axis), 0, shape, None)
    low, high = (taps - 1) // up, max(0, (outputs - 1) * down // up + 1 - n)
    mixes = None
    if mode in MIXED:
        if n < 2 and mode not in ("antisymmetric", "line"):
            return None
        mixes = mixed_samples(mode, n, low, high)
    in_zeros = mode == "constant" or not low + high
    if in_zeros or mixes is not None:
        ends = _of_zeros(low), _of_zeros(high)
    else:
        places = source_indices(mode, n, low, high)
        ends = places[:low], places[low + n :]
    counts, x_steps, y_steps = _lines(x.shape, x.strides, _steps(shape, dtype.itemsize), axis)
    rates = Rates(
        of_filter, 1 if of_filter is dtype else 2, counts, n, x_steps, (taps, common), up, down, outputs,
        y_steps, ends, in_zeros, mixes,
    )  # fmt: skip
    if not are_columns(rates) and are_columns(turned := _turned(rates)):
        others = min(seconds_of_dots(rates), seconds_of_phases(rates))
        if seconds_of_columns(turned) < SHARE_TURNED * others:
            rates = turned
    way = fastest_way(rates)
    if n * dtype.itemsize > BYTES_OF_LINE and way is not ColumnRates:
        if way is not DecimatedSums or not rates.end_in_zeros:
            return None
        if not rates.neighbours:  # long lines are not laid in scratch
            call, side_by_side = _of_neighbours(call, axis), _moved(x.shape, axis)
            of_x, of_y = _steps(side_by_side, dtype.itemsize), _moved(_steps(shape, dtype.itemsize), axis)
            counts, x_steps, y_steps = _lines(side_by_side, of_x, of_y, x.ndim - 1)
            rates = rates._replace(counts=counts, x_steps=x_steps, y_steps=y_steps)
    made = way(rates)
    return Small(call, made.address, shape, made)


def fastest_way(rates: Rates) -> Way:
    """By sums of columns, where there are such, by dot products, or by whole phases."""
    dots, phases = seconds_of_dots(rates), seconds_of_phases(rates)
    if are_columns(rates) and seconds_of_columns(rates) < min(dots, phases):
        return ColumnRates
    return DecimatedSums if dots < phases else SmallRates


# --- inside ----------------------------------------------------------------------------------


@lru_cache(256)
def _of_zeros(count: int) -> np.ndarray:
    """(count,): the samples that are none, in the places of which zeros lie."""
    none = np.full(count, OUTSIDE)
    none.setflags(write=False)
    return none


def _steps(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """Bytes between neighbours along each axis of a C-contiguous array."""
    return tuple(size * math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _moved(values: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """What belongs to an axis behind what belongs to the others."""
    return (*values[:axis], *values[axis + 1 :], values[axis])


def _lines(
    shape: tuple[int, ...], of_x: tuple[int, ...], of_y: tuple[int, ...], axis: int
) -> tuple[tuple[int, int], tuple[int, int, int], tuple[int, int, int]]:
    """(planes, lines) of signals along an axis, and the bytes between planes, lines and samples of x and y.

    Lines that lie side by side are those of a plane; both axes are one where they can be.
    """
    (*counts, _), (*x_steps, x_step), (*y_steps, y_step) = (_moved(v, axis) for v in (shape, of_x, of_y))
    ahead = [[1] * (2 - len(counts)), [0] * (2 - len(counts))]
    counts, x_steps, y_steps = ahead[0] + counts, ahead[1] + x_steps, ahead[1] + y_steps
    for order in (slice(None), slice(None, None, -1)):
        (planes, lines), (x_plane, x_line), (y_plane, y_line) = counts[order], x_steps[order], y_steps[order]
        if x_plane == lines * x_line and y_plane == lines * y_line:
            return (1, planes * lines), (0, x_line, x_step), (0, y_line, y_step)
    if abs(x_steps[0]) < abs(x_steps[1]) and counts[0] > 1:
        counts, x_steps, y_steps = counts[::-1], x_steps[::-1], y_steps[::-1]
    return (counts[0], counts[1]), (x_steps[0], x_steps[1], x_step), (y_steps[0], y_steps[1], y_step)


def _turned(rates: Rates) -> Rates:
    """The same with the lines of a plane for planes: few lines lie side by side, and more of them apart."""
    x_plane, x_line, x_step = rates.x_steps
    y_plane, y_line, y_step = rates.y_steps
    return rates._replace(
        counts=rates.counts[::-1], x_steps=(x_line, x_plane, x_step), y_steps=(y_line, y_plane, y_step)
    )


def _of_neighbours(function: Function, axis: int) -> Function:
    """The same of lines whose samples are brought side by side."""

    def call(address: int, x: np.ndarray, h: np.ndarray, y: np.ndarray) -> np.ndarray | None:
        lines = np.ascontiguousarray(np.moveaxis(x, axis, -1))
        called: np.ndarray | None = function(address, lines, h, y)
        return called

    return call


def _decimated(down: int, axis: int) -> Function:
    """Every down-th sample of lines, times a single tap."""
    kept = (slice(None),) * axis + (slice(None, None, down),)

    def call(_: int, x: np.ndarray, h: np.ndarray, y: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):  # NumPy warns of what is not finite, SciPy's sums do not
            np.multiply(x[kept], h[0], out=y)
        return y

    return call
