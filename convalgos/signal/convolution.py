"""SciPy's convolutions of arrays along all or some of their axes, in its dtypes.

What our plans cannot compute goes to SciPy itself: large arrays convolved along more than three axes, or
along none, empty and zero-dimensional arrays, other dtypes than integers, float32, float64 and their complex
kin, short integers whose sums float64 does not hold exactly, and everything that SciPy refuses, so that its
error messages are SciPy's too.
"""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import Any

import numpy as np
import scipy  # whose parts are imported when they are used

from convalgos.core.array_kinds import any_kind
from convalgos.signal import short_signals, short_windows, small_images
from convalgos.signal.arrangements import sides_of
from convalgos.signal.exact_integers import (
    LARGEST_EXACT,
    convolved_exactly,
    few_sums,
    largest_of,
    modulo_dtype,
)
from convalgos.signal.joint_transforms import Joint, call_key, keep_joint
from convalgos.signal.mixed_types import NUMBERS, WIDENED, as_floating, without_halves
from convalgos.signal.modes import MODES, MOST_AXES, in_all_axes, in_axes, larger, longer_axes, longest_last
from convalgos.signal.outputs import takes_out
from convalgos.signal.problems import all_finite, convolved_along, run_on_sides
from convalgos.signal.size_cache import UNKNOWN, SizeCache
from convalgos.signal.window_sums import few_complex
from convalgos.signal.without_plans import (
    are_complex_lines,
    convolved_axes,
    may_be_joint,
    order_of_transforms,
    spreads_farther,
    without_plan,
)

METHODS = ("auto", "direct", "fft")
SUMMED_TAPS = 32  # of a filter, up to which sums may be faster than the transforms that are asked for
PLAIN = frozenset(NUMBERS + WIDENED)
LARGEST_ROUNDED = 2**40  # integers up to here are found by rounding what any algorithm computes in float64
KEPT = 1 << 22  # bytes of what is kept

# By `_transform_key`, the precision and the sides of calls that go through transforms by plans
_transforms = SizeCache(KEPT)


@small_images.small_unbordered(correlates=False)
@any_kind("cupyx.scipy.signal")
@takes_out
def convolve(in1: Any, in2: Any, mode: str = "full", method: str = "auto", *, out: Any = None) -> Any:
    """Convolve two N-dimensional arrays, as `scipy.signal.convolve` does.

    Args:
        in1, in2: arrays of the same number of dimensions.
        mode: "full", "same" (the size of in1, centred) or "valid" (without zero padding).
        method: "auto" picks among all algorithms, "direct" and "fft" among those.
        out: an array of the result's shape, and of its dtype or one that NumPy casts this to by its rule
            "same_kind". It may be in1 or in2, and overlap them.

    Returns:
        in1 * in2, of the dtype that in1 and in2 promote to; integers are exact. `out` if it was given.

    Raises:
        ValueError: as SciPy does; or out is of another shape than the result, or read-only.
        TypeError: out is no array, or of a dtype that the result is not cast to.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.signal.convolve([1, 2, 3], [0, 1, 0.5])
        array([0. , 1. , 2.5, 4. , 1.5])
        >>> x = np.array([1.0, 2.0, 3.0])
        >>> ca.signal.convolve(x, [0, 1, 0.5], "same", out=x) is x  # in place
        True
        >>> x
        array([1. , 2.5, 4. ])
    """
    sums = method in ("auto", "direct")
    if sums and (y := short_windows.few_inside(in1, in2, mode, False)) is not None:
        return y
    y = short_signals.summed(in1, in2, mode, method == "direct") if sums else None
    if y is not None:
        return y
    y = by_plan(in1, in2, mode, method, out)
    return scipy.signal.convolve(in1, in2, mode, method) if y is None else y


