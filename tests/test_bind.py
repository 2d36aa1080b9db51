"""Runs whose arrays never move: `Plan.bind`, and launches without Python."""

import ctypes
import threading

import numpy as np
import pytest
from helpers import may_serve

import convalgos as ca
from convalgos import ConvProblem, Unsupported
from convalgos.core import setting
from convalgos.core.allocator import aligned_empty
from convalgos.core.bound_run import Launch
from convalgos.core.quantization import Quantization
from convalgos.cpu.direct import Direct
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import KernelPlan, arguments
from convalgos.select.registry import algorithms

PROBLEM = ConvProblem.parse("n2 c8 h9 w11 k16 r3 s3 p1")
PROBLEMS = (
    PROBLEM,
    PROBLEM.replace(layout="channels_last"),
    ConvProblem.parse("n2 c8 h9 w11 k8 r3 s3 p1 groups8"),
    ConvProblem.parse("n1 c20 h1 w1 k33 r1 s1"),
)


def data(problem, seed=0):
    rng = np.random.default_rng(seed)
    shapes = (*problem.array_shapes, (problem.bias_size,), problem.array_shapes[2])
    return [rng.standard_normal(shape).astype(problem.dtype) for shape in shapes]


def served():
    for algorithm in algorithms("cpu"):
        for problem in PROBLEMS:
            if not algorithm.why_not(problem):
                yield pytest.param(algorithm, problem, id=f"{algorithm.id}-{problem}")
                break


@pytest.mark.parametrize(("algorithm", "problem"), list(served()))
def test_every_algorithm_is_bound_to_arrays(algorithm, problem):
    x, w, y, bias, residual = data(problem)
    plan = algorithm.serve(problem)
    prepared = plan.prepare(w)
    scratch = aligned_empty(plan.scratch_bytes or 0, np.uint8)
    scratch.fill(0xFF)  # NaN
    for activation, added in (("relu", None), ("silu", None), (None, residual), (("clip", 0, 2), residual)):
        right = plan(x, prepared, bias=bias, activation=activation, residual=added)
        bound = plan.bind(x, prepared, y, bias, activation, added, scratch)
        bound.run()
        assert np.array_equal(y, right)
        x *= -1  # the values change, and the arrays stay
        right = plan(x, prepared, bias=bias, activation=activation, residual=added)
        bound.run()
        assert np.array_equal(y, right)
        if added is not None:
            y[...] = added
            plan.bind(x, w, y, bias, activation, y, scratch).run()
            assert np.allclose(y, right, rtol=1e-5, atol=1e-5)


GRADIENTS = {  # by the algorithm that computes their phases
    "n2 c3 w41 k4 s7 stride3 backward_data": "cpu.direct.pixels",  # slices
    "n1 c2 w90 k3 s9 p2 stride4 backward_data": "cpu.direct.pixels",  # all phases together
    "n1 c16 w43 k9 s3 stride5 backward_data": "cpu.direct",  # two phases have no tap
    "n1 c9 h7 w9 k5 r3 s3 p1 stride2 backward_data": "cpu.polyphase",
    "n2 c4 h9 w150 k3 r3 s7 p2 stride2,3 backward_data": "cpu.direct.phases",
    "n2 c3 w300 k2 s50 p9 stride20 backward_data": "cpu.direct.phases",  # its phases are vectors
}


