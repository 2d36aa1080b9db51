"""Correlations by large windows: through Fourier transforms, where these are predicted to be faster.

They are one problem of one channel and one filter, whose batch are the axes before the filter, and those
behind it, once elements are sorted by these; the selector says which transform is the fastest, and how long
it takes. Transforms spread what is not finite, and rounding
errors, over blocks. So only finite arrays go through them, and what integers are made of is made exact:

1. Sums of integers by integers are rounded to the nearest, where the error bound is far below 1 / 2.
2. Of other sums only the whole part is wanted. Those that lie so near to a whole number that rounding decides
   are summed again, in the order of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.axis_windows import AxisWindow
from convalgos.core.plan_cache import PlanCache, also_forget
from convalgos.core.problem import ConvProblem
from convalgos.core.setting import Setting, setting
from convalgos.cpu.filtering.outer_products import line_factors
from convalgos.cpu.filtering.window_kernels import CLOSE, FUSED, IN_ORDER, OUTSIDE
from convalgos.cpu.filtering.windows import WindowFilter, correlate_windows, sum_type
from convalgos.select import choose, devices
from convalgos.select.constraints import Constraints
from convalgos.select.ranking import Candidate

Array = np.ndarray[Any, Any]
FEWEST_TAPS, FEWEST_PRODUCTS = 100, 1 << 24  # for which transforms are asked for their time at all
# Zen 4: the share of the peak that direct sums reach, by their order, and passes over the array beside a
# transform, each as long as the memory takes: to look for what is not finite, and to make integers exact.
SHARE = {FUSED: 0.85, IN_ORDER: 0.65, CLOSE: 0.65}
PASSES_OF_FLOATS, PASSES_OF_INTEGERS = 2, 5
PASSES_OF_PIXELS = 12  # more, to sort elements by the axes behind the filter, and back
GATHER = 1e-8  # seconds of a product that is summed again; Zen 4
CERTAIN = 1 / 64  # error bound up to which a sum of integers is found by rounding
SAMPLE = 32  # outputs of which none may be so near to a whole number that its order decides
FINE = 1024  # parts of 1, of which weights are that give whole sums too often
CHUNK = 1 << 16  # elements that are looked at, or gathered, at once


class DenseFilter:
    """`correlate_windows` of arrays of a shape and two types, by sums or by transforms."""

    def __init__(
        self, shape: Shape, x: np.dtype, y: np.dtype, w: Array, axes: Sequence[AxisWindow], fill: float
    ):
        self._types, self._w, self._axes, self._fill = (x, y), w, axes, fill
        self._sums = WindowFilter(w, x, y, axes, fill) if math.prod(shape) else None
        self._ways: dict[Setting, _Transform | None] = {}  # of what settings were asked for

    def __call__(self, x: Array, y: Array) -> None:
        if self._sums is None:
            return
        way = self._way(self._sums)
        if way is None or not _transformed(x, self._w, y, self._axes, self._fill, way):
            self._sums(x, y)

    def _way(self, sums: WindowFilter) -> _Transform | None:
        """The transform that is predicted to be faster than sums, if any; found once for each setting."""
        if sums.is_lines or self._w.size < FEWEST_TAPS:
            return None
        made_for = setting()
        if made_for not in self._ways:
            self._ways[made_for] = _transform_of(*self._types, self._w, self._axes, self._fill, made_for)
        return self._ways[made_for]


class _Transform(NamedTuple):
    """What transforms do in the place of sums."""

    problem: ConvProblem
    found: Candidate
    dtype: np.dtype  # of transforms
    is_float: bool  # and so are both arrays
    is_whole: bool  # integers by integers
    summed: float  # seconds of the sums


def _transform_of(
    x: np.dtype, y: np.dtype, w: Array, axes: Sequence[AxisWindow], fill: float, made_for: Setting
) -> _Transform | None:
    """The way to the same numbers that is predicted to be faster for any data; None where none is."""
    outputs = math.prod(axis.size for axis in axes)
    if outputs * np.count_nonzero(w) < FEWEST_PRODUCTS:
        return None
    size, order = sum_type(x, y, w, fill)
    floats = x.kind == y.kind == "f"
    whole = x.kind in "bui" and fill.is_integer() and _on_grid(w, 1)
    if not floats and not whole and (y.kind not in "iu" or _on_grid(w, FINE)):
        return None  # SciPy's last bit is wanted, or too many sums are whole numbers
    dtype = np.dtype(f"f{size}" if floats else "f8")
    problem = _problem(w.shape, axes, fill, dtype.name)
    found = None if problem is None else _fastest(problem, made_for)
    if problem is None or found is None:
        return None
    summed = _seconds_of_sums(w, outputs, size, order)
    passes = PASSES_OF_FLOATS if floats else PASSES_OF_INTEGERS
    passes += PASSES_OF_PIXELS if w.shape[-1] == 1 else 0
    beside = passes * dtype.itemsize * outputs / devices.figures("cpu").bandwidth
    if found.estimate_s + beside > summed:
        return None
    return _Transform(problem, found, dtype, floats, whole, summed)


def _transformed(
    x: Array, w: Array, y: Array, axes: Sequence[AxisWindow], fill: float, way: _Transform
) -> bool:
    """Fill y by a transform, unless the data are such that sums are the faster way to the same numbers."""
    problem, found, dtype, floats, whole, summed = way
    most = _largest_sum(x, w, fill, dtype)
    error = found.error_bound * most
    if not math.isfinite(most) or (whole and error > CERTAIN):
        return False
    cut_off = not floats and not whole
    if cut_off:
        error += float(np.finfo(dtype).eps) * w.size * most  # what sums in order may be wrong by, too
        sample = np.linspace(0, y.size - 1, SAMPLE, dtype=np.int64)
        if len(_near_whole(_summed_in_order(x, w, axes, fill, sample), error)):
            return False  # there will be too many, as where an image is saturated
    z = y if y.dtype == dtype else np.empty(y.shape, dtype)
    _run(problem, found, x.astype(dtype, copy=False), w.astype(dtype), z)
    if whole:
        np.rint(z, out=z)
    elif cut_off:
        near = _near_whole(z.reshape(-1), error)
        if GATHER * len(near) * np.count_nonzero(w) > summed:
            return False
        z.reshape(-1)[near] = _summed_in_order(x, w, axes, fill, near)
    if z is not y:  # numbers are converted as those of direct sums are
        correlate_windows(z, np.ones([1] * z.ndim), y, [AxisWindow(n) for n in y.shape], 0.0)
    return True


# --- the choice ------------------------------------------------------------------------------


def _problem(
    taps: tuple[int, ...], axes: Sequence[AxisWindow], fill: float, dtype: str
) -> ConvProblem | None:
    """The correlation as a problem; None of more than three axes from the first to the last filtered one."""
    spanned = _spanned(taps)
    inner = axes[spanned]
    if len(inner) > 3 or not math.isfinite(fill):
        return None
    return ConvProblem(
        (math.prod(a.size for a in axes) // math.prod(a.size for a in inner), 1, *(a.size for a in inner)),
        (1, 1, *taps[spanned]),
        padding=tuple((axis.low, axis.high) for axis in inner),
        boundary=tuple(axis.boundary for axis in inner),
        fill_value=fill,
        dtype=dtype,
    )


def _spanned(taps: tuple[int, ...]) -> slice:
    """The axes from the first to the last that the filter spans."""
    spanned = [i for i, n in enumerate(taps) if n > 1]
    return slice(spanned[0], spanned[-1] + 1)


@lru_cache(256)
def _fastest(problem: ConvProblem, made_for: Setting) -> Candidate | None:
    """The transform that is predicted to be the fastest, if one serves."""
    limits = Constraints(allow=("cpu.fft", "cpu.fft_planes", "cpu.fft_tiles"), weights_constant=False)
    return next(iter(choose.close_candidates(problem, "cpu", limits, 1.0)), None)


also_forget(_fastest.cache_clear)


def _seconds_of_sums(w: Array, outputs: int, size: int, order: int) -> float:
    """How long `correlate_windows` is predicted to take."""
    machine = devices.figures("cpu")
    products = int(np.count_nonzero(w))
    if order == FUSED and products == w.size and line_factors(w, size == 4) is not None:
        products = sum(w.shape)
    peak = machine.peak_float32 if size == 4 else machine.peak_float64
    return float(2 * products * outputs / (SHARE[order] * peak))


def _on_grid(w: Array, parts: int) -> bool:
    """Whether all weights are multiples of a part of 1."""
    return bool((w * parts == np.rint(w * parts)).all())


def _largest_sum(x: Array, w: Array, fill: float, dtype: np.dtype) -> float:
    """No sum is larger; not finite where a transform might overflow, or x has what is not finite."""
    with np.errstate(invalid="ignore"):
        low, high = float(x.min()), float(x.max())
    weights = float(np.abs(w).sum())
    largest = max(abs(low), abs(high), abs(fill)) + (low - low)  # NaN, which max may leave out
    # two transforms of blocks that are no larger than this
    spectra = max(1.0, largest) * max(1.0, weights) * float(x.size + w.size) ** 2
    return largest * weights if spectra < float(np.finfo(dtype).max) else math.inf


# --- what is computed ------------------------------------------------------------------------

plans = PlanCache()


def _run(problem: ConvProblem, found: Candidate, x: Array, w: Array, z: Array) -> None:
    plan = plans.find(problem)
    if plan is None:
        plan = choose.plan_candidate(found, Constraints())
        plans.add(problem, plan)
    inner = x.shape[_spanned(w.shape)]
    behind = math.prod(x.shape[_spanned(w.shape).stop :])
    pixels = (-1, math.prod(inner), behind)
    sorted_x = x.reshape(pixels).swapaxes(1, 2).reshape(problem.x_shape)  # a copy where pixels have elements
    if behind == 1:
        plan(sorted_x, w.reshape(problem.w_shape), out=z.reshape(problem.y_shape))
    else:
        sorted_z = plan(sorted_x, w.reshape(problem.w_shape)).reshape(-1, behind, pixels[1])
        z.reshape(pixels)[...] = sorted_z.swapaxes(1, 2)


def _near_whole(z: Array, error: float) -> Array:
    """Where z (outputs,) is within an error of a whole number that is not 0, at which it would be cut off."""
    found = [np.zeros(0, np.int64)]
    for first in range(0, len(z), CHUNK):
        part = z[first : first + CHUNK]
        nearest = np.rint(part)
        found.append(first + np.flatnonzero((np.abs(part - nearest) <= error) & (nearest != 0)))
    return np.concatenate(found)


def _summed_in_order(x: Array, w: Array, axes: Sequence[AxisWindow], fill: float, places: Array) -> Array:
    """(places,) float64: the sums at places of the outputs, added in the order of the weights."""
    kept = np.flatnonzero(w)
    weights, elements = w.reshape(-1)[kept], x.reshape(-1)
    sums = [np.zeros(0)]
    for part in np.array_split(places, len(places) * w.size // CHUNK + 1) if len(places) else ():
        at = np.zeros((len(part), 1), np.int64)  # (places, taps of the axes so far)
        outside = np.zeros((len(part), 1), bool)
        for axis, place in zip(axes, np.unravel_index(part, x.shape), strict=True):
            source = axis.sources[place[:, None] + np.arange(axis.taps)][:, None]  # (places, 1, taps)
            outside = (outside[..., None] | (source == OUTSIDE)).reshape(len(part), -1)
            at = (at[..., None] * axis.size + source).reshape(len(part), -1)
        at, outside = at[:, kept], outside[:, kept]
        values = elements[np.where(outside, 0, at)].astype(np.float64)  # (places, taps)
        values[outside] = fill
        sums.append(np.add.accumulate(values * weights, 1)[:, -1])
    return np.concatenate(sums)
