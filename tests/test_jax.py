"""JAX's face: answers of `jax.lax` and of sums in float64, gradients, batching, compiled calls."""

import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs JAX (pip install 'convalgos[jax]')")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

import convalgos as ca  # noqa: E402
import convalgos.jax as cj  # noqa: E402
from convalgos.core import huge_pages  # noqa: E402
from convalgos.core.epilogue import activated, activation_of  # noqa: E402
from convalgos.cpu.reference import reference  # noqa: E402
from convalgos.jax import calls, handler, lax_calls  # noqa: E402


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def integers(rng, *shape, dtype="float32"):
    return jnp.asarray(rng.integers(-4, 5, shape), dtype)


def theirs(x, w, stride=(2, 1), padding=((1, 2), (0, 1)), dilation=(1, 2), groups=2):
    return lax.conv_general_dilated(
        x, w, stride, padding, rhs_dilation=dilation, feature_group_count=groups
    )  # fmt: skip


def ours(x, w, bias=None, activation=None):
    how = {"stride": (2, 1), "padding": ((1, 2), (0, 1)), "dilation": (1, 2), "groups": 2}
    return cj.conv(x, w, bias, **how, activation=activation)


@pytest.fixture
def arrays(rng):
    return integers(rng, 2, 6, 9, 8), integers(rng, 8, 3, 3, 3), integers(rng, 8)


# --- answers ---------------------------------------------------------------------------------