@pytest.mark.parametrize("text", GRADIENTS)
def test_a_bound_gradient_is_launches_for_any_arrays(text, two_threads):
    problem = ConvProblem.parse(text)
    dy, w, dx, bias, residual = data(problem)
    plan = ca.plan(problem, algorithm=GRADIENTS[text])
    other_dy, other_dx = dy[::-1] + 1, np.full_like(dx, np.nan)
    for activation in (None, "relu", "silu"):
        run = plan.bind(dy, plan.prepare(w), dx, bias, activation)
        assert run.launches is not None and run.x_places and run.y_places
        run.run()
        assert np.array_equal(dx, plan(dy, w, bias=bias, activation=activation))
        for places, array, other in ((run.x_places, dy, other_dy), (run.y_places, dx, other_dx)):
            for place in places:
                held = ctypes.c_int64.from_address(place.word)
                assert held.value == array.ctypes.data + place.offset
                assert 0 <= place.offset < array.nbytes
                held.value = other.ctypes.data + place.offset
        run.run()
        assert np.array_equal(other_dx, plan(other_dy, w, bias=bias, activation=activation))
    run = plan.bind(dy, plan.prepare(w), dx, bias, "silu", residual)
    assert run.launches is not None and not run.y_places
    run.run()
    assert np.array_equal(dx, plan(dy, w, bias=bias, activation="silu", residual=residual))
    dx[...] = residual
    plan.bind(dy, plan.prepare(w), dx, bias, "silu", dx).run()
    assert np.array_equal(dx, plan(dy, w, bias=bias, activation="silu", residual=residual))


OF_THREADS = (
    *PROBLEMS,
    ConvProblem.parse("n2 c1 h104 w290 k3 r5 s5 p2"),  # is cut by FFTs of other lengths
    ConvProblem.parse("n2 c6 h9 w11 k4 r3 s3 p1 stride2 backward_data"),
)


@pytest.mark.parametrize("problem", OF_THREADS, ids=str)
def test_a_filter_prepared_on_other_threads_is_taken_or_refused(problem):
    """What depends on the threads is part of the key of a filter."""
    x, w, *_ = data(problem)
    for algorithm in algorithms("cpu"):
        if algorithm.family == "cpu.reference":
            continue
        plans = []
        for threads in (1, 2, 8):
            with setting.threads_of_calls(threads):
                if not algorithm.why_not(problem):
                    plans.append(algorithm.serve(problem))
        for plan in plans[1:]:
            prepared = plans[0].prepare(w)
            if prepared.key == plan.prepare(w).key:
                np.testing.assert_allclose(plan(x, prepared), plan(x, w), rtol=1e-4, atol=1e-4)


def apart(array):
    """The same values in images that lie apart, as slices of larger maps do."""
    whole = np.full((len(array), 2, *array.shape[1:]), np.nan, array.dtype)
    whole[:, 1] = array
    return whole[:, 1]


@pytest.mark.parametrize(("algorithm", "problem"), [p for p in served() if p.values[1].N > 1])
def test_images_may_lie_apart_where_the_plan_says_so(algorithm, problem):
    x, w, y, bias, residual = data(problem)
    plan = algorithm.serve(problem)
    right = plan(x, w, bias=bias, activation="silu", residual=residual)
    x, residual, target = map(apart, (x, residual, y))
    if not plan.strided_batch:
        for given in ((x, w, y), (np.ascontiguousarray(x), w, target)):
            with pytest.raises(Unsupported, match="images that lie apart"):
                plan.bind(*given)
        return
    for added in (residual, np.ascontiguousarray(residual)):
        target.base[:] = np.nan
        plan.bind(x, w, target, bias, "silu", added).run()
        assert np.array_equal(target, right)
        assert np.isnan(target.base[:, 0]).all()
    target[...] = residual
    plan.bind(x, w, target, bias, "silu", target).run()
    assert np.allclose(target, right, rtol=1e-5, atol=1e-5)


def part_of_larger(array):
    """The same values in a map that is larger along every dimension, and filled with NaN."""
    whole = np.full([n + 3 for n in array.shape], np.nan, array.dtype)
    part = whole[tuple(slice(1, 1 + n) for n in array.shape)]
    part[...] = array
    return part


