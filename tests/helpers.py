"""What tests share beside `convalgos.testing`: random problems, and checks of rounded products."""

import math
import random
from collections.abc import Iterable
from functools import cache, lru_cache
from itertools import product
from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st

from convalgos.core.algorithm import Algorithm
from convalgos.core.epilogue import ActivationLike, activated, activation_of
from convalgos.core.errors import missing
from convalgos.core.layouts import laid
from convalgos.core.plan import Plan, numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.cpu.reference import answer
from convalgos.select import algorithms, find_algorithm
from convalgos.testing import KINDS, PROBLEMS, Guarded, check, check_all, example, table_problems
from convalgos.testing.answers import check_runs, in_turns
from convalgos.tools.bench.suites import suites

__all__ = [
    "KINDS", "PROBLEMS", "Guarded",
    "check", "check_all", "check_runs", "example", "in_turns", "table_problems",
]  # fmt: skip


# Of random problems, most draws may not fit an algorithm.
choosy = settings(suppress_health_check=list(HealthCheck))


def cpu_algorithms() -> tuple[Algorithm, ...]:
    """Those of the forward pass; test_gradients.py has the others."""
    return tuple(a for a in algorithms("cpu") if "forward" in a.directions)


def why_not_here(name: str, dtype: str = "float32") -> str | None:
    """Why this machine cannot run an algorithm, as it lacks a module or instructions; or None."""
    reasons = [reason for p, reason in table_problems(find_algorithm(name), dtype) if not p.is_empty]
    return None if None in reasons else max(set(reasons), key=reasons.count)


def may_serve(algorithm: Algorithm, *problems: ConvProblem) -> bool:
    """Whether a test of an algorithm on the first of some problems that it serves is to be collected: it
    serves one here, or would where a module were installed, so that its test is skipped."""
    return any(map(missing, algorithm.needs)) or any(
        algorithm.why_not(algorithm.computed(problem)) is None for problem in problems
    )


def serves(choice: str, problem: ConvProblem) -> bool:
    if choice == "auto":
        return True
    algorithm = _found(choice)
    return algorithm.why_not(algorithm.computed(problem)) is None


@cache
def _found(choice: str) -> Algorithm:
    """Of some hundred problems that are drawn until one is served, each asks for it."""
    return find_algorithm(choice)


