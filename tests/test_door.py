"""What people bring: arrays of other libraries, arrays that hold more than numbers, and mistakes."""

import types

import numpy as np
import pytest

import convalgos as ca
from convalgos.api import planning
from convalgos.select import ranker

RNG = np.random.default_rng(5)
X = RNG.integers(-3, 4, (2, 3, 9, 10)).astype("f4")
W = RNG.integers(-3, 4, (4, 3, 3, 3)).astype("f4")
Y = ca.conv(X, W, padding=1, algorithm="cpu.direct")
DY = RNG.integers(-3, 4, Y.shape).astype("f4")

CALLS = {  # every public call, as a function of its two arrays
    "conv": (lambda x, w: ca.conv(x, w, padding=1, algorithm="cpu.direct"), X, W),
    "conv, a view of channels_last": (
        lambda x, w: ca.conv(x, w, padding=1, layout="channels_last", algorithm="cpu.direct"), X, W,
    ),
    "backward_data": (lambda dy, w: ca.conv_backward_data(dy, w, X.shape, padding=1), DY, W),
    "backward_weights": (lambda x, dy: ca.conv_backward_weights(x, dy, W.shape, padding=1), X, DY),
    "transpose": (lambda dy, w: ca.conv_transpose(dy, w, padding=1, output_padding=0), DY, W),
    "plan": (lambda x, w: ca.plan(ca.ConvProblem(X.shape, W.shape))(x, w), X, W),
    "prepare": (lambda x, w: ca.plan(ca.ConvProblem(X.shape, W.shape)).prepare(w), X, W),
}  # fmt: skip


@pytest.fixture(params=CALLS)
def call(request):
    return CALLS[request.param]


# --- what would be lost is refused -----------------------------------------------------------


def test_masks_are_not_dropped(call):
    run, first, second = call
    with pytest.raises(TypeError, match=r"is a masked array, whose mask would be lost: give \w+\.filled"):
        run(np.ma.array(first), np.ma.array(second))
    with pytest.raises(TypeError, match="masked array"):
        run(first, np.ma.array(second))


def test_a_masked_array_is_no_place_for_a_result():
    with pytest.raises(TypeError, match="out is a masked array"):
        ca.conv(X, W, padding=1, out=np.ma.array(Y))
    with pytest.raises(TypeError, match="bias is a masked array"):
        ca.conv(X, W, np.ma.array(W[:, 0, 0, 0]))


def test_gradients_of_torch_are_not_lost(call):
    torch = pytest.importorskip("torch")
    run, first, second = call
    first, second = torch.from_numpy(first), torch.from_numpy(second)
    told = r"requires a gradient, which would be lost: call conv2d, .* of convalgos.torch, give \w+\.detach"
    with pytest.raises(TypeError, match=told):
        run(first, second.clone().requires_grad_())
    if run is not CALLS["prepare"][0]:
        with pytest.raises(TypeError, match=told):
            run(first.clone().requires_grad_(), second)
    with torch.no_grad():
        run(first.clone().requires_grad_(), second.clone().requires_grad_())
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(second, torch.ones_like(second))
        with pytest.raises(TypeError, match=told):
            run(first, dual)


def test_torch_gradients_still_flow_where_they_are_followed():
    torch = pytest.importorskip("torch")
    import convalgos.torch as ct

    w = torch.from_numpy(W).clone().requires_grad_()
    ct.conv2d(torch.from_numpy(X), w, padding=1).backward(torch.from_numpy(DY))
    expected = ca.conv_backward_weights(X, DY, W.shape, padding=1)
    np.testing.assert_allclose(w.grad.numpy(), expected, atol=1e-3)


@pytest.mark.parametrize(
    ("library", "kind", "told"),
    [("dask.array.core", "Array", "compute"), ("xarray.core.dataarray", "DataArray", "values")],
)
def test_lazy_and_labelled_arrays_are_refused_with_what_to_give(library, kind, told):
    cls = type(kind, (), {"__module__": library, "__array__": lambda self, *_, **__: X})
    with pytest.raises(TypeError, match=rf"x is a {library.partition('.')[0]}\.{kind}, .*give x\.{told}"):
        ca.conv(cls(), W)
    with pytest.raises(TypeError, match=rf"w is a .*give w\.{told}"):
        ca.conv(X, cls())


