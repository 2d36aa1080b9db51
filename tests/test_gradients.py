"""The backward passes: every algorithm against float64, adjoint identities, torch, and the public calls."""

import math
from functools import cache
from itertools import product

import numpy as np
import pytest
from helpers import check_all, check_runs, choosy, in_turns, may_serve, served_problems, table_problems
from hypothesis import given
from hypothesis import strategies as st

import convalgos as ca
from convalgos.core.backward.by_forward import ByForward
from convalgos.core.backward.polyphase import phases
from convalgos.cpu import reference as judge
from convalgos.cpu.gemm import weights_blocking
from convalgos.select import algorithms_on
from convalgos.select.measure.accuracy import random_arrays
from convalgos.testing import GRADIENT_PROBLEMS

try:
    import torch
except ImportError:
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed (CI installs it)")

FORWARD_ONLY = "cpu.direct"  # one of the algorithms that turn dx into convolutions of dy
DATA = [a for a in algorithms_on("cpu", "backward_data") if a.id == FORWARD_ONLY]
WEIGHTS = [a for a in algorithms_on("cpu", "backward_weights") if "backward_weights" in a.directions]
OWN_WEIGHTS = [a for a in WEIGHTS if not a.exchanges and not isinstance(a, ByForward)]
CUTS = (weights_blocking.weights_blocking,)  # kept choices that depend on the number of threads


@cache
def gradient_problems(direction):
    return [
        ca.ConvProblem.parse(text).replace(layout=layout, direction=direction)
        for text, layout in product(GRADIENT_PROBLEMS, ("channels_first", "channels_last"))
    ]


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_the_gradient_of_a_bias_is_that_of_dy_before_out_is_written_over_it(layout):
    rng = np.random.default_rng(3)
    x, dy = rng.standard_normal((2, 1, 5, 8, 6)).astype("f4")
    dw, db = ca.conv_backward_weights(x, dy, (5, 5, 1, 1), layout="channels_first", return_bias=True)
    if layout == "channels_last":
        x, dy = (np.moveaxis(a, 1, -1).copy() for a in (x, dy))
    over = dy.reshape(-1)[:25].reshape(5, 5, 1, 1)
    found = ca.conv_backward_weights(x, dy, over.shape, layout=layout, return_bias=True, out=over)
    assert found[0] is over
    assert np.allclose(over, dw, atol=1e-5)
    assert np.allclose(found[1], db, atol=1e-5)


def logical(rng, problem, *names):
    """Random float64 arrays x, w, dy of a problem."""
    shapes = {"x": problem.x_shape, "w": problem.w_shape, "dy": problem.y_shape}
    return [rng.standard_normal(shapes[name]) for name in names]


# --- answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("algorithm", "direction"),
    [
        *((a, "backward_data") for a in DATA),
        *((a, "backward_weights") for a in OWN_WEIGHTS if a.id != "cpu.reference"),  # which is the answer
    ],
    ids=lambda v: getattr(v, "id", v),
)
def test_answers(algorithm, direction, dtype):
    table = (problem for problem, _ in table_problems(algorithm, dtype, direction))
    assert check_runs(algorithm, in_turns(table, dtype == "float64"))


@pytest.mark.parametrize(
    ("direction", "algorithm"),
    [
        (direction, a)
        for direction in ("backward_data", "backward_weights")
        for a in algorithms_on("cpu", direction)
        if direction in a.directions and may_serve(a, *gradient_problems(direction))
    ],
    ids=lambda v: getattr(v, "id", v),
)
def test_every_algorithm_computes_gradients(direction, algorithm):
    problems = gradient_problems(direction)
    if not check_all(algorithm, problems):
        pytest.skip(str(algorithm.why_not(problems[0])))


@given(data=st.data())
@choosy
def test_adjoints(data):
    """<conv(x, w), dy> = <x, backward_data(dy, w)> = <w, backward_weights(x, dy)>."""
    problem = data.draw(served_problems("cpu.reference")).replace(layout="channels_first", dtype="float64")
    x, w, dy = logical(np.random.default_rng(0), problem, "x", "w", "dy")
    same = {n: getattr(problem, n) for n in ("stride", "padding", "dilation", "groups", "mode")}
    forward = float((ca.conv(x, w, **same) * dy).sum())
    scale = math.sqrt(problem.gemm_k * dy.size) or 1.0
    assert abs(forward - float((x * ca.conv_backward_data(dy, w, x.shape, **same)).sum())) < 1e-11 * scale
    assert abs(forward - float((w * ca.conv_backward_weights(x, dy, w.shape, **same)).sum())) < 1e-11 * scale


