"""Scales and zero points of a call on integers, and the output step that they make.

A real number is scale * (q - zero_point). Sums of products of integers are exact: with zero points xz and wz,

    sum (x - xz) (w - wz) = sum x w - wz sum x - xz sum w + n xz wz

over windows whose padding holds xz; what does not depend on x is one `offset` for each filter. Sums wrap at
32 bits, as ONNX's do. The output step multiplies them by x_scale * w_scale / y_scale and rounds to integers.

Source: Jacob et al. 2018, arXiv:1712.05877; ONNX's QLinearConv and ConvInteger.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.arguments import one_of, shown
from convalgos.core.epilogue import Activation
from convalgos.core.problem import ConvProblem

ROUNDINGS = ("onnxruntime", "onnx")
INT32 = np.iinfo(np.int32)
ZERO_POINTS = {"int8": (-128, 127), "uint8": (0, 255)}  # that a type holds


class OutputStep(NamedTuple):
    """What makes y of a sum s of filter k, in float32, each operation rounded.

    v = s * multiplier[k] + before; y = rint(min(max(v, low), high)) + after, ties to even. Of float32 y
    `rint`, `before` and `after` are left out.
    """

    multiplier: np.ndarray  # (K,)
    before: float
    low: float
    high: float
    after: int

    def apply(self, sums: Any, dtype: np.dtype, channels: int, xp: Any = np) -> Any:
        """y of int32 sums.

        Args:
            channels: which axis of the sums is K.
            xp: the module of the sums.
        """
        over = [1] * sums.ndim
        over[channels] = -1
        with np.errstate(over="ignore"):  # what is beyond float32 is clipped, too
            v = sums.astype(np.float32) * xp.asarray(self.multiplier).reshape(over)
        if dtype.kind == "f":
            return xp.maximum(v, np.float32(self.low))
        v += np.float32(self.before)
        xp.clip(v, np.float32(self.low), np.float32(self.high), out=v)
        return (xp.rint(v).astype(np.int32) + self.after).astype(dtype)


@dataclass(frozen=True, eq=False)
class Quantization:
    """Scales and zero points of x, w and y, which a filter is prepared with.

    Args:
        x_scale, y_scale: real numbers above 0. y_scale is not looked at where y is not requantised.
        w_scale: a number, or (K,) where the problem has scales="per_channel".
        x_zero_point, y_zero_point: integers that their types hold; y's is 0 where y is not requantised.
        w_zero_point: an integer, or (K,).
        rounding: "onnxruntime" clips, rounds (ties to even), and then adds y's zero point; "onnx", as the
            standard says, adds it first. They differ on ties where the zero point is odd.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> p = ca.ConvProblem((1, 3, 8, 8), (4, 3, 3, 3), dtype="uint8", w_dtype="int8", y_dtype="uint8")
        >>> plan = ca.plan(p)
        >>> w = np.ones(p.w_shape, np.int8)
        >>> prepared = plan.prepare(w, Quantization(x_scale=0.5, x_zero_point=128, w_scale=0.1, y_scale=2.0))
        >>> plan(np.full(p.x_shape, 138, np.uint8), prepared)[0, 0, 0, 0]  # 27 * 5 * 0.1 / 2
        np.uint8(7)
    """

    x_scale: float = 1.0
    x_zero_point: int = 0
    w_scale: Any = 1.0
    w_zero_point: Any = 0
    y_scale: float = 1.0
    y_zero_point: int = 0
    rounding: str = "onnxruntime"

    def checked(self, problem: ConvProblem) -> Quantization:
        """This, where it fits a problem.

        Raises:
            ValueError: names the argument, its value and what would be valid.
        """
        one_of("rounding", self.rounding, ROUNDINGS)
        for name in ("x_scale", "y_scale"):
            _check_scale(name, getattr(self, name))
        _check_scale("w_scale", self.w_scale, problem)
        _check_zero_point("x_zero_point", self.x_zero_point, problem.dtype)
        _check_zero_point("w_zero_point", self.w_zero_point, problem.w_dtype, problem)
        _check_zero_point("y_zero_point", self.y_zero_point, problem.y_dtype)
        return self

    def offset(self, problem: ConvProblem, sums: np.ndarray) -> np.ndarray:
        """What is added to the sums of each filter, int32 (K,). sums: of w's elements, (K,)."""
        zero_point = np.broadcast_to(np.asarray(self.w_zero_point, np.int64), problem.K)
        wide = (problem.gemm_k * zero_point - sums) * int(self.x_zero_point)
        return np.asarray(wide.astype(np.int32))  # wraps, as the sums do

    def w_zero_points(self, problem: ConvProblem) -> np.ndarray | None:
        """Those of the filters, int32 (K,), or None where all are 0."""
        if not np.any(self.w_zero_point):
            return None
        return np.array(np.broadcast_to(self.w_zero_point, problem.K), np.int32)

    def output(self, problem: ConvProblem, activation: Activation | None) -> OutputStep | None:
        """The output step; None where y is the sums.

        Raises:
            ValueError: an activation that is no limit of integers; a multiplier beyond float32.
        """
        if problem.y_dtype == "int32":
            if activation is not None and activation.name != "relu":
                raise ValueError(f"activation={activation.name!r} must be None or 'relu' where y is of int32")
            return None
        with np.errstate(over="ignore"):
            product = np.float32(self.x_scale) * np.asarray(self.w_scale, np.float32)
            multiplier = product / np.float32(self.y_scale)
        if not (np.isfinite(product).all() and np.isfinite(multiplier).all()):
            told = ", ".join(f"{n}={shown(getattr(self, n))}" for n in ("x_scale", "w_scale", "y_scale"))
            raise ValueError(f"{told}: x_scale * w_scale / y_scale must be finite in float32")
        low, high = _limits(problem, activation)
        if problem.y_dtype == "float32":
            return OutputStep(_of_filters(product, problem), 0.0, low, high, 0)
        of_y, zero_point = np.iinfo(problem.y_dtype), int(self.y_zero_point)
        least = max(of_y.min - zero_point, float(np.float32(low / self.y_scale)))
        most = min(of_y.max - zero_point, float(np.float32(high / self.y_scale)))
        first = zero_point if self.rounding == "onnx" else 0
        # a limit beyond the other is none of the type's numbers: all of y is at the end of its range
        least, most = min(least, of_y.max - zero_point), max(most, of_y.min - zero_point)
        return OutputStep(
            _of_filters(multiplier, problem), first, least + first, most + first, zero_point - first
        )


