"""The output step: y = activation(conv(x, w) + bias + residual), element by element.

Plans take an activation as None, a name, or a name with its numbers: "silu", ("leaky_relu", 0.2),
("clip", -1, 1). Kernels of the CPU have bias and ReLU in them, those of the GPU every activation, by a macro
of their build (`finished` in common.cuh); what kernels leave is done here in NumPy, or by epilogue.cu.

Every activation keeps NaN, and takes infinities to its limits there. 16-bit elements are computed in float32.

Source: Howard et al. 2019, arXiv:1905.02244 (hard-swish); Elfwing et al. 2018, arXiv:1702.03118 (SiLU);
Hendrycks and Gimpel 2016, arXiv:1606.08415 (GELU and its form with tanh); Clevert, Unterthiner and
Hochreiter 2015, arXiv:1511.07289 (ELU); Klambauer et al. 2017, arXiv:1706.02515 (SELU); Misra 2019,
arXiv:1908.08681 (Mish).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.arguments import shown
from convalgos.core.layouts import laid

PIECE = 1 << 14  # elements at a time, which with all temporaries stay in L2; estimate
BELOW = -1000.0  # where v * sigmoid(v) and v * Phi(v) are 0 in every type, but -inf * 0 would be NaN
TANH_SCALE = 2 * math.sqrt(2 / math.pi)  # 1 + tanh(u) = 2 sigmoid(2 u)
TANH_CUBE = 0.044715
LEVEL = 40.0  # where tanh(v) is 1 in every type, and exp(v) squared is finite


class Activation(NamedTuple):
    """An activation with its numbers, which those that have none leave at 0."""

    name: str
    a: float = 0.0  # slope of leaky_relu, low of clip, alpha of elu, scale of hard_swish less 1
    b: float = 0.0  # high of clip, scale of elu, shift of hard_swish


class Kind(NamedTuple):
    """An activation that kernels know."""

    code: int  # ACTIVATION in common.cuh
    numbers: int = 0  # that it takes
    steepest: float = 1.0  # largest slope: errors of the sums grow by no more


KINDS = {
    "relu": Kind(1),  # max(v, 0)
    "clip": Kind(2, 2),  # min(max(v, low), high)
    "leaky_relu": Kind(3, 1),  # v, below 0 slope * v
    "sigmoid": Kind(4, 0, 0.25),  # 1 / (1 + exp(-v))
    "silu": Kind(5, 0, 1.0999),  # v * sigmoid(v)
    "hard_swish": Kind(6, 0, 1.5),  # v * min(max(v + 3, 0), 6) / 6; networks may scale and shift it
    "gelu": Kind(7, 0, 1.1290),  # v * Phi(v), the distribution of a normal variable
    "gelu_tanh": Kind(8, 0, 1.1290),  # v * (1 + tanh(sqrt(2 / pi) * (v + 0.044715 v^3))) / 2
    "tanh": Kind(9),
    "elu": Kind(10, 2),  # scale * v, below 0 scale * alpha * (exp(v) - 1)
    "softplus": Kind(11),  # ln(1 + exp(v))
    "mish": Kind(12, 0, 1.0885),  # v * tanh(softplus(v))
}
NAMED = {  # by name alone
    "relu6": Activation("clip", 0.0, 6.0),
    "leaky_relu": Activation("leaky_relu", 0.01),
    "elu": Activation("elu", 1.0, 1.0),
    "selu": Activation("elu", 1.6732632423543772, 1.0507009873554805),
}
RELU = Activation("relu")
ActivationLike = str | Sequence[str | float] | Activation | None  # what plans take
NAMES = tuple(dict.fromkeys((*KINDS, *NAMED)))


def activation_of(given: ActivationLike) -> Activation | None:
    """What was given as an activation.

    Raises:
        ValueError: it is none, or has other numbers than it needs; says which there are.
    """
    if given is None or isinstance(given, Activation):
        return given
    name: object = given
    numbers: list[Any] = []
    if isinstance(given, Sequence) and not isinstance(given, str) and given:
        name, *numbers = given
    if not isinstance(name, str) or name not in NAMES:
        known = ", ".join(map(repr, NAMES))
        raise ValueError(
            f"activation={shown(given)} must be None, one of {known}, or one of them with its numbers, as "
            "('leaky_relu', 0.2) or ('clip', low, high)"
        )
    if not numbers and name in NAMED:
        return NAMED[name]
    fits = name in KINDS and len(numbers) == KINDS[name].numbers
    fits = fits and all(isinstance(n, Real) and math.isfinite(n) for n in numbers)
    if not fits or (name == "clip" and numbers[0] > numbers[1]):
        takes = {
            "clip": "two finite numbers, low <= high", "leaky_relu": "one finite number, its slope",
            "elu": "two finite numbers, alpha and scale",
        }  # fmt: skip
        raise ValueError(f"activation={shown(given)}: {name!r} takes {takes.get(name, 'no numbers')}")
    return Activation(name, *map(float, numbers))


def steepest(activation: Activation | None) -> float:
    """The largest slope of an activation: what it makes of an error is no more than so many times that."""
    if activation is None:
        return 1.0
    name, a, b = activation
    if name == "elu":
        return max(abs(b), abs(a * b))
    if name == "hard_swish":
        return KINDS[name].steepest * abs(1 + a)
    return max(KINDS[name].steepest, abs(a) if name == "leaky_relu" else 0)


def finish(y: np.ndarray, bias: np.ndarray | None, activation: str | None, problem: Any) -> None:
    """The output step in NumPy, in place, for plans that have no kernel of their own to fuse it into.

    y: an array of the problem's layout, or a piece of one with all its dimensions.
    """
    if bias is not None:
        y += bias_of_map(bias, problem)
    if activation == "relu":
        np.maximum(y, 0, out=y)


def bias_of_map(bias: np.ndarray, problem: Any) -> np.ndarray:
    """A bias (channels,) as it is added to what a problem writes, in its layout."""
    layout = problem.layout if problem.direction == "backward_data" else problem.y_layout
    of_map: np.ndarray = laid(bias.reshape(1, -1, *(1,) * problem.ndim), layout)[0]
    return of_map


def add_and_activate(y: np.ndarray, residual: np.ndarray | None, activation: Activation | None) -> None:
    """y = activation(y + residual) in place; both contiguous and of one type."""
    flat, added = y.reshape(-1), None if residual is None else residual.reshape(-1)
    wide = np.promote_types(y.dtype, np.float32) if y.dtype.kind == "f" else np.dtype(np.float32)
    for first in range(0, flat.size, PIECE):
        part = slice(first, first + PIECE)
        v = flat[part].astype(wide, copy=False)
        if added is not None:
            v = v + added[part].astype(wide, copy=False)
        with np.errstate(over="ignore"):  # what is too large for 16 bits becomes infinity, as in kernels
            flat[part] = v if activation is None else activated(v, activation)


def activated(v: np.ndarray, activation: Activation) -> np.ndarray:
    """The activation of each element, in its type: float32 or float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        y: np.ndarray = _activated(v, *activation)
    return y