@pytest.mark.parametrize(
    "text", ["n1 c2 h4 w5 k3 r3 s2 p1:0,0:1 stride2", "n1 c4 w6 k2 s3 p1 dilation2 groups2"]
)
def test_finite_differences(text):
    p = ca.ConvProblem.parse(text).replace(dtype="float64")
    x, w, dy = logical(np.random.default_rng(1), p, "x", "w", "dy")
    same = {"stride": p.stride, "padding": p.padding, "dilation": p.dilation, "groups": p.groups}
    dx = ca.conv_backward_data(dy, w, x.shape, **same)
    dw = ca.conv_backward_weights(x, dy, w.shape, **same)
    for array, gradient in ((x, dx), (w, dw)):
        for place in np.ndindex(array.shape):
            kept = array[place]
            array[place] = kept + 0.5  # the loss is linear in each array: any step is exact
            above = (ca.conv(x, w, **same) * dy).sum()
            array[place] = kept - 0.5
            below = (ca.conv(x, w, **same) * dy).sum()
            array[place] = kept
            assert abs(above - below - gradient[place]) < 1e-11


def test_the_reference_at_single_places():
    rng = np.random.default_rng(2)
    for text in ("n2 c6 h9 w12 k4 r3 s3 p1:0,2:1 stride2,3 dilation2,1 groups2", "n1 c2 w5 k3 s2 p3 stride3"):
        for mode in ("cross_correlation", "convolution"):
            p = ca.ConvProblem.parse(text).replace(mode=mode)
            x, w, dy = logical(rng, p, "x", "w", "dy")
            for direction, first, second in (("backward_data", dy, w), ("backward_weights", x, dy)):
                turned = p.replace(direction=direction)
                whole = judge.answer(turned, first, second)
                where = np.array(list(np.ndindex(whole.shape)))
                at = judge.answer_at(turned, first, second, where)
                np.testing.assert_allclose(at, whole.ravel(), rtol=0, atol=1e-12)


def test_phases_are_all_of_dx_and_multiply_nothing_in_vain():
    p = ca.ConvProblem.parse("n1 c3 h11 w8 k5 r3 s4 p1 stride2,3 backward_data")
    found = phases(p)
    covered = np.zeros(p.spatial, int)
    for phase in found:
        covered[tuple(slice(a, None, s) for a, s in zip(phase.start, p.stride, strict=True))] += 1
    assert (covered == 1).all()
    taps = sum(math.prod(f.forward.kernel) for f in found)
    assert taps == math.prod(p.kernel)  # each tap serves one phase: zeros of the stride are never multiplied


def test_one_phase_without_a_stride():
    p = ca.ConvProblem.parse("n2 c6 h9 w8 k4 r3 s5 p1 dilation2 groups2 backward_data")
    (phase,) = phases(p)
    assert str(phase.forward) == "n2 c4 h7 w2 k6 r3 s5 p3,7 dilation2 groups2"


# --- public calls ----------------------------------------------------------------------------

PROBLEM = ca.ConvProblem.parse("n2 c6 h9 w8 k4 r3 s3 p1 stride2 groups2")
SAME = {"stride": 2, "padding": 1, "groups": 2}
X, W = random_arrays(PROBLEM)
DY = np.random.default_rng(3).standard_normal(PROBLEM.y_shape, np.float32)
DX = judge.reference_backward_data(PROBLEM, DY, W)
DW = judge.reference_backward_weights(PROBLEM, X, DY)


def close(found, expected):
    expected = np.asarray(expected)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_gradients_by_the_public_calls():
    close(ca.conv_backward_data(DY, W, X.shape, **SAME), DX)
    dw, db = ca.conv_backward_weights(X, DY, W.shape, return_bias=True, **SAME)
    close(dw, DW)
    close(db, DY.sum((0, 2, 3), dtype=np.float64))
    for algorithm in ("cpu.reference", FORWARD_ONLY):
        close(ca.conv_backward_data(DY, W, X.shape, algorithm=algorithm, **SAME), DX)


