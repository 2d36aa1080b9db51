"""The public calls: what they take, what they refuse, and what comes back."""

import numpy as np
import pytest

import convalgos as ca
from convalgos.core.arrays import device_of
from convalgos.select.measure.accuracy import random_arrays

try:
    import torch
except ImportError:
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed (CI installs it)")

PROBLEM = ca.ConvProblem.parse("n2 c3 h9 w10 k4 r3 s3 p1")
X, W = random_arrays(PROBLEM)
BIAS = np.arange(4, dtype=np.float32) - 1.5
Y = ca.conv(X, W, padding=1, algorithm="cpu.reference")
LAST = {"padding": 1, "layout": "channels_last"}


def assert_close(y, expected):
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * np.abs(expected).max(initial=1))


# --- answers ---------------------------------------------------------------------------------


def test_auto_and_every_algorithm_by_name():
    y = ca.conv(X, W, padding=1)
    assert (y.shape, y.dtype, type(y)) == (PROBLEM.y_shape, np.float32, np.ndarray)
    assert_close(y, Y)
    served = [a for a in ca.algorithms() if a.device == "cpu" and a.why_not(PROBLEM) is None]
    for algorithm in served:
        assert_close(ca.conv(X, W, padding=1, algorithm=algorithm.id), Y)
    assert "cpu.reference" in [a.id for a in served]


def test_bias_and_activation():
    biased = Y + BIAS.reshape(-1, 1, 1)
    assert_close(ca.conv(X, W, BIAS, padding=1), biased)
    assert_close(ca.conv(X, W, BIAS, padding=1, activation="relu"), np.maximum(biased, 0))
    assert_close(ca.conv(X, W, padding=1, activation="relu"), np.maximum(Y, 0))


def test_parameters_reach_the_problem():
    x, w = random_arrays(ca.ConvProblem.parse("n1 c4 h12 w11 k6 r3 s2 groups2"))
    chosen = {
        "stride": [2, 1],
        "padding": [(1, 0), 2],
        "dilation": np.array([1, 2]),
        "groups": 2,
        "mode": "convolution",
    }
    expected = ca.conv(x, w, **chosen, algorithm="cpu.reference")
    flipped = ca.conv(x, w[:, :, ::-1, ::-1], **chosen | {"mode": "cross_correlation"})
    assert_close(ca.conv(x, w, **chosen), expected)
    assert_close(flipped, expected)


def test_one_two_and_three_dimensions():
    for text in ("n2 c3 w20 k4 s3", "n2 c3 h8 w9 k4 r3 s2", "n1 c3 d5 h6 w7 k4 t2 r3 s3"):
        problem = ca.ConvProblem.parse(text)
        x, w = random_arrays(problem)
        y = ca.conv(x, w)
        assert y.shape == problem.y_shape
        assert_close(y, ca.conv(x, w, algorithm="cpu.reference"))


def test_float64():
    x, w = X.astype(np.float64), W.astype(np.float64)
    y = ca.conv(x, w, padding=1)
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, ca.conv(x, w, padding=1, algorithm="cpu.reference"), rtol=0, atol=1e-12)


# --- arrays of all kinds ---------------------------------------------------------------------

VIEWS = {  # the same values in other memory
    "every second element": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "Fortran order": np.asfortranarray,
    "negative strides": lambda a: a[..., ::-1].copy()[..., ::-1],
    "transposed memory": lambda a: np.moveaxis(np.moveaxis(a, 1, -1).copy(), -1, 1),
    "off the alignment": lambda a: np.concatenate([a.ravel()[:1], a.ravel()])[1:].reshape(a.shape),
    "broadcast": lambda a: np.broadcast_to(a[None], (1, *a.shape))[0],
}


def read_only(a):
    copy = a.copy()
    copy.flags.writeable = False
    return copy


