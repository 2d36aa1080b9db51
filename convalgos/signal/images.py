"""2-D convolutions with SciPy's boundaries, and separable filters.

Where the filter is small, what it reads beyond the edges is laid around the image; where it is as large as
the image, see `periodic_images`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy  # whose parts are imported when they are used

from convalgos.core.array_kinds import any_kind
from convalgos.core.axis_windows import AxisWindow
from convalgos.cpu.filtering.line_filters import filter_lines
from convalgos.cpu.filtering.line_steps import LineStep
from convalgos.signal import periodic_images, short_windows, small_images, small_separable
from convalgos.signal.convolution import by_plan
from convalgos.signal.extensions import with_extension
from convalgos.signal.lines import filtered, summed_along
from convalgos.signal.modes import larger, wanted_of
from convalgos.signal.outputs import takes_out
from convalgos.signal.scipy_answers import or_scipy, plain
from convalgos.signal.short_lines import of_short_lines

FEW_TAPS = 256  # up to which sums along lines are faster than transforms; Sapphire Rapids
NARROW = 16  # pixels of a row, up to which they are products with a matrix; Zen 5
MODERATE = 1e-6  # least single tap that others are multiplied by


@small_images.small_bordered(correlates=False)
@any_kind("cupyx.scipy.signal")
@takes_out
@or_scipy
def convolve2d(
    in1: Any, in2: Any, mode: str = "full", boundary: str = "fill", fillvalue: Any = 0, *, out: Any = None
) -> Any:
    """Convolve two 2-D arrays, as `scipy.signal.convolve2d` does.

    Args:
        in1, in2: the image and the filter.
        mode: "full", "same" (the size of in1, centred) or "valid" (without what lies beyond the edges).
        boundary: what lies there: "fill" (`fillvalue`), "wrap" (the other side) or "symm" (mirrored).
        out: the array for the result, as `convolve` takes it.

    Returns:
        The convolution, of the dtype that in1 and in2 promote to; integers are exact.

    Raises:
        ValueError: as SciPy does; or in1 has no elements, where there is a boundary and mode is "full".

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.signal.convolve2d(np.eye(3), [[1.0, 1.0]], "same", "wrap")
        array([[1., 1., 0.],
               [0., 1., 1.],
               [1., 0., 1.]])
    """
    return _bordered(in1, in2, False, mode, boundary, fillvalue, out)


@small_images.small_bordered(correlates=True)
@any_kind("cupyx.scipy.signal")
@takes_out
@or_scipy
def correlate2d(
    in1: Any, in2: Any, mode: str = "full", boundary: str = "fill", fillvalue: Any = 0, *, out: Any = None
) -> Any:
    """Cross-correlate two 2-D arrays, as `scipy.signal.correlate2d` does.

    Arguments, result and errors are those of `convolve2d`, on the reversed conjugate of in2.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.signal.correlate2d(np.eye(3), [[1.0, 1.0]], "same", "symm")
        array([[1., 0., 0.],
               [1., 1., 0.],
               [0., 1., 2.]])
    """
    return _bordered(in1, in2, True, mode, boundary, fillvalue, out)


@small_separable.small_both_axes
@any_kind("cupyx.scipy.signal")
@takes_out
@or_scipy
def sepfir2d(input: Any, hrow: Any, hcol: Any) -> Any:
    """Filter the rows and the columns of an image, as `scipy.signal.sepfir2d` does.

    Args:
        input: an image (rows, columns), which is mirrored beyond its edges.
        hrow, hcol: filters of odd lengths, for rows and for columns.
        out: the array for the result, as `convolve` takes it.

    Returns:
        The filtered image, of its type; integers of 8 and 16 bits and float16 become float32, others float64.

    Raises:
        ValueError, TypeError: as SciPy does.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.signal.sepfir2d(np.eye(3), [0.25, 0.5, 0.25], [1.0])
        array([[0.75, 0.25, 0.  ],
               [0.25, 0.5 , 0.25],
               [0.  , 0.25, 0.75]])
    """
    image, *taps = (plain(a) for a in (input, hrow, hcol))
    if image is None or image.ndim != 2:
        return None
    if not image.size:  # SciPy, which reads and writes beyond one, is asked for the type, and what it refuses
        some = np.zeros([max(1, np.size(hcol)), max(1, np.size(hrow))], image.dtype)
        return np.empty(image.shape, scipy.signal.sepfir2d(some, hrow, hcol).dtype)
    if image.dtype.char not in "fdFD":
        image = image.astype(np.result_type(image.dtype, np.float32))
    if any(h is None or h.ndim != 1 or h.size % 2 == 0 for h in taps):
        return None
    h0, h1 = map(np.asarray, taps)
    fit = h0.size <= image.shape[1] and h1.size <= image.shape[0]  # else SciPy reads and writes beyond arrays
    if fit and "c" in h0.dtype.kind + h1.dtype.kind:
        return None
    if not all(np.can_cast(h.dtype, image.dtype) for h in (h0, h1)):
        return None
    h0, h1 = (h.astype(image.dtype, copy=False) for h in (h0, h1))
    if max(h0.size, h1.size) <= FEW_TAPS and not (h0.imag.any() or h1.imag.any()):
        return _along_both_axes(image, h0.real, h1.real)
    y = image
    for axis, h in ((1, h0), (0, h1)):
        half, n = h.size // 2, y.shape[axis]
        line = filtered(with_extension(y, axis, half, half, "symmetric"), h, axis, 2 * half, n)
        if line is None:
            return None
        y = line
    return y


# --- inside ----------------------------------------------------------------------------------


def _along_both_axes(image: np.ndarray, along: np.ndarray, across: np.ndarray) -> np.ndarray:
    """A mirrored image (rows, columns) filtered along its rows and across them, in one pass over memory."""
    if image.dtype.kind == "f" and (y := _one_by_one(image, along, across)) is not None:
        return y
    whole = np.ascontiguousarray(image, image.dtype.char)
    x = whole.view(whole.real.dtype).reshape(*whole.shape, -1)  # (rows, columns, real and imaginary parts)
    steps = [
        LineStep(axis, tuple(h[::-1].tolist()), AxisWindow(size, h.size, h.size // 2, "symmetric"), 0.0)
        for axis, (h, size) in enumerate(zip((across, along), whole.shape, strict=True))
    ]
    y = np.empty_like(x)
    filter_lines(x, steps, y)
    return y.view(whole.dtype)[..., 0]


def _one_by_one(image: np.ndarray, along: np.ndarray, across: np.ndarray) -> np.ndarray | None:
    """The same of single taps, and of rows of few pixels, which are products with a matrix; else None."""
    single = [h.size == 1 and MODERATE < abs(h[0]) < 1 / MODERATE for h in (along, across)]
    with np.errstate(over="ignore"):  # what overflows is not taken
        if single[0]:
            return _summed(image, 0, across * along[0])
        if single[1]:
            along = along * across[0]
    if image.shape[1] > NARROW:
        return _summed(image, 1, along) if single[1] else None
    y = of_short_lines(image, along[::-1], 1, along.size // 2, "symmetric", 0.0)
    return y if y is None or single[1] else _summed(y, 0, across)


def _summed(image: np.ndarray, axis: int, h: np.ndarray) -> np.ndarray | None:
    """A mirrored image filtered along one axis."""
    return summed_along(image, h[::-1], axis, h.size // 2, "symmetric")


def _bordered(
    in1: Any, in2: Any, correlates: bool, mode: str, boundary: str, fillvalue: Any, out: np.ndarray | None
) -> np.ndarray | None:
    """The 2-D convolution, or correlation; None for what is SciPy's to answer."""
    x, w = plain(in1), plain(in2)
    goes_on = boundary != "fill" and mode == "full" and np.ndim(in1) == np.ndim(in2) == 2
    if goes_on and np.size(in2) and not np.size(in1):  # where SciPy ends the process
        raise ValueError(f"an image without elements has none to go on with: boundary={boundary!r}")
    if x is None or w is None or x.ndim != 2 or w.ndim != 2 or not x.size or not w.size:
        return None
    dtype = np.result_type(x, w)
    if any(a.dtype.kind == "b" or a.dtype.char == "e" for a in (x, w)) or dtype.char == "g":
        return None
    if mode not in ("full", "same", "valid") or boundary not in ("fill", "wrap", "symm"):
        return None
    swapped = mode == "valid" and larger(x.shape, w.shape) == 1
    if swapped:
        x, w = w, x
    elif mode == "valid" and larger(x.shape, w.shape) is None:
        return None
    wanted = [wanted_of(mode, n, k) for n, k in zip(x.shape, w.shape, strict=True)]
    if correlates and mode == "same":
        wanted = [(k // 2, n) for n, k in zip(x.shape, w.shape, strict=True)]
    if boundary == "fill" and not _fits(fillvalue, dtype):
        return None
    if correlates:
        w = w.conj()[::-1, ::-1]
    x, turned = x.astype(dtype, copy=False), swapped and correlates
    if boundary != "fill":
        w = periodic_images.within_period(x, w.astype(dtype, copy=False), boundary)
    gathered = wanted[0][1] * wanted[1][1] * w.size
    y = None
    if boundary != "fill" and dtype.kind in "fc" and gathered > short_windows.GATHERED:
        y = periodic_images.circular(x, w, wanted, boundary)
    if y is None:
        padded = _padded(x, w.shape, wanted, boundary, fillvalue)
        if w.size == 1:
            with np.errstate(all="ignore"):  # NumPy warns of what is not finite, SciPy's sums do not
                y = np.multiply(padded, w[0, 0], dtype=dtype)
        elif gathered <= short_windows.GATHERED:
            counts = wanted[0][1], wanted[1][1]
            y = short_windows.times_windows(padded, w.astype(dtype, copy=False)[::-1, ::-1], (1, 1), counts)
        else:
            y = by_plan(padded, w, "valid", "auto", None if turned else out)
    return y[::-1, ::-1] if turned and y is not None else y


def _padded(
    x: np.ndarray, w_shape: tuple[int, ...], wanted: list[tuple[int, int]], boundary: str, fillvalue: Any
) -> np.ndarray:
    """What the wanted outputs read: a part of the image, and what lies around it."""
    kept, ends = [], []
    for (first, count), n, k in zip(wanted, x.shape, w_shape, strict=True):
        low, high = first - k + 1, first + count
        kept.append(slice(max(0, low), high + max(0, -low)))
        ends.append((max(0, -low), max(0, high - n)))
    if boundary == "fill":
        sizes = [low + n + high for n, (low, high) in zip(x.shape, ends, strict=True)]
        padded = np.zeros(sizes, x.dtype) if fillvalue == 0 else np.full(sizes, fillvalue, x.dtype)
        inside = tuple(slice(low, low + n) for n, (low, _) in zip(x.shape, ends, strict=True))
        padded[inside] = x
    else:
        padded = x
        for axis, (low, high) in enumerate(ends):
            padded = with_extension(padded, axis, low, high, boundary)
    return np.ascontiguousarray(padded[tuple(kept)])


def _fits(fillvalue: Any, dtype: np.dtype) -> bool:
    """Whether the value is one number that the type holds."""
    value = plain(fillvalue)
    if value is None or value.ndim:
        return False
    if dtype.kind in "iu" and value.dtype.kind in "iu":
        return bool(np.iinfo(dtype).min <= int(value) <= np.iinfo(dtype).max)
    return np.can_cast(value.dtype, dtype, "same_kind")
