"""Elementwise steps of networks, against NumPy, in every layout."""

import math

import numpy as np
import pytest

from convalgos import Unsupported
from convalgos.core import epilogue
from convalgos.core.epilogue import activation_of
from convalgos.core.layouts import array_shape, blocked_layout, laid, to_logical
from convalgos.core.machine import vector_bytes
from convalgos.cpu.elementwise.norms import GroupNormPlan, LayerNormPlan, LrnPlan, SoftmaxPlan
from convalgos.cpu.elementwise.plan import (
    ConcatenationPlan,
    ElementwisePlan,
    UpsamplingPlan,
)
from convalgos.cpu.elementwise.resizing import ResizePlan, resized_coordinates
from convalgos.cpu.elementwise.selections import SelectionPlan

LAYOUTS = "channels_first", "channels_last", blocked_layout(vector_bytes() // 4)
SHAPE = (2, 37, 5, 7)
OPERATIONS = {"add": np.add, "multiply": np.multiply}


def values(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def empty(layout, shape):
    return np.full(array_shape(layout, shape), np.nan, np.float32)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("b_shape", [SHAPE, (2, 37, 1, 1), (1, 37, 1, 1), (1, 37, 5, 7)], ids=str)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_sums_and_products_of_arrays_and_of_one_number_a_map(operation, b_shape, layout):
    a, b = values(SHAPE), values(b_shape, 1)
    for form in (None, "silu"):
        activation = activation_of(form)
        right = OPERATIONS[operation](a, b)
        right = right if activation is None else epilogue.activated(right, activation)
        for given, shapes in (((a, b), (SHAPE, b_shape)), ((b, a), (b_shape, SHAPE))):
            plan = ElementwisePlan(operation, shapes, layout, activation)
            inputs = [np.ascontiguousarray(laid(array, layout)) for array in given]
            y = empty(layout, SHAPE)
            plan.run(inputs, y)
            assert np.allclose(to_logical(y, layout, SHAPE[1]), right, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_activations_in_place_and_images_apart(layout):
    x, relu = values((3, 32, 6, 6)), activation_of(("leaky_relu", 0.1))
    shape = array_shape(layout, x.shape)
    whole = np.zeros((3, 2, *shape[1:]), np.float32)
    part = whole[:, 1]
    part[...] = laid(x, layout)
    plan = ElementwisePlan("identity", (x.shape,), layout, relu)
    plan.bind(part, part).run()
    assert np.allclose(to_logical(part, layout, 32), np.where(x < 0, x * np.float32(0.1), x))
    assert not whole[:, 0].any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_maps_side_by_side(layout):
    parts = [values((2, c, 4, 9), c) for c in (32, 64, 13)]
    plan, y = ConcatenationPlan([part.shape for part in parts], layout), empty(layout, (2, 109, 4, 9))
    inputs = [np.ascontiguousarray(laid(part, layout)) for part in parts]
    if layout != "channels_last":  # the second is in its place already
        block = y.shape[-1] if layout in LAYOUTS[2:] else 1
        inputs[1] = y[:, 32 // block : 96 // block]
        inputs[1][...] = laid(parts[1], layout)
    bound = plan.bind(*inputs, y)
    bound.run()
    assert len(bound.launches) == 2 + (layout == "channels_last")
    assert np.array_equal(to_logical(y, layout, 109), np.concatenate(parts, 1))
    empty_ones = [array[:0] for array in inputs]
    ConcatenationPlan([(0, c, 4, 9) for c in (32, 64, 13)], layout).run(empty_ones, y[:0])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_channels_are_chosen_of_several_maps(layout):
    parts = [values((2, c, 4, 19), c) for c in (37, 64, 3)]
    joined = np.concatenate(parts, 1)
    rng = np.random.default_rng(3)
    for order in (rng.integers(0, 104, 40), np.arange(37, 101)[::-1], np.arange(53, 85), np.array([103])):
        y = empty(layout, (2, len(order), 4, 19))
        inputs = [np.ascontiguousarray(laid(part, layout)) for part in parts]
        SelectionPlan([part.shape for part in parts], order, layout).run(inputs, y)
        assert np.array_equal(to_logical(y, layout, len(order)), joined[:, order])
    with pytest.raises(ValueError, match="channels from 0 to 3, of 3"):
        SelectionPlan([(1, 3, 2)], np.array([0, 3]), layout)


def test_nothing_is_left_beyond_the_channels_of_a_block():
    """Steps compute with it run by run: what was left became numbers without full digits, 100 cycles each."""
    layout, x = LAYOUTS[-1], values((2, 70, 4, 19))
    for order in (np.arange(3, 8), np.arange(70)[::-1], np.arange(33, 68)):
        y = empty(layout, (2, len(order), 4, 19))
        SelectionPlan([x.shape], order, layout).run((np.ascontiguousarray(laid(x, layout)),), y)
        assert not np.isnan(y).any()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("factors", [(2, 2), (3, 1), (1, 2), (4,), (2, 1, 3)], ids=str)
def test_each_element_is_repeated(factors, layout):
    for width in (1, 16, 37):
        x = values((2, 19, *(3,) * (len(factors) - 1), width))
        right = x
        for axis, factor in enumerate(factors, 2):
            right = np.repeat(right, factor, axis)
        y = empty(layout, right.shape)
        UpsamplingPlan(x.shape, factors, layout).run((np.ascontiguousarray(laid(x, layout)),), y)
        assert np.array_equal(to_logical(y, layout, 19), right)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [SHAPE, (1, 64, 150, 3), (3, 5, 1), (2, 48, 3, 1, 2)], ids=str)
def test_each_pixel_is_normalised_over_its_channels(shape, layout):
    x, (scale, shift) = values(shape) + 100, values((2, shape[1]), 1)  # a mean that squares would lose
    left = x - x.mean(1, keepdims=True, dtype=float)
    right = left / np.sqrt((left**2).mean(1, keepdims=True) + 1e-3)
    of_map = (1, -1, *(1,) * (len(shape) - 2))
    plan = LayerNormPlan(shape, layout, scale, shift, 1e-3)
    whole = np.full((len(x), 2, *array_shape(layout, shape)[1:]), np.nan, np.float32)
    y = whole[:, 0]  # images that lie apart
    y[...] = laid(x, layout)
    if layout == LAYOUTS[2]:  # what lies in lanes beyond C is no number
        y[:, -1, ..., 1 + (shape[1] - 1) % y.shape[-1] :] = np.nan
    plan.bind(y, y).run()
    wanted = right * scale.reshape(of_map) + shift.reshape(of_map)
    assert np.allclose(to_logical(y, layout, shape[1]), wanted, rtol=1e-4, atol=1e-4)
    assert np.isnan(whole[:, 1]).all()
    plain = np.empty_like(y)
    LayerNormPlan(shape, layout, epsilon=1e-3).run((laid(x, layout),), plain)
    assert np.allclose(to_logical(plain, layout, shape[1]), right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "shape",
    [SHAPE, (1, 64, 150, 3), (3, 1000, 1, 1), (1, 3001, 5), (2, 1, 3, 1, 2), (0, 8, 4)],
    ids=str,
)
def test_shares_of_channels(shape, layout):
    x = 30 * values(shape) + 100
    if x.size:
        x[-1, 0] = -np.inf if shape[1] > 1 else 0  # of which nothing is left
    powers = np.exp(x.astype("f8") - x.max(1, keepdims=True, initial=-np.inf))
    right = powers / powers.sum(1, keepdims=True)
    whole = np.full((len(x), 2, *array_shape(layout, shape)[1:]), np.nan, np.float32)
    y = whole[:, 0]  # images that lie apart
    SoftmaxPlan(shape, layout).bind(np.ascontiguousarray(laid(x, layout)), y).run()
    assert np.allclose(to_logical(y, layout, shape[1]), right, rtol=2e-6, atol=1e-30)
    assert np.isnan(whole[:, 1]).all()
    y[...] = laid(x, layout)
    SoftmaxPlan(shape, layout).bind(y, y).run()
    assert np.allclose(to_logical(y, layout, shape[1]), right, rtol=2e-6, atol=1e-30)
    y[...] = laid(x, layout)
    SoftmaxPlan(shape, layout, logs=True).bind(y, y).run()
    with np.errstate(divide="ignore"):
        right = x - x.max(1, keepdims=True, initial=-np.inf) - np.log(powers.sum(1, keepdims=True))
    assert np.allclose(to_logical(y, layout, shape[1]), right, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_small_shares_have_all_digits(layout):
    """And what float32 has no exponent for is 0."""
    x = np.zeros((1, 2003, 2), np.float32)
    x[0, 1:, 0], x[0, 1:, 1] = -np.linspace(0, 80, 2002), -np.linspace(87.4, 200, 2002)
    x[0, 5, 1] = -np.inf
    SoftmaxPlan(x.shape, layout).run((np.ascontiguousarray(laid(x, layout)),), y := empty(layout, x.shape))
    found = to_logical(y, layout, 2003)
    assert np.allclose(found[0, :, 0] / found[0, 0, 0], np.exp(x[0, :, 0].astype("f8")), rtol=6e-7, atol=0)
    assert found[0, 0, 1] == 1 and np.abs(found[0, 1:, 1]).max() < 2.0**-126 and found[0, 5, 1] == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_shares_of_what_is_no_number(layout):
    x = values((1, 21, 5))
    x[0, 3, 1], x[0, 20, 2], x[0, :, 3] = np.nan, np.inf, -np.inf
    for logs in (False, True):
        plan = SoftmaxPlan(x.shape, layout, logs)
        plan.run((np.ascontiguousarray(laid(x, layout)),), y := empty(layout, x.shape))
        found = to_logical(y, layout, 21)
        assert np.isnan(found[..., 1:4]).all() and not np.isnan(found[..., [0, 4]]).any()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("shape", "groups", "activation"),
    [
        (SHAPE, 37, None), ((2, 36, 5, 7), 6, "relu"), ((1, 64, 330), 1, "silu"),
        ((3, 40, 1, 1), 4, None), ((2, 64, 3, 4, 5), 2, ("clip", -0.5, 0.5)), ((0, 8, 4), 2, None),
    ],
    ids=str,
)  # fmt: skip
def test_groups_of_channels_are_normalised(shape, groups, activation, layout):
    x, (scale, shift) = values(shape) + 100, values((2, shape[1]), 1)  # a mean that squares would lose
    parts = x.astype(float).reshape(len(x), groups, math.prod(shape[1:]) // groups)
    left = parts - parts.mean(2, keepdims=True)
    right = (left / np.sqrt((left**2).mean(2, keepdims=True) + 1e-3)).reshape(shape)
    of_map = (1, -1, *(1,) * (len(shape) - 2))
    wanted = right * scale.reshape(of_map) + shift.reshape(of_map)
    activation = activation_of(activation)
    wanted = wanted if activation is None else epilogue.activated(wanted, activation)
    whole = np.full((len(x), 2, *array_shape(layout, shape)[1:]), np.nan, np.float32)
    y = whole[:, 0]  # images that lie apart
    y[...] = laid(x, layout)
    if layout == LAYOUTS[2]:  # what lies in lanes beyond C is no number
        y[:, -1, ..., 1 + (shape[1] - 1) % y.shape[-1] :] = np.nan
    GroupNormPlan(shape, layout, groups, scale, shift, 1e-3, activation).bind(y, y).run()
    assert np.allclose(to_logical(y, layout, shape[1]), wanted, rtol=1e-4, atol=1e-4)
    assert np.isnan(whole[:, 1]).all()
    plain = empty(layout, shape)
    GroupNormPlan(shape, layout, groups, epsilon=1e-3).run((laid(x, layout),), plain)
    assert np.allclose(to_logical(plain, layout, shape[1]), right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("shape", "size", "beta", "bias"),
    [(SHAPE, 5, 0.75, 1.0), ((1, 40, 150), 4, 0.5, 2.0), ((3, 5, 1, 1), 31, 1.3, 0.1)],
    ids=str,
)
def test_each_channel_is_normalised_by_its_neighbours(shape, size, beta, bias, layout):
    x, right = 20 * values(shape), np.empty(shape)
    for c in range(shape[1]):
        window = x[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1].astype(float)
        right[:, c] = x[:, c] / (bias + 3 / size * (window**2).sum(1)) ** beta
    given = laid(x, layout)
    if layout == LAYOUTS[2]:  # what lies in lanes beyond C is no number
        given[:, -1, ..., 1 + (shape[1] - 1) % given.shape[-1] :] = np.nan
    y = empty(layout, shape)
    LrnPlan(shape, layout, size, 3.0, beta, bias).run((given,), y)
    assert np.allclose(to_logical(y, layout, shape[1]), right, rtol=2e-6, atol=1e-30)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric"])
def test_pixels_lie_between_those_of_another_size(coordinates, layout):
    x = values((2, 19, 6, 37))
    for sizes in ((40, 20), (1, 90), (7, 37)):
        right = x.astype(float)
        for axis, after in enumerate(sizes, 2):
            before = right.shape[axis]
            where = np.clip(resized_coordinates(coordinates, before, after, after / before), 0, before - 1)
            share = (where % 1).reshape(-1, *(1,) * (3 - axis))
            low, high = (np.take(right, np.int64(f(where)), axis) for f in (np.floor, np.ceil))
            right = low + share * (high - low)
        y = empty(layout, right.shape)
        ResizePlan(x.shape, sizes, layout, coordinates).run((np.ascontiguousarray(laid(x, layout)),), y)
        assert np.allclose(to_logical(y, layout, 19), right, rtol=0, atol=2e-6)


def test_many_threads_share_large_arrays_and_others_may_be_empty():
    a, b = values((1, 8, 200, 250)), values((1, 8, 1, 1), 1)
    y = np.empty_like(a)
    run = ElementwisePlan("multiply", (a.shape, b.shape), "channels_first", activation_of("relu")).bind(
        a, b, y
    )
    for _ in range(3):
        y.fill(np.nan)
        run.run()
        assert np.array_equal(y, np.maximum(a * b, 0))
    none = np.empty((0, 3, 4, 4), np.float32)
    ElementwisePlan("add", (none.shape, none.shape), "channels_first").run((none, none), none.copy())
    UpsamplingPlan(none.shape, (2, 2), "channels_first").run((none,), np.empty((0, 3, 8, 8), np.float32))


@pytest.mark.parametrize(
    ("n", "c", "apart"), [(300, 16, 0), (300, 16, 3), (5, 9001, 0), (4097, 5, 2), (1, 33, 1), (0, 7, 0)]
)
@pytest.mark.parametrize("b_shape", ["one number", "a vector", "a number each", "a vector each"])
def test_vectors_by_a_vector(n, c, apart, b_shape):
    kind = {"one number": (1, 1), "a vector": (1, c), "a number each": (n, 1), "a vector each": (n, c)}
    x, b = values((n, c + apart)), values(kind[b_shape], 1)
    y = np.full_like(x, 7)
    plan = ElementwisePlan("multiply", ((n, c), b.shape), "channels_first", activation_of("relu"))
    plan.run((x[:, :c], b), y[:, :c])
    np.testing.assert_array_equal(y[:, :c], np.maximum(x[:, :c] * b, 0))
    assert (y[:, c:] == 7).all()


def test_what_is_not_served_is_told():
    a = values(SHAPE)
    for shapes, layout, told in (
        (((2, 37, 1, 7), (2, 37, 5, 1)), "channels_first", "none of the arrays"),
        ((SHAPE, (2, 1, 5, 1)), "channels_first", "too many dimensions"),
        ((SHAPE, (1, 1, 1, 1)), LAYOUTS[2], "one channel"),
        ((SHAPE, (7,)), "channels_first", "none of the arrays"),
    ):
        with pytest.raises(Unsupported, match=told):
            ElementwisePlan("add", shapes, layout)
    with pytest.raises(Unsupported, match="do not fill whole blocks"):
        ConcatenationPlan((SHAPE, SHAPE), LAYOUTS[2])
    joined = ConcatenationPlan((SHAPE, SHAPE), "channels_first")
    with pytest.raises(ValueError, match="y has shape"):
        joined.bind(a, a, a)
    with pytest.raises(ValueError, match="input 1 has shape"):
        joined.bind(a, a[:1], np.concatenate([a, a], 1))
    with pytest.raises(TypeError, match="a has dtype float64"):
        ElementwisePlan("identity", (SHAPE,), "channels_first").bind(a.astype(float), a)
