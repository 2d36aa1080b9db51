"""Few columns, lines shorter than their filter, images about as large as theirs: against SciPy."""

import numpy as np
import pytest
import scipy.signal

import convalgos as ca
from convalgos.signal import resampling, short_signals
from convalgos.signal.short_lines import times_matrix

pytestmark = pytest.mark.usefixtures("sizes_that_come_often")

CALLS = 20  # of a size, in the last of which all that is kept is made


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def random(rng, shape, char):
    a = rng.standard_normal(shape) * 9 + (1j * rng.standard_normal(shape) if char in "FD" else 0)
    return a.astype(char)


def assert_scipy(name, *args, calls=2, **options):
    """Every call gives what SciPy gives, in its type, and is finite where that is."""
    y = getattr(scipy.signal, name)(*args, **options)
    for _ in range(calls):
        z = getattr(ca.signal, name)(*args, **options)
        assert z.dtype == y.dtype and z.shape == y.shape
        single = any(isinstance(a, np.ndarray) and a.dtype.char in "efF" for a in args)
        np.testing.assert_array_equal(np.isfinite(z), np.isfinite(y))
        scale = np.abs(y[np.isfinite(y)]).max(initial=1e-30)
        np.testing.assert_allclose(z, y, rtol=0, atol=(2e-5 if single else 1e-11) * scale)


@pytest.mark.parametrize("char", "fdilQhB?")
@pytest.mark.parametrize("taps", [(3, 1), (1, 5), (5, 3), (1, 1), (9, 7)])
@pytest.mark.parametrize("shape", [(3026, 9), (2000, 16), (40, 2055), (1700, 17), (700, 3)])
def test_separable_filters_of_narrow_images(rng, shape, taps, char):
    rows, columns = (random(rng, min(k, n - 1 + n % 2), "f") for k, n in zip(taps, shape[::-1], strict=True))
    assert_scipy("sepfir2d", random(rng, shape, char), rows, columns)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("taps", [(3, 1), (1, 3), (3, 3)])
def test_narrow_images_spread_what_is_not_finite_as_scipy_does(rng, taps, value):
    image = random(rng, (3000, 10), "d")
    image[1234, 5] = value
    assert_scipy("sepfir2d", image, *(random(rng, k, "d") for k in taps))


@pytest.mark.parametrize("single", [1e-300, 0.0, 1e200, -2.5])
def test_single_taps_of_any_size(rng, single):
    image, others = random(rng, (4000, 12), "d"), random(rng, 3, "d")
    assert_scipy("sepfir2d", image, others, np.array([single]))
    assert_scipy("sepfir2d", image, np.array([single]), others)


@pytest.mark.parametrize("shape, axis", [((8, 1), 0), ((1, 1, 9), 2), ((1, 7, 1), -2), ((2, 14), -1)])
@pytest.mark.parametrize("taps", [2, 5, 24])
def test_a_state_of_lines_that_are_few(rng, shape, axis, taps):
    state = list(shape)
    state[axis] = taps - 1
    args = random(rng, taps, "h"), 1.0, random(rng, shape, "H")
    zi = random(rng, state, "d")
    y, held = scipy.signal.lfilter(*args, axis=axis, zi=zi)
    for _ in range(3):
        z, left = ca.signal.lfilter(*args, axis=axis, zi=zi)
        np.testing.assert_allclose(z, y, rtol=1e-12)
        np.testing.assert_allclose(left, held, rtol=1e-12)


@pytest.mark.parametrize("mode", ["symmetric", "edge", "smooth", "wrap", "reflect", "antisymmetric", "line"])
@pytest.mark.parametrize("types", ["dd", "Ff", "fF", "hD"])
def test_lines_that_go_on_for_longer_than_they_are(rng, mode, types, monkeypatch):
    asked = []
    monkeypatch.setattr(resampling, "times_matrix", lambda *a: asked.append(a) or times_matrix(*a))
    of_x, of_h = types
    for shape, axis in (((2, 300, 700), 0), ((3, 5, 40_000), 1), ((90_000, 4), -1)):
        assert_scipy("upfirdn", random(rng, 30, of_h), random(rng, shape, of_x), 3, 2, axis, mode, calls=1)
    assert asked
    x = random(rng, (90_000, 4), "d")
    x[7, 2] = np.nan
    assert_scipy("upfirdn", random(rng, 30, "d"), x, 1, 2, -1, mode, calls=1)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("types", ["ff", "dd", "fD", "FF"])
