"""The compiled output step: activations of vectors, and the pass over whole arrays."""

import warnings

import numpy as np
import pytest

from convalgos.core import epilogue
from convalgos.core.epilogue import Activation, activation_of
from convalgos.cpu.runtime.array_pass import ArrayPass, finish_array
from convalgos.cpu.vectors.activations import ULPS

FORMS = (
    "relu", ("clip", -1.25, 2.5), ("leaky_relu", 0.2), "sigmoid", "silu", "hard_swish", "gelu", "gelu_tanh",
    "tanh", "elu", "selu", ("elu", -0.5, 2), "softplus", "mish", Activation("hard_swish", -0.5, 0.25),
)  # fmt: skip
EXACT = "relu", "clip"


def wide_range(dtype):
    """Of all sizes and signs, dense where the functions bend."""
    sizes = 10.0 ** np.linspace(-44, 38 if dtype == np.float32 else 300, 4001)
    near = np.linspace(-110, 110, 20001)
    return np.concatenate([near, near / 20, 7 * near, sizes, -sizes]).astype(dtype)


def exact(v, form):
    """In the longest type that there is; Phi is known in float64."""
    wide = v.astype(np.float64 if form == "gelu" else np.longdouble)
    return epilogue.activated(wide, activation_of(form))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_activations_are_within_their_bound(form, dtype):
    v = wide_range(dtype)
    found, right = v.copy(), exact(v, form)
    finish_array(found, None, activation_of(form))
    ulps = np.abs(found - right) / (np.finfo(dtype).eps * np.maximum(np.abs(right), 0.25))
    room = form == "gelu" and dtype == np.float64  # the error of what it is held against
    assert ulps.max() <= (0 if activation_of(form).name in EXACT else ULPS + room)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_limits_and_what_is_no_number(form, dtype):
    info = np.finfo(dtype)
    edge = [np.nan, np.inf, -np.inf, -0.0, 0.0, info.max, -info.max, info.smallest_subnormal, -2e3]
    for added in (None, np.array([*edge[1:], 0.0], dtype)):
        found, right = np.array(edge, dtype), np.array(edge, dtype)
        with warnings.catch_warnings(action="ignore"):
            epilogue.add_and_activate(right, added, activation_of(form))
        finish_array(found, added, activation_of(form))
        assert np.allclose(found, right, rtol=1e-6, atol=info.smallest_subnormal, equal_nan=True)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 100_003])
def test_any_number_of_elements(count):
    y = np.linspace(-3, 3, count + 2, dtype=np.float32)
    residual = np.cos(y)
    right = exact(y + residual, "silu").astype(np.float32)
    finish_array(y[1:-1], residual[1:-1], activation_of("silu"))
    assert np.allclose(y[1:-1], right[1:-1], rtol=1e-6, atol=1e-7)
    assert (y[[0, -1]] == [-3, 3]).all()  # and no other


def test_images_that_lie_apart_and_no_activation():
    whole = np.arange(4 * 5 * 8, dtype=np.float32).reshape(4, 5, 8)
    part, added = whole[:, 1:3], np.full((4, 2, 8), 0.5, np.float32)
    target = np.zeros((4, 3, 8), np.float32)
    ArrayPass(part, added, target[:, 1:], None).run()
    assert np.array_equal(target[:, 1:], part + 0.5) and not target[:, 0].any()
    ArrayPass(part, None, target[:, 1:], None).run()  # a copy
    assert np.array_equal(target[:, 1:], part)