# --- other kinds of arrays -------------------------------------------------------------------


class Standard:
    """An array that keeps to the array API standard as far as it is needed here."""

    def __init__(self, values):
        self.values = values

    def __array_namespace__(self, api_version=None):
        return types.SimpleNamespace(from_dlpack=lambda a: Standard(np.from_dlpack(a)), asarray=Standard)

    def __dlpack__(self, **how):
        return self.values.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


def test_arrays_of_the_standard_come_back_as_their_kind(call):
    run, first, second = call
    if run is CALLS["prepare"][0]:
        return
    y = run(Standard(first), Standard(second))
    assert type(y) is Standard
    np.testing.assert_array_equal(y.values, run(first, second))
    assert type(run(first, Standard(second))) is np.ndarray
    with pytest.raises(TypeError, match="out=Standard must be an array of x's kind"):
        ca.conv(Standard(X), W, padding=1, out=Standard(Y.copy()))


def test_jax():
    jax = pytest.importorskip("jax")
    x, w = jax.numpy.asarray(X), jax.numpy.asarray(W)
    y = ca.conv(x, w, padding=1)
    assert isinstance(y, jax.Array)
    np.testing.assert_allclose(y, Y, atol=1e-4)  # by whatever is picked
    assert isinstance(ca.conv_backward_data(jax.numpy.asarray(DY), w, X.shape, padding=1), jax.Array)
    half = ca.conv(x.astype("bfloat16"), w.astype("bfloat16"), padding=1)
    assert isinstance(half, jax.Array) and half.dtype == "bfloat16"
    with pytest.raises(TypeError, match=r"x is a jax.*cannot be read here"):
        jax.jit(lambda x: ca.conv(x, W))(x)
    with pytest.raises(TypeError, match="cannot be read here"):
        jax.grad(lambda w: ca.conv(X, w).sum())(w)


def test_what_numpy_reads_counts_as_numpy(tmp_path):
    mapped = np.memmap(tmp_path / "x", "f4", "w+", shape=X.shape)
    mapped[...] = X
    for x in (mapped, memoryview(X), X.view(type("Own", (np.ndarray,), {}))):
        y = ca.conv(x, W, padding=1)
        assert type(y) is np.ndarray
        np.testing.assert_allclose(y, Y, atol=1e-4)  # by whatever is picked
    y = ca.conv(X.tolist(), W.astype(float).tolist(), padding=1)
    assert type(y) is np.ndarray and y.dtype == np.float64
    np.testing.assert_allclose(y, Y, atol=1e-9)


def test_tables_and_matrices_have_too_few_dimensions():
    with pytest.raises(ValueError, match=r"ca.signal.convolve"):
        ca.conv(np.matrix(X[0, 0]), np.matrix(W[0, 0]))
    frame = type("DataFrame", (), {"__module__": "pandas", "__array__": lambda self, *_, **__: X[0, 0]})()
    with pytest.raises(ValueError, match=r"x has shape \(9, 10\)"):
        ca.conv(frame, W)


# --- mistakes are answered with what to write ------------------------------------------------


def test_arrays_without_a_batch():
    with pytest.raises(ValueError, match=r"x has no batch dimension: give x\[None\]"):
        ca.conv(X[0], W)
    with pytest.raises(ValueError, match=r"x has no batch dimension: give x\[None\]"):
        ca.conv(np.moveaxis(X[0], 0, -1), W, layout="channels_last")
    with pytest.raises(ValueError, match=r"dy has no batch dimension: give dy\[None\]"):
        ca.conv_backward_data(DY[0], W, X.shape, padding=1)
    with pytest.raises(ValueError, match=r"x has no batch dimension: give x\[None\]"):
        ca.conv_transpose(DY[0], W)
    with pytest.raises(ValueError, match=r"no batch dimension; give x\[None\] and dy\[None\]"):
        ca.conv_backward_weights(X[0], DY[0], W.shape, padding=1)
    with pytest.raises(ValueError, match=r"ca.signal.convolve and correlate"):
        ca.conv(X[0, 0], W[0, 0])


