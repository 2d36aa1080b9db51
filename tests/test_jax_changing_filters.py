"""JAX's face: programs whose calls all bring another filter, as in training, pack it without Python."""

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs JAX (pip install 'convalgos[jax]')")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

import convalgos.jax as cj  # noqa: E402
from convalgos.jax import calls  # noqa: E402

LAST = ("NHWC", "HWIO", "NHWC")


@pytest.fixture
def asked(monkeypatch):
    """How often Python was asked."""
    run, found = calls.Served.run_at, []

    def counted(served, addresses):
        found.append(served)
        run(served, addresses)

    monkeypatch.setattr(calls.Served, "run_at", counted)
    return found


def integers(rng, *shape):
    return jnp.asarray(rng.integers(-4, 5, shape), "float32")


def programs(**how):
    return [
        jax.jit(lambda x, w, f=f: f(x, w, **how)) for f in (cj.conv_general_dilated, lax.conv_general_dilated)
    ]


SAME = {"window_strides": (1, 1), "padding": "SAME"}
TRANSPOSED = {"window_strides": (1, 1), "lhs_dilation": (2, 2), "dimension_numbers": LAST}
CASES = {
    "cut panels": ((2, 6, 12, 11), (9, 6, 3, 3), SAME),
    "groups": ((2, 8, 12, 11), (12, 4, 3, 3), SAME | {"feature_group_count": 2}),
    "tiles": ((1, 64, 20, 20), (64, 64, 3, 3), SAME),
    "another order": ((1, 9, 10, 40), (1, 1, 40, 24), SAME | {"dimension_numbers": LAST}),
    "phases": ((1, 14, 15, 8), (1, 1, 8, 40), TRANSPOSED | {"padding": [(0, 0)] * 2}),
    "slices": ((2, 10, 9, 3), (2, 2, 3, 40), TRANSPOSED | {"padding": [(1, 1)] * 2}),
    "turned round": ((1, 14, 15, 8), (4, 4, 8, 40), TRANSPOSED | {"padding": [(3, 3)] * 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_answers_of_filters_that_change(asked, name):
    """What is packed is the filter of the call: of each of many, also where it comes again, or not finite."""
    x_shape, w_shape, how = CASES[name]
    rng = np.random.default_rng(3)
    ours, theirs = programs(**how)
    for step in range(5 * calls.CHANGES):
        x, w = integers(rng, *x_shape), integers(rng, *w_shape) + (step % 7)
        y, expected = ours(x, w), theirs(x, w)
        np.testing.assert_allclose(y, expected, rtol=0, atol=2e-5 * float(abs(expected).max()))
    assert np.isnan(ours(x, w * np.nan)).any()
    np.testing.assert_allclose(ours(x, w), expected, rtol=0, atol=2e-5 * float(abs(expected).max()))


def test_filters_that_change_are_packed_without_python(asked):
    x_shape, w_shape, how = CASES["cut panels"]
    rng = np.random.default_rng(3)
    ours, theirs = programs(**how)
    x, filters = integers(rng, *x_shape), [integers(rng, *w_shape) for _ in range(50)]
    for w in filters[:-20]:
        ours(x, w).block_until_ready()
    asked.clear()
    for step, w in enumerate(filters[-20:]):
        np.testing.assert_array_equal(ours(x + step, w), theirs(x + step, w))
    assert not asked


def test_a_filter_that_stays_is_found_again(asked, monkeypatch):
    """Once in some calls it is looked whether the filter still changes; then it is prepared once."""
    monkeypatch.setattr(calls, "REPEATS", 10)
    _, w_shape, how = CASES["cut panels"]
    rng = np.random.default_rng(3)
    ours, theirs = programs(**how)
    x, filters = integers(rng, 1, 6, 10, 13), [integers(rng, *w_shape) for _ in range(30)]
    for w in filters:
        ours(x, w).block_until_ready()
    packing = asked[-1]
    kept = []
    monkeypatch.setattr(
        packing, "_kept_run", lambda *given, run=packing._kept_run: kept.append(1) or run(*given)
    )
    for step in range(30):
        np.testing.assert_array_equal(ours(x + step, w), theirs(x + step, w))
    assert kept
    asked.clear()
    for step in range(30):
        np.testing.assert_array_equal(ours(x + step, w), theirs(x + step, w))
    assert not asked
