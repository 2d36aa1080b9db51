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
from typing import Any

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.axis_windows import AxisWindow
from convalgos.core.later_search import searching_later
from convalgos.core.plan import Plan
from convalgos.core.plan_cache import PlanCache, also_forget
from convalgos.core.prepared_filter import PreparedFilter
from convalgos.core.problem import ConvProblem
from convalgos.core.setting import Setting, setting
from convalgos.cpu.filtering.outer_products import line_factors
from convalgos.cpu.filtering.window_kernels import CLOSE, FUSED, IN_ORDER, OUTSIDE
from convalgos.cpu.filtering.windows import SizedWindows, WindowFilter, sum_type
from convalgos.ndimage import known_calls
from convalgos.select import choose, devices
from convalgos.select.constraints import Constraints
from convalgos.select.ranking import Candidate

Array = np.ndarray[Any, Any]
FEWEST_TAPS, FEWEST_PRODUCTS = 100, 1 << 21  # for which transforms are asked for their time at all
# The share of the peak that direct sums reach, by their order (Sapphire Rapids; a fifth more on Zen 4), and
# passes over the array beside a transform, each as long as the memory takes: to look for what is not finite,
# and to make integers exact; Zen 4. CALLS: seconds of Python around all these.
SHARE = {FUSED: 0.7, IN_ORDER: 0.5, CLOSE: 0.3}
PASSES_OF_FLOATS, PASSES_OF_INTEGERS = 2, 5
CALLS_OF_FLOATS, CALLS_OF_INTEGERS = 1.5e-5, 5e-5
HELD = 4 << 20  # bytes of a spectrum that is kept from one call to the next
PASSES_OF_PIXELS = 12  # more, to sort elements by the axes behind the filter, and back
GATHER = 1e-8  # seconds of a product that is summed again; Zen 4
CERTAIN = 1 / 64  # error bound up to which a sum of integers is found by rounding
SAMPLE = 32  # outputs of which none may be so near to a whole number that its order decides
FINE = 1024  # parts of 1, of which weights are that give whole sums too often
TRANSFORMS = "cpu.fft", "cpu.fft_planes", "cpu.fft_tiles"
CHUNK = 1 << 16  # elements that are looked at, or gathered, at once


class DenseFilter:
    """`WindowFilter` of arrays of two types and any sizes, by sums or by transforms."""

    def __init__(self, x: np.dtype, y: np.dtype, w: Array, axes: Sequence[AxisWindow], fill: float):
        self._types, self._w, self._axes, self._fill = (x, y), w, axes, fill
        self._sums = WindowFilter(w, x, y, axes, fill)

    def of(self, shape: Shape) -> known_calls.Write:
        """What filters arrays of a shape, which has elements."""
        sums = self._sums.of(shape)
        if sums.is_lines or self._w.size < FEWEST_TAPS or math.prod(shape) * self._w.size < FEWEST_PRODUCTS:
            return sums.shortest
        axes = [axis._replace(size=size) for axis, size in zip(self._axes, shape, strict=True)]
        return _Dense(*self._types, self._w, axes, self._fill, sums)


class _Dense:
    """What filters arrays of a shape by sums, or by the transform that is predicted to be faster."""

    def __init__(
        self, x: np.dtype, y: np.dtype, w: Array, axes: Sequence[AxisWindow], fill: float, sums: SizedWindows
    ):
        self._given, self._sums = (x, y, w, axes, fill), sums
        self._ways: dict[Setting, _Transform | None] = {}  # of what settings were asked for

    def __call__(self, x: Array, y: Array) -> None:
        way = self._way()
        if way is None or not way.fills(x, y):
            self._sums(x, y)

    def _way(self) -> _Transform | None:
        """The transform, if any; found once for each setting."""
        made_for = setting()
        if made_for not in self._ways:
            self._ways[made_for] = _transform_of(*self._given, made_for)
        return self._ways[made_for]