APART = [
    ConvProblem.parse(text).replace(layout=layout)
    for text in (
        "n2 c1 h40 w33 k2 r9 s7 p3", "float64 n1 c2 h21 w70 k3 r5 s5 p2", "n2 c3 w90 k4 s9",
        "n2 c2 d4 h9 w40 k4 t2 r3 s3 p1 dilation1,2,1 groups2 edge", "n1 c2 h7 w900 k2 r1 s31 p0,15 groups2",
    )
    for layout in ("channels_first", "channels_last")
]  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "problem"),
    [
        (a, problem)
        for a in algorithms("cpu")
        if a.family in ("cpu.fft", "cpu.fft_planes") or a.id == "cpu.depthwise.rows"
        for problem in APART
        if may_serve(a, problem)
    ],
    ids=lambda v: getattr(v, "id", None) or str(v),
)
def test_rows_may_lie_apart_where_the_plan_says_so(algorithm, problem):
    """x is read in a larger map, and y written in one, of which nothing else changes."""
    if reason := algorithm.why_not(problem):
        pytest.skip(reason)
    x, w, y, bias, residual = data(problem)
    plan = algorithm.serve(problem)
    assert plan.rows_apart
    for activation, added in ((None, None), ("relu", None), ("silu", None), ("silu", residual)):
        right = plan(x, w, bias=bias, activation=activation, residual=added)
        target = part_of_larger(np.full_like(y, np.nan))
        plan.bind(part_of_larger(x), w, target, bias, activation, added).run()
        assert np.array_equal(target, right)
        target[...] = np.nan
        assert np.isnan(target.base).all()
    for badly in (target[::-1], np.lib.stride_tricks.as_strided(target, y.shape, (0, *target.strides[1:]))):
        with pytest.raises(Unsupported, match="strides"):
            plan.bind(x, w, badly, bias)


INTEGERS = ConvProblem.parse("uint8 w_int8 y_uint8 n2 c8 h9 w11 k7 r3 s3 per_channel")


@pytest.mark.parametrize(
    ("algorithm", "problem"),
    [
        (a, problem)
        for a in algorithms("cpu")
        for problem in (INTEGERS, INTEGERS.replace(layout="channels_last"))
        if not a.why_not(problem)
    ],
    ids=lambda v: getattr(v, "id", None) or str(v),
)
def test_bytes_of_images_that_lie_apart(algorithm, problem):
    """Slices of the channels of a map, as concatenations have them; what lies between stays as it is."""
    rng = np.random.default_rng(3)
    of_x, of_w, of_y = problem.array_shapes
    x, w = rng.integers(0, 256, of_x, np.uint8), rng.integers(-64, 64, of_w, np.int8)
    step = Quantization(0.02, 128, rng.uniform(0.001, 0.01, problem.K).astype("f4"), 0, 0.05, 133)
    plan = algorithm.serve(problem)
    prepared, bias = plan.prepare(w, step), rng.integers(-500, 500, problem.K, np.int32)
    right = plan(x, prepared, bias=bias)
    assert len(np.unique(right)) > 20
    whole_x, whole_y = (np.full((2, 2, *of[1:]), 9, np.uint8) for of in (of_x, of_y))
    whole_x[:, 1] = x
    if not plan.strided_batch:
        with pytest.raises(Unsupported, match="images that lie apart"):
            plan.bind(x, prepared, whole_y[:, 1], bias)
        return
    for source in (x, whole_x[:, 1]):
        whole_y.fill(9)
        plan.bind(source, prepared, whole_y[:, 1], bias).run()
        assert np.array_equal(whole_y[:, 1], right)
        assert (whole_y[:, 0] == 9).all()


def test_a_network_is_one_call():
    """Three layers on one scratch, from several threads with arrays of their own."""
    plan = ca.plan(PROBLEM.replace(w_shape=(8, 8, 3, 3)), algorithm="cpu.direct")
    _, w, *_ = data(plan.problem)
    prepared = plan.prepare(w)

    def run(seed, found):
        a, b, c = (data(plan.problem, seed)[0] for _ in range(3))
        right = a
        for _ in range(3):
            right = plan(right, prepared, activation="relu")
        scratch = aligned_empty(plan.scratch_bytes, np.uint8)
        bounds = [
            plan.bind(source, prepared, target, activation="relu", scratch=scratch)
            for source, target in ((a, b), (b, c), (c, b))
        ]
        table = jit.launch_table([launch for bound in bounds for launch in bound.launches])
        for _ in range(20):
            jit.launch_all(table.ctypes.data, len(table))
        found[seed] = np.array_equal(b, right)

    found = {}
    threads = [threading.Thread(target=run, args=(seed, found)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), True)


