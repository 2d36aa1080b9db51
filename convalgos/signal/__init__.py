"""SciPy's convolutions, with its signatures, modes, dtypes and answers, on our plans.

Inputs are sorted into one problem: axes that are not convolved become batch, groups or filters, real and
imaginary parts become a second batch entry and a second filter, and the mode becomes padding. What our plans
cannot compute goes to SciPy itself: more than three convolved axes or none, empty and zero-dimensional
arrays, other dtypes than integers, float32, float64 and their complex kin, integers whose sums float64 does
not hold exactly, and everything that SciPy refuses, so that its error messages are SciPy's too.
"""

from __future__ import annotations

import math
import warnings
from functools import cache
from typing import Any

import numpy as np
import scipy  # whose parts are imported when they are used

from convalgos.core.errors import Unsupported
from convalgos.core.plan import Plan
from convalgos.core.plan_cache import PlanCache
from convalgos.core.problem import ConvProblem
from convalgos.select import choose
from convalgos.select.constraints import Constraints
from convalgos.signal import short_signals

__all__ = ["convolve", "correlate", "fftconvolve", "oaconvolve"]

MODES = ("full", "same", "valid")
FAMILIES = {  # of algorithms, by method
    "direct": ("cpu.direct", "cpu.depthwise", "cpu.im2col"),
    "fft": ("cpu.fft", "cpu.fft_tiles"),
}
SMALL = 1 << 14  # elements of an array whose sum takes no less time than to look at each
LARGEST_EXACT = 2**53  # integers up to here are float64 numbers, and so are their sums
LARGEST_ROUNDED = 2**40  # integers up to here are found by rounding what any algorithm computes in float64


def convolve(in1: Any, in2: Any, mode: str = "full", method: str = "auto") -> Any:
    """Convolve two N-dimensional arrays, as `scipy.signal.convolve` does.

    Args:
        in1, in2: arrays of the same number of dimensions.
        mode: "full", "same" (the size of in1, centred) or "valid" (without zero padding).
        method: "auto" picks among all algorithms, "direct" and "fft" among those.

    Returns:
        in1 * in2, of the dtype that in1 and in2 promote to; integers are exact.

    Raises:
        ValueError: as SciPy does.

    Example:
        >>> import convalgos as ca
        >>> ca.signal.convolve([1, 2, 3], [0, 1, 0.5])
        array([0. , 1. , 2.5, 4. , 1.5])
    """
    y = short_signals.summed(in1, in2, mode) if method in ("auto", "direct") else None
    if y is not None:
        return y
    y = by_plan(in1, in2, mode, method)
    return scipy.signal.convolve(in1, in2, mode, method) if y is None else y


def correlate(in1: Any, in2: Any, mode: str = "full", method: str = "auto") -> Any:
    """Cross-correlate two N-dimensional arrays, as `scipy.signal.correlate` does.

    Arguments, result and errors are those of `convolve`, on the reversed conjugate of in2.

    Example:
        >>> import convalgos as ca
        >>> ca.signal.correlate([1, 2, 3], [0, 1, 0.5], "same")
        array([2. , 3.5, 3. ])
    """
    y = short_signals.correlated(in1, in2, mode) if method in ("auto", "direct") else None
    if y is not None:
        return y
    w = np.asarray(in2)
    y = by_plan(in1, np.conj(np.flip(w)) if w.dtype.kind == "c" else np.flip(w), mode, method)
    return scipy.signal.correlate(in1, in2, mode, method) if y is None else y


def fftconvolve(in1: Any, in2: Any, mode: str = "full", axes: Any = None) -> Any:
    """Convolve two N-dimensional arrays through the FFT, as `scipy.signal.fftconvolve` does.

    Args:
        in1, in2: arrays of the same number of dimensions.
        mode: "full", "same" or "valid".
        axes: the axes to convolve; the others broadcast. All by default.

    Returns:
        in1 * in2 in floating point: float32 only where both are float32 or complex64.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.signal.fftconvolve(np.ones((2, 64)), np.ones((2, 9)), "valid", axes=1).shape
        (2, 56)
    """
    y = _floating(in1, in2, mode, axes)
    return scipy.signal.fftconvolve(in1, in2, mode, axes) if y is None else y


def oaconvolve(in1: Any, in2: Any, mode: str = "full", axes: Any = None) -> Any:
    """Convolve two N-dimensional arrays, as `scipy.signal.oaconvolve` does: `fftconvolve` by another name.

    Whether blocks or whole arrays are transformed is the selector's choice in both.
    """
    y = _floating(in1, in2, mode, axes)
    return scipy.signal.oaconvolve(in1, in2, mode, axes) if y is None else y


