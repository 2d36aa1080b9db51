"""Calls in compiled code: what they take, what they leave to Python, and that threads may share a plan."""

import threading
from dataclasses import replace

import numpy as np
import pytest

import convalgos as ca
from convalgos.core.plan import numpy_dtype
from convalgos.core.quantization import Quantization
from convalgos.cpu.gemm.word_tiles import ENGINES
from convalgos.cpu.runtime import array_calls

PROBLEM = ca.ConvProblem.parse("n2 c3 h5 w4 k7 r2 s3")
RNG = np.random.default_rng(3)
X, W, BIAS = (RNG.integers(-4, 5, s).astype("f4") for s in (PROBLEM.x_shape, PROBLEM.w_shape, (7,)))
PLAN = ca.plan(PROBLEM, algorithm="cpu.direct")
PREPARED = PLAN.prepare(W)
EXPECTED = ca.plan(PROBLEM, algorithm="cpu.reference")(X, W)


class Sub(np.ndarray):
    pass


def unaligned(a):
    raw = np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape)
    raw[...] = a
    return raw


def frozen(a):
    copy = a.copy()
    copy.flags.writeable = False
    return copy


ODD = {  # what lies otherwise than kernels read it
    "strides": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "order": lambda a: np.asfortranarray(a),
    "alignment": unaligned,
    "bytes": lambda a: a.astype(">f4"),
    "subclass": lambda a: a.view(Sub),
}


def quick(x, y, bias=None, relu=False):
    return PLAN._quick(x, PREPARED.data, y, bias, relu)


def test_laid_arrays_take_it():
    y = np.full(PROBLEM.y_shape, np.nan, "f4")
    assert quick(X, y) is y
    assert np.array_equal(y, EXPECTED)
    assert quick(frozen(X), y, frozen(BIAS), True) is y
    assert np.array_equal(y, np.maximum(EXPECTED + BIAS[:, None, None], 0))
    assert quick(X, y) is y and np.array_equal(y, EXPECTED)  # no bias is left of the run before


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_bias_of_16_bits_is_widened(dtype):
    problem = ca.ConvProblem.parse(f"n1 c5 h6 w7 k5 r3 s3 p1 groups5 {dtype}")
    plan = ca.plan(problem, algorithm="cpu.depthwise.channels")
    x, w = (np.zeros(s, numpy_dtype(dtype)) for s in problem.array_shapes[:2])
    bias = np.array([1.5, -np.inf, np.nan, 2.0**-20, -3e-5]).astype(x.dtype)  # denormal in float16, too
    y = np.empty(problem.y_shape, x.dtype)
    assert plan._quick(x, plan.prepare(w).data, y, bias, False) is y
    assert np.array_equal(y[0, :, 3, 3].astype("f4"), bias.astype("f4"), equal_nan=True)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("which", ["x", "y", "bias"])
def test_others_are_left_to_python_and_come_out_right(odd, which):
    y = np.full(PROBLEM.y_shape, np.nan, "f4")
    arrays = {"x": X, "y": y, "bias": BIAS}
    arrays[which] = ODD[odd](arrays[which])
    if which == "bias" and odd == "order":
        arrays[which] = np.repeat(BIAS, 3)[::3]  # a vector has no order
    assert quick(**arrays) is None
    assert np.isnan(arrays["y"]).all()
    given = {"bias": arrays["bias"], "out": arrays["y"]}
    assert PLAN(arrays["x"], PREPARED, **given) is arrays["y"]
    assert np.array_equal(arrays["y"], EXPECTED + BIAS[:, None, None])


def test_what_is_refused_is_left_to_python():
    y = np.full(PROBLEM.y_shape, np.nan, "f4")
    for x in (X[:1], X[..., :-1].copy(), X[0], X.astype("f8"), X.astype("i4"), X.tolist(), None, 3, object()):
        assert quick(x, y) is None
    for out in (y[:1], y.astype("f8"), frozen(y), y.tolist(), None):
        assert quick(X, out) is None
    for bias in (BIAS[:6], BIAS[None], BIAS.astype("f8"), BIAS.tolist(), 1.0):
        assert quick(X, y, bias) is None
    assert np.isnan(y).all()


def test_arrays_that_overlap_are_left_to_python():
    memory = np.zeros(X.size + EXPECTED.size, "f4")
    for start, apart in ((X.size, True), (X.size - 1, False), (0, False)):
        memory[: X.size] = X.ravel()
        x = memory[: X.size].reshape(X.shape)
        y = memory[start : start + EXPECTED.size].reshape(EXPECTED.shape)
        assert (quick(x, y) is y) == apart
        memory[: X.size] = X.ravel()
        assert np.array_equal(PLAN(x, PREPARED, out=y), EXPECTED)