@pytest.mark.parametrize("view", [*VIEWS.values(), read_only], ids=[*VIEWS, "read only"])
def test_inputs_of_any_memory(view):
    x, w = view(X), view(W)
    before = x.copy(), w.copy()
    assert_close(ca.conv(x, w, BIAS, padding=1), Y + BIAS.reshape(-1, 1, 1))
    assert np.array_equal(x, before[0]) and np.array_equal(w, before[1])
    plan = ca.plan(PROBLEM)
    assert_close(plan(x, plan.prepare(w)), Y)
    bias = np.stack([BIAS, BIAS], axis=1)[:, 0]
    assert_close(ca.conv(X, W, bias, padding=1), Y + BIAS.reshape(-1, 1, 1))


@pytest.mark.parametrize("view", list(VIEWS.values())[:-1], ids=list(VIEWS)[:-1])  # the last is read-only
def test_out_of_any_memory(view):
    out = view(np.full(Y.shape, np.nan, np.float32))
    assert ca.conv(X, W, padding=1, out=out) is out
    assert_close(out, Y)


def test_out_may_overlap_x_and_bias():
    problem = ca.ConvProblem.parse("n1 c4 h9 w9 k4 r3 s3 p1")
    x, w = random_arrays(problem)
    expected = ca.conv(x, w, padding=1, algorithm="cpu.reference")
    for shift in (0, 1, 40):
        memory = np.zeros(x.size + shift, np.float32)
        inside = memory[: x.size].reshape(x.shape)
        inside[...] = x
        out = memory[shift:].reshape(x.shape)
        assert ca.conv(inside, w, padding=1, out=out) is out
        assert_close(out, expected)
    out = np.zeros(problem.y_shape, np.float32)
    bias = out.reshape(-1)[:4]
    bias[...] = BIAS
    ca.conv(x, w, bias, padding=1, out=out)
    assert_close(out, expected + BIAS.reshape(-1, 1, 1))


def test_memory_maps(tmp_path):
    x = np.memmap(tmp_path / "x", np.float32, "w+", shape=X.shape)
    x[...] = X
    out = np.memmap(tmp_path / "y", np.float32, "w+", shape=Y.shape)
    assert ca.conv(x, W, padding=1, out=out) is out
    assert_close(out, Y)
    assert_close(ca.conv(x, W, padding=1), Y)


def test_out_is_not_replaced_and_allocated_anew_without():
    first, second = ca.conv(X, W, padding=1), ca.conv(X, W, padding=1)
    assert not np.shares_memory(first, second)


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (read_only(Y), ValueError, "out is read-only"),
        (np.empty((2, 4, 9, 9), np.float32), ValueError, r"out has shape \(2, 4, 9, 9\).*\(2, 4, 9, 10\)"),
        (np.empty(Y.shape, np.float64), TypeError, "out has dtype float64.*float32"),
        (Y.tolist(), TypeError, "out=list must be an array"),
    ],
)
def test_out_that_is_refused(out, error, message):
    with pytest.raises(error, match=message):
        ca.conv(X, W, padding=1, out=out)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((X[0], W), ValueError, r"x has shape \(3, 9, 10\) and w \(4, 3, 3, 3\)"),
        ((X, W[:, :2]), ValueError, r"w_shape=\(4, 2, 3, 3\)"),
        ((X, W.astype(np.float64)), TypeError, "w has dtype float64, but x has float32"),
        ((X.astype(np.int32), W.astype(np.int32)), TypeError, "x has dtype int32"),
        ((X.astype(complex), W.astype(complex)), TypeError, "x has dtype complex128"),
        (("image", W), TypeError, "x"),
        ((None, W), TypeError, "x=NoneType"),
        ((X, W, BIAS[:3]), ValueError, r"bias has shape \(3,\).*\(4,\)"),
        ((X, W, BIAS.astype(np.float64)), TypeError, "bias has dtype float64"),
    ],
)
def test_arguments_that_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        ca.conv(*arguments, padding=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stride": 0}, "stride=0"),
        ({"stride": [1, 2, 3]}, r"stride=\(1, 2, 3\)"),
        ({"padding": "sane"}, "padding='sane'"),
        ({"dilation": 9}, "padding="),
        ({"groups": 2}, "groups=2"),
        ({"mode": "flip"}, "mode='flip'"),
        ({"layout": "nchw"}, "layout='nchw'"),
        ({"activation": "tan"}, "activation='tan'"),
        ({"algorithm": "cpu.magic"}, r"algorithm='cpu.magic' must be 'auto' or one of the \d+ ids that"),
    ],
)
def test_parameters_that_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ca.conv(X, W, **changes)


