"""Pooling: maxima and means of windows, and their gradients, against their definition and torch."""

import contextlib
import itertools
import random
import threading
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import convalgos as ca
from convalgos.api import pool_kind
from convalgos.core import layouts
from convalgos.core.laid_arrays import as_laid
from convalgos.core.layouts import PLAIN, blocked_layout
from convalgos.core.machine import vector_bytes
from convalgos.core.pool_problem import DTYPES, PoolProblem
from convalgos.core.profiles import nominal
from convalgos.cpu.pooling import (
    carried_plan,
    found_plan,
    gradient_plan,
    phase_plan,
    places_plan,
    plan,
    separable_plan,
    unit_groups,
)
from convalgos.cpu.pooling import cost as pooling_cost
from convalgos.cpu.pooling.cost import pooling_seconds
from convalgos.cpu.pooling.found_plan import has_found_plan
from convalgos.cpu.pooling.maxima_plan import MaximaPlan
from convalgos.cpu.pooling.plan import PoolPlan
from convalgos.cpu.pooling.planar_forms import ROWS, SLICES, planar_form
from convalgos.cpu.pooling.runs import Computed
from convalgos.cpu.pooling.slice_plan import has_slices

RNG = np.random.default_rng(5)
TOLERANCE = {"float32": 2e-6, "float64": 1e-14, "float16": 1e-3, "bfloat16": 8e-3}
PROBLEMS = 60
OTHERS = {  # dtype -> layout, stride: each kernel takes half a second to compile
    "float64": ("channels_first", 2), "float16": ("channels_last", 1), "bfloat16": ("channels_first", 1),
    "int8": ("channels_first", 2), "uint8": ("channels_last", 1),
}  # fmt: skip