class _Transform:
    """A transform in the place of sums: what does not depend on what arrays hold. Many threads may call it.

    Args:
        found: the algorithm.
        y: the type of the output.
        dtype: of transforms.
        summed: seconds of the sums.
    """

    def __init__(
        self, found: Candidate, x: np.dtype, y: np.dtype, dtype: np.dtype, w: Array,
        axes: Sequence[AxisWindow], fill: float, summed: float,
    ):  # fmt: skip
        self._found, self._dtype, self._summed = found, dtype, summed
        self._w, self._axes, self._fill = w, axes, fill
        self._total, self._count = float(np.abs(w).sum()), np.count_nonzero(w)
        self._whole = _are_whole(x, w, fill)
        self._cut_off = not self._whole and not x.kind == y.kind == "f"
        self._crowded = False  # whether too many sums of the last array were near whole numbers
        self._prepared: tuple[Plan, PreparedFilter] | None = None  # by which plan
        self._convert = None  # numbers are converted as those of direct sums are
        if y != dtype:
            nothing = [AxisWindow(0)] * w.ndim
            converted = WindowFilter(np.ones([1] * w.ndim), dtype, y, nothing, 0.0)
            self._convert = converted.of(tuple(axis.size for axis in axes))

    def fills(self, x: Array, y: Array) -> bool:
        """Fill y, unless the data are such that sums are the faster way to the same numbers."""
        most = _largest_sum(x, self._w.size, self._total, self._fill, self._dtype)
        error = self._found.error_bound * most
        if not math.isfinite(most) or (self._whole and error > CERTAIN):
            return False
        if self._cut_off:
            error += float(np.finfo(self._dtype).eps) * self._w.size * most  # of sums in order, too
            if self._crowded:
                sample = np.linspace(0, y.size - 1, SAMPLE, dtype=np.int64)
                self._crowded = bool(len(_near_whole(self._in_order(x, sample), error)))
                if self._crowded:
                    return False  # as where an image is saturated
        z = y if self._convert is None else np.empty(y.shape, self._dtype)
        self._run(x.astype(self._dtype, copy=False), z)
        if self._whole:
            np.rint(z, out=z)
        elif self._cut_off:
            near = _near_whole(z.reshape(-1), error)
            self._crowded = bool(GATHER * len(near) * self._count > self._summed)
            if self._crowded:
                return False
            z.reshape(-1)[near] = self._in_order(x, near)
        if self._convert is not None:
            self._convert(z, y)
        return True

    def _in_order(self, x: Array, places: Array) -> Array:
        return _summed_in_order(x, self._w, self._axes, self._fill, places)

    def _run(self, x: Array, z: Array) -> None:
        problem = self._found.problem
        plan = plans.find(problem)
        if plan is None:
            with searching_later():
                plan = choose.plan_candidate(self._found, Constraints())
            plans.add(problem, plan)
        prepared = self._prepared
        if prepared is None or prepared[0] is not plan:
            prepared = plan, plan.prepare(self._w.astype(self._dtype).reshape(problem.w_shape))
            self._prepared = prepared if _is_held(self._found) else None
        w = prepared[1]
        spanned = _spanned(self._w.shape)
        inner, behind = math.prod(x.shape[spanned]), math.prod(x.shape[spanned.stop :])
        # a copy where pixels have elements
        sorted_x = x.reshape(-1, inner, behind).swapaxes(1, 2).reshape(problem.x_shape)
        if behind == 1:
            plan(sorted_x, w, out=z.reshape(problem.y_shape))
        else:
            sorted_z = plan(sorted_x, w).reshape(-1, behind, inner)
            z.reshape(-1, inner, behind)[...] = sorted_z.swapaxes(1, 2)


def _transform_of(
    x: np.dtype, y: np.dtype, w: Array, axes: Sequence[AxisWindow], fill: float, made_for: Setting
) -> _Transform | None:
    """The way to the same numbers that is predicted to be faster for any data; None where none is."""
    outputs = math.prod(axis.size for axis in axes)
    if outputs * np.count_nonzero(w) < FEWEST_PRODUCTS:
        return None
    size, order = sum_type(x, y, w, fill)
    floats = x.kind == y.kind == "f"
    if not floats and not _are_whole(x, w, fill) and (y.kind not in "iu" or _on_grid(w, FINE)):
        return None  # SciPy's last bit is wanted, or too many sums are whole numbers
    dtype = np.dtype(f"f{size}" if floats else "f8")
    problem = _problem(w.shape, axes, fill, dtype.name)
    found = None if problem is None else _fastest(problem, made_for)
    if found is None:
        return None
    summed = _seconds_of_sums(w, outputs, size, order)
    passes = PASSES_OF_FLOATS if floats else PASSES_OF_INTEGERS
    passes += PASSES_OF_PIXELS if w.shape[-1] == 1 else 0
    beside = passes * dtype.itemsize * outputs / devices.figures("cpu").bandwidth
    beside += CALLS_OF_FLOATS if floats else CALLS_OF_INTEGERS
    if found.estimate_s + beside > summed:
        return None
    return _Transform(found, x, y, dtype, w, axes, fill, summed)


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
    for is_held in (True, False):
        limits = Constraints(allow=TRANSFORMS, weights_constant=is_held)
        found = next(iter(choose.close_candidates(problem, "cpu", limits, 1.0)), None)
        if found is None or _is_held(found):
            break
    return found


def _is_held(found: Candidate) -> bool:
    """Whether the spectrum of a filter is kept from one call to the next, with what is known of the call."""
    p = found.problem
    return found.algorithm.filter_bytes(p) <= HELD and math.prod(p.w_shape) * 8 <= known_calls.MOST


also_forget(_fastest.cache_clear)


def _seconds_of_sums(w: Array, outputs: int, size: int, order: int) -> float:
    """How long a `WindowFilter` is predicted to take."""
    machine = devices.figures("cpu")
    products = int(np.count_nonzero(w))
    if order == FUSED and products == w.size and line_factors(w, size == 4) is not None:
        products = sum(w.shape)
    peak = machine.peak_float32 if size == 4 else machine.peak_float64
    return float(2 * products * outputs / (SHARE[order] * peak))


def _on_grid(w: Array, parts: int) -> bool:
    """Whether all weights are multiples of a part of 1."""
    return bool((w * parts == np.rint(w * parts)).all())


def _are_whole(x: np.dtype, w: Array, fill: float) -> bool:
    """Whether sums are those of integers by integers."""
    return x.kind in "bui" and fill.is_integer() and _on_grid(w, 1)


def _largest_sum(x: Array, taps: int, total: float, fill: float, dtype: np.dtype) -> float:
    """No sum is larger; not finite where a transform might overflow, or x has what is not finite.

    total: of the absolute values of weights.
    """
    with np.errstate(invalid="ignore"):
        low, high = float(x.min()), float(x.max())
    largest = max(abs(low), abs(high), abs(fill)) + (low - low)  # NaN, which max may leave out
    # two transforms of blocks that are no larger than this
    spectra = max(1.0, largest) * max(1.0, total) * float(x.size + taps) ** 2
    return largest * total if spectra < float(np.finfo(dtype).max) else math.inf


# --- what is computed ------------------------------------------------------------------------

plans = PlanCache()


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