def test_channels_last_in_memory_and_as_views():
    last = {"layout": "channels_last", **SAME}
    x, dy = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (X, DY))
    close(ca.conv_backward_data(dy, W, x.shape, **last), np.moveaxis(DX, 1, -1))
    close(ca.conv_backward_weights(x, dy, W.shape, **last), DW)
    x_view, dy_view = np.moveaxis(x, -1, 1), np.moveaxis(dy, -1, 1)
    dx = ca.conv_backward_data(dy_view, W, X.shape, **last)
    assert dx.shape == X.shape and dx.strides[1] == dx.itemsize
    close(dx, DX)
    close(ca.conv_backward_weights(x_view, dy_view, W.shape, **last), DW)


def test_results_in_arrays_of_any_strides():
    out = np.full((*X.shape[:-1], 2 * X.shape[-1]), np.nan, np.float32)
    assert ca.conv_backward_data(DY, W, X.shape, out=out[..., ::2], **SAME).base is out
    close(out[..., ::2], DX)
    assert np.isnan(out[..., 1::2]).all()
    out = np.full(W.shape, np.nan, np.float32)
    assert ca.conv_backward_weights(X, DY, W.shape, out=out, **SAME) is out
    close(out, DW)


@pytest.mark.parametrize("x_too", [False, True])
@pytest.mark.parametrize("algorithm", ["auto", "cpu.direct.weights", "cpu.im2col.own"])
def test_a_result_may_overlap_what_is_read(algorithm, x_too):
    p = ca.ConvProblem.parse("n2 c5 h4 w4 k3 r3 s3 backward_weights")
    sizes = [math.prod(shape) for shape in (p.x_shape, p.y_shape, p.w_shape)]
    rng = np.random.default_rng(5)
    buffer = rng.integers(-4, 5, sum(sizes)).astype(np.float32)
    x, dy = buffer[: sizes[0]].reshape(p.x_shape), buffer[sizes[0] : sum(sizes[:2])].reshape(p.y_shape)
    start = sizes[0] - 7 if x_too else sizes[0] + 1
    out = buffer[start : start + sizes[2]].reshape(p.w_shape)
    expected = judge.reference_backward_weights(p, x, dy)
    plan, unchanged = ca.plan(p, algorithm=algorithm), buffer.copy()
    assert plan(x, dy, out=out) is out
    assert np.array_equal(out, expected)
    buffer[...] = unchanged
    assert plan(x, plan.prepare(dy), out=out) is out
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("text", ["n2 c5 h9 w9 k3 r3 s3", "n2 c8 h6 w6 k8 r3 s3 groups8 channels_last"])
def test_a_bound_gradient_of_the_filter_lies_apart_from_dy(text):
    p = ca.ConvProblem.parse(text).replace(direction="backward_weights")
    x, dy = (np.ones(p.array_shape(shape), np.float32) for shape in (p.x_shape, p.y_shape))
    out = dy.reshape(-1)[: math.prod(p.w_shape)].reshape(p.w_shape)
    bound = [ca.plan(p, algorithm=name) for name in ("auto", "cpu.direct.weights")]
    for plan in bound:
        expected = plan(x, dy)
        try:
            run = plan.bind(x, plan.prepare(dy), out)
        except ValueError as error:
            assert str(error) == "y must not overlap dy"
        else:
            run.run()
            assert np.array_equal(out, expected)
            dy.fill(1)


@pytest.mark.parametrize("text", ["n3 c200 w1 k140 s1", "n1 c260 h2 w3 k300 r1 s1 groups2"])
def test_sums_of_few_pixels_are_written_where_they_belong(text):
    """Whole panels, and the last one, which is narrower; and nothing beside them."""
    p = ca.ConvProblem.parse(text).replace(direction="backward_weights")
    plan = ca.plan(p, algorithm="cpu.direct.weights")
    cut = plan.computing._cut
    assert cut.in_place and cut.most_rows > cut.rows
    rng = np.random.default_rng(5)
    x, dy = (rng.integers(-4, 5, shape).astype(np.float32) for shape in (p.x_shape, p.y_shape))
    buffer = np.full(math.prod(p.w_shape) + 128, np.nan, np.float32)
    out = buffer[64:-64].reshape(p.w_shape)
    plan(x, dy, out=out)
    assert np.array_equal(out, judge.reference_backward_weights(p, x, dy))
    assert np.isnan(buffer[:64]).all() and np.isnan(buffer[-64:]).all()


def test_filters_may_be_prepared():
    plan = ca.plan(PROBLEM.replace(direction="backward_data"))
    prepared = plan.prepare(W)
    close(plan(DY, prepared), DX)
    close(ca.conv_backward_data(DY, prepared, X.shape, **SAME), DX)
    plan = ca.plan(PROBLEM.replace(direction="backward_weights"))
    close(plan(X, DY), DW)


