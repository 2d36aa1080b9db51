"""Lines filtered by plans that keep their filter: never one out of date, nor what transforms spread."""

import numpy as np
import pytest
import scipy.signal

import convalgos as ca
from convalgos.core import recent_filters
from convalgos.signal import line_plans, new_sizes

RNG = np.random.default_rng(26)
ONE = np.ones(1, "f4")


@pytest.fixture(params=["often", "seldom"])
def plans(request, monkeypatch):
    """Of any size, and of which every call asks: of sizes that have plans of their own, or never have."""

    monkeypatch.setattr(line_plans, "is_new", lambda *given: request.param == "seldom" and len(given) == 1)
    monkeypatch.setattr(line_plans, "is_new_with_such_taps", lambda *given: False)
    monkeypatch.setattr(line_plans, "PRODUCTS", 0)
    line_plans._known.clear()
    yield line_plans._known
    line_plans._known.clear()


def close(y, expected):
    assert y.shape == expected.shape and y.dtype == expected.dtype
    assert np.array_equal(np.isfinite(y), np.isfinite(expected))
    finite = np.isfinite(expected)
    bound = (4e-6 if y.dtype == "f4" else 1e-13) * abs(expected[finite]).max()
    assert abs(y[finite] - expected[finite]).max() <= bound


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("taps", [1, 2, 17, 90, 333, 700])
@pytest.mark.parametrize("shape", [(700,), (3, 701), (2, 1, 3000)])
def test_every_filter_is_the_one_of_its_call(plans, shape, taps, dtype):
    x = RNG.standard_normal(shape).astype(dtype)
    one = np.ones(1, dtype)
    h = RNG.standard_normal(taps).astype(dtype)
    for w in (h, h.copy(), h, h[::-1], h[::-1].copy(), h):
        close(ca.signal.lfilter(w, one, x), scipy.signal.lfilter(w, one, x))
    h[taps // 2] += 1  # in place
    expected = scipy.signal.lfilter(h, one, x)
    for _ in range(3):
        close(ca.signal.lfilter(h, one, x), expected)
    close(ca.signal.lfilter(h, one, x[..., ::-1]), scipy.signal.lfilter(h, one, x[..., ::-1]))
    assert taps == 1 or plans


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("taps", [2, 64, 90, 401])
def test_modes(plans, mode, taps):
    x, h = RNG.standard_normal((3, 1000)), RNG.standard_normal((1, taps))
    for _ in range(3):
        close(ca.signal.fftconvolve(x, h, mode, axes=1), scipy.signal.fftconvolve(x, h, mode, axes=1))
        close(ca.signal.convolve(x[0], h[0], mode), scipy.signal.convolve(x[0], h[0], mode))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 1, 500, 2047, 2999])
def test_what_is_not_finite_reaches_only_its_own_outputs(plans, at, value):
    x, h = RNG.standard_normal((4, 3000)).astype("f4"), RNG.standard_normal(300).astype("f4")
    x[2, at] = value
    expected = scipy.signal.lfilter(h, ONE, x)
    for _ in range(3):
        close(ca.signal.lfilter(h, ONE, x), expected)
        close(ca.signal.lfilter(h[:60], ONE, x), scipy.signal.lfilter(h[:60], ONE, x))
    h[7] = value
    close(ca.signal.lfilter(h, ONE, x), scipy.signal.lfilter(h, ONE, x))


@pytest.mark.parametrize("taps", [40, 300])
def test_a_result_is_written_where_it_is_asked_for(plans, taps):
    x, h = RNG.standard_normal((4, 3000)).astype("f4"), RNG.standard_normal(taps).astype("f4")
    expected = scipy.signal.lfilter(h, ONE, x)
    for _ in range(2):
        out = np.full(x.shape, np.nan, "f4")
        assert ca.signal.lfilter(h, ONE, x, out=out) is out
        close(out, expected)
        both = x.copy()
        ca.signal.lfilter(h, ONE, both, out=both)
        close(both, expected)
        wide = np.full((4, 6000), np.nan, "f4")
        ca.signal.lfilter(h, ONE, x, out=wide[:, ::2])
        close(wide[:, ::2], expected)
        assert np.isnan(wide[:, 1::2]).all()


def test_known_filters_are_kept_once_they_come_again():
    made = ca.plan(ca.ConvProblem((2, 1, 4000), (1, 1, 500), padding=((499, 0),)), algorithm="cpu.fft_lines")
    recent_filters.forget_recent()
    w = RNG.standard_normal((1, 1, 500)).astype("f4")
    assert recent_filters.known_filter(made, w, False) is None
    again = recent_filters.known_filter(made, w.copy(), False)
    assert again is not None and recent_filters.known_filter(made, w, False) is again
    w[0, 0, 3] += 1
    assert recent_filters.known_filter(made, w, False) is None
    now = recent_filters.known_filter(made, w, True)
    assert now is not again and recent_filters.known_filter(made, w, False) is now
    held = recent_filters.bytes_held()
    assert 0 < held < 1 << 20
    recent_filters.forget_recent()
    long = np.zeros((1, 1, recent_filters.LARGEST), "f4")
    assert recent_filters.known_filter(made, long, False) is None and recent_filters.bytes_held() == 0


def test_sizes_that_come_seldom_share_plans_until_they_come_often(monkeypatch):
    """Ever new lengths are filtered by some plans of few lengths, and one that comes again by its own."""
    monkeypatch.setattr(line_plans, "LONGER_AT_ONCE", 0)
    line_plans._known.clear()
    new_sizes._asked.clear()
    h = RNG.standard_normal(300)
    for n in range(4097, 4608, 7):
        x = RNG.standard_normal((2, n))
        for mode in ("full", "same", "valid"):
            close(ca.signal.fftconvolve(x, h[None], mode, 1), scipy.signal.fftconvolve(x, h[None], mode, 1))
    assert {key[0] for key in line_plans._known} == {(2, 4608)}
    x = RNG.standard_normal((2, 4300))
    for _ in range(new_sizes.ASKED):
        close(ca.signal.fftconvolve(x, h[None], "same", 1), scipy.signal.fftconvolve(x, h[None], "same", 1))
    assert {key[0] for key in line_plans._known} == {(2, 4608), x.shape}
    line_plans._known.clear()