def _activated(v: np.ndarray, name: str, a: float, b: float) -> Any:
    if name == "relu":
        return np.maximum(v, 0)
    if name == "clip":
        return np.minimum(np.maximum(v, a), b)
    if name == "leaky_relu":
        return np.where(v < 0, v * a, v)
    if name == "tanh":
        return np.tanh(v)
    if name == "elu":
        return b * np.where(v > 0, v, a * np.expm1(np.minimum(v, 0)))
    if name == "softplus":
        return np.maximum(v, 0) + np.log1p(np.exp(-np.abs(v)))
    if name == "hard_swish":
        plain = np.where(v < BELOW, 0, v * (np.minimum(np.maximum(v + 3, 0), 6) / 6))
        return (1 + a) * plain + b
    if name == "gelu":
        share = _normal_distribution(v)
    elif name == "gelu_tanh":
        share = _sigmoid(TANH_SCALE * (v + TANH_CUBE * v * v * v))
    elif name == "mish":  # tanh(ln(1 + e)) = ((1 + e)^2 - 1) / ((1 + e)^2 + 1)
        power = np.exp(np.minimum(v, LEVEL))
        share = power * (power + 2) / (power * (power + 2) + 2)
    else:
        share = _sigmoid(v)
    return share if name == "sigmoid" else np.where(v < BELOW, 0, v * share)


def _sigmoid(v: np.ndarray) -> Any:
    return 1 / (1 + np.exp(-v))


def _normal_distribution(v: np.ndarray) -> Any:
    from scipy.special import ndtr  # takes its time to be imported, and few ask for it

    return ndtr(v)