def test_sixteen_bits():
    for dtype in ("float16", "bfloat16"):
        x, w, dy = (a.astype(ca.core.plan.numpy_dtype(dtype)) for a in (X, W, DY))
        dx = ca.conv_backward_data(dy, w, x.shape, **SAME)
        dw, db = ca.conv_backward_weights(x, dy, w.shape, return_bias=True, **SAME)
        assert dx.dtype == dw.dtype == db.dtype == x.dtype
        wide = [a.astype(np.float64) for a in (x, w, dy)]
        eps = PROBLEM.replace(dtype=dtype).eps
        for found, expected in (
            (dx, judge.reference_backward_data(PROBLEM, wide[2], wide[1])),
            (dw, judge.reference_backward_weights(PROBLEM, wide[0], wide[2])),
            (db, wide[2].sum((0, 2, 3))),
        ):
            off = np.abs(found.astype(np.float64) - expected)
            assert (off <= eps / 2 * np.abs(expected) * 1.01 + 1e-5).all()


def test_transposed_convolution():
    y = ca.conv_transpose(DY, W, **SAME, output_padding=(0, 1))
    assert y.shape == X.shape
    close(y, DX)
    bias = np.arange(6, dtype=np.float32) - 3
    found = ca.conv_transpose(DY, W, bias, activation="relu", output_padding=(0, 1), **SAME)
    close(found, np.maximum(DX + bias.reshape(-1, 1, 1), 0))
    assert ca.conv_transpose(DY, W, stride=2, padding="same", groups=2).shape == (2, 6, 10, 8)


def test_what_is_wrong_is_said():
    cases = [
        (
            lambda: ca.conv_backward_data(DY, W, (2, 6, 9), **SAME),
            ValueError,
            "x_shape=.* sequence of 4 sizes",
        ),
        (lambda: ca.conv_backward_data(DY, W, "nchw", **SAME), ValueError, "x_shape='nchw'"),
        (lambda: ca.conv_backward_data(DY, W, (2, 6, 9.5, 8), **SAME), ValueError, "x_shape=9.5"),
        (lambda: ca.conv_backward_data(DY, W, (2, 5, 9, 8), **SAME), ValueError, "has 5 channels .* reads 6"),
        (
            lambda: ca.conv_backward_data(DY, W, (2, 9, 8, 6), layout="NHWC", **SAME),
            ValueError,
            "layout='NHWC'",
        ),
        (lambda: ca.conv_backward_data(DY, W, X.shape, groups="2"), ValueError, "groups='2'"),
        (lambda: ca.conv_backward_data(DY, W, X.shape, algorithm=None, **SAME), ValueError, "algorithm=None"),
        (
            lambda: ca.conv_backward_data(DY.astype(int), W, X.shape),
            TypeError,
            "dy has dtype int64, which must",
        ),
        (lambda: ca.conv_backward_data(DY[0], W, X.shape, **SAME), ValueError, "dy has shape"),
        (lambda: ca.conv_backward_data(DY, W, (2, 6, 19, 8), **SAME), ValueError, "dy has shape"),
        (lambda: ca.conv_backward_data(DY.astype("f8"), W, X.shape, **SAME), TypeError, "float64"),
        (lambda: ca.conv_backward_weights(X, DY, (4, 3, 3), **SAME), ValueError, "w_shape=.* sequence of 4"),
        (lambda: ca.conv_backward_weights(X, DY, W, **SAME), ValueError, "w_shape=array"),
        (lambda: ca.conv_backward_weights(X, DY, (4, 3, 3.0, 3), **SAME), ValueError, "w_shape=3.0"),
        (lambda: ca.conv_backward_weights(X[0, 0], DY, W.shape, **SAME), ValueError, "x has shape"),
        (lambda: ca.conv_backward_weights(X, DY[0], W.shape, **SAME), ValueError, "as many dimensions as x"),
        (lambda: ca.conv_backward_weights(X, DY[:1], W.shape, **SAME), ValueError, "dy has shape"),
        (lambda: ca.conv_backward_weights(X, DY.astype("f8"), W.shape, **SAME), TypeError, "dy has dtype"),
        (lambda: ca.conv_transpose(DY, W, output_padding=2, **SAME), ValueError, "output_padding=2"),
        (lambda: ca.conv_transpose(DY, W, output_padding=-1, **SAME), ValueError, "output_padding=-1"),
        (lambda: ca.conv_transpose(DY, W, np.ones(4, np.float32), **SAME), ValueError, "bias has shape"),
        (lambda: ca.conv_transpose(DY, W, stride=2, groups=-2), ValueError, "groups=-2"),
        (lambda: ca.conv_transpose(DY, W, padding=-1, groups=2), ValueError, "padding=-1"),
        (lambda: ca.conv_transpose(X, W, **SAME), ValueError, "6 channels"),
        (lambda: ca.conv_transpose(DY[:, :, :1, :1], W, padding=2, groups=2), ValueError, "padding=2"),
    ]
    for call, kind, words in cases:
        with pytest.raises(kind, match=words):
            call()
    plan = ca.plan(PROBLEM.replace(direction="backward_weights"))
    with pytest.raises(ValueError, match="no output step"):
        plan(X, DY, activation="relu")
    with pytest.raises(ca.Unsupported, match=r"no backward_weights; .*cpu\.direct\.weights"):
        ca.plan(PROBLEM.replace(direction="backward_weights"), algorithm="cpu.winograd.f4x3")


