"""Calls of `ndimage` that were made before: the same answers, and nothing kept that may be another thing."""

import sys

import numpy as np
import pytest
import scipy.ndimage

import convalgos as ca
from convalgos.core.setting import threads_of_calls
from convalgos.ndimage import known_calls

CALLS = {
    "correlate1d": ([1, -2, 3.5], 0),
    "convolve1d": ((1.0, 2.0),),
    "correlate": (np.arange(6.0).reshape(2, 3),),
    "convolve": ([[1, 2, 3]],),
    "gaussian_filter": ((1, 2.5),),
    "gaussian_filter1d": (2, 0, 1),
    "gaussian_laplace": ((1, 2),),
    "gaussian_gradient_magnitude": (1.5,),
    "sobel": (),
    "prewitt": (0,),
    "laplace": (),
    "uniform_filter": (3,),
    "uniform_filter1d": (4, 0),
    "minimum_filter": ((2, 3),),
    "maximum_filter1d": (5,),
}


@pytest.fixture(autouse=True)
def none_kept():
    known_calls._kept.clear()


@pytest.mark.parametrize("name", CALLS)
def test_answers_stay_those_of_scipy(name):
    rng = np.random.default_rng(3)
    ours, scipys = getattr(ca.ndimage, name), getattr(scipy.ndimage, name)
    for told in ({}, {"mode": "constant", "cval": 2}, {"output": np.float32}):
        for dtype in ("f8", "i2"):
            for _ in range(3):  # other numbers each time, of which the last ones go the short way
                x = (rng.standard_normal((9, 40)) * 99).astype(dtype)
                expected = scipys(x, *CALLS[name], **told)
                found = ours(x, *CALLS[name], **told)
                assert found.dtype == expected.dtype
                np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * np.abs(x).max())
    assert len(known_calls._kept) == (
        6 if name not in ("correlate", "convolve") else 6 * (name == "correlate")
    )


def test_arguments_that_are_only_equal_are_read():
    x = np.arange(30.0).reshape(5, 6)
    ca.ndimage.gaussian_filter(x, 1, 1)
    with pytest.raises(TypeError, match="order"):
        ca.ndimage.gaussian_filter(x, 1, 1.0)
    w = np.ones(3)
    before = ca.ndimage.correlate1d(x, w)
    w[1] = 5
    np.testing.assert_array_equal(ca.ndimage.correlate1d(x, w), before + 4 * x)


def test_recent_calls_are_told_by_every_argument():
    """Calls of one filter by turns, each of them found by compiled code from the third time on."""
    rng = np.random.default_rng(6)
    x, w = rng.standard_normal((9, 12)), rng.standard_normal((3, 3))
    y, z = np.empty((9, 12)), np.empty((9, 12), "f4")
    axes = (1,)
    calls = [
        ((w,), {}), ((w + 1,), {}), ((w,), {"mode": "wrap"}), ((w, None, "wrap"), {}), ((w, y), {}),
        ((w,), {"output": z}), ((w[0],), {"axes": axes}), ((), {"weights": w, "origin": 1}),
    ]  # fmt: skip
    for turn in range(5):
        for given, named in calls:
            for array in (x, x[::-1], x.astype("f4"), x[:, :7].copy(), x.astype(">f8")):
                told, told_named = given, dict(named)
                if array.shape != x.shape:
                    told, told_named = given[:1], {k: v for k, v in named.items() if k != "output"}
                expected = scipy.ndimage.correlate(array, *told, **told_named)
                expected = expected.copy()
                y[...], z[...] = np.nan, np.nan
                found = ca.ndimage.correlate(array, *told, **told_named)
                assert found.dtype == expected.dtype
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        x, w = rng.standard_normal((9, 12)), w if turn % 2 else w + 1
    assert ca.ndimage.correlate(x, w, output=x) is x