@pytest.mark.parametrize("shapes", [((6996, 4), (5362, 2)), ((8000, 5), (55, 3)), ((5, 300, 3), (2, 40, 2))])
def test_transforms_of_few_columns(rng, shapes, types, mode):
    args = [random(rng, shape, char) for shape, char in zip(shapes, types, strict=True)]
    for name in ("fftconvolve", "oaconvolve"):
        assert_scipy(name, *args, mode=mode, calls=CALLS)


@pytest.mark.parametrize("mode", ["full", "same"])
@pytest.mark.parametrize("char", "fd")
@pytest.mark.parametrize("name", ["convolve", "correlate"])
def test_small_images_about_as_large_as_their_filter(rng, name, char, mode):
    for x, w in (((13, 281), (10, 116)), ((4, 541), (2, 372)), ((33, 60), (30, 50)), ((90, 90), (40, 70))):
        assert_scipy(name, random(rng, x, char), random(rng, w, char), mode=mode, calls=CALLS)


@pytest.mark.parametrize("char", "FD")
def test_direct_sums_of_complex_lines(rng, char):
    x, w = random(rng, 900, char), random(rng, 415, char)
    assert x.size * w.size > short_signals.OTHER_PRODUCTS
    for mode in ("full", "same", "valid"):
        for name in ("convolve", "correlate"):
            assert_scipy(name, x, w, mode=mode, method="direct")


@pytest.mark.parametrize("size", [100, 400])
def test_complex_lines_with_a_filter_about_as_long(rng, size):
    x, w = random(rng, (24, size), "D"), random(rng, (1, size * 3 // 5), "D")
    for mode in ("full", "same", "valid"):
        assert_scipy("oaconvolve", x, w, mode=mode, axes=1, calls=CALLS)


@pytest.mark.parametrize("shape", [(1505,), (1, 700), (40, 1), (30, 7), (2, 3000)])
@pytest.mark.parametrize("dtypes", [("F", "f"), ("D", "d"), ("D", "i4"), ("F", "i2")])
def test_complex_taps_filter_lines_of_real_numbers(shape, dtypes):
    rng = np.random.default_rng(3)
    b = (rng.standard_normal(90) + 1j * rng.standard_normal(90)).astype(dtypes[0])
    x = (9 * rng.standard_normal(shape)).astype(dtypes[1])
    axis = int(np.argmax(shape))
    for a in ([1.0], [2j]):
        want = scipy.signal.lfilter(b, a, x, axis)
        y = ca.signal.lfilter(b, a, x, axis)
        assert y.dtype == want.dtype and y.shape == want.shape
        np.testing.assert_allclose(y, want, rtol=0, atol=1e-5 * abs(want).max())


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_few_taps_over_a_long_line(k, mode):
    rng = np.random.default_rng(k)
    x, w = rng.standard_normal(187_375), rng.standard_normal(k)
    np.testing.assert_allclose(
        ca.signal.convolve(x, w, mode), np.convolve(x, w, mode), rtol=0, atol=1e-14 * x.max()
    )


def test_complex_taps_and_real_numbers_that_are_not_finite():
    x = np.ones(300)
    x[150] = np.inf
    b = np.array([1 + 1j, 2 - 1j, 0.5j])
    with np.errstate(invalid="ignore"):
        want = scipy.signal.lfilter(b, [1.0], x)
        np.testing.assert_array_equal(np.isfinite(ca.signal.lfilter(b, [1.0], x)), np.isfinite(want))


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("dtype", ["f", "d", "D"])
def test_few_taps_that_are_rows_of_arrays(mode, dtype):
    """Of axes that both arrays have, or one of them; the larger one may be the second."""
    rng = np.random.default_rng(4)
    shapes = [
        ((4, 3, 326), (1, 2, 326)),
        ((50, 30), (3, 30)),
        ((7, 1, 40), (2, 20, 40)),
        ((5, 6, 20), (5, 2, 20)),
    ]
    for shape, other in shapes:
        axes = [i for i, (n, k) in enumerate(zip(shape, other, strict=True)) if n != k and i < len(shape) - 1]
        for first, second in ((shape, other), (other, shape)):
            x, w = (rng.standard_normal(sizes).astype(dtype) for sizes in (first, second))
            want = scipy.signal.fftconvolve(x, w, mode, axes=axes)
            y = ca.signal.fftconvolve(x, w, mode, axes=axes)
            assert y.dtype == want.dtype and y.shape == want.shape
            np.testing.assert_allclose(y, want, rtol=0, atol=1e-5 * abs(want).max())
    x[0, 0, 3] = np.nan  # a transform spreads it
    y = ca.signal.fftconvolve(x, w, mode, axes=axes)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(scipy.signal.fftconvolve(x, w, mode, axes=axes)))
    assert np.isnan(y).any()