def test_compiled_calls_see_every_filter_and_every_bias(arrays):
    """The first calls go through Python; then one is kept, which serves for its own filter only."""
    x, w, b = arrays
    compiled = jax.jit(lambda x, w, b: ours(x, w, b, "relu"))
    for step in range(12):
        filter, bias = (w + step // 4, b - step // 6) if step % 5 else (w, b)
        y = compiled(x + step, filter, bias)
        expected = jnp.maximum(theirs(x + step, filter) + bias[:, None, None], 0)
        np.testing.assert_array_equal(y, expected)


def test_a_kept_call_runs_without_python(arrays, monkeypatch):
    x, w, _ = arrays
    compiled = jax.jit(ours)
    for _ in range(3):
        y = compiled(x, w)
    monkeypatch.setattr(calls.Served, "run_at", lambda *_: pytest.fail("Python was called"))
    np.testing.assert_array_equal(compiled(x, w), y)
    with pytest.raises(Exception, match="Python was called"):  # with another filter it is; and errors get out
        jax.block_until_ready(compiled(x, w + 1))


def test_filters_that_a_program_has_in_itself_are_constant(rng):
    """Preparing them counts for nothing; that of arguments does."""
    x, w = integers(rng, 1, 8, 9, 9), integers(rng, 8, 8, 3, 3)
    served = (cj.conv, lambda x, w: cj.conv_general_dilated(x, w, (1, 1), [(0, 0)] * 2))
    for convolve in (*served, lambda x, w: cj.conv_transpose(x, w, padding=2)):
        for function, arguments, known in (
            (lambda x, convolve=convolve: convolve(x, w), (x,), True),
            (convolve, (x, w), False),
            (lambda w, convolve=convolve: convolve(x, w), (w,), False),
        ):
            with patch.object(calls, "Call", wraps=calls.Call) as made:
                y = jax.jit(function)(*arguments)
            assert {call.args[1].weights_constant for call in made.call_args_list} == {known}
            np.testing.assert_array_equal(y, convolve(x, w))


def test_a_kept_call_of_a_strided_transpose_runs_without_python(rng, monkeypatch):
    w, b = integers(rng, 2, 3, 7), integers(rng, 3)
    compiled = jax.jit(lambda x: cj.conv_transpose(x, w, b, stride=3, padding=1, activation="relu"))
    dys = [integers(rng, 2, 2, 15) for _ in range(3)]
    expected = [ca.conv_transpose(*map(np.asarray, (x, w, b)), stride=3, padding=1) for x in dys]
    for _ in range(3):
        compiled(dys[0])
    monkeypatch.setattr(calls.Served, "run_at", lambda *_: pytest.fail("Python was called"))
    for x, y in zip(dys, expected, strict=True):
        np.testing.assert_array_equal(compiled(x), np.maximum(y, 0))


def test_filters_that_kernels_read_as_they_are_change_without_python(rng, monkeypatch):
    """As in training: each step has another filter, and the gradient of a filter another dy."""
    x, dys = integers(rng, 2, 3, 50), [integers(rng, 2, 3, 205) for _ in range(3)]
    ws = [integers(rng, 3, 1, 9) for _ in dys]

    def transposed(x, w):
        return cj.conv_transpose(x, w, stride=4, groups=3, algorithm="cpu.direct.phases")

    def gradient(x, w, dy):  # of a depthwise filter
        return jax.vjp(lambda w: cj.conv_transpose(x, w, stride=4, groups=3), w)[1](dy)[0]

    compiled, of_w = jax.jit(transposed), jax.jit(gradient)
    compiled(x, ws[0]), of_w(x, ws[0], dys[0])
    monkeypatch.setattr(calls.Served, "run_at", lambda *_: pytest.fail("Python was called"))
    for w, dy in zip(ws, dys, strict=True):
        y = ca.conv_transpose(np.asarray(x), np.asarray(w), stride=4, groups=3)
        np.testing.assert_array_equal(compiled(x, w), y)
        expected = ca.conv_backward_weights(np.asarray(dy), np.asarray(x), w.shape, stride=4, groups=3)
        np.testing.assert_array_equal(of_w(x, w, dy), expected)


def test_a_filter_in_another_order_is_never_read_as_it_is(rng):
    """Kernels that read filters as they are get those of `jax.lax` in our order, in kept calls, too."""
    x, w = integers(rng, 3, 2, 6), integers(rng, 2, 2, 5)
    compiled = jax.jit(lambda x, w: cj.conv_general_dilated(x, w, (1,), [(1, 0)], lhs_dilation=(2,)))
    for step in range(8):
        filter = w + step // 4
        expected = lax.conv_general_dilated(x + step, filter, (1,), [(1, 0)], lhs_dilation=(2,))
        np.testing.assert_array_equal(compiled(x + step, filter), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_types_and_layouts(rng, dtype, layout):
    x, w, b = integers(rng, 2, 4, 7), integers(rng, 6, 4, 3), integers(rng, 6)
    if layout == "channels_last":
        x = jnp.moveaxis(x, 1, -1)
    y = cj.conv(*(a.astype(dtype) for a in (x, w, b)), padding=1, layout=layout)
    assert y.dtype == dtype
    expected = ca.conv(np.asarray(x), np.asarray(w), np.asarray(b), padding=1, layout=layout)
    np.testing.assert_array_equal(y.astype("float32"), jnp.asarray(expected).astype(dtype).astype("float32"))


@pytest.mark.parametrize(
    "activation",
    [
        "relu",
        "relu6",
        "silu",
        "gelu",
        ("leaky_relu", 0.2),
        ("clip", -1, 2),
        "hard_swish",
        "tanh",
        "selu",
        "mish",
    ],
)
def test_the_output_step_and_its_gradient(rng, activation):
    x, w = (jnp.asarray(rng.standard_normal(s), "float32") for s in ((1, 3, 12), (4, 3, 3)))
    b = jnp.asarray(rng.standard_normal(4), "float32")
    y, slope = jax.jvp(lambda b: cj.conv(x, w, b, activation=activation), (b,), (jnp.ones(4),))
    sums = reference(ca.ConvProblem(x.shape, w.shape), np.asarray(x), np.asarray(w)) + np.asarray(b)[:, None]
    wanted = activated(sums.astype("float64"), activation_of(activation))
    near = activated(sums.astype("float64") + 1e-6, activation_of(activation))
    np.testing.assert_allclose(cj.conv(x, w, b, activation=activation), wanted, atol=1e-5)
    np.testing.assert_allclose(y, wanted, atol=1e-5)
    np.testing.assert_allclose(slope, (near - wanted) / 1e-6, atol=2e-4)


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_transposed(rng, layout):
    x, w, b = integers(rng, 2, 4, 5, 6), integers(rng, 4, 3, 3, 2), integers(rng, 6)
    if layout == "channels_last":
        x = jnp.moveaxis(x, 1, -1)
    how = {"stride": (2, 3), "padding": 1, "output_padding": (1, 2), "groups": 2, "layout": layout}
    how |= {"dilation": (2, 1), "activation": "relu"}
    expected = ca.conv_transpose(*map(np.asarray, (x, w, b)), **how)
    np.testing.assert_array_equal(cj.conv_transpose(x, w, b, **how), expected)
    seen = jax.jit(jax.grad(lambda w: (cj.conv_transpose(x, w, b, **how) ** 2).sum()))(w)
    step = jnp.zeros_like(w).at[1, 2, 0, 1].set(1)
    there, back = ((cj.conv_transpose(x, w + s * step, b, **how) ** 2).sum() for s in (0.25, -0.25))
    assert seen.shape == w.shape and abs(seen[1, 2, 0, 1] - (there - back) / 0.5) <= 0.02 * abs(seen).max()


# --- transforms ------------------------------------------------------------------------------


def cube(convolve):
    return lambda x, w: (convolve(x, w) ** 3).sum()


def test_gradients_of_first_and_second_order(arrays):
    x, w = arrays[0][:1, :, :5, :5], arrays[1]
    for mine, other in zip(*(jax.grad(cube(c), (0, 1))(x, w) for c in (ours, theirs)), strict=True):
        np.testing.assert_array_equal(mine, other)
    mine, other = (jax.jvp(jax.grad(cube(c), (0, 1)), (x, w), (x + 1, w - 1))[1] for c in (ours, theirs))
    for a, b in zip(mine, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    mine, other = (
        jax.grad(lambda x, c=c: (jax.grad(cube(c), 1)(x, w) ** 2).sum())(x / 8) for c in (ours, theirs)
    )
    np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5 * abs(other).max())


@pytest.mark.parametrize("outer", [lambda f: f, jax.jit, jax.checkpoint])
@pytest.mark.parametrize("lhs_dilation", [(1, 1), (2, 1)])
@pytest.mark.parametrize("of", [0, 1])
def test_the_transpose_of_a_call_of_lax(rng, of, lhs_dilation, outer):
    """`jax.linear_transpose` of what is one primitive for its filter's order, also mapped."""
    how = {"window_strides": (1, 1), "padding": [(1, 2), (0, 1)], "lhs_dilation": lhs_dilation}
    how |= {"feature_group_count": 2, "dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    arrays = [integers(rng, 2, 5, 6, 4), integers(rng, 3, 2, 2, 6)]
    shape = jax.eval_shape(lambda x, w: lax.conv_general_dilated(x, w, **how), *arrays).shape
    gs = integers(rng, 3, *shape)

    def transposed(convolve, g):
        function = outer(lambda a: convolve(*arrays[:of], a, *arrays[of + 1 :], **how))
        return jax.linear_transpose(function, arrays[of])(g)[0]

    expected = [transposed(lax.conv_general_dilated, g) for g in gs]
    np.testing.assert_array_equal(transposed(cj.conv_general_dilated, gs[0]), expected[0])
    mapped = jax.vmap(lambda g: transposed(cj.conv_general_dilated, g))(gs)
    np.testing.assert_array_equal(mapped, jnp.stack(expected))


def test_the_transpose_of_an_input_and_a_bias(rng):
    """The call is linear in both together; with an activation it is in none."""
    x, w, b = integers(rng, 2, 3, 7), integers(rng, 4, 3, 3), integers(rng, 4)
    g = integers(rng, 2, 4, 5)
    dx, db = jax.linear_transpose(lambda x, b: cj.conv(x, w, b), x, b)(g)
    np.testing.assert_array_equal(dx, jax.linear_transpose(lambda x: cj.conv(x, w), x)(g)[0])
    np.testing.assert_array_equal(db, g.sum((0, 2)))
    with pytest.raises(NotImplementedError):
        jax.linear_transpose(lambda x: cj.conv(x, w, activation="relu"), x)(g)


@pytest.mark.parametrize("axes", [(0, None, None), (None, 2, None), (1, 0, 0), (None, None, 0)])
def test_batching(arrays, axes):
    given = [
        a if at is None else jnp.stack([a, a - 1, 2 * a], at) for a, at in zip(arrays, axes, strict=True)
    ]

    def wanted(x, w, b):
        return jnp.maximum(theirs(x, w) + b[:, None, None], 0)

    mapped = [jax.vmap(c, axes)(*given) for c in (lambda *a: ours(*a, "relu"), wanted)]
    np.testing.assert_array_equal(*mapped)
    if axes[:2] != (None, None):
        small = [a[..., :5, :5] for a in given[:2]]
        found = [jax.jit(jax.vmap(jax.grad(cube(c), (0, 1)), axes[:2]))(*small) for c in (ours, theirs)]
        for mine, other in zip(*found, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-6)


def test_other_devices_have_jax_s_convolution(arrays):
    """There the same primitives are lowered by JAX: what it would compile for a GPU is looked at."""
    x, w, b = arrays
    step = jax.jit(jax.grad(lambda x, w, b: ours(x, w, b, "silu").sum(), (0, 1)))
    text = step.trace(x, w, b).lower(lowering_platforms=("cuda",)).as_text()
    assert handler.TARGET not in text and "stablehlo.convolution" in text
    assert handler.TARGET in step.trace(x, w, b).lower().as_text()
    forced = jax.jit(lambda x, w: cj.conv(x, w, algorithm="cpu.direct"))
    try:  # to which JAX adds a cause, which says where the call stands
        forced.trace(x[:, :3], w).lower(lowering_platforms=("cuda",))
    except ca.Unsupported as refusal:
        assert "cpu.direct" in str(refusal)
    else:
        pytest.fail("a forced algorithm was replaced in silence")


# --- calls of XLA ----------------------------------------------------------------------------


def test_many_threads_run_one_program(arrays):
    """One of them may have the kept run; all others go through Python meanwhile."""
    x, w, _ = arrays
    compiled = jax.jit(ours)
    expected = [np.asarray(theirs(x + i % 3, w)) for i in range(40)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda i: np.asarray(compiled(x + i % 3, w)), range(40)))
    np.testing.assert_array_equal(found, expected)


def test_a_program_kept_on_disk_runs_in_another_process(tmp_path):
    """It names its convolution by text, not by an address. In float64, which holds for whole processes."""
    code = """
        import os, sys, jax, numpy as np, convalgos as ca, convalgos.jax as cj
        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_compilation_cache_dir", sys.argv[1])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        x, w = np.random.default_rng(0).standard_normal((1, 2, 50)), np.ones((3, 2, 3))
        y = jax.jit(lambda x, w: 2 * cj.conv(x, w) + 1)(x, w)
        assert y.dtype == "float64" and abs(y - 2 * ca.conv(x, w) - 1).max() < 1e-13
        print(len(os.listdir(sys.argv[1])))
    """
    told = [
        subprocess.check_output([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], text=True)
        for _ in range(2)
    ]
    assert int(told[0]) > 0 and told[0] == told[1]  # the second found what the first left


def test_without_the_interface_jax_calls_back(arrays, monkeypatch):
    monkeypatch.setattr(handler, "minor_version", lambda: None)
    monkeypatch.setattr(calls, "_served", {})
    x, w, b = arrays
    lowered = jax.jit(lambda x, w, b: ours(x, w, b, "relu")).lower(x, w, b)
    assert handler.TARGET not in lowered.as_text()
    expected = jnp.maximum(theirs(x, w) + b[:, None, None], 0)
    np.testing.assert_array_equal(lowered.compile()(x, w, b), expected)


# --- jax.lax ---------------------------------------------------------------------------------


def equal_integers(found, expected):
    """Also by algorithms that round, which are picked on some machines."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.01)


ORDERS = [
    (2, ("NHWC", "HWIO", "NHWC")), (2, ("CWNH", "WOHI", "HCNW")), (1, ("NCW", "OIW", "NCW")),
    (3, ("NDHWC", "DHWIO", "NDHWC")),
]  # fmt: skip


@pytest.mark.parametrize("ndim, order", ORDERS)
@pytest.mark.parametrize("lhs_dilation", [1, 3])
def test_conv_general_dilated(rng, monkeypatch, ndim, order, lhs_dilation):
    sizes = dict(zip("DHW"[-ndim:], (4, 6, 5), strict=False))
    kernel = dict(zip("DHW"[-ndim:], (3, 1, 2), strict=False))
    x = integers(rng, *[({"N": 2, "C": 4} | sizes)[c] for c in order[0]])
    w = integers(rng, *[({"O": 6, "I": 2} | kernel)[c] for c in order[1]])
    strides = [2, 1, 3][:ndim] if lhs_dilation == 1 else [1] * ndim
    padding = [(0, 1), (4, 0), (1, 5)][:ndim]
    how = ([lhs_dilation, 1, 2][:ndim] if lhs_dilation > 1 else None, [2, 1, 1][:ndim], order, 2)
    given = x, w, strides, padding, *how
    expected = lax.conv_general_dilated(*given)
    with monkeypatch.context() as only:
        only.setattr(lax_calls, "convolution_of_lax", lambda *_, **__: pytest.fail("it was left to JAX"))
        equal_integers(cj.conv_general_dilated(*given), expected)
        dw = jax.grad(lambda w: (cj.conv_general_dilated(x, w, *given[2:]) ** 2).sum())(w)
    other = jax.grad(lambda w: (lax.conv_general_dilated(x, w, *given[2:]) ** 2).sum())(w)
    equal_integers(dw, other)
    if lhs_dilation == 1:
        given = x, w, strides, "SAME", *how
        equal_integers(cj.conv_general_dilated(*given), lax.conv_general_dilated(*given))


@pytest.mark.parametrize("lhs_dilation", [1, 3])
@pytest.mark.parametrize("order", [("NWC", "WIO", "NWC"), ("NCW", "OIW", "NWC"), ("CNW", "WOI", "NCW")])
def test_one_channel_in_any_order(rng, order, lhs_dilation):
    x = integers(rng, *[{"N": 3, "C": 1, "W": 40}[c] for c in order[0]])
    w = integers(rng, *[{"O": 1, "I": 1, "W": 5}[c] for c in order[1]])
    given = (1,), [(4, 4)], (lhs_dilation,), (2,), order
    results = []
    for conv in (cj.conv_general_dilated, lax.conv_general_dilated):
        y, back = jax.vjp(lambda x, w, conv=conv: conv(x, w, *given), x, w)
        results.append((y, *back(y)))
    for mine, other in zip(*results, strict=True):
        equal_integers(mine, other)


def test_large_results_lie_in_huge_pages(rng, monkeypatch):
    """Those of calls through Python, and of calls that are kept."""
    asked = []
    monkeypatch.setattr(calls, "ask_for_huge_pages", lambda *given: asked.append(given))
    x, w = jnp.ones((1, 1, huge_pages.LEAST // 4 + 2), jnp.float32), integers(rng, 1, 1, 3)
    program = jax.jit(cj.conv)
    for factor in (1, 1, 1, 2):
        y = program(x, factor * w)
        assert y.nbytes == huge_pages.LEAST and (y == factor * w.sum()).all()
    assert asked and asked[0][1] == huge_pages.LEAST
    monkeypatch.undo()
    memory = np.ones(3 * huge_pages.LEAST, np.uint8)
    huge_pages.ask_for_huge_pages(memory.ctypes.data + 1, memory.size - 1)
    assert memory.all()


@pytest.mark.parametrize(
    "changed",
    [
        {"window_strides": (2,), "lhs_dilation": (2,)}, {"batch_group_count": 2}, {"padding": [(-1, 0)]},
        {"lhs_dilation": (2,), "padding": [(-1, 3)]},
    ],
)  # fmt: skip
def test_what_is_not_served_is_jax_s(rng, changed):
    given = {"window_strides": (1,), "padding": [(1, 1)]} | changed
    x, w = integers(rng, 2, 4, 9), integers(rng, 6, 4, 3)
    other = lax.conv_general_dilated(x, w, **given)
    with patch("jax.lax.conv_general_dilated", cj.conv_general_dilated):  # as the guide tells
        mine = lax.conv_general_dilated(x, w, **given)
    assert mine.dtype == other.dtype
    np.testing.assert_array_equal(mine, other)


def test_what_is_wrong_is_told(arrays):
    x, w, b = arrays
    with pytest.raises(ValueError, match="bias has shape"):
        cj.conv(x[:, :3], w, b[:3])
    with pytest.raises(TypeError, match="w has dtype"):
        cj.conv(x, w.astype("bfloat16"))
    with pytest.raises(TypeError, match="int32"):
        cj.conv(x.astype("int32"), w)
    with pytest.raises(ValueError, match="x has shape"):
        cj.conv(x[0], w)
    with pytest.raises(ValueError, match="channels"):
        cj.conv(x, w)
    with pytest.raises(ca.Unsupported, match="winograd"):
        cj.conv(x[:, :3], w, stride=2, algorithm="cpu.winograd.f4x3")
    with pytest.raises(ValueError, match="output_padding"):
        cj.conv_transpose(x[:, :1], w[:1], output_padding=3)
    with pytest.raises(ValueError, match="feature_group_count"):  # in JAX's words
        cj.conv_general_dilated(x, w, (1, 1), "SAME")
    with pytest.raises(ValueError, match=r"padding argument.*, got \(3, 3\)"):
        cj.conv_general_dilated(x[:, :3], w, (1, 1), (3, 3))


def test_an_empty_batch(arrays):
    assert ours(arrays[0][:0], arrays[1]).shape == (0, 8, 5, 5)


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
@pytest.mark.parametrize("order", [("NCHW", "OIHW", "NCHW"), ("NCHW", "IOHW", "NCHW")])
def test_an_empty_mapped_dimension(rng, order, axes):
    given = [integers(rng, *shape) for shape in ((0, 2, 3, 5, 5), (0, 3, 3, 3, 3))]
    given = [a if at == 0 else jnp.ones(a.shape[1:]) for a, at in zip(given, axes, strict=True)]

    def convolve(x, w):
        return cj.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=order)

    y = jax.vmap(convolve, axes)(*given)
    assert y.shape == (0, 2, 3, 3, 3)
    dx, dw = jax.jit(jax.vmap(jax.grad(lambda *a: convolve(*a).sum(), (0, 1)), axes))(*given)
    assert (dx.shape, dw.shape) == ((0, 2, 3, 5, 5), (0, 3, 3, 3, 3))


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_numpy_arrays_in_a_mapped_compiled_function(rng, axes):
    """With an output step and with filters in another order, forwards and by their derivatives."""
    given = [np.asarray(integers(rng, *shape)) for shape in ((2, 1, 3, 5, 5), (2, 3, 3, 3, 3))]
    given = [a if at == 0 else a[0] for a, at in zip(given, axes, strict=True)]
    bias = np.float32([1, 2, 3])

    def ordered(convolve):
        return lambda x, w: convolve(x, w, (1, 1), "VALID", dimension_numbers=("NCHW", "IOHW", "NCHW"))

    def wanted(x, w):
        return jax.nn.relu(lax.conv(x, w, (1, 1), "VALID") + bias[:, None, None])

    pairs = [(ordered(cj.conv_general_dilated), ordered(lax.conv_general_dilated))]
    pairs.append((lambda x, w: cj.conv(x, w, bias, activation="relu"), wanted))
    for pair in pairs:
        found = [jax.jit(lambda f=f: jax.vmap(f, axes)(*given))() for f in pair]
        np.testing.assert_array_equal(*found)
        slopes = [
            jax.jit(lambda f=f: jax.grad(lambda z: (jax.vmap(f, axes)(z * given[0], given[1])).sum())(2.0))()
            for f in pair
        ]
        np.testing.assert_allclose(*slopes, rtol=1e-5)
        pushed = [
            jax.jit(lambda f=f: jax.jvp(lambda w: jax.vmap(f, axes)(given[0], w), given[1:], given[1:]))()
            for f in pair
        ]
        np.testing.assert_array_equal(*pushed)