def test_lists_and_values_are_told_by_what_they_hold():
    """Of each call a new list, one that is written, and numbers that are equal but of another type."""
    x, w = np.arange(30.0).reshape(5, 6), [1.5, -2, 1]
    for turn in range(6):
        w[1] = float(turn // 2)
        for weights in (w, list(w), tuple(w), [*w[:2], True], w[:2], ()):
            for mode in ("wrap", "".join(["neare", "st"])):
                if not weights:
                    with pytest.raises(RuntimeError, match="no filter weights"):
                        ca.ndimage.correlate1d(x, weights, mode=mode)
                    continue
                expected = scipy.ndimage.correlate1d(x, weights, mode=mode)
                np.testing.assert_allclose(ca.ndimage.correlate1d(x, weights, mode=mode), expected)
        sigma = float(f"1.{turn // 3}")
        expected = scipy.ndimage.gaussian_filter1d(x, sigma, order=1)
        np.testing.assert_allclose(ca.ndimage.gaussian_filter1d(x, sigma, order=1), expected)
    for _ in range(3):
        ca.ndimage.gaussian_filter1d(x, 1.1, order=1)
        with pytest.raises(TypeError, match="order"):
            ca.ndimage.gaussian_filter1d(x, 1.1, order=1.0)


def test_recent_calls_tell_arrays_by_where_they_lie():
    """Inputs with strides and without, outputs apart, in place and amid the input, by turns of one call."""
    rng = np.random.default_rng(12)
    held, wide = rng.standard_normal(200), np.empty((6, 16))
    for _ in range(4):
        held[...] = rng.standard_normal(200)
        laid, own, turned = held[:48].reshape(6, 8), np.empty((6, 8)), np.empty((8, 6)).T
        for x in (laid, laid[::-1], held[:96].reshape(6, 16)[:, ::2], held[50:98].reshape(8, 6).T):
            expected = scipy.ndimage.maximum_filter1d(x, 3)
            np.testing.assert_array_equal(ca.ndimage.maximum_filter1d(x, 3), expected)
            for y in (own, wide[:, 1::2], turned, held[8:56].reshape(6, 8), held[48:96].reshape(6, 8), x):
                before, y_before = held.copy(), y.copy()
                assert ca.ndimage.maximum_filter1d(x, 3, output=y) is y
                np.testing.assert_array_equal(y, expected)
                y[...] = y_before
                held[...] = before


@pytest.mark.parametrize("shape", [(7,), (30, 1), (5, 18), (3, 1, 9), (2, 3, 4, 5), (300, 40)])
def test_compiled_calls_have_the_answers_of_first_ones(shape):
    """Of several passes and types, with and without strides: from the third call on by `ArrayRun`."""
    rng = np.random.default_rng(15)
    kinds = "?bBhHiIlLfd"
    names = ("uniform_filter", "minimum_filter", "gaussian_filter", "sobel") * 11
    others = "".join(kinds[i:] + kinds[:i] for i in (0, 3, 5, 8))
    for name, of, other in zip(names, kinds * 4, others, strict=True):
        into = np.dtype(other)
        function, told = getattr(ca.ndimage, name), {} if name == "sobel" else {"mode": "mirror"}
        size = () if name == "sobel" else (3,)
        for steps in (1, 2):
            wide = (rng.random((*shape[:-1], shape[-1] * steps)) * 100).astype(of)
            x, y = wide[..., ::steps], np.empty(wide.shape, into)[..., ::steps]
            turned = np.empty(shape[::-1], into).T
            known_calls._forget()
            expected = function(x, *size, output=into, **told)
            for _ in range(3):
                for target in (y, turned):
                    target[...] = 1
                    assert function(x, *size, output=target, **told) is target
                    np.testing.assert_array_equal(target, expected)
                found = function(x, *size, output=into, **told)
                assert found.dtype == into and found.shape == shape
                np.testing.assert_array_equal(found, expected)


def test_what_is_filled_is_not_kept_alive():
    x = np.arange(600.0).reshape(20, 30)
    y = np.empty_like(x)
    held = sys.getrefcount(y), sys.getrefcount(x)
    for _ in range(4):
        ca.ndimage.uniform_filter(x, 3, output=y)
    assert (sys.getrefcount(y), sys.getrefcount(x)) == held
    before = sys.getrefcount(x.dtype)
    for _ in range(99):
        z = ca.ndimage.uniform_filter(x, 3)
    assert sys.getrefcount(z) == 2
    assert sys.getrefcount(x.dtype) < before + 50  # of those that are kept, and of z


@pytest.mark.parametrize("dtype", ["f8", "f4", "u1"])
def test_an_array_that_is_filled_is_any_of_its_type(dtype):
    rng = np.random.default_rng(5)
    for _ in range(3):
        x, y = rng.standard_normal((5, 12)) * 9, np.full((5, 12), 77, dtype)
        expected = scipy.ndimage.uniform_filter(x, 3, output=dtype)
        assert ca.ndimage.uniform_filter(x, 3, output=y) is y
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
        y[...] = 77
        assert ca.ndimage.uniform_filter(x, 3, y) is y
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    assert len(known_calls._kept) == 2  # of which neither is the other's, nor that of a new array
    assert ca.ndimage.uniform_filter(x, 3).dtype == np.float64
    assert len(known_calls._kept) == 3


def test_what_is_written_elsewhere_or_lies_apart_takes_the_long_way():
    x = np.arange(60.0).reshape(5, 12)
    expected = scipy.ndimage.uniform_filter(x, 3)
    ca.ndimage.uniform_filter(x, 3, output=np.empty_like(x))
    apart = np.repeat(x, 2, 1)[:, ::2]
    strided, read_only, both = apart.copy("F"), np.zeros(x.shape), np.stack([x, x])
    read_only.flags.writeable = False
    for y in (strided, np.empty(x.shape, ">f8"), both.reshape(-1)[60:].reshape(5, 12)):
        assert ca.ndimage.uniform_filter(both[0], 3, output=y) is y
        np.testing.assert_array_equal(y, expected)
    over = np.concatenate([x.ravel(), np.zeros(12)])  # y begins amid x
    ca.ndimage.uniform_filter(over[:60].reshape(5, 12), 3, output=over[12:].reshape(5, 12))
    np.testing.assert_array_equal(over[12:].reshape(5, 12), expected)
    own = x.copy()
    ca.ndimage.uniform_filter(own, 3, output=own)
    np.testing.assert_array_equal(own, expected)
    with pytest.raises(ValueError, match="read-only"):
        ca.ndimage.uniform_filter(x, 3, output=read_only)
    with pytest.raises(RuntimeError, match="shape"):
        ca.ndimage.uniform_filter(x, 3, output=np.zeros((5, 13)))
    np.testing.assert_array_equal(ca.ndimage.uniform_filter(apart, 3), expected)
    np.testing.assert_array_equal(ca.ndimage.uniform_filter(x.astype(">f8"), 3), expected)


def test_weights_that_are_overwritten_are_told_by_their_elements():
    x = np.arange(3.0)
    for w in ([1.0, 2, 3], [4.0, 5, 6], [4.0, 5, 6]):
        y, expected = np.array(w), scipy.ndimage.correlate1d(x, w)
        np.testing.assert_array_equal(ca.ndimage.correlate1d(x, y, output=y), expected)


def test_forget_plans_lets_go_of_them():
    x = np.arange(20.0).reshape(4, 5)
    ca.ndimage.sobel(x)
    assert known_calls._kept
    ca.forget_plans()
    assert not known_calls._kept
    np.testing.assert_array_equal(ca.ndimage.sobel(x), scipy.ndimage.sobel(x))


def test_so_many_are_kept_for_each_number_of_threads(monkeypatch):
    monkeypatch.setattr(known_calls, "COUNT", 3)
    for n in range(2, 7):
        ca.ndimage.maximum_filter(np.zeros((9, 9)), n)
        with threads_of_calls(1):
            ca.ndimage.maximum_filter(np.zeros((9, 9)), n)
    assert len(known_calls._kept) == 3


def test_a_filter_that_does_more_than_fill_is_not_kept():
    x = np.arange(9.0)

    @known_calls.known_calls
    def twice(x):
        y = ca.ndimage.arguments.fill(np.empty_like(x), x, lambda shape: lambda x, y: np.copyto(y, x))
        return y * 2

    for _ in range(2):
        np.testing.assert_array_equal(twice(x), 2 * x)
    assert not known_calls._kept


def test_calls_are_known_wherever_arrays_lie():
    """Inputs and outputs of any order, outputs by a dtype, complex numbers."""
    rng = np.random.default_rng(8)
    for dtype, into in (("f4", np.dtype("f8")), ("i2", np.dtype("u1")), ("c8", None)):
        for turn in range(3):  # the last of them by what was kept
            x = (rng.standard_normal((2, 9, 12, 2)) @ [1, 1j if dtype == "c8" else 1] * 9).astype(dtype)
            for given in (x[0], x[1, :, ::-1], x.transpose(1, 2, 0)[..., 0]):
                expected = scipy.ndimage.correlate1d(given, [1, 2, 5], 0, into)
                y = np.full((9, 24), 77, expected.dtype)[:, ::2]
                assert ca.ndimage.correlate1d(given, [1, 2, 5], 0, y) is y
                for found in (y, ca.ndimage.correlate1d(given, [1, 2, 5], 0, into)):
                    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
            assert len(known_calls._kept) == 2, turn
        known_calls._kept.clear()


def test_footprints_are_told_by_their_elements():
    rng = np.random.default_rng(9)
    first, second = np.eye(3, dtype=bool), np.eye(3, dtype=bool)[::-1]
    for _ in range(3):
        x = rng.integers(0, 99, (700, 9)).astype("i2")  # of two bands
        for marked in (first, second):
            expected = scipy.ndimage.maximum_filter(x, footprint=marked)
            np.testing.assert_array_equal(ca.ndimage.maximum_filter(x, footprint=marked), expected)
        with pytest.warns(UserWarning, match="ignoring size"):  # each time
            ca.ndimage.maximum_filter(x, 3, first)
    assert len(known_calls._kept) == 2


def test_complex_arrays_with_other_values_beyond_imaginary_borders():
    x = np.random.default_rng(2).standard_normal((2, 9, 11))
    z, both = (x[0] + 1j * x[1]).astype(np.complex64), (ca.ndimage, scipy.ndimage)
    for _ in range(3):  # read, told, and known
        for name, given in (("correlate1d", [1.0, 2.0, 4.0]), ("correlate", [[1.0, 2.0], [3.0, 4.0]])):
            ours, theirs = (getattr(of, name)(z, given, mode="constant", cval=3 - 5j) for of in both)
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
        ours, theirs = (of.uniform_filter(z, 3, mode="constant", cval=2.0) for of in both)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
