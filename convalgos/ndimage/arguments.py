"""What `scipy.ndimage` lets callers write, read by its rules: axes, modes, origins, outputs.

Values that SciPy refuses are refused with its words, in an error that tells the value and what would be
valid.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex

import numpy as np

from convalgos.core import arrays, laid_arrays
from convalgos.core.allocator import new_array
from convalgos.core.arguments import Shape, shown
from convalgos.core.errors import read_only
from convalgos.ndimage import known_calls

BOUNDARY_OF = {  # SciPy's mode -> the name in `core.boundaries`, which is NumPy's
    "reflect": "symmetric",
    "grid-mirror": "symmetric",
    "mirror": "reflect",
    "nearest": "edge",
    "wrap": "wrap",
    "grid-wrap": "wrap",
    "constant": "constant",
    "grid-constant": "constant",
}
REAL, COMPLEX = "?bBhHiIlLqQfd", "FD"  # characters of the dtypes that are filtered


class InvalidArgument(ValueError, RuntimeError):
    """The caller's fault, of either kind that SciPy raises for it."""


class NotANumber(InvalidArgument, TypeError):
    """Something else where a number belongs: Python and NumPy raise errors of both kinds for it."""


def whole_number(name: str, value: Any) -> int:
    """An integer.

    Raises:
        NotANumber: it is none.
    """
    try:
        return operator.index(value)
    except TypeError as error:
        raise NotANumber(f"{name}={shown(value)} must be an integer: {error}") from None


def finite_number(name: str, value: Any) -> float:
    """A number that is neither infinite nor NaN.

    Raises:
        NotANumber: it is something else.
    """
    if math.isfinite(number := real_number(name, value)):
        return number
    raise NotANumber(f"{name}={shown(value)} must be finite")


def real_number(name: str, value: Any) -> float:
    """A number, which may be NaN or infinite.

    Raises:
        NotANumber: it is none.
    """
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise NotANumber(f"{name}={shown(value)} must be a real number") from None


def real_numbers(name: str, given: Any) -> np.ndarray:
    """An array of float64.

    Raises:
        NotANumber: something in it is no number.
    """
    try:
        return np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise NotANumber(f"{name}={shown(given)} must be an array of real numbers") from None


class InvalidType(TypeError, RuntimeError):
    """Numbers of a type that is not filtered, of either kind that SciPy raises for it."""


def input_array(name: str, given: Any) -> np.ndarray:
    """The numbers to be filtered, in native byte order; a view where they lie in memory as they are.

    Raises:
        InvalidType: they are of a type that is not filtered, such as float16 or text.
    """
    array = arrays.as_numpy(name, given)
    if array.dtype.char not in REAL + COMPLEX:
        raise InvalidType(
            f"{name} has dtype {array.dtype}, which is not filtered: give bool, integers, float32, float64, "
            "complex64 or complex128"
        )
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def boundary_of(mode: Any) -> str:
    """The name in `core.boundaries` of one of SciPy's modes.

    Raises:
        InvalidArgument: it is none of them.
    """
    try:
        return BOUNDARY_OF[mode]
    except (KeyError, TypeError):
        modes = ", ".join(map(repr, BOUNDARY_OF))
        raise InvalidArgument(
            f"boundary mode not supported: mode={shown(mode)} must be one of {modes}"
        ) from None


def per_axis(name: str, value: Any, count: int) -> list[Any]:
    """One value for each of `count` axes, from one for all or from a sequence.

    Raises:
        InvalidArgument: it is a sequence of another length.
    """
    if isinstance(value, str) or not np.iterable(value):
        return [value] * count
    values = list(value)
    if len(values) != count:
        raise InvalidArgument(
            f"sequence argument must have length equal to input rank: {name}={shown(value)} must be one "
            f"value, or one for each of {count} axes"
        )
    return values


def one_axis(axis: Any, ndim: int) -> int:
    """An axis counted from the first one.

    Raises:
        numpy.exceptions.AxisError: an array of `ndim` axes has it not.
    """
    index = whole_number("axis", axis)
    if not -ndim <= index < ndim:
        raise np.exceptions.AxisError(index, ndim, "axis")
    return index % ndim


