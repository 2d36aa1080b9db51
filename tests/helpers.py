"""What tests share: the table of awkward problems, and the check that every algorithm must pass.

`check` runs an algorithm on a problem the hard way: arrays off every alignment between bands of NaN, y and
all fresh memory full of NaN, the caller's filter destroyed once it is prepared, each output step, and the
float64 reference as the judge.
"""

import random
from collections.abc import Iterable
from functools import lru_cache
from itertools import product

import numpy as np
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from poison import forget_workspaces, poisoned

from convalgos.core.algorithm import Algorithm
from convalgos.core.plan import Plan, numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.cpu.reference import answer, deviation, error_scale
from convalgos.select import algorithms, find_algorithm

EXACT = ("cpu.reference", "cpu.direct", "cpu.depthwise", "cpu.im2col")  # families: sums of plain products
KINDS = ("integers", "reals")

# Of random problems, most draws may not fit an algorithm.
choosy = settings(suppress_health_check=list(HealthCheck))

# Awkward problems. Every one is also run channels last, in both dtypes, on integers and on reals.
PROBLEMS = tuple(
    line.partition("#")[0].strip()
    for line in """
n1 c1 h1 w1 k1 r1 s1
n2 c3 h7 w5 k17 r3 s3 p1
n1 c17 h13 w9 k3 r3 s3
n1 c65 h6 w7 k65 r3 s3 p1
n5 c32 h17 w23 k48 r3 s3 p1
n1 c64 h28 w30 k64 r3 s3 p1             # several tiles and blocks of all kinds
n1 c130 h9 w9 k70 r1 s1
n2 c16 h14 w15 k32 r1 s1
n3 c17 h9 w11 k5 r1 s1 stride2          # 1x1 strided
n1 c6 h10 w11 k4 r1 s1 stride3 p1       # stride beyond the kernel
n1 c6 h9 w17 k4 r2 s2 stride5
n1 c17 h1 w1 k65 r1 s1 p2
n3 c3 h9 w1 k5 r3 s1 p1,0               # W = 1
n1 c4 h1 w11 k3 r1 s3 p0,1              # H = 1
n1 c2 h3 w3 k4 r3 s3                    # the kernel is the whole input
n4 c5 h8 w8 k6 r8 s8
n2 c1 h12 w10 k1 r5 s5 p2
n1 c24 h21 w26 k20 r5 s5 p2
n1 c3 h23 w31 k8 r11 s11 p2 stride4     # first layers
n1 c3 h20 w19 k16 r7 s7 p3 stride2
n1 c3 h17 w16 k4 r3 s3 p1 stride2,1
n2 c20 h15 w16 k18 r3 s3 p1 stride2
n1 c9 h13 w14 k7 r3 s3 p1 stride3
n1 c8 h11 w12 k8 r3 s3 p2 dilation2
n1 c3 h19 w20 k5 r3 s3 dilation3,1
n1 c2 h16 w15 k3 r3 s3 p6 dilation6
n1 c3 h14 w13 k4 r3 s3 p1:2,3:0 stride2 dilation2
n1 c3 h7 w6 k4 r3 s3 p0:2,3:1           # asymmetric padding
n1 c2 h3 w2 k3 r3 s3 p5                 # padding beyond the kernel: outputs that see no input
n1 c2 h3 w2 k3 r2 s2 p7:0,1:6 stride3
n1 c3 h6 w7 k4 r3 s3 pfull
n2 c3 h7 w8 k4 r4 s2 psame
n1 c5 h11 w9 k6 r3 s4 psame stride2
n1 c4 h10 w9 k3 r4 s4 p1                # even kernel
n1 c3 h5 w40 k4 r1 s9 p0,4
n1 c3 h40 w3 k4 r9 s1 p4,0
n2 c6 h8 w9 k10 r3 s3 p1 groups2        # K/groups other than C/groups
n1 c12 h7 w7 k6 r3 s3 p1 stride2 groups3
n1 c34 h6 w6 k2 r3 s3 groups2
n1 c32 h9 w8 k64 r1 s1 groups4
n2 c5 h9 w8 k5 r3 s3 p1 groups5         # depthwise
n1 c4 h10 w7 k12 r3 s3 p1 groups4       # with a multiplier
n1 c17 h12 w13 k17 r5 s5 p2 stride2 groups17
n1 c3 h15 w14 k3 r7 s7 p6 dilation2 groups3
n1 c33 h5 w5 k33 r3 s3 groups33
n1 c8 h20 w33 k8 r31 s31 p15 groups8    # a kernel larger than the plane
n2 c16 h24 w25 k16 r3 s3 p1:0,0:1 groups16
n1 c3 h8 w9 k4 r3 s3 p1 convolution
n1 c4 h8 w9 k4 r3 s2 p0:1,2 groups4 convolution
n1 c2 w20 k3 s4 p1:2 convolution
n3 c3 w1 k4 s1                          # 1-D
n1 c1 w100 k1 s17 pfull
n2 c17 w37 k3 s3 p2 dilation2
n1 c4 w50 k4 s4 p3:0 groups4            # causal
n1 c2 w301 k3 s65 p32
n1 c8 w33 k16 s3 p1 stride2
n5 c1 w7 k65 s3
n1 c20 w67 k36 s3 p1
n1 c16 w70 k24 s5 p2
n1 c3 d5 h6 w7 k4 t3 r3 s3 p1           # 3-D
n2 c2 d4 h5 w3 k3 t1 r3 s3 p0,1,1 stride1,2,2
n1 c3 d6 h10 w6 k6 t1 r3 s3 p2:1,1,1 stride2,1,1 groups3
n1 c4 d6 h5 w5 k4 t3 r1 s1 p1,0,0 groups4
n1 c2 d9 h9 w9 k2 t2 r3 s2 p2 dilation2,1,3
n1 c5 d3 h3 w3 k7 t3 r3 s3
n1 c18 d6 h9 w10 k20 t3 r3 s3 p1
n1 c4 h5 w1 k6 r2 s1 p1,4:0 stride2,5   # outputs that see nothing but padding
n0 c3 h5 w5 k4 r3 s3                    # nothing to do, or sums of nothing
n2 c0 h5 w5 k4 r3 s3 p1
n2 c3 h5 w5 k0 r3 s3
n1 c3 h0 w5 k4 r3 s3 p1
n1 c4 h0 w5 k4 r1 s3 p2,1 groups4
""".strip().splitlines()
)