@pytest.mark.parametrize(
    ("dtype", "told"),
    [
        ("int64", r"give x\.astype\('float32'\), or 'float64'.*; ca.signal.convolve computes integers"),
        ("uint16", r"x\.astype\('float32'\).*ca.signal.convolve"),
        ("bool", r"x\.astype\('float32'\)"),
        ("complex64", "real and the imaginary parts.*ca.signal.convolve, which takes complex"),
        ("longdouble", "must be one of float32, float64"),
    ],
)
def test_other_dtypes_are_pointed_to_what_serves_them(dtype, told):
    x, w = X.astype(dtype), W.astype(dtype)
    with pytest.raises(TypeError, match=rf"x has dtype \w+, .*{told}|x has dtype .*{told}"):
        ca.conv(x, w)
    with pytest.raises(TypeError, match=f"x has dtype.*{told}"):
        ca.conv(x, W)
    with pytest.raises(TypeError, match=f"x has dtype.*{told}"):
        ca.conv_backward_weights(x, w, W.shape)
    with pytest.raises(TypeError, match="has dtype"):
        ca.conv_backward_data(w, x, X.shape)


def test_what_the_messages_point_to_does_it():
    numbers = np.arange(12).reshape(3, 4)
    assert ca.signal.convolve(numbers, numbers).dtype == numbers.dtype
    assert ca.signal.convolve(numbers * 1j, numbers).dtype.kind == "c"


# --- limits ----------------------------------------------------------------------------------

LIMITED = {
    "conv": lambda **limits: ca.conv(X, W, padding=1, **limits),
    "backward_data": lambda **limits: ca.conv_backward_data(DY, W, X.shape, padding=1, **limits),
    "backward_weights": lambda **limits: ca.conv_backward_weights(X, DY, W.shape, padding=1, **limits),
    "transpose": lambda **limits: ca.conv_transpose(DY, W, padding=1, **limits),
}


@pytest.fixture(params=LIMITED)
def limited(request):
    return LIMITED[request.param]


def test_calls_take_the_limits_of_plan(limited, monkeypatch):
    plans = []

    def seen(problem, *how, **named):
        plans.append((made := plan(problem, *how, **named), named))
        return made

    plan = planning.plan
    monkeypatch.setattr(planning, "plan", seen)
    planning.forget_plans()
    spreads = {a.id for a in ca.algorithms() if a.spreads_nan}

    def last_first(problem, candidates, machine):
        return [1.0 + i if c.id != "cpu.reference" else 0.5 for i, c in enumerate(candidates)]

    monkeypatch.setattr(ranker, "_rankers", dict(ranker._rankers))  # none is left to other tests
    ca.select.register("last_first", last_first)
    expected = limited(algorithm="cpu.reference")
    for limits in ({"strict_nan": True}, {"max_rel_error": 1e-3}, {"selector": "last_first"}):
        plans.clear()
        for _ in range(2):
            np.testing.assert_allclose(limited(**limits), expected, atol=1e-2)
        [(made, named)] = plans  # the second call found it
        assert limits.items() <= named.items()
        if "strict_nan" in limits:
            assert made.algorithm not in spreads
        if "selector" in limits:
            assert made.algorithm == "cpu.reference"
    ca.select.register("last_first", lambda p, c, m: [2.0 if a.id == "cpu.reference" else 1.0 for a in c])
    plans.clear()
    limited(selector="last_first")
    assert plans and plans[0][0].algorithm != "cpu.reference"  # not what the ranker of that name chose before


def test_limits_that_nothing_keeps_are_refused(limited):
    with pytest.raises(ca.Unsupported, match="max_rel_error"):
        limited(max_rel_error=1e-30)
    with pytest.raises(ca.Unsupported, match="NaN"):
        ca.conv(X, W, padding=1, algorithm="cpu.winograd.f4x3", strict_nan=True)
    for wrong in ({"strict_nan": 1}, {"max_rel_error": -1}, {"selector": "nobody"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            limited(**wrong)


def test_a_filter_is_prepared_under_limits_too():
    plan = ca.plan(ca.ConvProblem(X.shape, W.shape), algorithm="cpu.direct")
    y = ca.conv(X, plan.prepare(W), strict_nan=True)
    np.testing.assert_array_equal(y, ca.conv(X, W, algorithm="cpu.direct"))