def random_problems(count, seed=2):
    """Problems of every kind: dimensions, groups, layouts, types, steps and kernels; too large to be run."""
    rng, found = random.Random(seed), []
    while len(found) < count:
        ndim = rng.choice((1, 2, 2, 2, 3))
        channels, filters = rng.choice((1, 3, 16, 32, 64, 200)), rng.choice((1, 8, 32, 64, 130))
        groups = rng.choice((1, 1, 1, 2, channels))
        if channels % groups:
            continue
        sizes = [rng.randint(3, {1: 5000, 2: 120, 3: 18}[ndim]) for _ in range(ndim)]
        kernel = [rng.choice((1, 2, 3, 3, 5, 7, 11))] * ndim
        if rng.random() < 0.2:
            kernel = [rng.choice((1, 3, 9)) for _ in range(ndim)]
        try:
            problem = ConvProblem(
                (rng.choice((1, 2, 8, 16)), channels, *sizes),
                (-(-filters // groups) * groups, channels // groups, *kernel),
                stride=rng.choice((1, 1, 1, 2, 3)),
                dilation=rng.choice((1, 1, 1, 2)),
                padding=rng.choice((0, 1, 2)),
                groups=groups,
                layout=rng.choice(("channels_first", "channels_first", "channels_last")),
                dtype=rng.choice(("float32", "float32", "float64")),
            )
        except ValueError:  # the kernel is larger than the map
            continue
        if not problem.is_empty and problem.flops < 3e11:
            found.append(problem)
    return found


@st.composite
def served_problems(draw, choice: str, dimensions=(1, 2, 3), groups=(1, 2, 3)):
    """A random problem; where the algorithm does not serve it, the nearest plainer one that it serves."""
    ndim, count = draw(st.sampled_from(dimensions)), draw(st.sampled_from(groups))

    def per_dim(low, high):
        return tuple(draw(st.integers(low, high)) for _ in range(ndim))

    kernel, stride, dilation, more = per_dim(1, 5), per_dim(1, 3), per_dim(1, 3), per_dim(0, 12)
    padding = tuple(zip(per_dim(0, 3), per_dim(0, 3), strict=True))
    n, inputs, filters = (draw(st.integers(1, m)) for m in (3, 5, 5))
    layout = draw(st.sampled_from(["channels_first", "channels_last"]))
    mode = draw(st.sampled_from(["cross_correlation", "convolution"]))
    plain, none = (1,) * ndim, ((0, 0),) * ndim
    kernels = (kernel, *((r,) * ndim for r in (3, 5, 4, 2, 7, 9, 1)))
    for padding_, count_, inputs_, kernel_, dilation_, stride_ in product(
        (padding, none), (count, 1, 4), (inputs, 1), kernels, (dilation, plain), (stride, plain)
    ):
        reach = [d * (r - 1) + 1 for r, d in zip(kernel_, dilation_, strict=True)]
        problem = ConvProblem(
            (n, count_ * inputs_, *(e + m for e, m in zip(reach, more, strict=True))),
            (count_ * filters, inputs_, *kernel_),
            stride_, padding_, dilation_, count_, layout=layout, mode=mode,
        )  # fmt: skip
        if serves(choice, problem):
            return problem
    assume(False)


def check_rounded(algorithm: Algorithm, problem: ConvProblem, plan: Plan, kind: str = "reals") -> None:
    """Run a plan whose products are rounded, to TF32 or from 16 bits, with bias and ReLU.

    x and w are given as the type of the problem holds them. Integers are exact in every type, but for y.
    """
    wide = problem.replace(dtype="float32", layout="channels_first", compute_dtype=None)
    last, dtype = problem.layout == "channels_last", numpy_dtype(problem.dtype)
    x, w, bias, y = example(wide, kind)
    expected = np.maximum(y + bias.astype(np.float64).reshape(-1, *(1,) * problem.ndim), 0)
    out = Guarded(problem.array_shape(problem.y_shape), dtype)
    x = np.ascontiguousarray(np.moveaxis(x, 1, -1) if last else x).astype(dtype)
    plan(x, plan.prepare(w.astype(dtype)), bias=bias.astype(dtype), out=out.array, activation="relu")
    assert out.intact(), f"{problem}: wrote outside y"
    found = (np.moveaxis(out.array, -1, 1) if last else out.array).astype(np.float64)
    if kind == "integers":
        assert np.array_equal(found, expected.astype(dtype).astype(np.float64)), f"{problem}: not exact"
        return
    typical = float(np.sqrt(problem.gemm_k * np.mean(x.astype(np.float64) ** 2) * np.mean(w**2)))
    error = np.abs(found - expected).max(initial=0) / max(typical, np.abs(expected).max(initial=0))
    bound = algorithm.error_bound(problem)
    assert error <= bound, f"{problem}: error {error:.1e}, bound {bound:.1e}"


def check_filter_gradient(
    algorithm: Algorithm, problem: ConvProblem, plan: Plan, kind: str = "reals"
) -> None:
    """Run a plan of backward_weights on x and dy as the type of the problem holds them, in its layout.

    Integers are exact in every type, but for dw, which is rounded once.
    """
    last, dtype = problem.layout == "channels_last", numpy_dtype(problem.dtype)
    wide = problem.replace(dtype="float32", layout="channels_first", compute_dtype=None)
    x, dy, expected = _rounded_example(wide, kind, problem.dtype)
    out = Guarded(problem.w_shape, dtype)
    x, dy = (np.ascontiguousarray(np.moveaxis(array, 1, -1)) if last else array for array in (x, dy))
    plan(x, dy, out=out.array)
    assert out.intact(), f"{problem}: wrote outside dw"
    found = out.array.astype(np.float64)
    if kind == "integers":
        assert np.array_equal(found, expected.astype(dtype).astype(np.float64)), f"{problem}: not exact"
        return
    error = np.abs(found - expected).max(initial=0) / max(1.0, np.abs(expected).max(initial=0))
    bound = algorithm.error_bound(problem)
    assert error <= bound, f"{problem}: error {error:.1e}, bound {bound:.1e}"


@lru_cache(64)
def _rounded_example(wide: ConvProblem, kind: str, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x and dy as a type holds them, and their float64 answer: every build of a kernel is given them."""
    x, dy = (array.astype(numpy_dtype(dtype)) for array in example(wide, kind)[:2])
    return x, dy, answer(wide, x.astype(np.float64), dy.astype(np.float64))


def check_output_step_on_images_apart(plan: Plan, activation: ActivationLike) -> None:
    """Bound to images that lie apart in a larger array, with a residual that is y itself: the bits of a call,
    and near the answer by NumPy."""
    rng = np.random.default_rng(0)
    p = plan.problem
    x = rng.standard_normal(p.array_shapes[0]).astype(np.float32)
    plain = laid(rng.standard_normal(p.y_shape).astype(np.float32), p.y_layout)  # lanes beyond K hold nothing
    w, bias = (
        rng.standard_normal(plan.problem.w_shape).astype(np.float32),
        np.ones(plan.problem.K, np.float32),
    )
    w /= math.sqrt(plan.problem.reduction)
    whole = np.zeros((len(plain), plain.shape[1] + 2, *plain.shape[2:]), np.float32)
    y = whole[:, 1:-1]
    y[:] = residual = plain
    plan.bind(x, w, y, bias, activation, residual=y).run()
    sums = plan(x, w, bias=bias)
    expected = (
        sums + residual if activation is None else activated(sums + residual, activation_of(activation))
    )
    assert np.allclose(y, expected, rtol=1e-5, atol=1e-5)
    assert np.array_equal(y, plan(x, w, bias=bias, activation=activation, residual=residual))
    assert np.array_equal(sums, plan(x, w, bias=bias)) and not whole[:, [0, -1]].any()


def check_workspaces(kinds: Iterable[Algorithm], one: Algorithm, texts: Iterable[str]) -> None:
    """Those of all layers of networks are small, and what plans of `one` take is what it says."""
    for algorithm, layer in product(kinds, [layer for suite in suites().values() for layer in suite]):
        problem = layer.problem
        if algorithm.why_not(problem) is None:
            most = max(64 << 20, problem.bytes)
            assert algorithm.workspace_bytes(problem) <= most, f"{algorithm.id} on {problem}"
    for problem in map(ConvProblem.parse, texts):
        plan: Any = one.serve(problem)
        assert plan.workspace_bytes == one.workspace_bytes(problem)
        assert plan.new_workspace().scratch.nbytes == plan.workspace_bytes
