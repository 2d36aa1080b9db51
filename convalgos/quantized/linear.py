"""Between numbers and integers: q = round(x / scale) + zero_point, with ties to even and without wrap.

Division, rounding and clipping are in float32, in the order of ONNX Runtime's QuantizeLinear.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.core import arguments
from convalgos.core.arrays import as_numpy
from convalgos.core.element_types import DTYPES, INTEGERS, dtype_name


def quantize(
    array: Any,
    *,
    dtype: Any = None,
    symmetric: bool = False,
    axis: int | None = None,
    scale: Any = None,
    zero_point: Any = None,
) -> tuple[np.ndarray, Any, Any]:
    """Integers for an array of numbers, with the scale and zero point that they have.

    Args:
        array: of float32, or of another floating-point type, which is read as float32.
        dtype: "int8" or "uint8", by default that of zero_point, or else int8.
        symmetric: the zero point is the middle, 0 of int8 and 128 of uint8, and integers reach 127 to both
            sides of it. Otherwise the least and the largest number, and always 0, get the outermost ones.
        axis: a scale and a zero point for each index along this axis, such as 0 for each filter of w;
            None for one of all.
        scale, zero_point: those to use, as from `calibrate`: numbers, or (array.shape[axis],) where there is
            an axis. None to find them from the array. With them NaN becomes the least integer, as in ONNX
            Runtime.

    Returns:
        (q, scale, zero_point): integers of array's shape; scale is a float32, or an array of them, zero_point
        the like of the dtype.

    Raises:
        ValueError: array holds NaN or infinity; scale is not positive; zero_point is not of the dtype; an
            axis that array has not. TypeError: array is not of a floating-point type.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> q, scale, zero_point = ca.quantized.quantize(np.array([-1, 0, 0.5, 1.55], "f4"), dtype="uint8")
        >>> q.tolist(), float(scale), int(zero_point)
        ([0, 100, 150, 255], 0.009999999776482582, 100)
        >>> ca.quantized.dequantize(q, scale, zero_point)
        array([-1.  ,  0.  ,  0.5 ,  1.55], dtype=float32)
    """
    array = as_numpy("array", array)
    if array.dtype.name not in DTYPES:
        raise TypeError(f"array has dtype {array.dtype}, which must be one of {', '.join(DTYPES)}")
    kind = integer_dtype(getattr(zero_point, "dtype", "int8") if dtype is None else dtype)
    axis = _checked_axis(axis, array.ndim)
    if scale is None:
        if zero_point is not None:
            raise ValueError(f"zero_point={arguments.shown(zero_point)} must be None where no scale is given")
        scale, zero_point = scale_of_range(*_range(array, axis), kind, symmetric)
    else:
        count = None if axis is None else array.shape[axis]
        scale = checked_scale("scale", scale, count)
        zero_point = checked_zero_point("zero_point", 0 if zero_point is None else zero_point, kind, count)
    return to_integers(array, scale, zero_point, axis), scale, zero_point


def dequantize(q: Any, scale: Any, zero_point: Any = 0, *, axis: int | None = None) -> np.ndarray:
    """The numbers (q - zero_point) * scale in float32.

    Args:
        q: integers: int8, uint8, or the int32 of a bias.
        scale, zero_point: numbers, or (q.shape[axis],) where there is an axis.

    Raises:
        ValueError: scale is not positive, or zero_point not of q's type; an axis that q has not.
            TypeError: q is not of such a type.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.quantized.dequantize(np.array([0, 3], "i1"), 0.5, 1)
        array([-0.5,  1. ], dtype=float32)
    """
    q = as_numpy("q", q)
    if q.dtype.name not in (*INTEGERS, "int32"):
        raise TypeError(f"q has dtype {q.dtype}, which must be int8, uint8 or int32")
    axis = _checked_axis(axis, q.ndim)
    count = None if axis is None else q.shape[axis]
    scale = checked_scale("scale", scale, count)
    return to_numbers(q, scale, checked_zero_point("zero_point", zero_point, q.dtype, count), axis)


def to_integers(array: np.ndarray, scale: Any, zero_point: Any, axis: int | None = None) -> np.ndarray:
    """What `quantize` says, of valid arguments; the type is zero_point's."""
    limits = np.iinfo(zero_point.dtype)
    scale, zero = along(scale, array.ndim, axis), along(zero_point, array.ndim, axis).astype(np.int32)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # infinity is clipped
        v = np.asarray(array.astype(np.float32, copy=False) / scale)
    np.fmax(v, (limits.min - zero).astype(np.float32), out=v)  # not NaN, where there is another
    np.minimum(v, (limits.max - zero).astype(np.float32), out=v)
    q: np.ndarray = (np.rint(v, out=v).astype(np.int32) + zero).astype(zero_point.dtype)
    return q


