"""Functions that go over the elements of whole arrays, broadcast together, and over what is along an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.array_operands import (
    Operand,
    WholeArrays,
    broadcast_shape,
    counted_axis,
    like_first,
    without_axes,
)

UFUNCS = (  # NumPy's names
    "add", "subtract", "multiply", "equal", "greater", "less", "greater_equal", "less_equal", "logical_and",
    "logical_or", "logical_xor", "logical_not", "negative", "absolute", "sign", "floor", "ceil", "rint",
    "sqrt", "exp", "log", "sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh",
    "arcsinh", "arccosh", "arctanh", "reciprocal", "isnan", "isinf", "mod", "fmod",
)  # fmt: skip


def _by_ufunc(name: str) -> WholeArrays:
    function: Any = getattr(np, name)

    def compute(y: np.ndarray, *arrays: np.ndarray) -> None:
        function(*arrays, out=y)

    return WholeArrays(compute, broadcast_shape)


def _of_any_number(function: Any) -> WholeArrays:
    """Of one array after the other."""

    def compute(y: np.ndarray, first: np.ndarray, *others: np.ndarray) -> None:
        np.copyto(y, first)
        for other in others:
            function(y, other, out=y)

    return WholeArrays(compute, broadcast_shape)


SUM = _of_any_number(np.add)


def _quotient(y: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """a / b, of whole numbers towards zero."""
    if y.dtype.kind == "f":
        np.divide(a, b, out=y)
        return
    np.floor_divide(a, b, out=y)
    y += (y * b != a) & ((a < 0) != (b < 0))


def _power(y: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    if y.dtype.kind == "f":
        np.power(a, b.astype(a.dtype), out=y)
    else:
        np.copyto(y, np.power(a.astype(np.float64), b), casting="unsafe")


def _mean_of(y: np.ndarray, *arrays: np.ndarray) -> None:
    SUM.compute(y, *arrays)
    y /= len(arrays)


def _where(y: np.ndarray, condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    np.copyto(y, b)
    np.copyto(y, a, where=condition)


def _clip(y: np.ndarray, x: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    np.minimum(np.maximum(x, low, out=y), high, out=y)


def _cast(y: np.ndarray, x: np.ndarray) -> None:
    np.copyto(y, x, casting="unsafe")


def _running_sum(y: np.ndarray, x: np.ndarray, axis: int, exclusive: bool, reverse: bool) -> None:
    """Of all elements up to each, or before it; from the end on where `reverse`."""
    axis = counted_axis(axis, x.ndim)
    turned = (slice(None),) * axis + (slice(None, None, -1),) if reverse else ()
    x, y = x[turned], y[turned]
    if not exclusive:
        np.add.accumulate(x, axis, y.dtype, y)
        return
    ahead = (slice(None),) * axis
    y[(*ahead, slice(0, 1))] = 0
    np.add.accumulate(x[(*ahead, slice(0, -1))], axis, y.dtype, y[(*ahead, slice(1, None))])


def _lower_or_upper(y: np.ndarray, x: np.ndarray, k: np.ndarray, upper: bool) -> None:
    y[...] = (np.triu if upper else np.tril)(x, int(k.reshape(-1)[0]))


# --- reductions ------------------------------------------------------------------------------------


def _squared(x: np.ndarray) -> Any:
    return np.multiply(x, x)


def _log_of_exponentials(x: np.ndarray, **given: Any) -> Any:
    """log(sum(exp(x))), without exponentials over what floating point has."""
    largest = x.max(axis=given["axis"], keepdims=True)
    largest = np.where(np.isfinite(largest), largest, 0)
    total = np.log(np.exp(x - largest).sum(**given))
    return total + (largest if given["keepdims"] else largest.reshape(total.shape))


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "max": np.max,
    "min": np.min,
    "sum": np.sum,
    "mean": np.mean,
    "prod": np.prod,
    "l1": lambda x, **given: np.sum(np.abs(x), **given),
    "l2": lambda x, **given: np.sqrt(np.sum(_squared(x), **given)),
    "sum_square": lambda x, **given: np.sum(_squared(x), **given),
    "log_sum": lambda x, **given: np.log(np.sum(x, **given)),
    "log_sum_exp": _log_of_exponentials,
}


SHORT, AT_A_TIME = 64, 1 << 12  # elements of rows that are reduced as columns, and how many rows


def _extremes_of_rows(y: np.ndarray, x: np.ndarray, of: str) -> None:
    """y (rows,), the largest or least of each row of x (rows, elements): NumPy goes by rows one at a time."""
    for begin in range(0, len(x), AT_A_TIME):
        rows = slice(begin, begin + AT_A_TIME)
        REDUCTIONS[of](np.ascontiguousarray(x[rows].T), axis=0, out=y[rows])


def _reduce(y: np.ndarray, x: np.ndarray, of: str, axes: Sequence[int] | None, keepdims: bool) -> None:
    axis = None if axes is None else tuple(axes)
    if of in ("max", "min") and axis in ((-1,), (x.ndim - 1,)) and 0 < x.shape[-1] <= SHORT < y.size:
        _extremes_of_rows(y.reshape(-1), x.reshape(y.size, -1), of)
        return
    np.copyto(y, REDUCTIONS[of](x, axis=axis, keepdims=keepdims), casting="unsafe")


def _reduced_shape(x: Operand, of: str, axes: Sequence[int] | None, keepdims: bool) -> Shape:
    return without_axes(x.shape, axes, keepdims)


# --- products --------------------------------------------------------------------------------------


def _matmul(y: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    y[...] = np.matmul(a, b)


def _matmul_shape(a: Operand, b: Operand) -> Shape:
    """A vector loses the dimension that it is given."""
    left = (1, *a.shape) if len(a.shape) == 1 else a.shape
    right = (*b.shape, 1) if len(b.shape) == 1 else b.shape
    if min(len(left), len(right)) < 2 or left[-1] != right[-2]:
        raise ValueError(f"matrices {a.shape} and {b.shape} do not go together")
    ahead = np.broadcast_shapes(left[:-2], right[:-2])
    rows, columns = left[-2:-1][: len(a.shape) - 1], right[-1:][: len(b.shape) - 1]
    return (*ahead, *rows, *columns)


ARITHMETIC: dict[str, WholeArrays] = {
    **{name: _by_ufunc(name) for name in UFUNCS},
    "maximum": _of_any_number(np.maximum),
    "minimum": _of_any_number(np.minimum),
    "sum_of": SUM,
    "mean_of": WholeArrays(_mean_of, broadcast_shape),
    "quotient": WholeArrays(_quotient, broadcast_shape),
    "power": WholeArrays(_power, broadcast_shape),
    "where": WholeArrays(_where, broadcast_shape),
    "clip": WholeArrays(_clip, like_first),
    "cast": WholeArrays(_cast, like_first),
    "running_sum": WholeArrays(_running_sum, like_first),
    "triangle": WholeArrays(_lower_or_upper, like_first),
    "reduce": WholeArrays(_reduce, _reduced_shape),
    "matmul": WholeArrays(_matmul, _matmul_shape),
}
