"""Gaussian filters, and the derivatives of what they smooth."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from convalgos.core.arguments import shown
from convalgos.core.array_kinds import any_kind
from convalgos.ndimage import arguments, derivatives
from convalgos.ndimage.approximations import Smoothed, approximated
from convalgos.ndimage.known_calls import known_calls
from convalgos.ndimage.lines import (
    LENGTH,
    SUM,
    Combination,
    Weights,
    combined_terms,
    correlate_axes,
)

LEAST = 1e-15  # sigmas up to here leave an axis as it is
WINDOWS = {"truncate", "radius"}  # arguments that only tell where weights end


@known_calls
@any_kind("cupyx.scipy.ndimage")
def gaussian_filter1d(
    input: Any,
    sigma: float,
    axis: int = -1,
    order: int = 0,
    output: Any = None,
    mode: str = "reflect",
    cval: complex = 0.0,
    truncate: float = 4.0,
    *,
    radius: int | None = None,
) -> Any:
    """Smooth along one axis by a Gaussian, as `scipy.ndimage.gaussian_filter1d` does.

    Args:
        input, axis, output, mode, cval: as `correlate1d` has them.
        sigma: standard deviation of the Gaussian, in elements.
        order: 0 for the Gaussian, 1 for its first derivative, and so on.
        truncate: the filter ends so many standard deviations from its middle.
        radius: elements on each side of the middle, in the place of `truncate`.

    Raises:
        ValueError: a negative order or radius; and what `correlate1d` refuses.

    Example:
        >>> import convalgos as ca
        >>> ca.ndimage.gaussian_filter1d([1.0, 2.0, 3.0, 4.0, 5.0], 1).round(4)
        array([1.427 , 2.0678, 3.    , 3.9322, 4.573 ])
    """
    x = arguments.input_array("input", input)
    known = arguments.finite_number("sigma", sigma), arguments.whole_number("order", order)
    weights = weights_in(_sums_in(x, output), *known, radius_of(sigma, truncate, radius))
    step = Weights(arguments.one_axis(axis, x.ndim), weights, mode)
    return correlate_axes(x, [step], output, cval)


@known_calls
@any_kind("cupyx.scipy.ndimage")
def gaussian_filter(
    input: Any,
    sigma: float | Sequence[float],
    order: int | Sequence[int] = 0,
    output: Any = None,
    mode: str | Sequence[str] = "reflect",
    cval: complex = 0.0,
    truncate: float = 4.0,
    *,
    radius: int | Sequence[int] | None = None,
    axes: int | Sequence[int] | None = None,
    max_rel_error: float | None = None,
) -> Any:
    """Smooth an array by a Gaussian, as `scipy.ndimage.gaussian_filter` does: along one axis after the other.

    Args:
        input, output, cval: as `correlate1d` has them.
        sigma, order, mode, radius: as `gaussian_filter1d` has them: one for all axes, or one for each.
        truncate: as there.
        axes: those along which it smooths; None for all.
        max_rel_error: how far results may be from exact ones, as a share of the largest absolute value; 1e-3
            or 1e-4 let wide Gaussians be computed on coarser grids, or by recursions, whose time does not
            depend on sigma; NaN then spreads farther. Integers of 8 and 16 bits to the same type are what is
            within that share, cut off once: 1 more from exact ones. SciPy has no such argument.

    Raises:
        ValueError, RuntimeError: as SciPy does; max_rel_error is no number above 0.

    Source of coarser grids: Crochiere and Rabiner 1981, "Interpolation and decimation of digital signals",
    Proc. IEEE 69; of recursions: Deriche 1993, INRIA RR-1893.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.ndimage.gaussian_filter(np.arange(0, 50, 2).reshape(5, 5), sigma=1)[0]
        array([ 4,  6,  8,  9, 11])
    """
    x = arguments.input_array("input", input)
    smoothed = _smoothed(x.ndim, sigma, order, mode, truncate, radius, axes)
    within = None if max_rel_error is None else approximated(x, smoothed, output, cval, max_rel_error)
    steps = _steps(smoothed, _sums_in(x, output))
    if steps and x.dtype.kind != "c":
        return correlate_axes(x, steps, output, cval, within)
    result = arguments.output_array(output, x)  # whose dtype SciPy does not promote here
    if steps:
        return correlate_axes(x, steps, result, cval)
    result[...] = x
    return result


@known_calls
@any_kind("cupyx.scipy.ndimage")
def gaussian_laplace(
    input: Any,
    sigma: float | Sequence[float],
    output: Any = None,
    mode: str | Sequence[str] = "reflect",
    cval: complex = 0.0,
    *,
    axes: int | Sequence[int] | None = None,
    **kwargs: Any,
) -> Any:
    """The sum of the second derivatives of a smoothed array, as `scipy.ndimage.gaussian_laplace` has it.

    Args:
        input, sigma, output, mode, cval, axes: as `gaussian_filter` has them.
        kwargs: for `gaussian_filter`, such as `truncate`.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.ndimage.gaussian_laplace(np.eye(5), sigma=1)[2].round(3)
        array([ 0.208, -0.073, -0.27 , -0.073,  0.208])
    """
    x = arguments.input_array("input", input)
    sigmas = _sigmas(sigma, axes, x.ndim)
    result = _combined_derivatives(x, sigmas, 2, output, mode, cval, axes, kwargs, SUM)
    if result is not None:
        return result

    def second(x: Any, axis: int, output: Any, mode: Any, cval: Any) -> Any:
        return gaussian_filter(x, sigmas, _only(2, axis, x.ndim), output, mode, cval, **kwargs)

    return derivatives.generic_laplace(x, second, output, mode, cval, axes=axes)


@known_calls
@any_kind("cupyx.scipy.ndimage")
def gaussian_gradient_magnitude(
    input: Any,
    sigma: float | Sequence[float],
    output: Any = None,
    mode: str | Sequence[str] = "reflect",
    cval: complex = 0.0,
    *,
    axes: int | Sequence[int] | None = None,
    **kwargs: Any,
) -> Any:
    """The length of the gradient of a smoothed array, as `scipy.ndimage.gaussian_gradient_magnitude` has it.

    Args:
        input, sigma, output, mode, cval: as `gaussian_filter` has them; it smooths along all axes.
        axes: those of whose derivatives the length is taken; None for all.
        kwargs: for `gaussian_filter`, such as `truncate`.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.ndimage.gaussian_gradient_magnitude(np.arange(12.0).reshape(3, 4), 1)[1].round(3)
        array([2.819, 2.917, 2.917, 2.819])
    """
    x = arguments.input_array("input", input)
    result = _combined_derivatives(x, sigma, 1, output, mode, cval, axes, kwargs, LENGTH)
    if result is not None:
        return result

    def first(x: Any, axis: int, output: Any, mode: Any, cval: Any) -> Any:
        return gaussian_filter(x, sigma, _only(1, axis, x.ndim), output, mode, cval, **kwargs)

    return derivatives.generic_gradient_magnitude(x, first, output, mode, cval, axes=axes)


def _smoothed(
    ndim: int, sigma: Any, order: Any, mode: Any, truncate: float = 4.0, radius: Any = None, axes: Any = None
) -> list[Smoothed]:
    """Of the axes that `gaussian_filter` does not leave as they are."""
    along = arguments.several_axes(axes, ndim)
    values = [(n, arguments.per_axis(n, v, len(along))) for n, v in
              (("sigma", sigma), ("order", order), ("mode", mode), ("radius", radius))]  # fmt: skip
    return [
        (axis, float(s), arguments.whole_number("order", o), m, radius_of(s, truncate, r))
        for axis, s, o, m, r in zip(along, *(v for _, v in values), strict=True)
        if arguments.finite_number("sigma", s) > LEAST
    ]


def _steps(smoothed: list[Smoothed], char: str) -> list[Weights]:
    return [Weights(axis, weights_in(char, s, o, r), m) for axis, s, o, m, r in smoothed]


def _sums_in(x: np.ndarray, output: Any) -> str:
    """The type of the sums over floats, by NumPy's character; "" from or to integers: SciPy's sums."""
    into = output.dtype if isinstance(output, np.ndarray) else output
    if x.dtype.char not in "fdFD" or _is_whole(into):
        return ""
    return "f" if x.dtype.char in "fF" and (into is None or x.dtype == into) else "d"


def _is_whole(output: Any) -> bool:
    """Whether it names a dtype of integers or booleans."""
    try:
        return output is not None and np.dtype(output).kind in "iub"
    except (TypeError, ValueError):
        return False  # no dtype, which is refused where it is made


def _combined_derivatives(
    x: np.ndarray, sigma: Any, order: int, output: Any, mode: Any, cval: Any, axes: Any,
    kwargs: dict[str, Any], by: Combination,
) -> np.ndarray | None:  # fmt: skip
    """What derivatives of an order along each axis make together, as `combined_terms` has it."""
    if not WINDOWS.issuperset(kwargs):
        return None
    along = arguments.several_axes(axes, x.ndim)
    modes = arguments.per_axis("mode", mode, len(along))
    terms = [
        _steps(_smoothed(x.ndim, sigma, _only(order, axis, x.ndim), beyond, **kwargs), _sums_in(x, output))
        for axis, beyond in zip(along, modes, strict=True)
    ]
    return combined_terms(x, terms, output, cval, by)


@lru_cache(256)
def gaussian_weights(sigma: float, order: int, radius: int) -> np.ndarray:
    """(2 * radius + 1,) float64: a Gaussian of sum 1, or a derivative of it, as a correlation has it.

    Bit for bit what SciPy computes: exp(-x**2 / (2 sigma**2)) times the polynomial of that derivative.

    Raises:
        ValueError: a negative order.
    """
    if order < 0:
        raise ValueError(f"order must be non-negative: order={shown(order)}")
    x = np.arange(-radius, radius + 1)
    phi = np.exp(-0.5 / (sigma * sigma) * x**2)
    phi = phi / phi.sum()
    if order:
        powers = np.arange(order + 1)
        q = np.zeros(order + 1)
        q[0] = 1
        derive = np.diag(powers[1:], 1) + np.diag(np.ones(order) / -(sigma * sigma), -1)
        for _ in range(order):
            q = derive.dot(q)
        phi = (x[:, None] ** powers).dot(q) * phi
    weights: np.ndarray = phi[::-1].copy()
    weights.setflags(write=False)
    return weights


@lru_cache(256)
def weights_in(char: str, sigma: float, order: int, radius: int) -> np.ndarray:
    """`gaussian_weights` whose sum in a type, from the first on, is what it should be: 1, or 0 of odd orders.

    So an image of ones stays one, and has no edges. Filters of ridges, for example, divide by the largest of
    small differences, which must be none there. The last weight has what the sum of the others lacks, where
    that changes it little.
    """
    weights = gaussian_weights(sigma, order, radius)
    whole = 1 if order == 0 else 0
    if not char or not radius or (order and order % 2 == 0):
        return weights
    rounded = weights.astype(char)
    rounded[-1] = whole - np.add.accumulate(rounded[:-1])[-1]
    if not 0.5 < rounded[-1] / weights[-1] < 2:
        return weights
    rounded = rounded.astype(np.float64)
    rounded.setflags(write=False)
    return rounded


def radius_of(sigma: float, truncate: float, radius: Any) -> int:
    """Elements on each side of the middle of a Gaussian.

    Raises:
        ValueError: it would be negative, or no whole number.
    """
    if radius is None:
        found = int(arguments.finite_number("truncate", truncate) * float(sigma) + 0.5)
    else:
        found = arguments.whole_number("radius", radius)
    if found < 0:
        raise ValueError(
            f"Radius must be a nonnegative integer, not radius={shown(radius)}, sigma={shown(sigma)}"
        )
    return found


def _only(order: int, axis: int, ndim: int) -> list[int]:
    """That order for one axis, and 0 for all others."""
    return [order if i == axis else 0 for i in range(ndim)]


def _sigmas(sigma: Any, axes: Any, ndim: int) -> list[float]:
    """A sigma for each axis of an array; 0 for those that are not filtered.

    SciPy's rule: sigmas have the order of `axes`, or where these are all of the array, that of the array.
    """
    along = arguments.several_axes(axes, ndim)
    sigmas = arguments.per_axis("sigma", sigma, len(along))
    if len(along) == ndim:
        return sigmas
    given = dict(zip(along, sigmas, strict=True))
    return [given.get(axis, 0) for axis in range(ndim)]
