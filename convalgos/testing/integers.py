"""What every algorithm of integers is held to: exactly the definition, whatever the types and zero points.

What says that it approximates is held to its error bound, on the same data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from convalgos.core import epilogue
from convalgos.core.algorithm import Algorithm
from convalgos.core.element_types import INTEGERS
from convalgos.core.plan import result_dtype
from convalgos.core.problem import ConvProblem
from convalgos.core.quantization import ROUNDINGS, Quantization
from convalgos.cpu.reference import error_scale, reference
from convalgos.select import current_machine
from convalgos.testing.memory import Guarded, forget_workspaces, poisoned
from convalgos.testing.problems import PROBLEMS

TYPES = tuple(product(INTEGERS, INTEGERS, ("int32", "uint8", "int8", "float32")))  # of x, w and y
LONG = ("n1 c2100 h1 w3 k5 r1 s1", "n1 c260 h4 w5 k33 r3 s3 p1")  # sums far beyond 16 bits


def check_integers(algorithm: Algorithm) -> int:
    """Equal to the definition in every element: random data and the corners of the types, zero points, bias,
    ReLU, both roundings; nothing is written beside y."""
    runs = 0
    if not set(INTEGERS) & set(algorithm.dtypes):
        return runs
    for turn, problem in enumerate(_problems()):
        if algorithm.takes(problem) and algorithm.why_not(algorithm.computed(problem)) is None:
            _check_one(algorithm, problem, turn)
            runs += 1
    return runs


def _problems() -> Iterator[ConvProblem]:
    """The awkward table in both layouts; with each problem the types, and what else there is, move on."""
    turn = 0  # steps of 5 meet all 16 types
    for text, layout in product((*PROBLEMS, *LONG), ("channels_first", "channels_last")):
        x, w, y = TYPES[turn % len(TYPES)]
        scales = "per_channel" if turn % 3 else "per_tensor"
        turn += 5
        problem = ConvProblem.parse(text).replace(layout=layout, dtype=x)
        yield problem.replace(w_dtype=w, y_dtype=y, scales=scales)


def _check_one(algorithm: Algorithm, problem: ConvProblem, turn: int) -> None:
    p = problem
    activation = "relu" if turn % 4 > 1 else None
    x, w, quantization, bias, expected = _example(p, turn, activation)
    allowed = _allowed(algorithm, p, x, w, quantization) if algorithm.approximates else 0.0

    def laid(array: Any) -> Any:
        return np.moveaxis(array, 1, -1) if p.layout == "channels_last" and np.ndim(array) else array

    given, out = Guarded.copy_of(laid(x)), Guarded(p.array_shapes[2], result_dtype(p))
    with poisoned():
        plan = algorithm.serve(p)
        prepared = plan.prepare(w, quantization)
    _check_figures(algorithm, p)
    for repeat in range(2):  # in a fresh workspace, and in one that was used
        if not repeat:
            forget_workspaces(plan)
        out.array.fill(77)
        plan(given.array, prepared, bias=bias, out=out.array, activation=activation)
        told = f"{algorithm.id} on {p}, {quantization}, bias {bias is not None}, activation {activation}"
        wrong = np.argwhere(np.abs(out.array.astype(np.float64) - laid(expected)) > laid(allowed))
        assert not wrong.size, f"{told}: {len(wrong)} of {expected.size} differ, the first at {wrong[0]}"
        assert out.intact() and given.intact(), f"{told}: wrote outside y"
        assert np.array_equal(given.array, laid(x)), f"{told}: wrote x"


@lru_cache(192)  # of the table, which each algorithm goes through
def _example(p: ConvProblem, turn: int, activation: str | None) -> tuple[Any, ...]:
    """x, w, how they are quantised, the bias, and y by the definition."""
    rng = np.random.default_rng(turn)
    x, w = (_draw(rng, shape, t, turn) for shape, t in ((p.x_shape, p.dtype), (p.w_shape, p.w_dtype)))
    quantization = _quantization(p, rng, turn)
    bias = rng.integers(-(2**20), 2**20, p.K).astype(np.int32) if turn % 2 else None
    expected = _defined(p, x, w, quantization, bias, activation)
    for array in (x, w, expected):
        array.flags.writeable = False
    return x, w, quantization, bias, expected


def _check_figures(algorithm: Algorithm, p: ConvProblem) -> None:
    """What the selector reads: a cost above 0 that no bound exceeds, a workspace, an error bound."""
    computed, machine = algorithm.computed(p), current_machine()
    workspace, bound = algorithm.workspace_bytes(computed), algorithm.error_bound(computed)
    assert type(workspace) is int and workspace >= 0, f"{p}: workspace {workspace!r}"
    assert 0 <= bound < (1 if algorithm.approximates else 1e-5), f"{p}: error bound {bound}"
    if not p.is_empty:
        cost, least = algorithm.cost(computed, machine), algorithm.least(computed, machine)
        assert 0 < cost < math.inf and least <= cost * (1 + 1e-9), f"{p}: cost {cost}, least {least}"
        prepare = algorithm.prepare_cost(computed, machine)
        assert 0 <= prepare < math.inf, f"{p}: prepare_cost {prepare}"


def _allowed(algorithm: Algorithm, p: ConvProblem, x: Any, w: Any, q: Quantization) -> Any:
    """Errors of y within the bound of an algorithm, (1, K, 1...), and a step where y is rounded."""
    real_x = x.astype(np.float64) - q.x_zero_point
    real_w = w.astype(np.float64) - np.broadcast_to(q.w_zero_point, p.K).reshape(-1, *(1,) * (p.ndim + 1))
    size = error_scale(p, real_x, real_w, reference(p, real_x, real_w))
    output = q.output(p, None)
    multiplier = np.ones(p.K) if output is None else output.multiplier.astype(np.float64)
    bound = algorithm.error_bound(algorithm.computed(p)) * size * multiplier
    return (bound + (0.0 if p.y_dtype == "float32" else 1.0)).reshape(1, -1, *(1,) * p.ndim)


def _draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, turn: int) -> Any:
    """Any integers, or in every third turn the least and the largest only."""
    limits = np.iinfo(dtype)
    if turn % 3 == 2:
        return rng.choice(np.array([limits.min, limits.max], dtype), shape)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def _quantization(p: ConvProblem, rng: np.random.Generator, turn: int) -> Quantization:
    def zero_point(dtype: str, shape: Any = None) -> Any:
        limits = np.iinfo(dtype)
        found = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        return int(found) if shape is None else found

    filters = p.K if p.scales == "per_channel" else None
    size = 4.0 / (128 * 128 * max(1, p.gemm_k) ** 0.5)  # so that y fills its type
    return Quantization(
        x_scale=0.5,
        x_zero_point=zero_point(p.dtype) if turn % 2 else 0,
        w_scale=rng.uniform(0.5, 1.5, filters).astype(np.float32) if filters else 0.25,
        w_zero_point=zero_point(p.w_dtype, filters) if turn % 5 > 2 else 0,
        y_scale=1 / (100 * size),
        y_zero_point=zero_point(p.y_dtype) if p.y_dtype in INTEGERS else 0,
        rounding=ROUNDINGS[turn % 2],
    )


def _defined(
    p: ConvProblem, x: Any, w: Any, q: Quantization, bias: Any, activation: str | None
) -> np.ndarray[Any, Any]:
    """y, logical, by the definition: sum (x - zero point) (w - zero point) + bias, exactly, and the step."""
    of_w = np.broadcast_to(q.w_zero_point, p.K).reshape(-1, *(1,) * (p.ndim + 1))
    exact = reference(p, x.astype(np.float64) - q.x_zero_point, w.astype(np.float64) - of_w, bias)
    sums = exact.astype(np.int64).astype(np.int32)
    output = q.output(p, epilogue.activation_of(activation) if p.y_dtype != "int32" else None)
    if output is not None:
        return np.asarray(output.apply(sums, result_dtype(p), 1))
    return np.maximum(sums, 0) if activation else sums
