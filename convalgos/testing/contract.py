"""What every algorithm is held to, one function for each promise of the contract.

Each takes an algorithm, runs what it serves, raises AssertionError where a promise is broken, and returns how
many runs there were. `CHECKS` lists them by name, in the order in which they tell most.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, product
from typing import Any

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.arguments import DIRECTIONS
from convalgos.core.element_types import DTYPES
from convalgos.core.errors import Unsupported
from convalgos.core.layouts import PLAIN, blocked_layout
from convalgos.core.machine import vector_bytes
from convalgos.core.plan import Plan, numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.cpu.reference import reference
from convalgos.select import current_machine, facing
from convalgos.testing import random_layers
from convalgos.testing.answers import KINDS, Array, check_all, check_runs, example, in_turns
from convalgos.testing.binaries import check_binary
from convalgos.testing.integers import check_integers
from convalgos.testing.problems import GRADIENT_PROBLEMS, suited, table_problems

WIDE = ("float32", "float64")
LAYOUTS = ("channels_first", "channels_last")
RANDOM_PROBLEMS, RANDOM_FLOPS = 20, 3e6
CALLERS, CALLS = 4, 3  # threads that call one plan at once, and how often each
SIXTEEN_BITS = (
    "n2 c3 h9 w8 k5 r3 s3 p1",
    "n1 c4 h9 w8 k4 r5 s5 p2 groups4",
    "n1 c8 w30 k6 s4 p1",
    "n1 c8 w30 k6 s2",
)
IN_SIXTEEN_BITS = (  # of those that widen and round in their kernels
    "n2 c33 h9 w20 k33 r3 s3 p1 groups33 bfloat16",
    "n1 c32 h7 w37 k32 r5 s5 p2 stride2 groups32 float16",
    "n1 c20 w70 k20 s9 p3:2 groups20 bfloat16",
    "n1 c16 h10 w9 k16 r3 s3 p1:0,2:1 dilation2 groups4 bfloat16",
)
WITH_NAN = (
    "n2 c3 h16 w17 k5 r3 s3 p1",
    "n1 c4 h16 w17 k4 r3 s3 p1 groups4",
    "n1 c3 w40 k5 s3 p1",
    "n1 c3 h16 w17 k5 r5 s5 p2",
    "n1 c3 h16 w17 k5 r4 s4 p2",
    "n1 c3 h16 w17 k5 r2 s2 p1",
)
MANY_FILTERS = (  # that fill no number of vectors, beside whole ones
    "n1 c24 h7 w10 k70 r1 s1",
    "n2 c9 h9 w10 k37 r3 s3 p1",
    "n1 c6 h9 w13 k18 r3 s3 p1 groups3",
    "n1 c20 w40 k21 s5 p2",
    "n1 c40 h1 w1 k70 r1 s1",
    *(f"n1 c5 h13 w14 k19 r{r} s{r} p2" for r in (2, 4, 5)),
)
LAID = ("n2 c4 h12 w13 k6 r3 s3 p1", "n2 c6 h12 w13 k6 r3 s3 p1 groups6", "n1 c3 w50 k4 s5 p2", *WITH_NAN[3:])


def served(algorithm: Algorithm, problem: ConvProblem) -> bool:
    return algorithm.why_not(algorithm.computed(problem)) is None


def _served_of(algorithm: Algorithm, texts: tuple[str, ...]) -> Iterator[ConvProblem]:
    problems = (suited(algorithm, ConvProblem.parse(text)) for text in texts)
    return (problem for problem in problems if served(algorithm, problem))


def check_answers(algorithm: Algorithm) -> int:
    """Right on the awkward table, in its layouts and types, on integers (exact) and on reals.

    Any two of layout, type and data meet on each problem.
    """
    plain = (
        in_turns((problem for problem, _ in table_problems(algorithm, dtype)), turn)
        for turn, dtype in enumerate(WIDE)
    )
    return check_runs(algorithm, chain(*plain, _in_blocks(algorithm)))


def _in_blocks(algorithm: Algorithm) -> Iterator[tuple[ConvProblem, str]]:
    """Each problem of the table once: in one type on blocks of channels, in the other to or from them.

    The kinds of data change with every other problem.
    """
    for turn, dtype in enumerate(WIDE if "blocked" in (*algorithm.reads, *algorithm.writes) else ()):
        own = blocked_layout(vector_bytes() // DTYPES[dtype])
        pairs = [(x, y) for x, y in product((*PLAIN, own), repeat=2) if own in (x, y)]
        for i, (problem, _) in enumerate(
            [*table_problems(algorithm, dtype)][::2]
        ):  # without the other layout
            x, y = (own, own) if (i + turn) % 2 else pairs[i // 2 % len(pairs)]
            yield problem.replace(layout=x, y_layout=y), KINDS[(i // 2 + turn) % 2]


def check_gradients(algorithm: Algorithm) -> int:
    """Right in the other directions, by itself or by what computes gradients by it."""
    runs = 0
    for direction in DIRECTIONS:
        faced = facing(algorithm, direction)
        if direction != algorithm.directions[0] and direction in faced.directions:
            runs += check_all(
                faced,
                (
                    suited(faced, ConvProblem.parse(text).replace(layout=layout, direction=direction))
                    for text, layout in product(GRADIENT_PROBLEMS, LAYOUTS)
                ),
            )
    return runs


def check_random_problems(algorithm: Algorithm) -> int:
    """Right on random layers; the seed is fixed, so that a failure repeats."""
    rng, problems = random.Random(algorithm.id), []
    for _ in range(40 * RANDOM_PROBLEMS):
        problem = random_layers.random_layer(rng, RANDOM_FLOPS).replace(direction=algorithm.directions[0])
        problem = suited(algorithm, problem)
        if served(algorithm, problem):
            problems.append(problem)
        if len(problems) == RANDOM_PROBLEMS:
            break
    return check_all(algorithm, problems)


def check_refusals(algorithm: Algorithm) -> int:
    """`why_not` is one sentence, which `Unsupported` hands on with the id."""
    asked = 0
    for problem, reason in (found for dtype in WIDE for found in table_problems(algorithm, dtype)):
        if reason is None:
            continue
        asked += 1
        assert reason == reason.strip() and "\n" not in reason, f"{problem}: {reason!r} is not one sentence"
        assert len(reason.split()) > 2, f"{problem}: {reason!r} is not a sentence"
        refusal = _refusal(algorithm, problem)
        assert reason in refusal, f"{problem}: the refusal {refusal!r} does not say {reason!r}"
        assert algorithm.id in refusal, f"{problem}: the refusal {refusal!r} does not name the algorithm"
    return asked


def _refusal(algorithm: Algorithm, problem: ConvProblem) -> str:
    try:
        algorithm.serve(problem)
    except Unsupported as refusal:
        return str(refusal)
    raise AssertionError(f"{problem} was served, though `why_not` has a reason")


def check_others_refused(algorithm: Algorithm) -> int:
    """Directions and precisions that it does not compute are refused."""
    problem = suited(algorithm, ConvProblem((1, 4, 8, 8), (4, 4, 3, 3)))
    changes: list[dict[str, str]] = [
        *({"direction": direction} for direction in DIRECTIONS if direction not in algorithm.directions),
        {"compute_dtype": "tf32"},
        {"dtype": "float64", "compute_dtype": "float32"},
        {"dtype": "float16", "compute_dtype": "float16"},
    ]
    for change in changes:
        assert "cannot serve" in _refusal(algorithm, problem.replace(**change))
    return len(changes)


def check_figures(algorithm: Algorithm) -> int:
    """What the selector reads: a cost above 0 that no bound exceeds, a workspace, an error bound."""
    machine, asked = current_machine(), 0
    for problem, reason in (found for dtype in WIDE for found in table_problems(algorithm, dtype)):
        if reason is not None:
            continue
        asked += 1
        computed = algorithm.computed(problem)
        workspace, bound = algorithm.workspace_bytes(computed), algorithm.error_bound(computed)
        assert type(workspace) is int and workspace >= 0, f"{problem}: workspace {workspace!r}"
        assert 0 < bound < 0.1, f"{problem}: error bound {bound}"
        if not problem.is_empty:
            cost, least = algorithm.cost(computed, machine), algorithm.least(computed, machine)
            assert math.isfinite(cost) and cost > 0, f"{problem}: cost {cost}"
            assert least <= cost * (1 + 1e-9), f"{problem}: cost {cost}, least {least}"
            of_all = algorithm.least_of_all(computed, machine)
            assert of_all <= least * (1 + 1e-9), f"{problem}: least {least}, of all {of_all}"
            prepare = algorithm.prepare_cost(computed, machine)
            assert math.isfinite(prepare) and prepare >= 0, f"{problem}: prepare_cost {prepare}"
    return asked


def check_sixteen_bits(algorithm: Algorithm) -> int:
    """Data of 16 bits are computed in float32: an output is off by its own rounding and that error only."""
    native = (
        ConvProblem.parse(text).replace(layout=layout) for text, layout in product(IN_SIXTEEN_BITS, LAYOUTS)
    )
    runs = check_all(algorithm, (problem for problem in native if problem.dtype in algorithm.dtypes))
    for text, layout, dtype in product(SIXTEEN_BITS, LAYOUTS, ("float16", "bfloat16")):
        problem = suited(algorithm, ConvProblem.parse(text).replace(dtype=dtype, layout=layout))
        wide = problem.replace(dtype="float32", layout="channels_first")
        if not (served(algorithm, wide.replace(layout=layout)) and served(algorithm, problem)):
            continue
        runs += 1
        x, w, bias, _ = (array.astype(numpy_dtype(dtype)) for array in example(wide, "reals"))
        y = reference(wide, *(array.astype(np.float64) for array in (x, w, bias)))
        last = layout == "channels_last"
        found = algorithm.serve(problem)(np.moveaxis(x, 1, -1) if last else x, w, bias=bias)
        assert found.dtype == x.dtype, f"{problem}: the result is {found.dtype}"
        found = (np.moveaxis(found, -1, 1) if last else found).astype(np.float64)
        allowed = np.abs(y) * problem.eps / 2 + algorithm.error_bound(wide) * np.abs(y).max()
        assert (np.abs(found - y) <= allowed * 1.01).all(), f"{problem}: off by {np.abs(found - y).max()}"
    return runs


def check_not_a_number(algorithm: Algorithm) -> int:
    """An output that reads a NaN is NaN, after ReLU too; one that reads an infinity is not finite.

    Where `spreads_nan` is False, no other output changes.
    """
    runs = 0
    for problem in _served_of(algorithm, WITH_NAN):
        runs += 1
        plan = algorithm.serve(problem)
        w = np.ones(problem.w_shape, np.float32)
        for value in (np.nan, np.inf, -np.inf):
            x = np.ones(problem.x_shape, np.float32)
            clean = plan(x, w)
            x[0, 1, ..., 7] = value
            y = plan(x, w)
            touched = _readers(problem, channel=1, column=7)
            assert not np.isfinite(y[touched]).any(), f"{problem}: {value} was lost"
            if np.isnan(value):
                rectified = plan(x, w, activation="relu")
                assert np.isnan(rectified[touched]).all(), f"{problem}: ReLU lost NaN"
            if not algorithm.spreads_nan:
                assert np.array_equal(y[~touched], clean[~touched]), f"{problem}: {value} spread"
    return runs


def _readers(problem: ConvProblem, channel: int, column: int) -> Array:
    """Which outputs of the first image read a column of a channel, with stride 1 and dilation 1."""
    last = column + problem.padding[-1][0]
    group = slice(None) if problem.groups == 1 else slice(channel, channel + 1)
    touched = np.zeros(problem.y_shape, bool)
    touched[0, group, ..., last - problem.kernel[-1] + 1 : last + 1] = True
    return touched


def check_arrays_as_they_come(algorithm: Algorithm) -> int:
    """The same answer from arrays with gaps, turned round, or amid an element, and into such."""
    runs = 0
    for problem in _served_of(algorithm, LAID):
        runs += 1
        x, w, bias, _ = example(problem, "reals")
        plan = algorithm.serve(problem)
        expected = plan(x, w, bias=bias)
        for laid in (_with_gaps, _turned_round, _amid_an_element):
            out = laid(np.full(problem.y_shape, np.nan, x.dtype))
            got = plan(laid(x), laid(w), bias=laid(bias), out=out)
            assert got is out, f"{problem}: `out` is not what is returned ({laid.__name__})"
            near = np.allclose(
                out, expected, rtol=0, atol=2 * algorithm.error_bound(problem) * abs(expected).max()
            )
            assert near, f"{problem}: another answer with arrays {laid.__name__.strip('_')}"
    return runs


def _with_gaps(array: Array) -> Array:
    wide = np.full((*array.shape[:-1], 2 * array.shape[-1]), np.nan, array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def _turned_round(array: Array) -> Array:
    return np.ascontiguousarray(array[..., ::-1])[..., ::-1]


def _amid_an_element(array: Array) -> Array:
    raw = np.zeros(array.nbytes + 1, np.uint8)
    moved: Array = raw[1:].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def check_repeats(algorithm: Algorithm) -> int:
    """The same bits again after other data, by other plans, and by several threads at once."""
    if not algorithm.deterministic:
        return 0
    runs = 0
    for problem in _served_of(algorithm, LAID):
        runs += 1
        x, w, bias, _ = example(problem, "reals")
        plan = algorithm.serve(problem)
        filters = plan.prepare(w)
        first = plan(x, filters, bias=bias)
        plan(np.full_like(x, 1e3), w)

        again = partial(_same_bits, plan, x, filters, bias, first)
        with ThreadPoolExecutor(CALLERS) as threads:
            assert all(threads.map(again, range(CALLERS))), f"{problem}: another run gave other bits"
        assert np.array_equal(algorithm.serve(problem)(x, w, bias=bias), first), (
            f"{problem}: another plan did"
        )
    return runs


def check_equal_filters(algorithm: Algorithm) -> int:
    """Filters of one group that are equal give outputs of equal bits, where `equal_bits` says so."""
    if not algorithm.equal_bits:
        return 0
    runs, rng = 0, np.random.default_rng(0)
    for problem in _served_of(algorithm, MANY_FILTERS):
        runs += 1
        p = problem
        x = rng.standard_normal(p.x_shape).astype(p.dtype)
        of_groups = rng.standard_normal((p.groups, 1, *p.w_shape[1:])).astype(p.dtype)
        y = algorithm.serve(p)(x, np.repeat(of_groups, p.gemm_n, 1).reshape(p.w_shape))
        y = y.reshape(p.N, p.groups, p.gemm_n, -1)
        assert (y == y[:, :, :1]).all(), f"{p}: equal filters give unequal bits"
    return runs


def _same_bits(plan: Plan, x: Array, filters: Any, bias: Array, first: Array, _: int) -> bool:
    return all(np.array_equal(plan(x, filters, bias=bias), first) for _ in range(CALLS))


CHECKS: dict[str, Callable[[Algorithm], int]] = {
    "answers": check_answers,
    "refusals": check_refusals,
    "figures": check_figures,
    "others_refused": check_others_refused,
    "not_a_number": check_not_a_number,
    "sixteen_bits": check_sixteen_bits,
    "arrays_as_they_come": check_arrays_as_they_come,
    "repeats": check_repeats,
    "equal_filters": check_equal_filters,
    "random_problems": check_random_problems,
    "gradients": check_gradients,
    "integers": check_integers,
    "binary": check_binary,
}