@small_images.small_unbordered(correlates=True)
@any_kind("cupyx.scipy.signal")
@takes_out
def correlate(in1: Any, in2: Any, mode: str = "full", method: str = "auto", *, out: Any = None) -> Any:
    """Cross-correlate two N-dimensional arrays, as `scipy.signal.correlate` does.

    Arguments, result and errors are those of `convolve`, on the reversed conjugate of in2.

    Example:
        >>> import convalgos as ca
        >>> ca.signal.correlate([1, 2, 3], [0, 1, 0.5], "same")
        array([2. , 3.5, 3. ])
    """
    sums = method in ("auto", "direct")
    if sums and (y := short_windows.few_inside(in1, in2, mode, True)) is not None:
        return y
    y = short_signals.correlated(in1, in2, mode, method == "direct") if sums else None
    if y is not None:
        return y
    w = np.asarray(in2)
    y = by_plan(in1, np.conj(np.flip(w)) if w.dtype.kind == "c" else np.flip(w), mode, method, out)
    return scipy.signal.correlate(in1, in2, mode, method) if y is None else y


@any_kind("cupyx.scipy.signal")
@takes_out
def fftconvolve(in1: Any, in2: Any, mode: str = "full", axes: Any = None, *, out: Any = None) -> Any:
    """Convolve two N-dimensional arrays through the FFT, as `scipy.signal.fftconvolve` does.

    Args:
        in1, in2: arrays of the same number of dimensions.
        mode: "full", "same" or "valid".
        axes: the axes to convolve; the others broadcast. All by default.
        out: the array for the result, as `convolve` takes it.

    Returns:
        in1 * in2 in floating point: float32 only where both are float32 or complex64.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.signal.fftconvolve(np.ones((2, 64)), np.ones((2, 9)), "valid", axes=1).shape
        (2, 56)
    """
    y = _floating(in1, in2, mode, axes, out)
    return scipy.signal.fftconvolve(in1, in2, mode, axes) if y is None else y


@any_kind("cupyx.scipy.signal")
@takes_out
def oaconvolve(in1: Any, in2: Any, mode: str = "full", axes: Any = None, *, out: Any = None) -> Any:
    """Convolve two N-dimensional arrays, as `scipy.signal.oaconvolve` does: `fftconvolve` by another name.

    Whether blocks or whole arrays are transformed is the selector's choice in both.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.signal.oaconvolve(np.ones(10_000), np.hanning(65), "same").shape
        (10000,)
    """
    y = _floating(in1, in2, mode, axes, out)
    return scipy.signal.oaconvolve(in1, in2, mode, axes) if y is None else y


# --- dtypes: each returns None for what is SciPy's to answer ----------------------------------


