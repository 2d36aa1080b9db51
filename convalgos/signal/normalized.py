"""Normalised convolution: arrays with missing pixels, which are left out of weighted means.

y = (x * w) / (m * w) with m = 1 where x is known and 0 where it is not: both convolutions are one problem of
two images, for which the selector takes sums or transforms as their sizes ask for. Where so little of the
filter meets known pixels that a transform's rounding would show, a pixel is summed by itself.

Source: Knutsson and Westin 1993, "Normalized and differential convolution"; the arguments are those of
`astropy.convolution.convolve`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convalgos.signal.convolution import fftconvolve
from convalgos.signal.extensions import with_extension
from convalgos.signal.outputs import takes_out
from convalgos.signal.problems import run_as_problem

BOUNDARIES = {"fill": "constant", "wrap": "wrap", "extend": "edge"}
MAX_NORMALIZATION = 100.0  # kernels whose sums are below 1 / this cannot be normalised, as in astropy
LITTLE = {"float32": 1e-3, "float64": 1e-6}  # of the weights; below it, transforms' errors are not small
GATHERED = 1 << 22  # elements of the windows that are summed at a time


@takes_out
def convolve_normalized(
    array: Any, kernel: Any, boundary: str | None = "fill", fill_value: float = 0.0,
    nan_treatment: str = "interpolate", normalize_kernel: bool = True, mask: Any = None,
    preserve_nan: bool = False, normalization_zero_tol: float = 1e-8,
) -> np.ndarray:  # fmt: skip
    """Convolve an array in which pixels are missing, as `astropy.convolution.convolve` does.

    Args:
        array: 1 to 3 dimensions; NaN marks what is missing. Masked arrays bring their own mask.
        kernel: as many dimensions, of odd sizes.
        boundary: what lies beyond the edges: "fill" (`fill_value`), "wrap", "extend" (the pixels there);
            None computes no pixels whose windows reach over an edge: they are 0.
        nan_treatment: "interpolate" leaves missing pixels out of weighted means, "fill" puts `fill_value`
            in their places.
        normalize_kernel: divide by the sum of the kernel.
        mask: True where pixels are missing, too.
        preserve_nan: what was missing is NaN in the result.
        normalization_zero_tol: sums of kernels up to here count as 0.
        out: the array for the result, as `convalgos.signal.convolve` takes it.

    Returns:
        The convolution, of the array's shape, and of its dtype where that is floating, else float64. Pixels
        whose windows hold nothing known stay NaN.

    Raises:
        ValueError: an argument is not one of these; or the sum of the kernel is about 0 and it is to be
            normalised, which interpolation needs, too.

    Example:
        >>> import numpy as np
        >>> from convalgos.signal.normalized import convolve_normalized
        >>> convolve_normalized([1.0, np.nan, 3.0], [1.0, 1.0, 1.0], boundary="extend")
        array([1., 2., 3.])
    """
    x, missing, dtype = _read(array, mask)
    w = np.ma.filled(np.asarray(kernel, x.dtype), fill_value)
    _check(x, w, boundary, nan_treatment)
    weight = float(w.sum(dtype=np.float64))
    interpolates = nan_treatment == "interpolate" and (
        bool(missing.any()) or (boundary == "fill" and math.isnan(fill_value))
    )
    summable = weight >= 1 / MAX_NORMALIZATION and abs(weight) > normalization_zero_tol
    if (normalize_kernel or interpolates) and not summable:
        way = "nan_treatment='fill' needs" if interpolates else "normalize_kernel=False asks for"
        raise ValueError(f"kernel has the sum {weight:.3g}, which cannot be normalised; {way} no division")
    x = np.where(missing, x.dtype.type(0 if interpolates else fill_value), x)
    if nan_treatment == "interpolate" and not interpolates:
        x = np.where(missing, np.nan, x)
    ends = [(size // 2) if boundary is not None else 0 for size in w.shape]
    for axis, end in enumerate(ends):
        x = with_extension(x, axis, end, end, BOUNDARIES.get(str(boundary), ""), fill_value)
    if interpolates:
        y = _weighted_means(x, _known(missing, ends, boundary, fill_value), w)
        y *= 1 if normalize_kernel else weight
    else:
        (y,) = _inside(x[None], w)
        y /= weight if normalize_kernel else 1
    if boundary is None:
        y = np.pad(y, [(size // 2,) * 2 for size in w.shape])
    if preserve_nan:
        y[missing] = np.nan
    return y.astype(dtype, copy=False)


# --- inside ----------------------------------------------------------------------------------


def _read(array: Any, mask: Any) -> tuple[np.ndarray, np.ndarray, np.dtype]:
    """The array in float32 or float64, where it is missing, and the dtype of the result."""
    given = np.ma.asanyarray(array) if isinstance(array, np.ma.MaskedArray) else np.asarray(array)
    if given.dtype.kind not in "biuf":
        raise ValueError(f"array has the dtype {given.dtype}; it must be of real numbers")
    dtype = given.dtype if given.dtype.kind == "f" else np.dtype(np.float64)
    x = np.ma.getdata(given).astype(np.float32 if dtype.itemsize <= 4 else np.float64)
    missing = np.isnan(x)
    if isinstance(given, np.ma.MaskedArray):
        missing |= np.ma.getmaskarray(given)
    if mask is not None:
        hidden = np.asarray(mask, bool)
        if hidden.shape != x.shape:
            raise ValueError(f"mask has the shape {hidden.shape}, and array {x.shape}: they must be equal")
        missing |= hidden
    return x, missing, dtype


def _check(x: np.ndarray, w: np.ndarray, boundary: str | None, nan_treatment: str) -> None:
    if not 1 <= x.ndim <= 3 or not x.size:
        raise ValueError(f"array has the shape {x.shape}; it must have 1 to 3 dimensions, and elements")
    if w.ndim != x.ndim or not all(size % 2 for size in w.shape):
        raise ValueError(f"kernel has the shape {w.shape}; it must have {x.ndim} dimensions of odd sizes")
    if boundary is not None and boundary not in BOUNDARIES:
        raise ValueError(f"boundary={boundary!r} must be 'fill', 'wrap', 'extend' or None")
    if nan_treatment not in ("interpolate", "fill"):
        raise ValueError(f"nan_treatment={nan_treatment!r} must be 'interpolate' or 'fill'")
    if boundary is None and any(n < k for n, k in zip(x.shape, w.shape, strict=True)):
        raise ValueError(f"kernel {w.shape} is larger than array {x.shape}: boundary=None leaves nothing")


def _known(missing: np.ndarray, ends: list[int], boundary: str | None, fill_value: float) -> np.ndarray:
    """1 where a pixel of the extended array is known, else 0."""
    known = 1 - missing.astype(np.float64)
    beyond = float(not math.isnan(fill_value))
    for axis, end in enumerate(ends):
        known = with_extension(known, axis, end, end, BOUNDARIES.get(str(boundary), ""), beyond)
    return known


def _inside(images: np.ndarray, w: np.ndarray) -> np.ndarray:
    """(N, *windows): the convolution of images (N, *padded) at the places where the filter lies inside."""
    axes = list(range(1, images.ndim))
    wanted = [(k - 1, n - k + 1) for n, k in zip(images.shape[1:], w.shape, strict=True)]
    y = run_as_problem(images, w[None], axes, [0], wanted, "auto")
    if y is None:  # without compiled kernels
        y = np.stack([fftconvolve(image, w, "valid") for image in images])
    return y


def _weighted_means(x: np.ndarray, known: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The sums of known pixels over those of their weights, of extended arrays."""
    x = np.where(known > 0, x, 0).astype(x.dtype)
    sums, weights = _inside(np.stack([x, known.astype(x.dtype)]), w)  # (*windows) each
    doubtful = np.abs(weights) <= LITTLE[x.dtype.name] * np.abs(w).sum()
    if doubtful.any():
        (count,) = _inside(known[None], (w != 0).astype(np.float64))  # integers, but for rounding
        empty = count < 0.5
        _sum_again(x, known, w, np.argwhere(doubtful & ~empty), sums, weights)
        weights[empty] = np.nan
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(weights == 0, np.nan, sums / weights)


def _sum_again(
    x: np.ndarray, known: np.ndarray, w: np.ndarray, places: np.ndarray, sums: np.ndarray, weights: np.ndarray
) -> None:
    """Sums and weights of single windows, in float64, at places (count, ndim)."""
    flipped = np.flip(w).astype(np.float64).ravel()  # (taps)
    windows, of_known = (np.lib.stride_tricks.sliding_window_view(a, w.shape) for a in (x, known))
    step = max(1, GATHERED // w.size)
    for first in range(0, len(places), step):
        at = tuple(places[first : first + step].T)
        sums[at] = windows[at].reshape(-1, w.size) @ flipped
        weights[at] = of_known[at].reshape(-1, w.size) @ flipped