# --- dtypes: each returns None for what is SciPy's to answer ----------------------------------


def by_plan(in1: Any, in2: Any, mode: str, method: str) -> np.ndarray | None:
    """`convolve`, in the dtype that the inputs promote to."""
    arrays = _arrays(in1, in2)
    if arrays is None or method not in ("auto", *FAMILIES):
        return None
    x, w = arrays
    dtype = np.result_type(x, w)
    if dtype.kind == "b" or (mode == "valid" and short_signals.larger(x.shape, w.shape) is None):
        return None
    integral = dtype.kind in "iu"
    chosen = method
    if integral:
        largest = _largest(x) * _largest(w) * min(x.size, w.size)  # of every sum, in exact arithmetic
        if largest >= LARGEST_EXACT:
            return None
        if largest >= LARGEST_ROUNDED and method == "auto":
            chosen = "direct"
    y = _convolved(*_in_precision(np.float64 if integral else dtype, x, w), mode, None, chosen)
    if y is None:
        return None
    if method == "fft" and not np.isfinite(y.flat[0]):
        warnings.warn(
            "Use of fft convolution on input with NAN or inf results in NAN or inf output. "
            "Consider using method='direct' instead.",
            RuntimeWarning,
            stacklevel=3,
        )
    # through int64, so that sums too large for the dtype wrap around as they do in integer arithmetic
    return np.rint(y).astype(np.int64).astype(dtype, copy=False) if integral else y


def _floating(in1: Any, in2: Any, mode: str, axes: Any) -> np.ndarray | None:
    """`fftconvolve`, in float32 where both inputs have that precision, else in float64."""
    if axes is None and (y := short_signals.transformed(in1, in2, mode)) is not None:
        return y
    arrays = _arrays(in1, in2)
    if arrays is None:
        return None
    x, w = arrays
    single = all(a.dtype in (np.float32, np.complex64) for a in arrays)
    if axes is not None:
        try:
            given = [range(x.ndim)[a] for a in np.atleast_1d(axes).tolist()]
        except (TypeError, IndexError):
            return None
        axes = set(given)
        if len(axes) != len(given):
            return None
    return _convolved(*_in_precision(np.float32 if single else np.float64, x, w), mode, axes, "fft")


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


def _largest(x: np.ndarray) -> int:
    return max(abs(int(x.min())), abs(int(x.max())))


# --- shapes ----------------------------------------------------------------------------------


def _convolved(
    x: np.ndarray, w: np.ndarray, mode: str, axes: set[int] | None, method: str
) -> np.ndarray | None:
    """The convolution of two arrays of one precision over some axes, all by default."""
    if mode not in MODES or axes == set():
        return None
    # along axes of length 1 a convolution is a product, for which broadcasting is enough
    convolved = [
        i for i in range(x.ndim) if (axes is None or i in axes) and x.shape[i] != 1 and w.shape[i] != 1
    ]
    others = [i for i in range(x.ndim) if i not in convolved]
    if not 1 <= len(convolved) <= 3:
        return None
    if any(x.shape[i] != w.shape[i] and 1 not in (x.shape[i], w.shape[i]) for i in others):
        return None
    sizes = [[a.shape[i] for i in convolved] for a in (x, w)]
    if mode == "valid":
        which = short_signals.larger(*map(tuple, sizes))
        if which is None:
            return None
        if which == 1:
            x, w, sizes = w, x, sizes[::-1]
    wanted = [_crop(mode, s1, s2) for s1, s2 in zip(*sizes, strict=True)]
    centred = x.shape
    if math.prod(sizes[0]) < math.prod(sizes[1]):  # the larger one is the map, the smaller one the filter
        x, w = w, x
    y = _planned(x, w, convolved, others, wanted, method)
    if y is not None and mode == "same":
        for i in others:  # SciPy centres on in1 here too, where in2 is the one that broadcasts
            first = (y.shape[i] - centred[i]) // 2
            y = y.take(range(first, first + centred[i]), i)
    return y


def _crop(mode: str, size1: int, size2: int) -> tuple[int, int]:
    """(first, count) of the outputs that a mode takes out of the full convolution."""
    full = size1 + size2 - 1
    if mode == "full":
        return 0, full
    count = size1 if mode == "same" else size1 - size2 + 1
    return (full - count) // 2, count


