"""An algorithm on one problem, the hard way, against the float64 reference.

`check` runs it with arrays off every alignment between bands of NaN, y and all fresh memory full of NaN, the
caller's filter destroyed once it is prepared, and each output step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from convalgos.core import layouts
from convalgos.core.algorithm import Algorithm
from convalgos.core.element_types import HALF_DTYPES
from convalgos.core.filter_patterns import keeps_integers, random_kernels, terms_of
from convalgos.core.plan import Plan, numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.core.sparsity import random_places
from convalgos.cpu.reference import answer, deviation, error_scale
from convalgos.testing.memory import Guarded, forget_workspaces, poisoned

Array = np.ndarray[Any, Any]
KINDS = ("integers", "reals")
FLOATS = ("float32", "float64")  # whose output step rounds once


@lru_cache(512)
def example(problem: ConvProblem, kind: str) -> tuple[Array, Array, Array, Array]:
    """What a channels-first problem reads first and second, a bias, and its float64 answer without that.

    Integers are so small that float32 holds every partial sum; reals are scaled so that y is of order 1.
    """
    rng = np.random.default_rng(len(str(problem)))

    def draw(*shape: int) -> Array:
        return rng.integers(-4, 5, shape) if kind == "integers" else rng.standard_normal(shape)

    scale = 1 if kind == "integers" else 1 / np.sqrt(max(1, problem.reduction))
    first, second, _ = problem.array_shapes
    x, w, bias = (
        (draw(*shape) * factor).astype(numpy_dtype(problem.dtype))
        for shape, factor in ((first, 1), (second, scale), ((problem.bias_size,), 1))
    )
    if terms_of(problem.pattern) and problem.arrays[1] == "w":
        w = random_kernels(second, problem.pattern, rng, kind == "integers") * scale
        w = w.astype(numpy_dtype(problem.dtype))
    elif problem.density < 1:
        w *= random_places(w.shape, problem.density, problem.pattern, rng)
    y = answer(problem, x, w)
    for array in (x, w, bias, y):
        array.flags.writeable = False
    return x, w, bias, y


Step = tuple[bool, str | None]  # whether with a bias, and the activation
STEPS: tuple[Step, ...] = tuple(product((False, True), (None, "relu")))
STEPS_OF_KIND: dict[str, tuple[Step, ...]] = {  # of many problems: each step on one kind of data
    "integers": ((False, None), (True, "relu")),
    "reals": ((True, None), (False, "relu")),
}
SLOPE = 0.25  # of the leaky ReLU that is taken with a residual: exact on integers


def check(
    algorithm: Algorithm,
    problem: ConvProblem,
    kind: str = "reals",
    steps: Iterable[Step] = STEPS,
    plan: Plan | None = None,
) -> float:
    """Run an algorithm that serves a problem in every way, and compare it with the reference.

    Fresh memory is full of NaN. The first run and each other one after it make a workspace of it; those
    between use the one of the run before, as it was left.

    Args:
        steps: the output steps to take; gradients of filters have none, and run twice.
        plan: the plan to run; by default the algorithm's own.

    Returns:
        the largest error over its bound.
    """

    filters_read = problem.direction != "backward_weights"
    x, w, bias, y = example(problem.replace(layout="channels_first", y_layout="channels_first"), kind)
    x_name, w_name, y_name = problem.arrays
    exactly = x, w, y
    x, w = _laid(problem, x, x_name), _laid(problem, w, w_name)
    plain = not algorithm.spreads_nan and not (algorithm.patterns and not keeps_integers(problem.pattern))
    exact = kind == "integers" and plain  # sums of plain products, which fit
    bound = algorithm.error_bound(algorithm.computed(problem))
    # The coarsest is that of Gaussians by recursions, 0.14 for folded borders in three dimensions.
    assert 0 < bound < 0.25, f"the error bound {bound} is no bound"

    with poisoned():
        plan = plan or algorithm.serve(problem)
        assert plan.algorithm == algorithm.id
        assert plan.workspace_bytes >= 0
        guarded_x, guarded_w = Guarded.copy_of(x), Guarded.copy_of(w)
        before = guarded_x.array.tobytes()
        prepared = plan.prepare(guarded_w.array)
        assert np.array_equal(guarded_w.array, w), "prepare wrote the filter"
        assert guarded_w.intact(), "prepare wrote outside the filter"
        if filters_read:
            guarded_w.array.fill(np.nan)  # a prepared filter stands on its own

    worst = 0.0
    for i, (with_bias, activation) in enumerate(steps if filters_read else [(False, None)] * 2):
        # kernels of the CPU have a way of their own for what is more than a bias and ReLU
        more = with_bias and activation is None and algorithm.device == "cpu" and problem.dtype in FLOATS
        residual = _laid(problem, _residual(y.shape).astype(problem.dtype), y_name) if more else None
        taken = ("leaky_relu", SLOPE) if more else activation
        step = f"bias {with_bias}, activation {taken}, residual {more}"
        out = Guarded(problem.array_shapes[2], numpy_dtype(problem.dtype))
        given = bias.copy() if with_bias else None
        if i % 2 == 0:
            forget_workspaces(plan)
        with poisoned():
            got = plan(
                guarded_x.array, prepared, bias=given, out=out.array, activation=taken, residual=residual
            )
        assert got is out.array
        assert out.intact(), f"wrote outside y ({step})"
        same = guarded_x.array.tobytes() == before
        assert guarded_x.intact() and same, f"wrote x ({step})"
        assert given is None or np.array_equal(given, bias), "wrote the bias"

        found = problem.logical(2, got)
        added = [array for array, wanted in ((bias, with_bias), (_residual(y.shape), more)) if wanted]
        found = _error(problem, exactly, added, found, exact, step, SLOPE if more else int(not activation))
        assert found <= bound, f"error {found:.2e} is over the bound {bound:.2e} ({step})"
        worst = max(worst, found / bound)
    return worst


def _laid(problem: ConvProblem, array: Array, name: str) -> Array:
    """A logical array in the order of memory; filters and their gradients have one order."""
    if name[-1] == "w":
        return array
    layout = problem.layout if name[-1] == "x" else problem.y_layout
    of_map, beyond = layouts.laid(array, layout), layouts.laid(np.ones_like(array), layout) == 0
    return np.where(beyond, np.nan, of_map) if beyond.any() else of_map  # no lane beyond C is read


@lru_cache(4)  # every algorithm adds it on a problem
def _residual(shape: tuple[int, ...]) -> Array:
    """Small integers of the shape of y."""
    small: Array = (np.arange(math.prod(shape)) % 9 - 4).reshape(shape).astype(np.float32)
    small.flags.writeable = False
    return small


def _error(
    problem: ConvProblem, exactly: tuple[Array, Array, Array], added: Iterable[Array], got: Array,
    exact: bool, step: str, slope: float,
) -> float:  # fmt: skip
    """Error of a result relative to the size of its sums; all of it is written, and integers are exact.

    Args:
        exactly: what was read first and second, and the float64 answer without the output step; logical.
        added: a bias, and a residual.
        slope: by which what is negative is multiplied at last.
    """
    x, w, expected = exactly
    for array in added:
        more = array.astype(np.float64)
        expected = expected + (more.reshape(-1, *(1,) * problem.ndim) if more.ndim == 1 else more)
    scale = error_scale(problem, x, w, expected)  # before the activation: of the sums that were rounded
    if slope != 1:
        expected = np.where(expected < 0, expected * slope, expected)
    unwritten = int(np.isnan(got).sum())
    assert not unwritten, f"{unwritten} of {got.size} outputs are NaN ({step})"
    if exact:
        with np.errstate(over="ignore"):
            wrong = int((got != expected.astype(got.dtype)).sum())
        assert not wrong, f"{wrong} of {got.size} outputs of integers are not exact ({step})"
    off = deviation(problem.dtype, got, expected)
    if problem.dtype in HALF_DTYPES:  # float32 rounded to 16 bits
        off = np.maximum(0, off - rounding(problem, expected))
    return float(off.max(initial=0)) / (scale or 1)


def rounding(problem: ConvProblem, exact: Array) -> Array:
    """Half a unit in the last place of values as the problem's type of 16 bits holds them."""
    smallest = 2.0**-24 if problem.dtype == "float16" else 0.0  # below the normal ones these lie evenly
    return np.maximum(np.abs(exact) * problem.eps, smallest) / 2 * (1 + problem.eps)