# --- torch -----------------------------------------------------------------------------------


@needs_torch
@pytest.mark.parametrize(
    "text",
    [
        "n2 c6 h9 w8 k4 r3 s3 p1 stride2 groups2",
        "n1 c4 h12 w11 k6 r5 s3 p2 dilation2",
        "n2 c3 w30 k8 s7 p3 stride3",
        "n1 c4 d5 h6 w7 k4 t3 r3 s3 p1 stride2 groups4",
    ],
)
def test_torch_agrees(text):
    p = ca.ConvProblem.parse(text).replace(dtype="float64")
    low = [a for a, _ in p.padding]
    x, w, dy = (torch.from_numpy(a) for a in logical(np.random.default_rng(4), p, "x", "w", "dy"))
    same = {"stride": p.stride, "padding": low, "dilation": p.dilation, "groups": p.groups}
    dx, dw, db = torch.ops.aten.convolution_backward(
        dy, x, w, [p.K], p.stride, low, p.dilation, False, [0] * p.ndim, p.groups, [True, True, True]
    )
    close(ca.conv_backward_data(dy, w, tuple(x.shape), **same), dx)
    found, bias = ca.conv_backward_weights(x, dy, tuple(w.shape), return_bias=True, **same)
    assert isinstance(found, torch.Tensor) and isinstance(bias, torch.Tensor)
    close(found, dw)
    close(bias, db)
    function = getattr(torch.nn.functional, f"conv_transpose{p.ndim}d")
    more = [
        size - ((n - 1) * s - 2 * a + d * (r - 1) + 1)
        for size, n, s, a, d, r in zip(
            p.spatial, p.spatial_out, p.stride, low, p.dilation, p.kernel, strict=True
        )
    ]
    bias = torch.arange(p.C, dtype=torch.float64)
    y = function(dy, w, bias, p.stride, low, more, p.groups, p.dilation)
    close(ca.conv_transpose(dy, w, bias, output_padding=more, **same), y)


# --- threads ---------------------------------------------------------------------------------


def test_the_same_bits_with_any_number_of_threads():
    numba = pytest.importorskip("numba")
    threads = numba.get_num_threads()
    found = []
    for count in (1, threads):
        numba.set_num_threads(count)
        try:
            for cut in CUTS:
                cut.cache_clear()
            for algorithm, text in product(
                WEIGHTS,
                ("c3 h90 w90 k20 r3 s3 p1", "n3 c40 h9 w9 k70 r1 s1", "n2 c33 h20 w30 k33 r3 s3 p1 groups33"),
            ):
                problem = ca.ConvProblem.parse(text).replace(direction="backward_weights")
                if algorithm.why_not(problem) is None:
                    x, dy = random_arrays(problem)
                    found.append((count, algorithm.id, text, algorithm.serve(problem)(x, dy)))
        finally:
            numba.set_num_threads(threads)
            for cut in CUTS:
                cut.cache_clear()
    half = len(found) // 2
    assert {name for _, name, _, _ in found} >= {"cpu.direct.weights", "cpu.depthwise.weights"}
    for (_, name, text, alone), (_, _, _, together) in zip(found[:half], found[half:], strict=True):
        assert np.array_equal(alone, together), f"{name} on {text}"