def _planned(
    x: np.ndarray,
    w: np.ndarray,
    convolved: list[int],
    others: list[int],
    wanted: list[tuple[int, int]],
    method: str,
) -> np.ndarray | None:
    """Elements `wanted` of the full convolution of a map with a filter, as one problem of ours."""
    batch = [i for i in others if w.shape[i] == 1]
    filters = [i for i in others if x.shape[i] == 1 and w.shape[i] != 1]
    groups = [i for i in others if i not in batch + filters]
    n, g, k = (math.prod(a.shape[i] for i in axes) for a, axes in ((x, batch), (x, groups), (w, filters)))
    # element e of the full convolution is the sum of x[e - t] * w[t]: drop what none of the wanted ones
    # reads, pad what they miss
    kept, padding = [slice(None)] * x.ndim, []
    for i, (first, count) in zip(convolved, wanted, strict=True):
        low = first - w.shape[i] + 1
        kept[i] = slice(max(0, low), first + count)
        padding.append((max(0, -low), max(0, first + count - x.shape[i])))
    order = batch + groups + filters + convolved
    image = x[tuple(kept)].transpose(order)
    image = image.reshape(n, g, *image.shape[len(others) :])  # (N, G, *spatial)
    kernel = w.transpose(groups + filters + batch + convolved)
    kernel = kernel.reshape(g * k, 1, *kernel.shape[len(others) :])  # (G*K, 1, *kernel)
    images, kernels = _real_parts(image, 0), _real_parts(kernel, 1)
    parts_x, parts_w = len(images) // n, len(kernels) // (g * k)
    finite = method != "auto" or (_finite(x) and _finite(w))
    plan = _plan(images.shape, kernels.shape, tuple(padding), g, images.dtype.name, method, finite)
    if plan is None:
        return None
    parts = plan(images, kernels)  # (parts of x * N, G*K * parts of w, *spatial_out)
    spatial_out = parts.shape[2:]
    parts = parts.reshape(parts_x, n, g * k, parts_w, *spatial_out)
    y = parts[0, :, :, 0]  # (N, G*K, *spatial_out)
    if parts_x * parts_w > 1:
        y = np.empty(y.shape, np.result_type(x, w))
        y.real = parts[0, :, :, 0] - (parts[1, :, :, 1] if parts_x == parts_w else 0)
        y.imag = (parts[1, :, :, 0] if parts_x == 2 else 0) + (parts[0, :, :, 1] if parts_w == 2 else 0)
    shape = [x.shape[i] for i in batch + groups] + [w.shape[i] for i in filters]
    return np.ascontiguousarray(y.reshape(*shape, *spatial_out).transpose(np.argsort(order)))


def _real_parts(array: np.ndarray, axis: int) -> np.ndarray:
    """(2 * first, ...): real and imaginary parts along a new axis, which is then joined with the first."""
    if array.dtype.kind != "c":
        return array
    parts = np.stack([array.real, array.imag], axis)
    return parts.reshape(2 * array.shape[0], *array.shape[1:])


def _finite(x: np.ndarray) -> bool:
    """False where an element is not a number or infinite (or the sum is, which then costs only time)."""
    if x.size <= SMALL:
        return bool(np.isfinite(x).all())
    with np.errstate(all="ignore"):
        return bool(np.isfinite(x.sum()))


_plans = PlanCache()


def _plan(*key: Any) -> Plan | None:
    """The plan of what `_made` takes, kept with those of `conv`'s calls in the bounds of `PlanCache`."""
    found = _plans.find(key)
    if found is None and (found := _made(*key)) is not None:
        _plans.add(key, found)
    return found


def _made(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    groups: int,
    dtype: str,
    method: str,
    finite: bool,
) -> Plan | None:
    """The plan of the best algorithm of a method, or None where that is only the reference.

    Transforms spread what is not finite over whole blocks, so that "auto" then stays with direct sums.
    """
    problem = ConvProblem(x_shape, w_shape, padding=padding, groups=groups, mode="convolution", dtype=dtype)
    if method == "auto" and not finite:
        method = "direct"
    try:
        return choose.pick(problem, "cpu", limits_of_method(method))
    except Unsupported:
        return None


@cache
def limits_of_method(method: str) -> Constraints:
    """Those of a choice for a method: every call prepares its filter."""
    return Constraints(allow=FAMILIES.get(method), deny="cpu.reference", weights_constant=False)