# --- layouts ---------------------------------------------------------------------------------


def test_channels_last():
    y = ca.conv(np.moveaxis(X, 1, -1).copy(), W, BIAS, activation="relu", **LAST)
    assert y.shape == (2, 9, 10, 4)
    assert y.flags.c_contiguous
    assert_close(np.moveaxis(y, -1, 1), np.maximum(Y + BIAS.reshape(-1, 1, 1), 0))


def test_channels_last_as_a_logical_view():
    x = np.moveaxis(np.moveaxis(X, 1, -1).copy(), -1, 1)  # (N, C, H, W) over memory (N, H, W, C)
    y = ca.conv(x, W, **LAST)
    assert y.shape == Y.shape
    assert np.moveaxis(y, 1, -1).flags.c_contiguous
    assert_close(y, Y)
    out = np.moveaxis(np.full((2, 9, 10, 4), np.nan, np.float32), -1, 1)
    assert ca.conv(x, W, out=out, **LAST) is out
    assert_close(out, Y)


def test_strides_decide_where_both_readings_of_channels_last_fit():
    problem = ca.ConvProblem.parse("n1 c5 h5 w5 k5 r3 s3 p1")
    x, w = random_arrays(problem)
    y = ca.conv(x, w, padding=1, algorithm="cpu.reference")
    memory = np.moveaxis(x, 1, -1).copy()
    assert_close(ca.conv(memory, w, **LAST), np.moveaxis(y, 1, -1))
    assert_close(ca.conv(np.moveaxis(memory, -1, 1), w, **LAST), y)