def table_problems(algorithm: Algorithm, dtype: str, direction: str | None = None):
    """(problem, reason) over the whole table in both layouts; the reason is None where it is served.

    direction: by default the first that the algorithm computes.
    """
    direction = direction or algorithm.directions[0]
    for text, layout in product(PROBLEMS, ("channels_first", "channels_last")):
        problem = ConvProblem.parse(text).replace(layout=layout, dtype=dtype, direction=direction)
        yield problem, algorithm.why_not(algorithm.computed(problem))


def cpu_algorithms() -> tuple[Algorithm, ...]:
    """Those of the forward pass; test_gradients.py has the others."""
    return tuple(a for a in algorithms("cpu") if "forward" in a.directions)


def serves(choice: str, problem: ConvProblem) -> bool:
    if choice == "auto":
        return True
    algorithm = find_algorithm(choice)
    return algorithm.why_not(algorithm.computed(problem)) is None


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
    plain = (1,) * ndim
    kernels = (kernel, *((r,) * ndim for r in (3, 5, 4, 2)))
    for count_, inputs_, kernel_, dilation_, stride_ in product(
        (count, 1, 4), (inputs, 1), kernels, (dilation, plain), (stride, plain)
    ):
        reach = [d * (r - 1) + 1 for r, d in zip(kernel_, dilation_, strict=True)]
        problem = ConvProblem(
            (n, count_ * inputs_, *(e + m for e, m in zip(reach, more, strict=True))),
            (count_ * filters, inputs_, *kernel_),
            stride_, padding, dilation_, count_, layout=layout, mode=mode,
        )  # fmt: skip
        if serves(choice, problem):
            return problem
    assume(False)


class Guarded:
    """An array inside a larger buffer of NaN, off every alignment but its element's."""

    BAND = 1031  # elements on either side: more than a page, and odd

    def __init__(self, shape, dtype):
        count = int(np.prod(shape))
        self._buffer = np.full(count + 2 * self.BAND, np.nan, dtype)
        self.array = self._buffer[self.BAND : self.BAND + count].reshape(shape)

    @classmethod
    def copy_of(cls, values: np.ndarray) -> "Guarded":
        guarded = cls(values.shape, values.dtype)
        guarded.array[...] = values
        return guarded

    def intact(self) -> bool:
        """Whether nothing was written outside the array."""
        return bool(np.isnan(self._buffer[: self.BAND]).all() and np.isnan(self._buffer[-self.BAND :]).all())


