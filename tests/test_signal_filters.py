"""FIR filters, resampling and 2-D convolutions of `convalgos.signal` against SciPy's."""

import itertools
import warnings

import numpy as np
import pytest
import scipy.signal

import convalgos as ca
from convalgos.signal import (
    extensions,
    images,
    lines,
    resampling,
    short_windows,
    small_calls,
    small_images,
    small_resampling,
    small_separable,
)

pytestmark = pytest.mark.usefixtures("sizes_that_come_often")

TOLERANCES = {"f": 2e-5, "F": 2e-5}  # relative to the largest answer; 1e-11 for all others
FILTERS = ("f4", "f8", "c8", "c16")


@pytest.fixture(params=["plans", "windows", "sums"])
def planned(monkeypatch, request):
    """Nothing is left to SciPy; by plans, by short arrays' windows, or by sums along axes."""
    if request.param != "sums":
        for module, name in ((lines, "TAPS"), (lines, "SUMS"), (images, "FEW_TAPS")):
            monkeypatch.setattr(module, name, 0)
    if request.param == "plans":
        for module, name in ((lines, "PRODUCTS"), (short_windows, "GATHERED"), (extensions, "FEW")):
            monkeypatch.setattr(module, name, 0)
    for module, name in (
        (small_images, "TINY"),
        (small_separable, "FEW"),
        (small_resampling, "BYTES_OF_RATES"),
        (resampling, "FEW_COMPLEX"),
    ):
        monkeypatch.setattr(module, name, 0)
    small_calls.known_calls.clear()
    theirs = {name: getattr(scipy.signal, name) for name in ca.signal.__all__}

    def refuse(*arguments, **options):
        raise AssertionError("went to SciPy")

    for name in set(theirs) - {"correlation_lags"}:
        monkeypatch.setattr(scipy.signal, name, refuse)
    return theirs


def array(shape, dtype, seed=0):
    rng, dtype = np.random.default_rng(seed), np.dtype(dtype)
    if dtype.kind in "biu":
        return rng.integers(0, 2 if dtype.kind == "b" else 99, shape).astype(dtype)
    values = rng.standard_normal(shape)
    return (values + 1j * rng.standard_normal(shape) if dtype.kind == "c" else values).astype(dtype)


def check(ours, theirs, *told):
    """The same shapes, types and values, one after the other; answers may be tuples."""
    if isinstance(theirs, tuple):
        for one, two in zip(ours, theirs, strict=True):
            check(one, two, *told)
        return
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), told
    if theirs.dtype.kind in "biuO":
        assert np.array_equal(ours, theirs), told
        return
    largest = max(1, np.abs(theirs).max(initial=0))
    error = np.abs(ours - theirs).max(initial=0) / largest
    assert error <= TOLERANCES.get(theirs.dtype.char, 1e-11), (error, *told)


def agree(theirs, name, *arguments, **options):
    check(getattr(ca.signal, name)(*arguments, **options), theirs[name](*arguments, **options), name, options)


# --- filters ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FILTERS)
@pytest.mark.parametrize(
    ("shape", "axis"), [((50,), 0), ((3, 41), -1), ((37, 2, 2), 0), ((2, 5, 3), 1)], ids=str
)
def test_lfilter(planned, dtype, shape, axis):
    x = array(shape, dtype)
    for taps in (1, 2, 7, 23):
        b, a = array(taps, "f4", 1), np.array([2], "f4")
        agree(planned, "lfilter", b, a, x, axis)
        held = list(shape)
        held[axis] = taps - 1
        agree(planned, "lfilter", b, a, x, axis, zi=array(held, dtype, 2))
        if len(shape) > 1:
            held[axis - 1] = 1
            agree(planned, "lfilter", b, a, x, axis, zi=array(held, "f8", 3))
    agree(planned, "lfilter", array(5, "c16"), 1.0, x, axis)


def test_a_filter_goes_on_where_it_stopped():
    x, b = array((4, 9000), "f8"), array(31, "f8", 1)
    first, state = ca.signal.lfilter(b, 1.0, x[:, :5000], zi=np.zeros((4, 30)))
    second, _ = ca.signal.lfilter(b, 1.0, x[:, 5000:], zi=state)
    whole = ca.signal.lfilter(b, 1.0, x)
    assert np.abs(np.concatenate([first, second], -1) - whole).max() < 1e-12 * np.abs(whole).max()