def to_numbers(q: np.ndarray, scale: Any, zero_point: Any, axis: int | None = None) -> np.ndarray:
    """What `dequantize` says, of valid arguments."""
    zero = along(zero_point, q.ndim, axis).astype(np.int32)
    x: np.ndarray = (q.astype(np.int32) - zero).astype(np.float32) * along(scale, q.ndim, axis)
    return x


def integer_dtype(dtype: Any) -> np.dtype:
    """That of quantised arrays, from its name or itself."""
    return np.dtype(arguments.one_of("dtype", dtype_name(dtype), INTEGERS))


def along(value: Any, ndim: int, axis: int | None) -> np.ndarray:
    """Numbers for each index along an axis, as they meet an array of ndim dimensions; or one number."""
    found = np.asarray(value)
    if axis is not None and found.ndim:
        found = found.reshape(-1, *(1,) * (ndim - 1 - axis))
    return found


def scale_of_range(low: Any, high: Any, dtype: np.dtype, symmetric: bool) -> tuple[Any, Any]:
    """(scale, zero_point) for numbers from low to high: float32 and dtype, of low's shape.

    0 is always among what they stand for, exactly: padding, and what ReLU leaves, are many zeros. Where low
    and high are both 0, the scale is 1.
    """
    limits, tiny = np.iinfo(dtype), np.finfo(np.float32).tiny
    low, high = np.minimum(np.float64(low), 0.0), np.maximum(np.float64(high), 0.0)
    if symmetric:
        high = np.maximum(-low, high)
        zero = np.full(np.shape(high), (limits.min + limits.max + 1) // 2, dtype)
        scale = high / 127
    else:
        scale = (high - low) / (limits.max - limits.min)
    scale = np.where(scale == 0, 1.0, np.maximum(scale, tiny)).astype(np.float32)
    if not symmetric:
        zero = np.clip(np.rint(limits.min - low / scale), limits.min, limits.max).astype(dtype)
    return scale[()], zero[()]


def checked_scale(name: str, value: Any, count: int | None) -> Any:
    """Positive float32 numbers: one, or `count` of them where that is given."""
    scale = _numbers(name, value, np.float32, count)
    if not (np.isfinite(scale) & (scale > 0)).all():
        raise ValueError(f"{name}={arguments.shown(value)} must be positive and finite in float32")
    return scale


def checked_zero_point(name: str, value: Any, dtype: np.dtype, count: int | None) -> Any:
    """Numbers of a type, as `checked_scale` has them."""
    given = np.asarray(value)
    if given.dtype.kind not in "iu":
        raise ValueError(f"{name}={arguments.shown(value)} must be an integer")
    limits = np.iinfo(dtype)
    if given.size and not (limits.min <= given.min() and given.max() <= limits.max):
        raise ValueError(
            f"{name}={arguments.shown(value)} must be from {limits.min} to {limits.max}, as {dtype} is"
        )
    return _numbers(name, given, dtype, count)


def _numbers(name: str, value: Any, dtype: Any, count: int | None) -> Any:
    try:
        with np.errstate(over="ignore"):
            found = np.asarray(value).astype(dtype)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={arguments.shown(value)} must be numbers") from None
    shapes = ((),) if count is None else ((), (count,))
    if found.shape not in shapes:
        must = "one number" if count is None else f"one number, or {count} of them"
        raise ValueError(f"{name} has shape {found.shape}, but it must be {must}")
    return found[()]


def _checked_axis(axis: int | None, ndim: int) -> int | None:
    if axis is None:
        return None
    if isinstance(axis, bool) or not isinstance(axis, int | np.integer) or not -ndim <= axis < ndim:
        raise ValueError(f"axis={arguments.shown(axis)} must be None or from {-ndim} to {ndim - 1}")
    return int(axis) % ndim


def _range(array: np.ndarray, axis: int | None) -> tuple[Any, Any]:
    """The least and the largest number, or those of each index along an axis; 0 where there are none."""
    summed = None if axis is None else tuple(a for a in range(array.ndim) if a != axis)
    array = array.astype(np.float32, copy=False)
    low, high = array.min(summed, initial=0), array.max(summed, initial=0)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError("array holds NaN or infinity, or numbers beyond float32: give scale and zero_point")
    return low, high