def several_axes(axes: Any, ndim: int) -> tuple[int, ...]:
    """Axes counted from the first one, in the order that they are given; None stands for all.

    Raises:
        ValueError: one of them is out of range or named twice.
    """
    if axes is None:
        return tuple(range(ndim))
    if np.ndim(axes) == 0 and not isinstance(axes, SupportsIndex):
        raise ValueError(f"axes must be an integer, iterable of integers, or None, not {shown(axes)}")
    found = tuple(whole_number("axes", axis) for axis in ([axes] if np.ndim(axes) == 0 else axes))
    for axis in found:
        if not -ndim <= axis < ndim:
            raise ValueError(f"specified axis: {axis} is out of range of an array of {ndim} axes")
    found = tuple(axis % ndim for axis in found)
    if len(set(found)) != len(found):
        raise ValueError(f"axes must be unique: axes={shown(axes)}")
    return found


def checked_origin(origin: Any, size: int) -> int:
    """How far the middle of a filter of `size` elements is shifted.

    Raises:
        ValueError: the middle would lie outside of it.
    """
    index = whole_number("origin", origin)
    if not -(size // 2) <= index <= (size - 1) // 2:
        raise ValueError(
            f"Invalid origin: origin={index} must lie between {-(size // 2)} and {(size - 1) // 2} "
            f"for a filter of {size} elements"
        )
    return index


# --- outputs ---------------------------------------------------------------------------------


def output_array(output: Any, x: np.ndarray, is_complex: bool = False) -> np.ndarray:
    """The array that a filter of x fills and returns; a new one has the dtype that `output` names, or x's.

    Args:
        output: None, a dtype or its name, or an array of x's shape.
        is_complex: whether results are complex, and a new array must be.

    Raises:
        InvalidArgument: an array of another shape or without numbers, or a real one for complex results.
        TypeError: the name of no dtype.
    """
    if output is None:
        dtype = np.promote_types(x.dtype, np.complex64) if is_complex else x.dtype
        return new_array(x.shape, dtype)
    if isinstance(output, type | np.dtype | str):
        return new_array(x.shape, _output_dtype(output, is_complex))
    array = arrays.writable_view("output", output)
    if array.shape != x.shape:
        raise InvalidArgument(f"output shape not correct: {array.shape} must be that of the input, {x.shape}")
    if is_complex and array.dtype.kind != "c":
        raise InvalidArgument(f"output must have complex dtype, not {array.dtype}")
    if not array.flags.writeable:
        raise read_only("output")
    _check_filtered(array.dtype)
    return array


def _output_dtype(output: Any, is_complex: bool) -> np.dtype:
    try:
        dtype: np.dtype = np.dtype(output)
    except TypeError:
        raise TypeError(f"output={shown(output)} must be an array, a dtype or the name of one") from None
    if isinstance(output, str) and not issubclass(dtype.type, np.number):
        raise InvalidArgument(f"output must have numeric dtype, not {output!r}")
    if is_complex and dtype.kind != "c":
        if isinstance(output, str):
            raise InvalidArgument(f"output must have complex dtype, not {output!r}")
        warnings.warn("promoting specified output dtype to complex", stacklevel=5)
        dtype = np.result_type(dtype, np.complex64)
    _check_filtered(dtype)
    return dtype


def _check_filtered(dtype: np.dtype) -> None:
    """Refuse what is no type of results."""
    if dtype.char not in REAL + COMPLEX:
        raise InvalidArgument(f"output must have numeric dtype that is filtered, not {dtype}")


def real_output(output: Any, x: np.ndarray) -> np.ndarray:
    """`output_array` of results that are real.

    Raises:
        InvalidArgument: as there, or it is complex.
    """
    array = output_array(output, x)
    if array.dtype.kind == "c":
        raise InvalidArgument(f"output must have a real dtype, as the input has, not {array.dtype}")
    return array


def fill(output: np.ndarray, x: np.ndarray, write_of: known_calls.WriteOf) -> np.ndarray:
    """`output`, which kernels fill where they can: in place, or in an array of its own that is copied.

    Args:
        output: any array; it may share memory with x.
        x: any array with elements, of a native dtype.
        write_of: makes, for a shape, what is called with two C-contiguous arrays of it in native byte order
            that share no memory: x or a copy, and what is filled. Later calls may have both (`known_calls`).
    """
    source, write = laid_arrays.as_laid(x), write_of(x.shape)
    laid = laid_arrays.is_laid(output.flags) and output.dtype.isnative
    if laid and not np.may_share_memory(output, source):
        write(source, output)
    else:
        own = known_calls.filled_apart(source, output.dtype.newbyteorder("="), write)
        laid_arrays.copy_into(output, own)
    if output.dtype.isnative:
        known_calls.tell_filled(x, output, write, write_of)
    return output


def filled_pairs(
    x: np.ndarray, output: Any, cval: Any, boundaries: Iterable[str],
    write_of: Callable[[Shape, np.dtype, np.dtype, float], known_calls.Write],
) -> np.ndarray | None:  # fmt: skip
    """What `output` names, by what fills real arrays: complex x have a last axis of real and imaginary
    parts, or are filtered part by part where other values lie beyond the borders of these.

    Args:
        write_of: what fills arrays of a shape, from one dtype to another, with a value beyond the borders.

    Returns:
        None where x is empty.
    """
    beyond, imaginary = real_number("cval", np.real(cval)), real_number("cval", np.imag(cval))
    if "constant" not in boundaries:
        beyond = imaginary = 0.0
    if not x.size:
        return None
    result = output_array(output, x, is_complex=True)
    of, into = x.real.dtype, result.real.dtype.newbyteorder("=")

    def paired(shape: Shape) -> known_calls.Write:
        pairs = (*shape, 2)
        write_real = write_of(pairs, of, into, beyond)

        def write(x: np.ndarray, y: np.ndarray) -> None:
            write_real(x.reshape(-1).view(of).reshape(pairs), y.reshape(-1).view(into).reshape(pairs))

        return write

    def by_part(shape: Shape) -> known_calls.Write:
        writes = [write_of(shape, of, into, value) for value in (beyond, imaginary)]

        def write(x: np.ndarray, y: np.ndarray) -> None:
            for part, parts, each in zip((x.real, x.imag), (y.real, y.imag), writes, strict=True):
                parts[...] = known_calls.filled_apart(laid_arrays.as_laid(part), into, each)

        return write

    return fill(result, x, paired if beyond == imaginary else by_part)


def by_parts(
    filtered: Callable[..., Any], x: np.ndarray, weights: np.ndarray, output: Any, cval: Any, **others: Any
) -> np.ndarray:
    """A filter of complex numbers from those of real and imaginary parts: sums of x times weights.

    Args:
        filtered: called as filtered(x, weights, output=..., cval=..., **others) with real arrays.
        weights: as they multiply x; a correlation by SciPy's meaning gives the conjugates of its own.

    Raises:
        InvalidArgument: `output` is real.
        ValueError: cval is complex, and x is real.
    """
    if x.dtype.kind != "c" and np.iscomplexobj(cval):
        raise ValueError(f"cval={shown(cval)} must be real, as the input is")
    result = output_array(output, x, is_complex=True)
    target = np.empty_like(result) if np.may_share_memory(result, x) else result

    def part(of: np.ndarray, by: np.ndarray, into: Any, beyond: Any) -> Any:
        return filtered(of, by, output=into, cval=beyond, **others)

    part(x.real, weights.real, target.real, np.real(cval))
    if weights.dtype.kind != "c":
        part(x.imag, weights, target.imag, np.imag(cval))
    else:
        part(x.real, weights.imag, target.imag, np.real(cval))
    if weights.dtype.kind == x.dtype.kind == "c":
        target.real -= part(x.imag, weights.imag, target.real.dtype, np.imag(cval))
        target.imag += part(x.imag, weights.real, target.real.dtype, np.imag(cval))
    if target is not result:
        result[...] = target
    return result
