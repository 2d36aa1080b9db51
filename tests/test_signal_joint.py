"""Small arrays that are convolved by one transform of both: answers of SciPy, also in later calls."""

from unittest.mock import patch

import numpy as np
import pytest
import scipy.fft
import scipy.signal

from convalgos import signal
from convalgos.signal import joint_transforms
from convalgos.signal.joint_transforms import Joint
from convalgos.signal.small_images import convolved_small

SHAPES = [
    ((60, 5), (40, 4)),
    ((5, 60), (4, 40)),
    ((40, 4), (60, 5)),
    ((300, 3), (200, 1)),
    ((3, 300), (1, 200)),
    ((14, 4, 12), (12, 3, 11)),
    ((20, 2, 15), (18, 1, 12)),
    ((1, 90, 7), (1, 60, 5)),
]
KINDS = ["FF", "DD", "Fd", "fD", "fF", "iD", "Dd"]


def numbers(rng, shape, char):
    y = rng.integers(-9, 10, shape) + (1j * rng.integers(-9, 10, shape) if char in "FD" else 0)
    return y.astype(char)


@pytest.fixture
def rng():
    return np.random.default_rng(11)


@pytest.fixture
def joined():
    """Calls that went by joint transforms."""
    with patch.object(Joint, "convolved", autospec=True, side_effect=Joint.convolved) as calls:
        yield calls


def check(name, x, w, *how):
    y, expected = (getattr(of, name)(x, w, *how) for of in (signal, scipy.signal))
    assert y.dtype == expected.dtype and y.shape == expected.shape and y.flags.c_contiguous
    single = y.dtype.char in "fF"
    if x.dtype.char != w.dtype.char:  # SciPy transforms each in its own precision
        x, w = (a.astype(complex if a.dtype.kind == "c" else float) for a in (x, w))
        expected = getattr(scipy.signal, name)(x, w, *how)
    np.testing.assert_allclose(y, expected, rtol=0, atol=(2e-5 if single else 1e-12) * abs(expected).max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_answers_of_first_and_later_calls(rng, shapes, kind):
    """Each call has other numbers; functions and modes do not take each other's ways."""
    for _ in range(3):
        for mode in ("full", "same", "valid"):
            if mode == "valid" and shapes[0] < shapes[1]:
                continue
            for name in ("convolve", "correlate", "fftconvolve"):
                check(name, *(numbers(rng, s, k) for s, k in zip(shapes, kind, strict=True)), mode)


def test_both_are_transformed_in_one_call(rng, joined):
    x, w = numbers(rng, (60, 9), "D"), numbers(rng, (50, 8), "D")
    for name in ("convolve", "correlate", "fftconvolve"):
        for _ in range(2):
            with patch.object(scipy.fft, "fftn", wraps=scipy.fft.fftn) as transforms:
                getattr(signal, name)(x, w)
            assert transforms.call_count == 1
    assert joined.call_count == 6


def test_known_calls_look_nothing_up(rng, joined, monkeypatch):
    x, w = numbers(rng, (61, 9), "F"), numbers(rng, (50, 8), "F")
    expected = {name: getattr(signal, name)(x, w) for name in ("convolve", "correlate", "fftconvolve")}
    monkeypatch.setattr(joint_transforms, "joint_of", lambda *_: pytest.fail("it is sought again"))
    for name, y in expected.items():
        np.testing.assert_array_equal(getattr(signal, name)(x, w), y)
    assert joined.call_count == 6


@pytest.mark.filterwarnings("ignore:Use of fft")
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
@pytest.mark.parametrize("where", [0, 1])
def test_known_calls_of_what_is_not_finite(rng, bad, where):
    """They go the way of first calls; squares without end pass for such, and have finite answers."""
    arrays = [numbers(rng, (62, 9), "D"), numbers(rng, (51, 8), "D")]
    for name in ("convolve", "correlate"):
        getattr(signal, name)(*arrays)
    arrays[where][3, 2] = bad
    with np.errstate(all="ignore"):
        for name in ("convolve", "correlate"):
            y, expected = (getattr(of, name)(*arrays) for of in (signal, scipy.signal))
            assert np.isfinite(y).any() == np.isfinite(expected).any() or not np.isfinite(expected).any()
            if np.isfinite(expected).all():
                np.testing.assert_allclose(y, expected, rtol=0, atol=1e-12 * abs(expected).max())


def test_views_byte_orders_axes_and_out(rng):
    x, w = numbers(rng, (10, 63), "D").T, numbers(rng, (42, 4), "D")[::-1, ::-1]
    x = x[:, ::2]
    for _ in range(2):
        for name in ("convolve", "correlate", "fftconvolve"):
            check(name, x, w)
            check(name, x.astype(">c16"), w.astype(">c16"))
            out = np.empty((104, 8), complex)
            assert getattr(signal, name)(x, w, out=out) is out
            np.testing.assert_array_equal(out, getattr(signal, name)(x, w))
        for axes in (0, [0], (0, 1), [1, 0], -1):
            y, v = numbers(rng, (70, 6), "F"), numbers(rng, (50, 6) if axes in (0, [0]) else (1, 5), "F")
            check("fftconvolve", y, v, "full", axes)
            check("fftconvolve", y, v, "same", axes)


def test_one_array_with_itself(rng):
    x = numbers(rng, (40, 7), "D")
    for _ in range(2):
        for name in ("convolve", "correlate", "fftconvolve"):
            check(name, x, x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", ["full", "same"])
def test_few_long_columns_by_a_long_one(dtype, mode):
    """They are transformed: sums would take a vector for each row, of which few lanes are columns."""
    rng = np.random.default_rng(4)
    x, w = (rng.standard_normal(shape).astype(dtype) for shape in ((454, 2), (249, 1)))
    assert convolved_small(x, w, mode, False) is None
    assert convolved_small(x[:200], w[:99], mode, False) is not None
    tol = 1e-5 if dtype == "float32" else 1e-12
    for name in ("convolve", "correlate", "fftconvolve"):
        for a, b in ((x, w), (w, x)):
            expected = getattr(scipy.signal, name)(a, b, mode)
            found = getattr(signal, name)(a, b, mode)
            assert found.dtype == dtype
            np.testing.assert_allclose(found, expected, atol=tol * np.abs(expected).max())
