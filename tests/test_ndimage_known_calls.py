"""Calls of `ndimage` that were made before: the same answers, and nothing kept that may be another thing."""

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


def test_what_is_written_or_lies_apart_takes_the_long_way():
    x = np.arange(60.0).reshape(5, 12)
    expected, y = ca.ndimage.uniform_filter(x, 3), np.full(x.shape, np.nan)
    assert ca.ndimage.uniform_filter(x, 3, output=y) is y
    assert ca.ndimage.uniform_filter(x, 3, y) is y
    np.testing.assert_array_equal(y, expected)
    apart = np.repeat(x, 2, 1)[:, ::2]
    np.testing.assert_array_equal(ca.ndimage.uniform_filter(apart, 3), expected)
    np.testing.assert_array_equal(ca.ndimage.uniform_filter(x.astype(">f8"), 3), expected)


def test_so_many_are_kept_for_each_number_of_threads(monkeypatch):
    monkeypatch.setattr(known_calls, "COUNT", 3)
    for n in range(2, 7):
        ca.ndimage.maximum_filter(np.zeros((n, n)), 2)
        with threads_of_calls(1):
            ca.ndimage.maximum_filter(np.zeros((n, n)), 2)
    assert len(known_calls._kept) == 3


def test_a_filter_that_does_more_than_fill_is_not_kept():
    x = np.arange(9.0)

    @known_calls.known_calls
    def twice(x):
        y = ca.ndimage.arguments.fill(np.empty_like(x), x, lambda x, y: np.copyto(y, x))
        return y * 2

    for _ in range(2):
        np.testing.assert_array_equal(twice(x), 2 * x)
    assert not known_calls._kept
