"""Minima, maxima and means of windows, whose time hardly depends on their size."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from convalgos.core.arguments import Shape, shown
from convalgos.core.array_kinds import any_kind
from convalgos.core.axis_windows import AxisWindow
from convalgos.cpu.layout.turned_rows import TurnedRows, order_turned
from convalgos.cpu.sliding.passes import Slides
from convalgos.cpu.sliding.reductions import MAXIMUM, MEAN, MINIMUM
from convalgos.ndimage.arguments import (
    InvalidArgument,
    InvalidType,
    boundary_of,
    checked_origin,
    fill,
    filled_pairs,
    finite_number,
    input_array,
    one_axis,
    output_array,
    per_axis,
    real_output,
    several_axes,
    whole_number,
)
from convalgos.ndimage.conversions import fill_value_in
from convalgos.ndimage.converted_windows import ConvertedSlides, ConvertedStep, SlidesOfOther
from convalgos.ndimage.footprints import footprint_write, origins_of, whole_footprint
from convalgos.ndimage.known_calls import Write, WriteOf, keep_none, known_calls

SHORT = 4  # elements of rows that are short,
MANY = 1024  # and such rows from which on an array is turned over. Zen 5
Windows = list[tuple[int, AxisWindow]]  # (axis, those along it)


@known_calls
@any_kind("cupyx.scipy.ndimage")
def minimum_filter1d(
    input: Any, size: int, axis: int = -1, output: Any = None, mode: Any = "reflect", cval: float = 0.0,
    origin: int = 0,
) -> Any:  # fmt: skip
    """The minimum of the `size` elements around each along one axis, as `scipy.ndimage.minimum_filter1d`.

    Arguments and errors are those of `minimum_filter`.

    Example:
        >>> import convalgos as ca
        >>> ca.ndimage.minimum_filter1d([2, 8, 0, 4, 1, 9, 9, 0], size=3)
        array([2, 0, 0, 0, 1, 1, 0, 0])
    """
    return _along_one(input, size, axis, output, mode, cval, origin, MINIMUM)


@known_calls
@any_kind("cupyx.scipy.ndimage")
def maximum_filter1d(
    input: Any, size: int, axis: int = -1, output: Any = None, mode: Any = "reflect", cval: float = 0.0,
    origin: int = 0,
) -> Any:  # fmt: skip
    """The maximum of the `size` elements around each along one axis, as `scipy.ndimage.maximum_filter1d`.

    Arguments and errors are those of `minimum_filter`.

    Example:
        >>> import convalgos as ca
        >>> ca.ndimage.maximum_filter1d([2, 8, 0, 4, 1, 9, 9, 0], size=3)
        array([8, 8, 8, 4, 9, 9, 9, 9])
    """
    return _along_one(input, size, axis, output, mode, cval, origin, MAXIMUM)


@known_calls
@any_kind("cupyx.scipy.ndimage")
def uniform_filter1d(
    input: Any, size: int, axis: int = -1, output: Any = None, mode: Any = "reflect", cval: Any = 0.0,
    origin: int = 0,
) -> Any:  # fmt: skip
    """The mean of the `size` elements around each along one axis, as `scipy.ndimage.uniform_filter1d`.

    Arguments, answers and errors are those of `uniform_filter`.

    Example:
        >>> import convalgos as ca
        >>> ca.ndimage.uniform_filter1d([2, 8, 0, 4, 1, 9, 9, 0], size=3)
        array([4, 3, 4, 1, 4, 6, 6, 3])
    """
    return _along_one(input, size, axis, output, mode, cval, origin, MEAN)


@known_calls
@any_kind("cupyx.scipy.ndimage")
def uniform_filter(
    input: Any, size: Any = 3, output: Any = None, mode: Any = "reflect", cval: Any = 0.0, origin: Any = 0,
    *, axes: Any = None,
) -> Any:  # fmt: skip
    """The mean of the box around each element, as `scipy.ndimage.uniform_filter`.

    Integers have SciPy's answers, those of float64: of each axis the mean is cut off behind the point. Of
    floating-point numbers each window is summed by itself in their own type, so that the error of a mean is
    at most `size` roundings of the mean of absolute values along each axis, however long that is; an infinity
    or a NaN reaches the windows that hold it, and no others. Complex numbers are filtered by parts. Negative
    numbers have no meaning in uint64 that C defines: SciPy's there depend on how it was compiled.

    Args:
        input: array of any number of axes.
        size: elements of the box along each axis, or one number for all.
        output: array to fill, or the dtype of a new one; axis by axis, means are rounded to it.
        mode: what lies beyond the edges, one word or one for each axis: "reflect", "constant", "nearest",
            "mirror" or "wrap".
        cval: what lies there with "constant".
        origin: how far the box is shifted to the left, one number or one for each axis.
        axes: those filtered; all unless told.

    Raises:
        ValueError, RuntimeError: an argument is not valid; says which, and what would be.
        TypeError: a type that is not filtered, such as float16.

    Source: van Herk 1992, "A fast algorithm for local minimum and maximum filters", of sums.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.ndimage.uniform_filter(np.eye(4) * 9, 3)
        array([[5., 3., 1., 0.],
               [3., 3., 2., 1.],
               [1., 2., 3., 3.],
               [0., 1., 3., 5.]])
    """
    x = input_array("input", input)
    return _along(x, _windows(size, mode, origin, several_axes(axes, x.ndim)), output, cval, MEAN)


@known_calls
@any_kind("cupyx.scipy.ndimage")
def minimum_filter(
    input: Any, size: Any = None, footprint: Any = None, output: Any = None, mode: Any = "reflect",
    cval: float = 0.0, origin: Any = 0, *, axes: Any = None,
) -> Any:  # fmt: skip
    """The minimum of the elements around each, as `scipy.ndimage.minimum_filter`.

    Integers beyond 2**53, which SciPy rounds to float64, are exact.

    Args:
        input: array of any number of axes, of real numbers. What a window with a NaN gives is not defined.
        size: elements of the window along each axis, or one number for all.
        footprint: array of booleans in the place of `size`: which elements a window has.
        output, mode, cval, origin, axes: as of `uniform_filter`.

    Raises:
        ValueError, RuntimeError: an argument is not valid; says which, and what would be.
        TypeError: a type that is not filtered, such as complex numbers.

    Source: van Herk 1992, "A fast algorithm for local minimum and maximum filters on rectangular and
    octagonal kernels"; Gil, Werman 1993, "Computing 2-D min, median, and max filters".

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.ndimage.minimum_filter(np.arange(12).reshape(3, 4), size=3)
        array([[0, 0, 1, 2],
               [0, 0, 1, 2],
               [4, 4, 5, 6]])
    """
    return _extreme(input, size, footprint, output, mode, cval, origin, axes, MINIMUM)


@known_calls
@any_kind("cupyx.scipy.ndimage")
def maximum_filter(
    input: Any, size: Any = None, footprint: Any = None, output: Any = None, mode: Any = "reflect",
    cval: float = 0.0, origin: Any = 0, *, axes: Any = None,
) -> Any:  # fmt: skip
    """The maximum of the elements around each, as `scipy.ndimage.maximum_filter`.

    Arguments and errors are those of `minimum_filter`.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> cross = [[0, 1, 0], [1, 1, 1], [0, 1, 0]]
        >>> ca.ndimage.maximum_filter(np.arange(12).reshape(3, 4), footprint=cross)
        array([[ 4,  5,  6,  7],
               [ 8,  9, 10, 11],
               [ 9, 10, 11, 11]])
    """
    return _extreme(input, size, footprint, output, mode, cval, origin, axes, MAXIMUM)


# --- inside ----------------------------------------------------------------------------------


def _extreme(
    input: Any, size: Any, footprint: Any, output: Any, mode: Any, cval: Any, origin: Any, axes: Any,
    reduction: int,
) -> np.ndarray:  # fmt: skip
    x = _real(input)
    along = several_axes(axes, x.ndim)
    if footprint is None:
        if size is None:
            raise InvalidArgument("no footprint provided: give size or footprint")
        return _along(x, _windows(size, mode, origin, along), output, cval, reduction)
    if size is not None:
        warnings.warn("ignoring size because footprint is set", UserWarning, stacklevel=3)
        keep_none()
    marked = np.array(footprint, bool)  # a copy: what fills arrays of later calls reads it
    if marked.any() and marked.all():
        return _along(x, _windows(marked.shape, mode, origin, along), output, cval, reduction)
    marked = whole_footprint(marked, x.ndim, along)
    if not isinstance(mode, str):
        raise InvalidArgument("A sequence of modes is not supported for non-separable footprints")
    lows, boundary = origins_of(origin, marked.shape, along), boundary_of(mode)
    if not x.size:
        return output_array(output, x)  # of any type, as nothing is written
    result, beyond = real_output(output, x), float(cval)
    types = x.dtype, _native(result)

    def write_of(shape: Shape) -> Write:
        return footprint_write(shape, *types, marked, lows, boundary, beyond, reduction)

    return fill(result, x, write_of)


def _along_one(
    input: Any, size: Any, axis: Any, output: Any, mode: Any, cval: Any, origin: Any, reduction: int
) -> np.ndarray:
    x = input_array("input", input) if reduction == MEAN else _real(input)
    windows = _windows(whole_number("size", size), mode, origin, (one_axis(axis, x.ndim),), least=1)
    return _along(x, windows, output, cval, reduction)


def _real(input: Any) -> np.ndarray:
    if np.iscomplexobj(input):
        raise InvalidType(
            "Complex type not supported: which of two complex numbers is smaller is not defined"
        )
    return input_array("input", input)


def _windows(size: Any, mode: Any, origin: Any, axes: Sequence[int], least: int = 2) -> Windows:
    """Of the axes along which a window has at least so many elements; of axes of any size.

    Without elements there is none where `least` is 2, as SciPy has it.
    """
    count = len(axes)
    given = [per_axis(*one, count) for one in (("size", size), ("mode", mode), ("origin", origin))]
    found = []
    for axis, n, word, shift in zip(axes, *given, strict=True):
        taps = int(finite_number("size", n))
        if taps < least == 1:
            raise InvalidArgument(f"incorrect filter size: size={shown(n)} must be at least 1")
        if n <= 1 < least:
            continue  # SciPy asks for nothing else of it
        low = taps // 2 + checked_origin(shift, taps)
        found.append((axis, AxisWindow(0, taps, low, boundary_of(word))))
    return [(axis, window) for axis, window in found if window.taps >= least]


def _along(x: np.ndarray, windows: Windows, output: Any, cval: Any, reduction: int) -> np.ndarray:
    """The array that `output` names, with the reductions of windows along axes, one after the other."""
    if x.dtype.kind != "c" and np.iscomplexobj(cval):
        raise InvalidType(f"cval={shown(cval)} must be real, as the input is")
    if x.dtype.kind != "c":
        result = real_output(output, x) if windows else output_array(output, x)
        types = x.dtype, _native(result)
        return fill(result, x, _sliding(*types, windows, cval, reduction))

    def write_of(shape: Shape, of: np.dtype, into: np.dtype, beyond: float) -> Write:
        return _sliding(of, into, windows, beyond, reduction)(shape)

    boundaries = [window.boundary for _, window in windows]
    if (y := filled_pairs(x, output, cval, boundaries, write_of)) is not None:
        return y
    result = output_array(output, x, is_complex=True)
    parts = np.empty((2, *x.shape), result.real.dtype)
    for part, of, beyond in zip(parts, (x.real, x.imag), (np.real(cval), np.imag(cval)), strict=True):
        write = _sliding(of.dtype, part.dtype, windows, beyond, reduction)(x.shape)
        write(np.ascontiguousarray(of), part)
    result.real, result.imag = parts
    return result


def _sliding(of: np.dtype, into: np.dtype, windows: Windows, cval: Any, reduction: int) -> WriteOf:
    """What fills arrays of the dtype `into`, one axis after the other in its type, as SciPy does it."""
    if not windows:
        return lambda shape: _copied
    # of bools, means and minima are bytes in SciPy
    as_given = of == into and of.kind != "b"
    of, into = (np.dtype(np.uint8) if dtype.kind == "b" else dtype for dtype in (of, into))
    used = any(window.boundary == "constant" for _, window in windows)
    beyond = fill_value_in(cval, into, reduction, used)
    if np.can_cast(of, into) and beyond is not None:

        def write_of(shape: Shape) -> Write:
            if as_given and (order := order_turned(shape, [axis for axis, _ in windows], SHORT, MANY)):
                turned = [(order.index(axis), window) for axis, window in windows]
                slide_turned = Slides(tuple(shape[axis] for axis in order), into, reduction, turned, beyond)
                return TurnedRows(slide_turned.shortest, shape, order)
            slide_all = Slides(shape, into, reduction, windows, beyond)
            return slide_all.shortest if as_given else SlidesOfOther(slide_all, of, into, math.prod(shape))

        return write_of
    # The first axis is of x's numbers, the others of y's; float64 where those cannot hold the fill value
    whole = of.kind in "iu" and of.itemsize <= 2 and into.kind in "iu"  # means are cut off alike in both
    exact = reduction != MEAN or of.kind == into.kind == "f" or whole
    cut_off = used and into.kind == "f" and of.kind != "f" and not float(cval).is_integer()
    fits = exact and not cut_off and fill_value_in(cval, of, reduction, used) is not None
    wide = np.dtype(np.float64)
    first, others = of if fits else wide, into if beyond is not None else wide
    steps: list[ConvertedStep] = []
    for axis, window in windows:
        dtype = others if steps else first
        steps.append(ConvertedStep(axis, window, dtype, fill_value_in(cval, dtype, reduction, used) or 0.0))
    return lambda shape: ConvertedSlides(shape, of, into, reduction, steps)


def _native(array: np.ndarray) -> np.dtype:
    return array.dtype.newbyteorder("=")


def _copied(x: np.ndarray, y: np.ndarray) -> None:
    with np.errstate(invalid="ignore"):
        y[...] = x