def _limits(problem: ConvProblem, activation: Activation | None) -> tuple[float, float]:
    """The least and the most that an activation leaves, of real numbers."""
    if activation is None:
        return -np.inf, np.inf
    if activation.name == "relu":
        return 0.0, np.inf
    if activation.name == "clip" and problem.y_dtype != "float32":
        return activation.a, activation.b
    raise ValueError(
        f"activation={activation.name!r} must be None, 'relu', 'relu6' or 'clip' where y_dtype is "
        f"{problem.y_dtype!r}: others are of real numbers"
    )


def _of_filters(multiplier: Any, problem: ConvProblem) -> np.ndarray:
    return np.array(np.broadcast_to(multiplier, problem.K), np.float32)


def _check_scale(name: str, value: Any, problem: ConvProblem | None = None) -> None:
    if isinstance(value, float) and 0 < value < np.inf:  # most of them, in little time
        return
    array = np.asarray(value)
    _check_count(name, value, array, problem)
    numbers = isinstance(value, Real) or array.dtype.kind in "fiu"
    if not numbers or not np.all(np.isfinite(array) & (array > 0)):
        raise ValueError(f"{name}={shown(value)} must be finite and above 0")


def _check_zero_point(name: str, value: Any, dtype: str, problem: ConvProblem | None = None) -> None:
    low, high = ZERO_POINTS.get(dtype, (0, 0))
    if isinstance(value, int) and low <= value <= high:
        return
    array = np.asarray(value)
    _check_count(name, value, array, problem)
    whole = isinstance(value, Integral) or array.dtype.kind in "iu"
    if not whole or (array.size and not low <= array.min() <= array.max() <= high):
        told = f"an integer from {low} to {high}, as of {dtype}" if high else f"0, as {name[0]} is {dtype}"
        raise ValueError(f"{name}={shown(value)} must be {told}")


def _check_count(name: str, value: Any, array: np.ndarray, problem: ConvProblem | None) -> None:
    """One number, or of w one for each filter."""
    if array.ndim == 0 or (array.size == 1 and problem is not None and problem.scales == "per_tensor"):
        return
    if problem is not None and problem.scales == "per_channel" and array.shape == (problem.K,):
        return
    wanted = "one number"
    if problem is not None:
        wanted += f", or {problem.K} in a problem of scales='per_channel'"
    raise ValueError(f"{name}={shown(value)} must be {wanted}, not of shape {array.shape}")