def by_plan(in1: Any, in2: Any, mode: str, method: str, out: np.ndarray | None = None) -> np.ndarray | None:
    """`convolve`, in the dtype that the inputs promote to; in `out` itself where a plan writes there."""
    arrays_given = type(in1) is type(in2) is np.ndarray
    fit = arrays_given and method == "fft" and (mode != "valid" or 1 in (in1.size, in2.size))
    if fit and (y := _product(in1, in2, mode, None)) is not None:
        return y
    keep = partial(keep_joint, call_key(in1, in2, mode)) if arrays_given and method == "auto" else None
    in1, in2 = without_halves(in1, in2)
    arrays = _arrays(in1, in2)
    if arrays is None or method not in METHODS:
        return None
    x, w = arrays
    dtype = np.result_type(x, w)
    if dtype.kind == "b" or (mode == "valid" and larger(x.shape, w.shape) is None):
        return None
    if x.ndim > MOST_AXES and convolved_axes(x, w) > MOST_AXES:
        one_precision = dtype.kind in "fc" and x.dtype.char.lower() == w.dtype.char.lower()
        whole = method == "fft" and one_precision and all_finite(x) and all_finite(w)
        return short_signals.transformed(x, w, mode) if whole else None
    if (kept := longer_axes(x.shape, w.shape)) is not None:
        y = by_plan(*in_axes(x, w, kept), mode, method)
        return None if y is None else in_all_axes(y, kept, x.ndim)
    if dtype.kind == "c" and method == "auto" and are_complex_lines(x, w):
        return _floating(*_in_precision(dtype, x, w), mode, None, out)
    order = longest_last(x.shape, w.shape, mode)
    if order is not None and dtype.kind == "c" and may_be_joint(x, w, mode):  # that are as fast either way
        y = without_plan(*_in_precision(dtype, x, w), mode, method, keep)
        if y is not None:
            return y
    if order is not None:
        x, w = (np.ascontiguousarray(a.transpose(order)) for a in (x, w))
        y = by_plan(x, w, mode, method)
        return None if y is None else np.ascontiguousarray(y.transpose(np.argsort(order)))
    if method != "fft" and dtype.kind in "fc" and spreads_farther(x, w, mode):
        return None
    floats = _in_precision(dtype, x, w) if dtype.kind in "fc" else None
    if floats and (y := without_plan(*floats, mode, method, keep)) is not None:
        return y
    integral = dtype.kind in "iu"
    chosen = method
    if integral:
        x, w = modulo_dtype(x, dtype), modulo_dtype(w, dtype)
        if (y := few_sums(x, w, mode, dtype)) is not None:
            return y
        values = largest_of(x), largest_of(w)
        largest = values[0] * values[1] * min(x.size, w.size)  # of every sum, in exact arithmetic
        if largest >= LARGEST_EXACT or (largest >= LARGEST_ROUNDED and method == "auto"):
            return convolved_exactly(x, w, mode, dtype, values)
        if method == "auto":
            chosen = "any"
    elif method == "auto" and x.ndim == 1 and short_signals.are_alike([(x.size, w.size)]):
        # sums are mostly of zeros
        chosen = "fft" if all_finite(x) and all_finite(w) else "auto"
    y = convolved_along(*_in_precision(np.float64 if integral else dtype, x, w), mode, None, chosen, out)
    if y is None:
        return None
    if method == "fft":
        _warn_of_spread(y)
    # through int64, so that sums too large for the dtype wrap around as they do in integer arithmetic
    return np.rint(y).astype(np.int64).astype(dtype, copy=False) if integral else y


def _warn_of_spread(y: np.ndarray) -> None:
    """SciPy's warning where what is not finite has been transformed."""
    if not np.isfinite(y.flat[0]):
        warnings.warn(
            "Use of fft convolution on input with NAN or inf results in NAN or inf output. "
            "Consider using method='direct' instead.",
            RuntimeWarning,
            stacklevel=4,
        )


def _floating(in1: Any, in2: Any, mode: str, axes: Any, out: np.ndarray | None) -> np.ndarray | None:
    """`fftconvolve`, in float32 where both inputs have that precision, else in float64."""
    key = None
    if type(in1) is type(in2) is np.ndarray:
        key = _transform_key(in1, in2, mode, axes)
        if (known := _transforms[key]) is not UNKNOWN:
            if type(known) is Joint:
                found: np.ndarray = known.convolved(in1, in2)
                return found
            dtype, sides = known
            return run_on_sides(*_in_precision(dtype, in1, in2), sides, "fft", out)
        if axes is None and (new := short_signals.new_of_one_length(in1, in2, mode)) is not None:
            return new
        if (product := _product(in1, in2, mode, axes)) is not None:
            return product
        in1, in2 = as_floating(in1, in2)
    if type(axes) is int and type(in1) is np.ndarray and in1.ndim == 1 and axes in (0, -1):
        axes = None  # which are all
    arrays = _arrays(in1, in2)
    if arrays is None:
        return None
    x, w = arrays
    single = all(a.dtype.char in "fF" for a in arrays)
    if axes is not None:
        try:
            given = [range(x.ndim)[a] for a in np.atleast_1d(axes).tolist()]
        except (TypeError, IndexError):
            return None
        axes = set(given)
        if len(axes) != len(given):
            return None
    kept = longer_axes(x.shape, w.shape)
    if kept is not None and convolved_axes(x, w, axes):  # products are of other types
        along = None if axes is None else [kept.index(i) for i in kept if i in axes]
        y = _floating(*in_axes(x, w, kept), mode, along, None)
        return None if y is None else in_all_axes(y, kept, x.ndim)
    if axes is None and (y := few_complex(x, w, mode)) is not None and np.isfinite(y).all():
        return y  # transforms spread what is not finite
    if axes is None and (order := order_of_transforms(x, w, mode)) is not None:
        x, w = (np.ascontiguousarray(a.transpose(order)) for a in (x, w))
        y = _floating(x, w, mode, None, None)
        return None if y is None else np.ascontiguousarray(y.transpose(np.argsort(order)))
    keep = None if key is None else partial(_transforms.keep, key)
    if (y := short_signals.transformed(x, w, mode, axes, keep)) is not None:
        return y
    if x.ndim > MOST_AXES and convolved_axes(x, w, axes) > MOST_AXES:
        return None
    dtype = np.float32 if single else np.float64
    taps = math.prod(min(x.shape[i], w.shape[i]) for i in (range(x.ndim) if axes is None else axes))
    sums = taps <= SUMMED_TAPS and all_finite(x) and all_finite(w)  # transforms spread what is not finite
    y = convolved_along(*_in_precision(dtype, x, w), mode, axes, "auto" if sums else "fft", out)
    if key is not None and taps > SUMMED_TAPS and y is not None and all_finite(y):
        sides = sides_of(x.shape, w.shape, mode, None if axes is None else frozenset(axes))
        assert sides is not None
        if not sides.single:  # where all is finite, the shapes alone have led here
            _transforms.keep(key, (dtype, sides))
    return y