def test_strides_decide_once():
    """Where only one reading of channels_last fits, none of the views made inside is read otherwise."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((7, 7, 2, 2)).astype("f4")
    x = rng.standard_normal((1, 7, 5, 7)).astype("f4").swapaxes(2, 3)  # (N, C, H, W), H side by side
    given = {"layout": "channels_last"}
    assert_close(ca.conv(x, w, **given), ca.conv(x, w))
    more = {"dilation": 2, "output_padding": 1}  # x gets rows: 7 of them, as many as channels
    x = np.asfortranarray(rng.standard_normal((1, 6, 5, 7)).astype("f4"))
    want = ca.conv_transpose(np.moveaxis(x, -1, 1), w, **more)
    assert_close(np.moveaxis(ca.conv_transpose(x, w, **more, **given), -1, 1), want)
    x = np.moveaxis(np.asfortranarray(rng.standard_normal((1, 5, 6, 7)).astype("f4")), -1, 1)
    assert_close(ca.conv_transpose(x, w, **more, **given), ca.conv_transpose(x, w, **more))


# --- zero sizes ------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize(
    "text",
    ["n0 c3 h5 w5 k4 r3 s3", "n2 c0 h5 w5 k4 r3 s3", "n2 c3 h5 w5 k0 r3 s3", "n1 c2 h0 w5 k4 r1 s1 p2"],
)
def test_zero_sizes(text, layout):
    problem = ca.ConvProblem.parse(text).replace(layout=layout)
    x, w = random_arrays(problem)
    bias = np.linspace(-1, 1, problem.K, dtype=np.float32)
    y = ca.conv(x, w, bias, padding=problem.padding, layout=layout, activation="relu")
    assert y.shape == problem.array_shape(problem.y_shape)
    channel = -1 if layout == "channels_last" else 1
    last = np.moveaxis(y, channel, -1)
    np.testing.assert_array_equal(last, np.broadcast_to(np.maximum(bias, 0), last.shape))
    for algorithm in ca.algorithms():
        if algorithm.device == "cpu" and algorithm.why_not(problem) is None:
            again = ca.conv(
                x, w, bias, padding=problem.padding, layout=layout, activation="relu", algorithm=algorithm.id
            )
            assert np.array_equal(again, y)


# --- plans -----------------------------------------------------------------------------------


def test_a_plan_runs_on_a_prepared_filter():
    plan = ca.plan(PROBLEM)
    w = plan.prepare(W)
    out = np.full(Y.shape, np.nan, np.float32)
    assert plan(X, w, out=out) is out
    assert_close(out, Y)
    assert_close(plan(X, W), Y)
    assert plan.algorithm in [a.id for a in ca.algorithms()]
    assert plan.workspace_bytes >= 0
    assert plan.algorithm in plan.explain()
    assert_close(ca.conv(X, w, padding=1, algorithm=plan.algorithm), Y)


def test_a_filter_prepared_for_another_plan_is_refused():
    reference = ca.plan(PROBLEM, algorithm="cpu.reference")
    other = ca.plan(PROBLEM.replace(stride=2), algorithm="cpu.reference")
    with pytest.raises(
        ValueError, match=r"w was prepared for cpu\.reference on .* not for cpu\.reference on"
    ):
        other(X, reference.prepare(W))
    again = ca.plan(PROBLEM, algorithm="cpu.reference")
    assert_close(again(X, reference.prepare(W)), Y)  # an equal plan is the same plan


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (X[:1], ValueError, r"x has shape \(1, 3, 9, 10\)"),
        (X.astype(np.float64), TypeError, "x has dtype float64"),
    ],
)
def test_a_plan_refuses_other_arrays(x, error, message):
    plan = ca.plan(PROBLEM)
    with pytest.raises(error, match=message):
        plan(x, W)
    with pytest.raises(ValueError, match="w has shape"):
        plan.prepare(W[:3])
    with pytest.raises(TypeError, match="w has dtype float64"):
        plan.prepare(W.astype(np.float64))


def test_limits_on_the_choice():
    with pytest.raises(ca.Unsupported, match=r"cpu\.reference cannot serve .*workspace_limit=0"):
        ca.plan(PROBLEM, algorithm="cpu.reference", workspace_limit=0)
    with pytest.raises(
        ca.Unsupported, match=r"no algorithm can serve .*cpu\.reference: .*max_rel_error=0\.0"
    ):
        ca.plan(PROBLEM, max_rel_error=0)
    tight = ca.plan(PROBLEM, max_rel_error=3e-7)
    bound = next(a for a in ca.algorithms() if a.id == tight.algorithm).error_bound(PROBLEM)
    assert bound <= 3e-7
    small = ca.plan(PROBLEM, workspace_limit=16_000)
    assert small.workspace_bytes <= 16_000


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"effort": "some"}, ValueError, "effort='some'"),
        ({"workspace_limit": -1}, ValueError, "workspace_limit=-1"),
        ({"max_rel_error": -1.0}, ValueError, "max_rel_error=-1.0"),
        ({"max_rel_error": float("nan")}, ValueError, "max_rel_error=nan"),
        ({"time_budget": -1}, ValueError, "time_budget=-1"),
        ({"algorithm": "cpu.magic"}, ValueError, "algorithm='cpu.magic'"),
        ({"device": "cuda:0"}, ca.Unsupported, "device='cuda:0'"),
    ],
)
def test_plan_arguments_that_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        ca.plan(PROBLEM, **changes)
    with pytest.raises(TypeError, match="problem='n1' must be a ConvProblem"):
        ca.plan("n1")


@pytest.mark.parametrize("effort", ["estimate", "measure", "exhaustive"])
def test_effort(effort):
    plan = ca.plan(PROBLEM, effort=effort, time_budget=0.2)
    assert_close(plan(X, W), Y)
    assert ("measured" in plan.explain()) == (effort != "estimate") or len(ca.explain(PROBLEM).candidates) < 2


def test_picks_repeat():
    assert len({ca.plan(PROBLEM).algorithm for _ in range(3)}) == 1


def test_what_nothing_serves_is_refused_with_the_reason():
    with pytest.raises(ca.Unsupported, match="not in tf32"):
        ca.plan(PROBLEM.replace(compute_dtype="tf32"))


# --- find, explain, algorithms ---------------------------------------------------------------


def test_algorithms_is_one_list_in_order():
    ids = [a.id for a in ca.algorithms()]
    assert ids == sorted(set(ids))
    assert all(
        a.id.startswith((f"{a.device}.", f"{a.family}")) and a.device in ("cpu", "gpu")
        for a in ca.algorithms()
    )


def test_explain_accounts_for_every_algorithm():
    ranking = ca.explain(PROBLEM)
    cpu = {a.id for a in ca.algorithms() if a.device == "cpu"}
    # Settings beside those in the list are there, too, where a test before has measured them.
    assert {c.id for c in ranking.candidates} | {r.id for r in ranking.rejected} >= cpu
    seconds = [c.seconds for c in ranking.candidates]
    assert seconds == sorted(seconds)
    text = str(ranking)
    elsewhere = {r.id for r in ranking.rejected if r.elsewhere}  # computes other directions or types only
    assert all((name in text) != (name in elsewhere) for name in cpu)
    assert all("computes" in r.why_not for r in ranking.rejected if r.elsewhere) and len(elsewhere) >= 4
    assert all(r.why_not in text for r in ranking.rejected if not r.elsewhere)
    assert f"->{ca.plan(PROBLEM).algorithm} " in text


def test_find_measures_and_checks_every_candidate():
    table = ca.find(PROBLEM)
    assert {r.algorithm for r in table.rows} == {c.id for c in ca.explain(PROBLEM).candidates}
    medians = [r.median_s for r in table.rows]
    assert medians == sorted(medians) and medians[0] > 0
    assert all(r.error <= r.error_bound for r in table.rows)
    assert all(r.algorithm in str(table) for r in table.rows)


# --- torch -----------------------------------------------------------------------------------


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_torch_tensors(dtype):
    x, w = torch.from_numpy(X.astype(dtype)), torch.from_numpy(W.astype(dtype))
    expected = torch.nn.functional.conv2d(x, w, padding=1)
    y = ca.conv(x, w, padding=1)
    assert type(y) is torch.Tensor and y.dtype == x.dtype
    assert_close(y.numpy(), expected.numpy())
    out = torch.full(Y.shape, float("nan"), dtype=x.dtype)
    assert ca.conv(x, w, padding=1, out=out) is out
    assert_close(out.numpy(), expected.numpy())
    with pytest.raises(TypeError, match="w requires a gradient"):  # which it would lose
        ca.conv(x, w.requires_grad_(), padding=1)
    with torch.no_grad():
        assert_close(ca.conv(x, w, padding=1).numpy(), expected.numpy())
    w = w.detach()
    plan = ca.plan(PROBLEM.replace(dtype=dtype))
    assert type(plan(x, plan.prepare(w))) is torch.Tensor
    assert device_of(x) == "cpu"


@needs_torch
def test_torch_channels_last_tensors():
    x = torch.from_numpy(X).to(memory_format=torch.channels_last)
    w = torch.from_numpy(W)
    y = ca.conv(x, w, **LAST)
    assert type(y) is torch.Tensor
    assert y.shape == Y.shape
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert_close(y.numpy(), Y)
    assert_close(ca.conv(x, w, padding=1).numpy(), Y)  # read as channels first: any strides are right
    out = torch.empty(Y.shape).to(memory_format=torch.channels_last)
    assert ca.conv(x, w, out=out, **LAST) is out
    assert_close(out.numpy(), Y)
    permuted = x.permute(0, 2, 3, 1)
    assert_close(ca.conv(permuted, w, **LAST).permute(0, 3, 1, 2).numpy(), Y)


@needs_torch
def test_torch_is_served_without_a_copy_of_out():
    x, w = torch.from_numpy(X), torch.from_numpy(W)
    memory = np.full(Y.shape, np.nan, np.float32)
    ca.conv(x, w, padding=1, out=torch.from_numpy(memory))
    assert_close(memory, Y)
    with pytest.raises(TypeError, match="out=list must be an array of x's kind"):
        ca.conv(x, w, padding=1, out=Y.tolist())