@pytest.mark.parametrize("padtype", ["odd", "even", "constant", None])
def test_filtfilt(planned, padtype):
    for dtype in (*FILTERS, "i4", "u1"):
        x = array((3, 43), dtype)
        for taps in (2, 5, 12):
            b = array(taps, "f8" if dtype in ("i4", "u1") else dtype, 1)
            agree(
                planned,
                "filtfilt",
                b,
                [1.5] if dtype in ("f8", "c16") else np.ones(1, b.dtype),
                x,
                -1,
                padtype,
            )
            agree(planned, "filtfilt", b, np.ones(1, b.dtype), x.T, 0, padtype=padtype, padlen=4)


@pytest.mark.parametrize("mode", ["interp", "mirror", "constant", "nearest", "wrap"])
def test_savgol_filter(planned, mode):
    for dtype in ("f4", "f8", "i2"):
        x = array((2, 31, 2), dtype)
        for window, order, deriv in ((5, 2, 0), (9, 4, 1), (8, 3, 0), (1, 0, 0), (31, 5, 2), (7, 2, 3)):
            arguments = window, order, deriv, 0.5, 1, mode, 2.5
            ours = ca.signal.savgol_filter(x, *arguments)
            theirs = planned["savgol_filter"](x.astype("f8"), *arguments)  # whose ends in float32 are coarser
            check(ours, theirs.astype(ours.dtype), arguments)
            assert ours.dtype == ("f4" if dtype == "f4" else "f8")
    with pytest.warns(np.exceptions.ComplexWarning):
        ours = ca.signal.savgol_filter(x + 1j, *arguments)
    check(ours, theirs, arguments)