def _transform_key(x: np.ndarray, w: np.ndarray, mode: str, axes: Any) -> Any:
    """What tells how `fftconvolve` goes, or None where it has to look at its arguments.

    Types stand for those of either byte order: `_in_precision` brings arrays into that of this machine.
    """
    along = tuple(axes) if type(axes) in (list, tuple) else () if axes is None else (axes,)
    if type(mode) is not str or not all(type(a) is int for a in along):
        return None
    return x.shape, w.shape, x.dtype.char, w.dtype.char, mode, axes is None, along


def _product(x: np.ndarray, w: np.ndarray, mode: str, axes: Any) -> np.ndarray | None:
    """x * w in the type they promote to, where no axis is convolved: one of the lengths is 1 along each."""
    pairs = list(zip(x.shape, w.shape, strict=False))
    if axes is None:
        along: Any = range(x.ndim)
    else:
        along = [axes % x.ndim] if type(axes) is int and -x.ndim <= axes < x.ndim else axes
    if type(along) not in (range, list) or not along or x.ndim != w.ndim or mode not in MODES:
        return None
    if not all(type(a) is int and 0 <= a < x.ndim and 1 in pairs[a] for a in along):
        return None
    if not x.size or not w.size or len(set(along)) < len(along):
        return None
    if not all(n == k or 1 in (n, k) for n, k in pairs) or not set(x.dtype.char + w.dtype.char) <= PLAIN:
        return None
    y: np.ndarray = x * w
    if mode == "same" and y.shape != x.shape:  # SciPy centres on in1 here, too
        crops = [
            slice((size - n) // 2, (size - n) // 2 + n) for size, n in zip(y.shape, x.shape, strict=True)
        ]
        return y[tuple(crops)].copy()
    return y


def _arrays(in1: Any, in2: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Both inputs as arrays of dtypes and shapes that we may convolve."""
    if any(isinstance(a, np.ma.MaskedArray | np.matrix) for a in (in1, in2)):
        return None
    x, w = np.asarray(in1), np.asarray(in2)
    if x.ndim != w.ndim or not x.ndim or not x.size or not w.size:
        return None
    if all(a.dtype.kind in "biu" or a.dtype.char in "fdFD" for a in (x, w)):
        return x, w
    return None


def _in_precision(dtype: Any, x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both arrays in the precision of a dtype, each real or complex as it was."""
    single = np.dtype(dtype).char in "fF"
    real, imaginary = (np.float32, np.complex64) if single else (np.float64, np.complex128)
    x, w = (a.astype(imaginary if a.dtype.kind == "c" else real, copy=False) for a in (x, w))
    return x, w