@lru_cache(512)
def example(problem: ConvProblem, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What a channels-first problem reads first and second, a bias, and its float64 answer without that.

    Integers are so small that float32 holds every partial sum; reals are scaled so that y is of order 1.
    """
    rng = np.random.default_rng(len(str(problem)))

    def draw(*shape):
        return rng.integers(-4, 5, shape) if kind == "integers" else rng.standard_normal(shape)

    scale = 1 if kind == "integers" else 1 / np.sqrt(max(1, problem.reduction))
    first, second, _ = problem.array_shapes
    x, w, bias = (
        (draw(*shape) * factor).astype(numpy_dtype(problem.dtype))
        for shape, factor in ((first, 1), (second, scale), ((problem.bias_size,), 1))
    )
    y = answer(problem, x, w)
    for array in (x, w, bias, y):
        array.flags.writeable = False
    return x, w, bias, y


Step = tuple[bool, str | None]  # whether with a bias, and the activation
STEPS: tuple[Step, ...] = tuple(product((False, True), (None, "relu")))


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

    def moved(array: np.ndarray, name: str) -> np.ndarray:
        """A logical array in the order of memory; filters and their gradients have one order."""
        return np.moveaxis(array, 1, -1) if last and name[-1] != "w" else array

    last, filters_read = problem.layout == "channels_last", problem.direction != "backward_weights"
    x, w, bias, y = example(problem.replace(layout="channels_first"), kind)
    x_name, w_name, y_name = problem.arrays
    x, w, y = moved(x, x_name), moved(w, w_name), moved(y, y_name)
    exact = kind == "integers" and algorithm.family in EXACT
    computed = algorithm.computed(problem)
    bound = algorithm.error_bound(computed)
    assert 0 < bound < 0.1, f"the error bound {bound} is no bound"

    with poisoned():
        plan = plan or algorithm.serve(problem)
        assert plan.algorithm == algorithm.id
        assert plan.workspace_bytes >= 0
        guarded_x, guarded_w = Guarded.copy_of(x), Guarded.copy_of(w)
        before = guarded_x.array.copy()
        prepared = plan.prepare(guarded_w.array)
        assert np.array_equal(guarded_w.array, w), "prepare wrote the filter"
        assert guarded_w.intact(), "prepare wrote outside the filter"
        if filters_read:
            guarded_w.array.fill(np.nan)  # a prepared filter stands on its own

    worst = 0.0
    for i, (with_bias, activation) in enumerate(steps if filters_read else [(False, None)] * 2):
        step = f"bias {with_bias}, activation {activation}"
        out = Guarded(problem.array_shapes[2], numpy_dtype(problem.dtype))
        given = bias.copy() if with_bias else None
        if i % 2 == 0:
            forget_workspaces(plan)
        with poisoned():
            got = plan(guarded_x.array, prepared, bias=given, out=out.array, activation=activation)
        assert got is out.array
        assert out.intact(), f"wrote outside y ({step})"
        assert guarded_x.intact() and np.array_equal(guarded_x.array, before), f"wrote x ({step})"
        assert given is None or np.array_equal(given, bias), "wrote the bias"

        added = bias.astype(np.float64).reshape(-1 if last else (-1, *(1,) * problem.ndim))
        expected = y + added if with_bias else y
        scale = error_scale(problem, x, w, expected)  # before relu: of the sums that were rounded
        expected = np.maximum(expected, 0) if activation else expected
        unwritten = int(np.isnan(got).sum())
        assert not unwritten, f"{unwritten} of {got.size} outputs are NaN ({step})"
        if exact:
            with np.errstate(over="ignore"):
                wrong = int((got != expected.astype(got.dtype)).sum())
            assert not wrong, f"{wrong} of {got.size} outputs of integers are not exact ({step})"
        off = deviation(problem.dtype, got, expected)
        if computed is not problem:  # float32 rounded to 16 bits
            off = np.maximum(0, off - rounding(problem, expected))
        found = float(off.max(initial=0)) / (scale or 1)
        assert found <= bound, f"error {found:.2e} is over the bound {bound:.2e} ({step})"
        worst = max(worst, found / bound)
    return worst


def rounding(problem: ConvProblem, exact: np.ndarray) -> np.ndarray:
    """Half a unit in the last place of values as the problem's type of 16 bits holds them."""
    smallest = 2.0**-24 if problem.dtype == "float16" else 0.0  # below the normal ones these lie evenly
    return np.maximum(np.abs(exact) * problem.eps, smallest) / 2 * (1 + problem.eps)


def check_all(algorithm: Algorithm, problems: Iterable[ConvProblem]) -> int:
    """`check` those problems that an algorithm serves, on integers and on reals, and tell of all failures.

    Returns:
        how many runs there were.
    """
    failures, served = [], 0
    for problem in problems:
        if algorithm.why_not(algorithm.computed(problem)) is not None:
            continue
        for kind in KINDS:
            served += 1
            try:
                check(algorithm, problem, kind)
            except Exception as failure:
                failures.append(f"{problem} on {kind}: {type(failure).__name__}: {failure}")
    assert not failures, f"{len(failures)} of {served} runs failed:\n" + "\n".join(failures)
    return served


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
    x, dy = (array.astype(dtype) for array in example(wide, kind)[:2])
    expected = answer(wide, x.astype(np.float64), dy.astype(np.float64))
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