@pytest.mark.parametrize("mode", ["mirror", "nearest", "wrap", "constant"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_windows_longer_than_lines(mode, axis):
    """Of one sample to as many as a matrix takes, and more; and of what is not finite."""
    for n, window in ((1, 1), (1, 4), (2, 3), (5, 5), (9, 40), (64, 70), (65, 90)):
        x = np.moveaxis(array((7, 3, n), "f8"), -1, axis)
        for signal, cval in itertools.product((x, x.astype("f4"), x[::-1]), (0.0, 2.5)):
            arguments = window, 0 if window < 3 else 2, 0, 1.0, axis, mode, cval
            ours = ca.signal.savgol_filter(signal, *arguments)
            check(
                ours,
                scipy.signal.savgol_filter(signal.astype("f8"), *arguments).astype(ours.dtype),
                arguments,
            )
            assert ours.dtype == signal.dtype and ours.flags.c_contiguous
        bad = x.copy()
        bad[(0,) * 3] = np.nan
        ours, theirs = (m.savgol_filter(bad, *arguments) for m in (ca.signal, scipy.signal))
        assert np.array_equal(np.isnan(ours), np.isnan(theirs))


# --- resampling ------------------------------------------------------------------------------


RATES = [(1, 1), (2, 1), (1, 3), (3, 2), (4, 6), (7, 5), (5, 11)]


@pytest.mark.parametrize("mode", resampling.MODES)
def test_upfirdn_beyond_the_ends(planned, mode):
    for up, down in RATES:
        for taps in (1, 4, 17):
            cval = {"cval": 1.5} if mode == "constant" else {}
            agree(planned, "upfirdn", array(taps, "f8", 1), array((2, 40), "f8"), up, down, mode=mode, **cval)
    # signals that are shorter than the filter, and one whose end is read before its begin only
    for n, taps, up, down in ((5, 90, 3, 2), (2, 33, 1, 3), (8, 5, 4, 9)):
        if n > taps or mode != "antireflect":
            agree(planned, "upfirdn", array(taps, "f8", 1), array((2, n), "f8"), up, down, mode=mode, **cval)


@pytest.mark.parametrize("dtype", FILTERS)
def test_upfirdn_of_every_type(planned, dtype):
    for up, down in RATES:
        for axis, of_taps in ((0, dtype), (1, "f4"), (-1, "c8")):
            agree(planned, "upfirdn", array(13, of_taps, 1), array((21, 19), dtype), up, down, axis)
    agree(planned, "upfirdn", [1, 2, 3], array(30, "i2"), 2, 3)


@pytest.mark.parametrize("padtype", ["constant", "line", "symmetric", "mean", "median", "minimum", "maximum"])
def test_resample_poly(planned, padtype, monkeypatch):
    monkeypatch.setattr(resampling, "upfirdn", ca.signal.upfirdn)
    for dtype in ("f4", "f8", "i4") + (("c16",) if padtype in ("constant", "mean") else ()):
        x = array((600, 2), dtype)
        for up, down in ((3, 2), (10, 25), (7, 9)):
            agree(planned, "resample_poly", x, up, down, padtype=padtype)
        agree(planned, "resample_poly", x.T, 4, 3, axis=1, window=array(51, "f8", 1), padtype=padtype)


# --- images ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["convolve2d", "correlate2d"])
@pytest.mark.parametrize("boundary", ["fill", "wrap", "symm"])
def test_2d_beyond_the_edges(planned, name, boundary):
    shapes = [
        ((9, 8), (3, 4)),
        ((5, 6), (5, 6)),
        ((3, 4), (7, 9)),
        ((1, 6), (3, 2)),
        ((12, 11), (1, 3)),
        ((4, 4), (13, 3)),
    ]
    for shape1, shape2 in shapes:
        for d1, d2 in (("f8", "f8"), ("f4", "c8"), ("i4", "i2"), ("u1", "u1")):
            x, w = array(shape1, d1), array(shape2, d2, 1)
            for mode in ("full", "same", "valid"):
                if (
                    mode == "valid"
                    and not (np.subtract(shape1, shape2) >= 0).all()
                    and not (np.subtract(shape2, shape1) >= 0).all()
                ):
                    continue
                fill = {"fillvalue": 3} if boundary == "fill" else {}
                agree(planned, name, x, w, mode, boundary, **fill)


def test_images_as_large_as_their_filters_are_not_summed(planned):
    """scipy#12232: wrap on 4096 x 4096 took days. The sums here are 1.4e10."""
    x, w = array((384, 310), "f8"), array((384, 310), "f8", 1)
    whole = np.fft.ifft2(np.fft.fft2(x) * np.conj(np.fft.fft2(w))).real
    check(ca.signal.correlate2d(x, w, "same", "wrap"), np.roll(whole, (191, 154), (0, 1)))


def test_sepfir2d(planned):
    for dtype in FILTERS:
        for shape, r, c in (((9, 12), 3, 5), ((7, 7), 7, 1), ((20, 5), 1, 3)):
            agree(planned, "sepfir2d", array(shape, dtype), array(r, "f4", 1), array(c, "f4", 2))


def test_complex_filters_that_are_longer_than_images(planned):
    """SciPy reads and writes beyond arrays for them."""
    for shape, r, c in (((9, 4), 5, 3), ((300, 3), 13, 701), ((1, 1), 3, 5), ((40, 60), 3, 91)):
        x, row, column = (array(s, "D", i) for i, s in enumerate((shape, r, c)))
        wide = np.pad(x, ((c // 2, c // 2), (r // 2, r // 2)), "symmetric")
        wanted = planned["convolve"](wide, np.outer(column, row), "valid", "direct")
        check(ca.signal.sepfir2d(x, row, column, out=np.empty_like(x)), wanted)


# --- what is left to SciPy -------------------------------------------------------------------


ODD = [
    ("lfilter", ([1.0, 2.0], [1.0, 0.5], array(9, "f8")), {}),
    ("lfilter", ([1, 2], 1, array(9, "i4")), {}),
    ("lfilter", ([], [1.0], array(9, "f8")), {}),
    ("lfilter", ([1.0, 2.0], [1.0], np.zeros((2, 0))), {}),
    ("lfilter", ([1.0, 2.0], [1.0], 3.0), {}),
    ("lfilter", ([1.0, 2.0], [1.0], array((3, 9), "f8")), {"zi": np.zeros((2, 1))}),
    ("lfilter", ([1.0, 2.0], [1.0], array(9, "f8")), {"axis": 3}),
    ("lfilter", (np.ones(3, "g"), [1.0], array(9, "f8")), {}),
    ("lfilter", ([1.0, 2.0], [1.0], array(9, "f8").astype(object)), {}),
    ("filtfilt", ([1.0], [1.0], array(20, "f8")), {}),
    ("filtfilt", ([1.0, 2.0], [1.0, 0.5], array(20, "f8")), {}),
    ("filtfilt", ([1.0, 2.0], [1.0], array(20, "f8")), {"method": "gust"}),
    ("filtfilt", ([1.0, 2.0], [1.0], array(6, "f8")), {}),
    ("filtfilt", ([1.0, 2.0], [1.0], array(20, "f8")), {"padtype": "none"}),
    ("filtfilt", (np.array([1, 2], "i1"), np.ones(1, "i1"), array(20, "f4")), {}),
    ("filtfilt", (np.ones(2, "f4"), np.ones(1, "f4"), array(20, "?")), {}),
    ("savgol_filter", (array(9, "f8"), 11, 2), {}),
    ("savgol_filter", (array(9, "f8"), 5, 5), {}),
    ("savgol_filter", (array(9, "f8"), 5, 2), {"mode": "none"}),
    ("savgol_filter", (np.array([1.0, np.nan, 2.0, 3.0]), 3, 2), {}),
    ("savgol_filter", (np.array([np.inf, 2.0, 3.0]), 1, 0), {}),
    ("upfirdn", (np.array([1.0, np.nan]), np.ones(20_000)), {}),
    ("lfilter", (np.array([1.0, np.nan]), 1.0, np.ones(20)), {}),
    ("upfirdn", ([[1.0]], array(9, "f8")), {}),
    ("upfirdn", ([1.0], array(9, "f8"), 0), {}),
    ("upfirdn", ([1.0], array(9, "f8")), {"mode": "none"}),
    ("upfirdn", (np.ones(500), array(90, "f8")), {"mode": "symmetric"}),
    ("upfirdn", (np.ones(500), np.zeros(0)), {}),
    ("resample_poly", (array(9, "f8"), 2, 2), {}),
    ("resample_poly", (array(9, "f8"), 1.5, 2), {}),
    ("resample_poly", (array(9, "f8"), 3, 2), {"padtype": "none"}),
    ("resample_poly", (array(9, "f8"), 3, 2), {"window": [1.0, 2.0, 1.0]}),
    ("convolve2d", (array(9, "f8"), array(9, "f8")), {}),
    ("convolve2d", (array((3, 3), "f8"), array((2, 4), "f8"), "valid"), {}),
    ("convolve2d", (array((3, 3), "f8"), array((2, 2), "f8"), "none"), {}),
    ("convolve2d", (array((3, 3), "f8"), array((2, 2), "f8"), "full", "none"), {}),
    ("convolve2d", (array((300, 9), "f8"), array((9, 9), "f8"), "full", "fill", [1, 2]), {}),
    ("convolve2d", (array((300, 9), "f8"), array((9, 9), "f8"), "full", "fill", 1j), {}),
    ("convolve2d", (array((300, 9), "?"), array((9, 9), "?")), {}),
    ("convolve2d", (array((90, 9), "f8").astype(object), array((2, 2), "f8")), {}),
    ("correlate2d", (np.zeros((0, 3)), np.ones((2, 2))), {}),
    ("sepfir2d", (array((9, 9), "f8"), np.ones(2), np.ones(3)), {}),
    ("sepfir2d", (array((9, 9), "i4"), np.ones(3), np.ones(3)), {}),
    ("sepfir2d", (array((400, 90), "i2"), np.ones(3, "f4"), np.ones(17, "f4")), {}),
    ("sepfir2d", (array((400, 90), "f4"), np.ones(3), np.ones(17)), {}),
    ("correlation_lags", (5, 3), {"mode": "same"}),
    ("correlation_lags", (5, 3), {"mode": "none"}),
    ("choose_conv_method", (array((3, 3), "f8"), array(3, "f8")), {}),
    ("choose_conv_method", (array(30, "i4"), array(3, "i4")), {}),
]


@pytest.mark.parametrize(("name", "arguments", "options"), ODD)
def test_odd_arguments_are_scipys_to_answer(name, arguments, options):
    def outcome(module):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return getattr(module, name)(*arguments, **options)
            except Exception as error:
                return error

    ours, theirs = outcome(ca.signal), outcome(scipy.signal)
    if isinstance(theirs, Exception):
        assert type(ours) is type(theirs) and str(ours) == str(theirs)
    elif isinstance(theirs, np.ndarray) and theirs.dtype.kind == "f":
        assert np.array_equal(np.isnan(ours), np.isnan(theirs))
        check(np.nan_to_num(ours), np.nan_to_num(theirs))
    else:
        assert np.array_equal(ours, theirs)


def test_what_is_not_finite_stays_under_the_filter():
    x = array((3, 9000), "f8")
    x[1, 4000] = np.nan
    for y, reach in (
        (ca.signal.lfilter(np.ones(700), 1.0, x), 700),
        (ca.signal.savgol_filter(x, 301, 2), 301),
        (ca.signal.upfirdn(np.ones(600), x, 2, 3), 200),
    ):
        assert np.isnan(y).sum() == np.isnan(y[1]).sum() == reach
    some = np.ones((2, 50)), np.array([1.0, np.inf, -1.0])  # of zeros before the first sample would come NaN
    check(
        np.isnan(ca.signal.lfilter(some[1], 2.0, some[0])),
        np.isnan(scipy.signal.lfilter(some[1], 2.0, some[0])),
    )


def test_the_method_is_the_one_that_convolve_takes():
    long, short = array(50_000, "f8"), array(20_000, "f8", 1)
    assert ca.signal.choose_conv_method(long, short) == "fft"
    assert ca.signal.choose_conv_method(long, short[:3], "valid") == "direct"
    method, seconds = ca.signal.choose_conv_method(long[:3000], short[:50], measure=True)
    assert seconds.keys() == {"fft", "direct"} and method == min(seconds, key=seconds.get)