def check_all(algorithm: Algorithm, problems: Iterable[ConvProblem]) -> int:
    """`check` those problems that an algorithm serves, on integers and on reals, and tell of all failures.

    Each output step is taken on one of the two.

    Returns:
        how many runs there were.
    """
    return check_runs(algorithm, product(problems, KINDS))


def in_turns(problems: Iterable[ConvProblem], begin: int = 0) -> Iterator[tuple[ConvProblem, str]]:
    """Each problem on one kind of data, where two follow each other that differ in their layout.

    With `begin` 0 for one type and 1 for another, any two of layout, type and data meet on each.
    """
    for turn, problem in enumerate(problems, begin):
        yield problem, KINDS[(turn + (turn - begin) // 2) % 2]


def check_runs(algorithm: Algorithm, runs: Iterable[tuple[ConvProblem, str]]) -> int:
    """As `check_all`, each problem on the kind of data that is named with it."""
    failures, served = [], 0
    for problem, kind in runs:
        if algorithm.why_not(algorithm.computed(problem)) is not None:
            continue
        served += 1
        try:
            check(algorithm, problem, kind, STEPS_OF_KIND[kind])
        except Exception as failure:
            failures.append(f"{problem} on {kind}: {type(failure).__name__}: {failure}")
    assert not failures, f"{len(failures)} of {served} runs failed:\n" + "\n".join(failures)
    return served