def of_dtype(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def drawn(shape, dtype):
    """Small whole numbers, some of them NaN and infinite where they can be."""
    x = RNG.integers(0 if dtype == "uint8" else -5, 6, shape).astype(of_dtype(dtype))
    if dtype not in ("int8", "uint8"):
        x[RNG.random(shape) < 0.02] = np.nan
        x[RNG.random(shape) < 0.02] = -np.inf
    return x


def by_definition(x, p):
    """(y, indices of maxima) of x (N, C, *spatial), in float64."""
    y, indices = np.zeros(p.y_shape), np.zeros(p.y_shape, np.int64)
    places = np.arange(np.prod(x.shape[2:])).reshape(x.shape[2:])
    for out in np.ndindex(*p.y_shape[2:]):
        cut, count = [], 1
        for o, size, k, s, (low, high), d in zip(
            out, x.shape[2:], p.kernel, p.stride, p.padding, p.dilation, strict=True
        ):
            taps = [o * s - low + i * d for i in range(k)]
            cut.append([t for t in taps if 0 <= t < size])
            count *= sum(t < size + high for t in taps) if p.count_padding else len(cut[-1])
        part = x[(slice(None), slice(None), *np.ix_(*cut))].astype(np.float64).reshape(*x.shape[:2], -1)
        at = (slice(None), slice(None), *out)
        if p.reduction == "mean":
            with np.errstate(invalid="ignore"):
                y[at] = part.sum(-1) / count
            continue
        which = part.argmax(-1)  # the first of equals, and the first NaN
        last_nan = part.shape[-1] - 1 - np.isnan(part)[..., ::-1].argmax(-1)
        which = np.where(np.isnan(part).any(-1), last_nan, which)
        y[at] = part.max(-1)
        indices[at] = places[np.ix_(*cut)].ravel()[which]
    return y, indices


def random_problem(seed):
    draw = random.Random(seed)
    ndim = draw.choice((1, 2, 2, 3))
    spatial = [draw.randint(1, {1: 90, 2: 24, 3: 8}[ndim]) for _ in range(ndim)]
    kernel = [min(n, draw.randint(1, 6)) for n in spatial] if draw.random() < 0.85 else spatial
    dilation = [draw.choice((1, 1, 2)) for _ in spatial]
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    padding = [(draw.randrange(e), draw.randrange(e)) if draw.random() < 0.5 else (0, 0) for e in extent]
    if any(n + sum(p) < e for n, p, e in zip(spatial, padding, extent, strict=True)):
        return random_problem(seed + 1000)
    reduction = draw.choice(("max", "mean"))
    return PoolProblem.of(
        (draw.randint(1, 3), draw.choice((1, 3, 16, 21, 40)), *spatial), kernel,
        stride=[draw.choice((1, 2, 2, 3, 5, 9)) for _ in spatial], padding=padding, dilation=dilation,
        ceil_mode=draw.random() < 0.4, reduction=reduction, count_padding=draw.random() < 0.5,
        layout=draw.choice(("channels_first", "channels_last")),
    )  # fmt: skip


def arguments_of(p):
    given = {
        "stride": p.stride, "padding": p.padding, "dilation": p.dilation, "ceil_mode": p.ceil_mode,
        "layout": p.layout,
    }  # fmt: skip
    return given if p.reduction == "max" else given | {"count_padding": p.count_padding}


def laid(array, p):
    return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if p.layout == "channels_last" else array


@pytest.mark.parametrize("seed", range(PROBLEMS))
def test_is_its_definition(seed):
    """Every layout, dimension and border: y, where maxima lie, and both gradients."""
    check(random_problem(seed))


@pytest.mark.parametrize(("kernel", "stride"), [((3, 3), 2), ((2, 4), (1, 2)), ((2, 2), 2), ((4, 3), (5, 1))])
def test_wide_maps(kernel, stride):
    """Bands of rows whose windows reach into the next one, and places that are read where they are given."""
    first, last = PLAIN
    for layout, reduction in ((first, "max"), (last, "max"), (first, "mean")):
        of = {"stride": stride, "padding": 1, "reduction": reduction, "layout": layout}
        check(PoolProblem.of((1, 19, 40, 70), kernel, **of))
    check(PoolProblem.of((1, 3, 41, 141), kernel, stride=kernel))  # side by side
    check(PoolProblem.of((1, 3, 60, 41), (5, 6), stride=stride, padding=2))  # of few planes


@pytest.mark.parametrize("layout", PLAIN)
def test_windows_of_slices(layout, monkeypatch):
    """Found within slices first, in groups of several sizes; of slices apart; of one slice and padding."""
    monkeypatch.setattr(unit_groups, "GROUP_BYTES", 1 << 14)
    monkeypatch.setattr(found_plan, "has_carried_plan", lambda problem: False)
    for shape, dilation, stride in (((5, 3, 9, 13, 11), 2, 1), ((7, 17, 8, 9, 9), 1, (1, 2, 1))):
        p = PoolProblem.of(shape, 5, stride=stride, padding=2, dilation=dilation, layout=layout)
        assert has_slices(p) and has_found_plan(p)
        check(p)
    for shape, kernel in (((2, 17, 5, 9, 8), (1, 3, 2)), ((3, 17, 15, 16), 7)):
        check(PoolProblem.of(shape, kernel, stride=1, layout=layout))
    for reduction in ("max", "mean"):
        of = {"padding": (1, 0, 0), "stride": (1, 2, 1), "reduction": reduction, "layout": layout}
        check(PoolProblem.of((2, 3, 1, 10, 11), (2, 3, 3), **of))


@pytest.mark.parametrize(("dtype", "reduction"), [("float32", "max"), ("bfloat16", "mean"), ("int8", "max")])
def test_windows_over_slices_first(dtype, reduction, monkeypatch):
    """Of rows of some vectors, or tall windows; with padding, dilation and bands of both strides."""
    ran = []
    kernel = plan.pool_slices
    monkeypatch.setattr(plan, "pool_slices", lambda *kinds: ran.append(kinds) or kernel(*kinds))
    for shape, size, more in (
        ((2, 3, 7, 9, 18), 3, {"padding": 1, "stride": 1}),
        ((1, 2, 8, 7, 22), (3, 2, 5), {"padding": (1, 0, 2), "stride": (2, 1, 3)}),
        ((1, 1, 9, 10, 70), (4, 5, 2), {"stride": (3, 2, 1), "dilation": (1, 2, 1), "ceil_mode": True}),
    ):
        ran.clear()
        p = PoolProblem.of(shape, size, reduction=reduction, dtype=dtype, **more)
        x, y = drawn(p.x_shape, dtype), np.empty(p.y_shape, of_dtype(dtype))
        PoolPlan(p).run(as_laid(x), as_laid(y))
        assert ran
        bound = TOLERANCE.get(dtype, 0)
        expected = by_definition(x, p)[0]
        np.testing.assert_allclose(y.astype("f8"), expected, rtol=bound, atol=bound)


@pytest.mark.skipif(vector_bytes() != 64, reason="the widths are of vectors of 64 bytes")
def test_gradients_where_units_are_narrow(monkeypatch):
    """Other plans are taken than where they are wide, and give the same."""
    for shape, size, stride, padding, wide, narrow in (
        ((2, 24, 18, 18), 7, 1, 3, phase_plan.PhasePlan, carried_plan.CarriedPlan),  # narrow rows
        ((1, 40, 14, 20), 5, 2, 2, phase_plan.PhasePlan, carried_plan.CarriedPlan),
        ((1, 40, 26, 28), 3, 1, 1, phase_plan.PhasePlan, None),  # many planes, in vectors
        ((1, 9, 26, 28), 3, 1, 1, phase_plan.PhasePlan, phase_plan.PhasePlan),
    ):
        p = PoolProblem.of(shape, size, stride=stride, padding=padding)
        x = drawn(shape, "float32")
        want, places = by_definition(x, p)
        dy = RNG.integers(-4, 5, want.shape).astype(np.float32)
        expected = np.zeros((*shape[:2], int(np.prod(shape[2:]))))
        for at in np.ndindex(*p.y_shape):
            expected[at[0], at[1], places[at]] += float(dy[at])
        for are_narrow, kind in ((False, wide), (True, narrow)):
            for module in (phase_plan, carried_plan):
                monkeypatch.setattr(module, "units_are_narrow", lambda are=are_narrow: are)
            dx = np.full(shape, np.nan, np.float32)
            if gradient_plan.has_gradient_plan(p):
                assert kind is None
                gradient_plan.GradientPlan(p).run(dy, dx, x)
            else:
                made = found_plan.gradient_of_maxima(p)
                assert type(made) is kind
                made.gradient(x, dy, dx)
            np.testing.assert_array_equal(dx, expected.reshape(shape))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("reduction", ["max", "mean"])
def test_separated_gradients(reduction, dtype, monkeypatch):
    """By columns and rows of windows: few channels and blocks of them, borders, steps wider than windows."""
    monkeypatch.setattr(gradient_plan, "separated_seconds", lambda problem: 0.0)
    monkeypatch.setattr(gradient_plan, "has_carried_plan", lambda problem: False)
    monkeypatch.setattr(separable_plan, "SCRATCH", 1 / 64)
    of = {"layout": "channels_last", "reduction": reduction, "dtype": dtype, "count_padding": False}
    for shape, kernel, stride, padding, ceil in (
        ((2, 3, 23, 31), (5, 7), (2, 3), (2, 3), False),
        ((1, 37, 12, 90), (3, 4), 1, ((0, 2), (3, 1)), True),
        ((3, 16, 9, 14), (2, 3), (4, 5), ((1, 0), (2, 0)), True),
        ((1, 130, 61, 20), 7, (3, 2), 0, False),
        ((2, 5, 40), 4, 2, 1, True),
    ):
        p = PoolProblem.of(shape, kernel, stride=stride, padding=padding, ceil_mode=ceil, **of)
        assert gradient_plan.has_gradient_plan(p)
        check(p)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("layout", PLAIN)
def test_gradients_of_carried_places(layout, dtype, monkeypatch):
    """Axis by axis: of all dimensions, few channels and blocks of them, bands, borders and dilation."""
    monkeypatch.setattr(pool_kind, "has_gradient_plan", lambda problem: False)
    monkeypatch.setattr(pool_kind, "gradient_of_maxima", carried_plan.CarriedPlan)
    for shape, kernel, stride, padding, dilation, ceil in (
        ((1, 3, 13, 11, 9), (3, 2, 4), (2, 1, 3), (1, 0, 2), 1, True),
        ((2, 19, 9, 10, 8), 3, 1, ((0, 1), (1, 0), (1, 1)), (2, 1, 2), False),
        ((1, 130, 15, 6, 7), (4, 3, 2), (1, 5, 2), (1, 0, 1), (2, 1, 1), True),
        ((3, 37, 12, 21), (5, 3), (3, 2), (2, 1), 1, False),
        ((2, 5, 31, 17), (2, 4), (4, 5), 0, (3, 1), True),
        ((2, 7, 33), 4, 2, 1, 2, False),
    ):
        of = {"padding": padding, "dilation": dilation, "ceil_mode": ceil, "layout": layout, "dtype": dtype}
        check(PoolProblem.of(shape, kernel, stride=stride, **of))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_maxima_in_phases(dtype):
    """Of strides that shuffles take apart, and one that they do not; of columns and then rows."""
    for kernel, stride, padding in (((7, 6), (2, 3), 3), ((5, 8), (1, 4), (2, 4)), ((2, 9), (3, 9), 1)):
        check(PoolProblem.of((2, 3, 33, 59), kernel, stride=stride, padding=padding, dtype=dtype))


@pytest.mark.parametrize("layout", PLAIN)
def test_means_of_slices(layout):
    """dy summed over slices first: blocks of channels, bands of rows, slices of several divisors or none."""
    for shape, kernel, stride in (
        ((1, 70, 3, 30, 11), (2, 3, 3), (1, 2, 1)),
        ((2, 17, 7, 9, 14), 3, 2),
        ((1, 5, 9, 6, 70), (2, 2, 4), 4),
    ):
        for padded in (False, True):
            of = {"stride": stride, "padding": 1, "ceil_mode": True, "layout": layout}
            check(PoolProblem.of(shape, kernel, reduction="mean", count_padding=padded, **of))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", PLAIN)
def test_gradients_that_are_rounded(layout, dtype, monkeypatch):
    """Summed in scratch: of small planes, several at a time; in bands; maps that are converted as a whole."""
    of = {"stride": 1, "padding": 1, "layout": layout, "dtype": dtype}
    check(PoolProblem.of((3, 33, 5, 6), 3, **of))
    check(PoolProblem.of((1, 3, 41, 37), (5, 4), **of))
    monkeypatch.setattr(places_plan, "BAND_SUMS", 1 << 13)
    monkeypatch.setattr(phase_plan, "MOST_SUMS", 1 << 10)
    check(PoolProblem.of((1, 3, 71, 37), (3, 2), **of))
    monkeypatch.setattr(places_plan, "AGAIN", 0)
    check(PoolProblem.of((1, 2, 73, 37), (3, 2), **of))


@pytest.mark.parametrize("kernel", [2, 5])
@pytest.mark.parametrize("layout", PLAIN)
def test_places_outside_the_map_are_left_out(layout, kernel):
    """Nothing is written where no element of dx lies."""
    p = PoolProblem.of((3, 17, 9, 11), kernel, layout=layout)
    dy, x = np.ones(p.laid(p.y_shape), np.float32), np.zeros(p.laid(p.x_shape), np.float32)
    around = np.full(x.size + 4096, 77, np.float32)
    out = around[2048:-2048].reshape(x.shape)
    indices = RNG.choice(np.array([-1, 99, 500, 10**12]), dy.shape)
    ca.max_pool_backward(dy, x, kernel, layout=layout, indices=indices, out=out)
    assert (out == 0).all() and (around[:2048] == 77).all() and (around[-2048:] == 77).all()


@pytest.mark.parametrize("reduction", ["max", "mean"])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_a_window_may_reach_beyond_a_smaller_map(layout, reduction):
    """With ceil_mode, as torch's: one that begins in x."""
    for spatial, padding in (((2, 2), 0), ((1, 3), ((1, 0), (0, 0))), ((2, 2), ((0, 0), (0, 1)))):
        p = PoolProblem.of(
            (2, 21, *spatial), (3, 4), stride=(2, 3), padding=padding, ceil_mode=True, reduction=reduction,
            count_padding=False, layout=layout,
        )  # fmt: skip
        assert p.y_shape[2:] == (1, 1)
        check(p)


@pytest.mark.parametrize("reduction", ["max", "mean"])
@pytest.mark.parametrize("dtype", OTHERS)
def test_other_types(dtype, reduction):
    layout, stride = OTHERS[dtype]
    if dtype in DTYPES[reduction]:
        check(
            PoolProblem.of(
                (2, 70, 9, 40),
                (3, 2),
                stride=stride,
                padding=1,
                reduction=reduction,
                layout=layout,
                dtype=dtype,
            )
        )


@pytest.mark.parametrize("reduction", ["max", "mean"])
def test_blocks_of_channels(reduction):
    """The problems above, where lanes beyond C hold NaN; and windows over whole maps into any layout."""
    own = blocked_layout(vector_bytes() // 4)
    drawn_ones = [random_problem(seed) for seed in range(24)]
    for p in [replace(p, reduction=reduction, layout=own, y_layout=own) for p in drawn_ones]:
        check_blocks(p)
    for channels, y_layout in itertools.product((16, 21, 40), (own, *PLAIN)):
        check_blocks(PoolProblem.of((2, channels, 3, 7), reduction=reduction, layout=own, y_layout=y_layout))
    if reduction == "max":
        check_blocks(PoolProblem.of((2, 20, 9, 14), 3, stride=2, padding=1, layout=own, dtype="bfloat16"))
        with pytest.raises(ca.Unsupported, match="places of maxima are found in"):
            MaximaPlan(PoolProblem.of((1, 16, 4, 4), 2, layout=own))
    with pytest.raises(ValueError, match="may be where y has one pixel"):
        PoolProblem.of((1, 16, 4, 4), 2, layout=own, y_layout="channels_last")


@pytest.mark.parametrize("dtype", DTYPES["max"])
def test_maxima_in_blocks_of_rows_of_any_length(dtype):
    """Windows that share columns, and others: inside are none, fewer than are reduced at a time, and more."""
    own = blocked_layout(vector_bytes() // 4)
    for width, (stride, padding, dilation) in itertools.product(
        (1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 19), ((1, 1, 1), (1, 0, 1), (2, 1, 1), (1, 2, 2))
    ):
        if width + 2 * padding > 2 * dilation:
            windows = {"stride": stride, "padding": padding, "dilation": dilation}
            check_blocks(PoolProblem.of((1, 21, 7, width), 3, **windows, layout=own, dtype=dtype))


def check_blocks(p):
    """A plan in blocks, on memory of which the lanes beyond C hold NaN."""
    x = drawn(p.x_shape, p.dtype)
    want, _ = by_definition(x, p)
    given = np.ascontiguousarray(layouts.laid(x, p.layout))
    given[layouts.laid(np.ones(x.shape), p.layout) == 0] = 99 if p.itemsize == 1 else np.nan
    shape = p.array_shapes[1]
    around = np.full(np.prod(shape) + 64, 77, x.dtype)
    y = around[32:-32].reshape(shape)
    PoolPlan(p).run(given, y)
    got = layouts.to_logical(y, p.y_layout, p.x_shape[1]).astype(np.float64)
    tolerance = 0 if p.reduction == "max" else TOLERANCE[p.dtype]
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=6 * tolerance, err_msg=str(p))
    assert (around[:32] == 77).all() and (around[-32:] == 77).all(), "wrote outside"
    apart = np.full((shape[0], 2, *shape[1:]), 77, x.dtype)
    PoolPlan(p).bind(given, apart[:, 1]).run()
    assert np.array_equal(apart[:, 1], y, equal_nan=True) and (apart[:, 0] == 77).all()


def test_predicted_seconds_grow_with_maps_and_windows():
    machine = nominal(2)

    def seconds(shape, kernel, **changes):
        return pooling_seconds(PoolProblem.of(shape, kernel, **changes), machine)

    for layout in (*PLAIN, "blocked16"):
        one = seconds((1, 64, 112, 112), 3, stride=2, layout=layout)
        assert 1e-5 < one < seconds((8, 64, 112, 112), 3, stride=2, layout=layout) / 4
        assert one < seconds((1, 64, 112, 112), 7, stride=1, layout=layout)
        assert 0 < seconds((1, 64, 7, 7), None, layout=layout, reduction="mean") < one


def test_predicted_seconds_are_those_of_the_order_in_which_windows_are_reduced(monkeypatch):
    machine, p = nominal(2), PoolProblem.of((256, 1, 12, 12, 12), 3, stride=1, padding=1)
    form = planar_form(p, Computed(p).kinds)
    assert form.order == SLICES
    found = pooling_seconds(p, machine)
    more = pooling_seconds(PoolProblem.of((512, 1, 12, 12, 12), 3, stride=1, padding=1), machine)
    assert 1.5 * found < more < 2.5 * found
    monkeypatch.setattr(pooling_cost, "planar_form", lambda *given: form._replace(order=ROWS))
    assert found < 0.8 * pooling_seconds(p, machine)


def check(p, place=lambda array: array, fetch=lambda array: array):
    """On the arrays that `place` makes of NumPy's, and `fetch` turns back."""
    x = drawn(p.x_shape, p.dtype)
    want, places = by_definition(x, p)
    given = arguments_of(p)
    out = place(laid(np.full(p.y_shape, 0xFF if p.itemsize == 1 else np.nan).astype(x.dtype), p))
    is_max = p.reduction == "max"
    y = (ca.max_pool if is_max else ca.avg_pool)(place(laid(x, p)), p.kernel, out=out, **given)
    assert y is out
    y = fetch(y)
    tolerance = 0 if is_max else TOLERANCE[p.dtype]
    np.testing.assert_allclose(y.astype(np.float64), laid(want, p), rtol=tolerance, atol=6 * tolerance)
    if is_max:
        known, indices = ca.max_pool(place(laid(x, p)), p.kernel, return_indices=True, **given)
        np.testing.assert_array_equal(fetch(known).astype(float), y.astype(float))
        np.testing.assert_array_equal(fetch(indices), laid(places, p))
    if p.itemsize == 1:
        return
    dy = RNG.integers(-4, 5, p.y_shape).astype(x.dtype)
    dx = np.zeros((*p.x_shape[:2], int(np.prod(p.x_shape[2:]))))
    if is_max:
        for at in np.ndindex(*p.y_shape):
            dx[at[0], at[1], places[at]] += float(dy[at])
        got = ca.max_pool_backward(place(laid(dy, p)), place(laid(x, p)), p.kernel, **given)
        out = place(laid(np.full(p.x_shape, np.nan).astype(x.dtype), p))
        known = {"indices": indices, "out": out}
        again = ca.max_pool_backward(place(laid(dy, p)), place(laid(x, p)), p.kernel, **given, **known)
        assert again is out
        np.testing.assert_array_equal(fetch(out), fetch(got))
    else:  # of a linear function: its transpose, element by element of x
        ones = np.eye(dx.shape[2]).reshape(dx.shape[2], 1, *p.x_shape[2:])
        of_one = PoolProblem.of(
            ones.shape, p.kernel, **arguments_of(p) | {"layout": "channels_first"}, reduction="mean"
        )
        rows, _ = by_definition(ones, of_one)
        dx = np.einsum(
            "ncy,xy->ncx", dy.reshape(*p.x_shape[:2], -1).astype(float), rows.reshape(len(rows), -1)
        )
        got = ca.avg_pool_backward(place(laid(dy, p)), laid(x, p).shape, p.kernel, **given)
    largest = np.abs(dx).max(initial=1)
    dx = laid(dx.reshape(p.x_shape), p)
    np.testing.assert_allclose(
        fetch(got).astype(np.float64), dx, rtol=0, atol=4 * TOLERANCE[p.dtype] * largest
    )


def test_as_torch():
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    x = torch.randn(2, 20, 15, 14)
    last = x.to(memory_format=torch.channels_last)
    for given in (x, last):
        y, indices = ca.max_pool(given, 3, stride=2, padding=1, ceil_mode=True, return_indices=True)
        want = functional.max_pool2d(given, 3, 2, 1, ceil_mode=True, return_indices=True)
        assert torch.equal(y, want[0]) and torch.equal(indices, want[1])
        assert y.stride() == want[0].stride()  # channels stay where they lay
        y = ca.avg_pool(given, 3, stride=2, padding=1, ceil_mode=True)
        torch.testing.assert_close(y, functional.avg_pool2d(given, 3, 2, 1, ceil_mode=True))
    torch.testing.assert_close(ca.avg_pool(x), functional.adaptive_avg_pool2d(x, 1))


def test_many_threads():
    x = RNG.standard_normal((4, 64, 56, 56)).astype(np.float32)
    want = ca.max_pool(x, 3, stride=2, padding=1)
    results = [None] * 6

    def work(i):
        results[i] = all(np.array_equal(ca.max_pool(x, 3, stride=2, padding=1), want) for _ in range(5))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 6


def test_odd_arrays():
    """Of any strides and byte order, read-only, empty; out anywhere, also over x."""
    x = RNG.standard_normal((2, 5, 9, 12)).astype(np.float32)
    want = ca.max_pool(x, 2)
    assert np.array_equal(
        ca.max_pool(x[:, ::-1, :, ::2][:, ::-1], (2, 1)), ca.max_pool(x[..., ::2].copy(), (2, 1))
    )
    assert np.array_equal(ca.max_pool(x.astype(">f4"), 2), want)
    x.flags.writeable = False
    out = np.zeros((2, 5, 4, 12), np.float32)[..., ::2]
    assert ca.max_pool(x, 2, out=out) is out and np.array_equal(out, want)
    x = x.copy()
    assert np.array_equal(ca.max_pool(x, 1, out=x), x)
    same = ca.max_pool(x, 3, stride=1, padding=1)
    assert np.array_equal(ca.max_pool(x, 3, stride=1, padding="same", out=x), same)
    for shape in ((0, 3, 4, 4), (2, 0, 4, 4)):
        assert ca.max_pool(np.zeros(shape, "f4"), 2).shape == (*shape[:2], 2, 2)
        assert ca.avg_pool_backward(np.zeros((*shape[:2], 2, 2), "f4"), shape, 2).shape == shape


@pytest.mark.parametrize(
    ("error", "told", "call"),
    [
        (ValueError, "padding=2 must be less than a window", lambda x: ca.max_pool(x, 2, padding=2)),
        (ValueError, "kernel=9 with dilation=1 is 9 long", lambda x: ca.max_pool(x, 9)),
        (ValueError, r"kernel=\(2, 2, 2\) must be one integer or 2", lambda x: ca.max_pool(x, (2, 2, 2))),
        (ValueError, "stride=0 must be an integer of at least 1", lambda x: ca.avg_pool(x, 2, stride=0)),
        (ValueError, "layout='nchw' must be one of", lambda x: ca.avg_pool(x, 2, layout="nchw")),
        (ValueError, r"x has shape \(6, 6\)", lambda x: ca.avg_pool(x[0, 0], 2)),
        (TypeError, "x has dtype int8; a mean is taken of", lambda x: ca.avg_pool(x.astype(np.int8), 2)),
        (TypeError, "x has dtype int64; a max is taken of", lambda x: ca.max_pool(x.astype(np.int64), 2)),
        (ValueError, r"out has shape \(1, 1\)", lambda x: ca.max_pool(x, 2, out=np.zeros((1, 1), "f4"))),
        (ValueError, r"dy has shape \(1, 1\)", lambda x: ca.max_pool_backward(np.zeros((1, 1)), x, 2)),
    ],
)  # fmt: skip
def test_refusals(error, told, call):
    with pytest.raises(error, match=told):
        call(np.zeros((1, 2, 6, 6), np.float32))


def test_shapes_are_torchs():
    """Output sizes, windows that begin behind x left out."""
    torch = pytest.importorskip("torch")
    for n, k, s, low, up in itertools.product(range(1, 12), (2, 3), (1, 2, 3), (0, 1), (False, True)):
        want = None
        with contextlib.suppress(RuntimeError):
            want = torch.nn.functional.max_pool1d(torch.zeros(1, 1, n), k, s, low, ceil_mode=up).shape
        if want is None:
            with pytest.raises(ValueError, match="long, but x has"):
                PoolProblem.of((1, 1, n), k, stride=s, padding=low, ceil_mode=up)
            continue
        assert PoolProblem.of((1, 1, n), k, stride=s, padding=low, ceil_mode=up).y_shape == tuple(want)


@pytest.mark.parametrize("pads", [0, 1])  # without and with kernels of its own
def test_the_gradient_of_a_mean_keeps_all_digits_in_another_byte_order(pads):
    dy = RNG.standard_normal((1, 3, 4, 4))
    how = {"kernel": 3, "stride": 2, "padding": pads, "dilation": 2}
    shape = (1, 3, 11 - 2 * pads, 11 - 2 * pads)
    given = ca.avg_pool_backward(dy, shape, **how)
    assert np.array_equal(ca.avg_pool_backward(dy.astype(">f8"), shape, **how), given)


@pytest.mark.parametrize("pixels", [(14, 11), (7, 11)])  # the windows along both are 7, as the channels are
def test_the_gradient_of_a_mean_takes_dy_of_any_strides_with_channels_last(pixels):
    how = {"kernel": (5, 4), "stride": (3, 1), "dilation": (3, 1), "ceil_mode": True}
    how |= {"padding": (((8, 8), (3, 3)) if pixels[0] == 14 else ((12, 12), (3, 3)))}
    how["layout"] = "channels_last"
    shape = (1, *pixels, 7)
    dy = RNG.standard_normal(ca.avg_pool(np.zeros(shape, "f4"), **how).shape).astype("f4")
    strided = np.moveaxis(np.moveaxis(dy, 1, -1).copy(), -1, 1)
    want = ca.avg_pool_backward(dy, shape, **how)
    np.testing.assert_array_equal(ca.avg_pool_backward(strided, shape, **how), want)


@pytest.mark.parametrize("layout", PLAIN)
@pytest.mark.parametrize(
    ("shape", "kernel", "padding", "dilation"),
    [
        ((2, 3, 6, 2), 2, 1, (1, 3)),
        ((2, 3, 1, 9), 2, 1, (2, 1)),
        ((1, 2, 3), 2, 2, 6),
        ((1, 1, 4, 2, 4), 2, 1, 3),
    ],
)
def test_a_window_without_elements_has_its_maximum_nowhere(shape, kernel, padding, dilation, layout):
    how = {"kernel": kernel, "stride": 1, "padding": padding, "dilation": dilation, "layout": layout}
    p = PoolProblem.of(shape, kernel, stride=1, padding=padding, dilation=dilation)
    x = RNG.permutation(int(np.prod(shape))).reshape(shape).astype("f4")
    met = np.ones(p.y_shape, bool)
    for axis, windows in enumerate(p.windows, 2):
        met &= (windows.taps > 0).reshape(-1, *(1,) * (len(shape) - 1 - axis))
    assert not met.all()
    given = layouts.laid(x, layout).copy()
    y, places = ca.max_pool(given, return_indices=True, **how)
    first, places = (layouts.to_logical(a, layout, shape[1]) for a in (y, places))
    assert np.array_equal(first == -np.inf, ~met) and np.array_equal(places == -1, ~met)
    dy = RNG.integers(1, 5, y.shape).astype("f4")
    expected = np.zeros((*shape[:2], int(np.prod(shape[2:]))))
    of_windows = layouts.to_logical(dy, layout, shape[1])
    for at in zip(*np.nonzero(met), strict=True):
        expected[(*at[:2], places[at])] += of_windows[at]
    for known in ({}, {"indices": layouts.laid(places, layout).copy()}):
        dx = ca.max_pool_backward(dy, given, **known, **how)
        assert np.array_equal(dx, layouts.laid(expected.reshape(shape), layout))