def test_launches_stand_for_the_run():
    plan = ca.plan(PROBLEM, algorithm="cpu.direct")
    x, w, y, *_ = data(PROBLEM)
    bound = plan.bind(x, w, y)
    right = plan(x, w)
    assert all(isinstance(launch, Launch) for launch in bound.launches)
    table = jit.launch_table(bound.launches)
    y.fill(np.nan)
    jit.launch_all(table.ctypes.data, 0)
    assert np.isnan(y).all()
    jit.launch_all(table.ctypes.data, len(table))
    assert np.array_equal(y, right)
    library = ca.plan(PROBLEM, algorithm="cpu.im2col.blas")
    assert library.bind(x, w, y).launches is None


def test_what_cannot_be_bound_is_told():
    plan = ca.plan(PROBLEM, algorithm="cpu.im2col.own")
    x, w, y, bias, residual = data(PROBLEM)
    frozen, long = y.copy(), np.zeros((3, *y.shape[1:]), np.float32)
    frozen.flags.writeable = False
    wide = np.zeros((2, 20, 9, 11), np.float32)
    shared = y.reshape(-1)[: x.size].reshape(x.shape)
    turned = np.zeros((2, 9, 11, 16), np.float32).transpose(0, 3, 1, 2)
    scratch = aligned_empty((1 << 20) + 1, np.uint8)
    direct = ca.plan(PROBLEM, algorithm="cpu.direct")
    for error, told, run in (
        (TypeError, "x has dtype float64", lambda: plan.bind(x.astype(float), w, y)),
        (TypeError, "y has list", lambda: plan.bind(x, w, [y])),
        (ValueError, "y has shape", lambda: plan.bind(x, w, y[:, :8])),
        (ValueError, "y is read-only", lambda: plan.bind(x, w, frozen)),
        (
            ValueError,
            "y must not overlap x",
            lambda: plan.bind(shared, w, y),
        ),
        (Unsupported, "y has strides", lambda: plan.bind(x, w, turned)),
        (Unsupported, "y has images that lie apart", lambda: plan.bind(x, w, wide[:, 4:])),
        (ValueError, "residual has shape", lambda: plan.bind(x, w, y, residual=residual[:1])),
        (ValueError, "residual must be y itself", lambda: plan.bind(x, w, long[1:], residual=long[:-1])),
        (ValueError, "activation=", lambda: plan.bind(x, w, y, activation="swish")),
        (ValueError, "bias has shape", lambda: direct.bind(x, w, y, bias[:3])),
        (ValueError, "was prepared for", lambda: plan.bind(x, direct.prepare(w), y)),
        (ValueError, "scratch has 16 bytes", lambda: direct.bind(x, w, y, scratch=scratch[:16])),
        (ValueError, "multiple of 64", lambda: direct.bind(x, w, y, scratch=scratch[1:])),
    ):
        with pytest.raises(error, match=told):
            run()


def test_tables_of_records_lie_in_order():
    """Kernels read them from an address on: a table that NumPy had laid otherwise gave wrong sums."""

    class Turned(KernelPlan):
        def pack_filter(self, w):
            return w.T

    def built(table):
        problem = ConvProblem.parse("n1 c3 w9 k2 s3")
        return Turned(problem, Direct(), arguments("table"), {"table": table}, steps=(), scratch_bytes=0)

    table = np.arange(12).reshape(3, 4)
    plan = built(table)
    for wrong in (
        lambda: built(table.T),
        lambda: plan.resized(plan.problem, {"table": table.T}, 0),
        lambda: plan.prepare(np.ones((2, 3, 3), "f4")),
    ):
        with pytest.raises(ValueError, match=r"(table|filter): an array of shape .* must be C-contiguous"):
            wrong()