def test_both_layouts_of_one_pixel_take_it():
    for layout in ("channels_first", "channels_last"):
        problem = ca.ConvProblem((2, 5, 1, 1), (9, 5, 1, 1), layout=layout)
        plan = ca.plan(problem, algorithm="cpu.direct")
        x, w, _ = (RNG.integers(-4, 5, s).astype("f4") for s in problem.array_shapes)
        y = np.full(problem.array_shapes[2], np.nan, "f4")
        assert plan._quick(x, plan.prepare(w).data, y, None, False) is y
        assert np.array_equal(y.reshape(2, 9), x.reshape(2, 5) @ w.reshape(9, 5).T)


def test_a_filter_of_an_equal_plan_is_known_from_then_on():
    plan, again = (ca.plan(PROBLEM, algorithm="cpu.direct") for _ in range(2))
    prepared = again.prepare(W)
    assert prepared.key is plan._key
    prepared.key = replace(plan._key)  # as of a filter that was stored
    assert np.array_equal(plan(X, prepared), EXPECTED) and prepared.key is plan._key
    assert np.array_equal(again(X, prepared), EXPECTED)


def test_fields_of_arrays_are_tried_before_they_are_read(monkeypatch):
    assert array_calls.array_call() is not None
    monkeypatch.setattr(array_calls, "DTYPE", array_calls.DTYPE - 8)
    assert array_calls.array_call.__wrapped__() is None
    monkeypatch.setattr(array_calls, "array_call", lambda: None)
    plan = ca.plan(PROBLEM, algorithm="cpu.direct")
    assert plan._quick is None
    assert np.array_equal(plan(X, PREPARED), EXPECTED)


OF_INTEGERS = {  # in place, and reread as another problem
    "cpu.depthwise.words": "n2 c5 h5 w4 k5 r3 s3 p1 groups5 channels_last",
    "cpu.depthwise.windows": "n1 c4 h5 w4 k6 r3 s3 groups2",
    "cpu.dot.pairs": "n2 c3 h5 w4 k7 r2 s3",
    "cpu.dot.vnni": "n3 c4 h2 w2 k7 r2 s2",
}


@pytest.mark.parametrize("algorithm", OF_INTEGERS)
@pytest.mark.parametrize("y_dtype", ["uint8", "float32", "int32"])
def test_integers_take_it(algorithm, y_dtype):
    problem = ca.ConvProblem.parse(f"{OF_INTEGERS[algorithm]} int8 w_int8 y_{y_dtype} per_channel")
    if algorithm == "cpu.dot.vnni" and (reason := ENGINES["vnni", "int8"].missing()):
        pytest.skip(reason)
    scale = RNG.uniform(0.5, 1.5, problem.K).astype("f4")
    zero = 7 if y_dtype == "uint8" else 0
    step = Quantization(0.5, -3, scale, [i % 3 for i in range(problem.K)], 99.0, zero)
    x, w = (RNG.integers(-128, 128, s).astype("i1") for s in problem.array_shapes[:2])
    bias = RNG.integers(-5000, 5000, problem.K).astype("i4")
    plan, judge = ca.plan(problem, algorithm=algorithm), ca.plan(problem, algorithm="cpu.reference")
    prepared, known = plan.prepare(w, step), judge.prepare(w, step)
    y = np.zeros(problem.array_shapes[2], y_dtype)
    for added, relu in ((None, False), (bias, True), (bias, False), (None, True), (None, False)):
        left = relu and y_dtype == "int32"
        assert plan._quick(x, prepared.data, y, added, relu) is (None if left else y)
        activation = "relu" if relu else None
        expected = judge(x, known, bias=added, activation=activation)
        assert left or np.array_equal(y, expected)
        assert np.array_equal(plan(x, prepared, bias=added, activation=activation), expected)
        strided = np.repeat(x, 2, axis=-1)[..., ::2]  # by the way that Python takes
        assert np.array_equal(plan(strided, prepared, bias=added, activation=activation), expected)
    for wrong in (x.view("u1"), x.astype("f4"), x[:, :1].copy()):
        assert plan._quick(wrong, prepared.data, y, None, False) is None
    for wrong in (bias.astype("i8"), bias.astype("f4"), bias[:1]):
        assert plan._quick(x, prepared.data, y, wrong, False) is None
    with pytest.raises(TypeError, match="bias has dtype float32"):
        plan(x, prepared, bias=bias.astype("f4"))


@pytest.mark.parametrize("dtype", ["f4", "i1"])
def test_threads_share_a_plan(dtype):
    images = [(X * (i + 1)).astype(dtype) for i in range(4)]
    plan, prepared, bias, wrong = PLAN, PREPARED, BIAS, []
    if dtype == "i1":
        plan = ca.plan(
            PROBLEM.replace(dtype="int8", w_dtype="int8", y_dtype="int32"), algorithm="cpu.dot.pairs"
        )
        prepared, bias = plan.prepare(W.astype("i1")), BIAS.astype("i4")

    def run(i):
        y = np.empty(PROBLEM.y_shape, bias.dtype)
        for _ in range(300):
            y.fill(99)
            if not np.array_equal(plan(images[i], prepared, out=y, bias=bias), EXPECTED * (i + 1) + added):
                wrong.append(i)

    added = BIAS[:, None, None]
    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
