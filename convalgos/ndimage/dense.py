"""Dense filters of N-D arrays: `correlate` and `convolve`, as `scipy.ndimage` has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.core.arguments import Shape, shown
from convalgos.core.array_kinds import any_kind
from convalgos.core.arrays import as_numpy
from convalgos.core.axis_windows import AxisWindow
from convalgos.ndimage.arguments import (
    InvalidArgument,
    boundary_of,
    by_parts,
    checked_origin,
    fill,
    filled_pairs,
    input_array,
    output_array,
    per_axis,
    real_number,
    real_numbers,
    real_output,
    several_axes,
)
from convalgos.ndimage.known_calls import Write, known_calls
from convalgos.ndimage.transformed_windows import DenseFilter

TINY = float(np.finfo(np.float64).eps)  # SciPy leaves out weights up to this size


@known_calls
@any_kind("cupyx.scipy.ndimage")
def correlate(
    input: Any,
    weights: Any,
    output: Any = None,
    mode: str = "reflect",
    cval: complex = 0.0,
    origin: Any = 0,
    *,
    axes: Any = None,
) -> Any:
    """The sums of the elements around each one, weighted.

    Args:
        input: real or complex, of any number of dimensions.
        weights: with as many dimensions as there are axes, in ascending order of these.
        output: an array of the input's shape that is filled, or the dtype of a new one; by default that of
            the input.
        mode: what lies beyond the edges: "reflect", "constant", "nearest", "mirror", "wrap", or their other
            names "grid-mirror", "grid-constant" and "grid-wrap".
        cval: the value beyond them in mode "constant".
        origin: how far the middle of the weights is shifted; one number, or one for each axis.
        axes: that are filtered; by default all.

    Returns:
        the output. float32 and float64 are summed in their own type, and otherwise as SciPy does it, in
        float64 and cut off towards zero for integers, which are then equal to SciPy's. Large windows go
        through Fourier transforms where that is predicted to be faster and all elements are finite: errors of
        floating-point results are then small beside the largest sums of absolute products.

    Raises:
        ValueError, RuntimeError, TypeError: as SciPy raises them; the message names the argument.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.ndimage.correlate(np.array([1, 5, 2, 8]), [1, 1, 0])
        array([ 2,  6,  7, 10])
    """
    return _filtered(input, weights, output, mode, cval, origin, axes, False)


@known_calls
@any_kind("cupyx.scipy.ndimage")
def convolve(
    input: Any,
    weights: Any,
    output: Any = None,
    mode: str = "reflect",
    cval: complex = 0.0,
    origin: Any = 0,
    *,
    axes: Any = None,
) -> Any:
    """`correlate` with the weights turned round in every dimension.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.ndimage.convolve(np.array([1, 5, 2, 8]), [1, 1, 0])
        array([ 6,  7, 10, 16])
    """
    return _filtered(input, weights, output, mode, cval, origin, axes, True)


def _filtered(
    given: Any, weights: Any, output: Any, mode: Any, cval: Any, origin: Any, axes: Any, turned: bool
) -> Any:
    x, w = input_array("input", given), as_numpy("weights", np.asarray(weights))
    if x.dtype.kind != "c" and w.dtype.kind != "c":
        return _real(x, w, output, cval, mode, origin, axes, turned)
    w = w.conj() if w.dtype.kind == "c" and not turned else w
    if w.dtype.kind != "c" and x.size:
        read = _read(x.ndim, w, mode, origin, axes, turned)

        def write_of(shape: Shape, of: np.dtype, into: np.dtype, beyond: float) -> Write:
            return _filter_of(len(shape), of, into, *read, beyond).of(shape)

        if (y := filled_pairs(x, output, cval, [boundary_of(mode)], write_of)) is not None:
            return y
    return by_parts(_real, x, w, output, cval, mode=mode, origin=origin, axes=axes, turned=turned)


def _real(
    x: np.ndarray, w: np.ndarray, output: Any, cval: Any, mode: Any, origin: Any, axes: Any, turned: bool
) -> np.ndarray:
    """The filter of real numbers by real weights."""
    read = _read(x.ndim, w, mode, origin, axes, turned)
    beyond = real_number("cval", cval)
    if not x.size:
        return output_array(output, x)  # complex or not: SciPy asks no more of it
    y = real_output(output, x)
    filtered = _filter_of(x.ndim, x.dtype, y.dtype.newbyteorder("="), *read, beyond)
    return fill(y, x, filtered.of)


def _filter_of(
    ndim: int, x: np.dtype, y: np.dtype, w: np.ndarray, found: list[AxisWindow], beyond: float
) -> DenseFilter:
    """What filters arrays of two types, whose last axes may be beyond those of the weights."""
    others = [AxisWindow(0)] * (ndim - w.ndim)
    w = w.reshape([*w.shape, *(1 for _ in others)])
    return DenseFilter(x, y, w, [*found, *others], beyond)


def _read(
    ndim: int, w: np.ndarray, mode: Any, origin: Any, axes: Any, turned: bool
) -> tuple[np.ndarray, list[AxisWindow]]:
    """(weights as a correlation has them, windows) of all axes, of any size."""
    chosen = several_axes(axes, ndim)
    w = real_numbers("weights", w)
    if w.ndim != len(chosen) or not w.size:
        raise InvalidArgument(
            f"weights.ndim ({w.ndim}) must match len(axes) ({len(chosen)}), and each of shape={w.shape} be "
            "at least 1"
        )
    if turned:
        w = np.flip(w)
    origins = per_axis("origin", origin, len(chosen))
    # SciPy's rule: weights have the axes in ascending order, origins as given where these are not all
    if len(chosen) < ndim:
        origins = [origins[chosen.index(axis)] for axis in sorted(chosen)]
    if turned:
        origins = [-o - (not size & 1) for o, size in zip(origins, w.shape, strict=True)]
    origins = [checked_origin(o, size) for o, size in zip(origins, w.shape, strict=True)]
    if not isinstance(mode, str):
        raise InvalidArgument(f"a sequence of modes is not supported: mode={shown(mode)} must be one")
    boundary = boundary_of(mode)
    found = [AxisWindow(0)] * ndim
    for axis, taps, shift in zip(sorted(chosen), w.shape, origins, strict=True):
        found[axis] = AxisWindow(0, taps, taps // 2 + shift, boundary)
    return np.where(np.abs(w) > TINY, w, 0.0).reshape([axis.taps for axis in found]), found
