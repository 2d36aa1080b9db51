"""Images of many sizes, one after the other: calls are known by all but their sizes, and right for each."""

import numpy as np
import pytest
import scipy.ndimage

import convalgos as ca
from convalgos.ndimage import known_calls

RNG = np.random.default_rng(7)
CROSS = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]], bool)
LINE = np.array([1.0, -2.0, 3.5, 0.5])
CALLS = [
    ("gaussian_filter", (1.3,), {}),
    ("gaussian_filter", ((3.0, 0.4),), {"mode": "wrap", "order": (0, 1)}),
    ("gaussian_gradient_magnitude", (1.1,), {"mode": "nearest"}),
    ("gaussian_laplace", (0.9,), {"mode": "constant", "cval": 3}),
    ("correlate1d", (LINE, 0), {"mode": "mirror", "origin": 1}),
    ("convolve1d", (LINE,), {}),
    ("correlate", (RNG.standard_normal((3, 5)),), {"mode": "constant", "cval": 2}),
    ("correlate", (np.outer(LINE, LINE),), {}),
    ("convolve", (np.outer([1.0, 2, 1], [1.0, 2, 1]) / 16,), {"mode": "wrap"}),
    ("convolve", (RNG.integers(-4, 5, (7, 6)),), {"mode": "nearest"}),
    ("sobel", (0,), {}),
    ("prewitt", (), {"mode": "wrap"}),
    ("laplace", (), {"mode": ("reflect", "constant")}),
    ("uniform_filter", ((4, 3),), {}),
    ("uniform_filter1d", (12, 0), {"mode": "wrap"}),
    ("minimum_filter", ((1, 7),), {"mode": "constant", "cval": 1}),
    ("maximum_filter", (13,), {"mode": "mirror"}),
    ("maximum_filter", (), {"footprint": CROSS}),
    ("minimum_filter", (), {"footprint": np.eye(5, dtype=bool), "mode": "wrap"}),
]


@pytest.fixture(autouse=True)
def none_kept():
    known_calls._forget()


def image(size: tuple[int, ...], char: str) -> np.ndarray:
    return (RNG.random(size) * 200).astype(char)


@pytest.mark.parametrize(("name", "given", "named"), CALLS, ids=[f"{i}-{c[0]}" for i, c in enumerate(CALLS)])
@pytest.mark.parametrize("char", "fdBH")
def test_sizes_by_turns(name, given, named, char):
    """Also sizes below those of windows, and of one row or column: all by what the first call left."""
    sizes = [tuple(map(int, RNG.integers(1, 40, 2))) for _ in range(12)]
    sizes += [(33, 47), (1, 1), (1, 30), (30, 1), (5, 300), (200, 3)]
    ours, scipys = getattr(ca.ndimage, name), getattr(scipy.ndimage, name)
    for turn in range(2):
        for size in sizes[::-1] if turn else sizes:
            x = image(size, char)
            expected, found = scipys(x, *given, **named), ours(x, *given, **named)
            assert found.dtype == expected.dtype and found.shape == size
            if char in "BH":
                np.testing.assert_array_equal(found, expected)
            else:
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
    assert len(known_calls._kept) == 1


def test_volumes_and_lines_by_turns():
    for char, into in (("f", None), ("B", np.float32)):
        for ndim in (1, 3, 4):
            for _ in range(6):
                x = image(tuple(map(int, RNG.integers(1, 13, ndim))), char)
                for name, given in (("gaussian_filter", 1.5), ("uniform_filter", 5), ("maximum_filter", 3)):
                    found = getattr(ca.ndimage, name)(x, given, output=into)
                    expected = getattr(scipy.ndimage, name)(x, given, output=into)
                    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
    assert len(known_calls._kept) == 18  # of each filter, type and number of axes


def test_errors_are_held_whatever_the_size():
    """Less exact ways are chosen for each size by itself."""
    for size in ((40, 50), (4000,), (300, 310), (7, 900), (600, 20)):
        for _ in range(2):
            x = RNG.standard_normal(size)
            found = ca.ndimage.gaussian_filter(x, 30.0, max_rel_error=1e-3)
            expected = scipy.ndimage.gaussian_filter(x, 30.0)
            assert np.abs(found - expected).max() <= 1e-3 * np.abs(x).max()


def test_what_is_known_does_not_change_with_arguments():
    """A footprint that is written after its call: calls with the one it was go on having that."""
    marked = CROSS.copy()
    ca.ndimage.maximum_filter(image((9, 9), "f"), footprint=marked)
    marked[...] = True
    for size in ((9, 9), (12, 15)):
        x = image(size, "f")
        for footprint in (CROSS, marked):
            expected = scipy.ndimage.maximum_filter(x, footprint=footprint)
            np.testing.assert_array_equal(ca.ndimage.maximum_filter(x, footprint=footprint), expected)


def test_sizes_are_bounded_and_the_least_recent_goes_first():
    counts = [written.cache_info().maxsize for _, written in known_calls._written]
    assert counts == [count for _, count in known_calls.SIZES]
    assert all(most * count <= 1 << 22 for most, count in known_calls.SIZES)  # bytes of weights
    ca.ndimage.correlate(image((40, 9), "f"), RNG.standard_normal((24, 25)))  # of which few sizes are kept
    (calls,) = known_calls._kept.values()
    assert calls.written is known_calls._written[-1][1]
    count = counts[-1]

    def misses(n):
        before = calls.written.cache_info().misses
        calls.written(calls, (n, 9))
        return calls.written.cache_info().misses - before

    assert [misses(n) for n in range(1, count + 1)] == [1] * count
    assert misses(1) == 0
    assert misses(count + 1) == 1  # in the place of 2, which was asked for longest ago
    assert (misses(1), misses(2)) == (0, 1)
    assert calls.written.cache_info().currsize == count


def test_arrays_without_elements():
    for name, given in (
        ("gaussian_filter", (1.0,)),
        ("uniform_filter", (3,)),
        ("correlate", (np.ones((3, 3)),)),
    ):
        for size in ((4, 5), (0, 5), (6, 5), (3, 0)):
            found = getattr(ca.ndimage, name)(np.ones(size, "f"), *given)
            assert found.shape == size and found.dtype == np.float32


@pytest.mark.parametrize("char", "fB")
def test_columns_by_turns_with_images(char):
    """A filter of columns alone: an image of one column has no rows to go along."""
    for weights in (np.array([[1.0], [-2.5], [0.75]]), np.array([[[-1.5]], [[2.25]]])):
        for width in (100, 1, 3, 1, 40):
            shape = (7, width) if weights.ndim == 2 else (7, 1, width)
            x = RNG.integers(0, 99, shape).astype(char)
            y = ca.ndimage.correlate(x, weights)
            np.testing.assert_allclose(y, scipy.ndimage.correlate(x, weights), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("char", "fB")
def test_separable_windows_of_one_element_and_of_more(char):
    """Passes along the first axis are of rows of pixels, or of pixels that have no others beside them."""
    line = np.array([0.5, -1.5, 2.0, 0.25, 1.0])
    weights = np.multiply.outer(np.multiply.outer(line[:2], line), line[2:])
    for shape in ((1, 1, 1), (1, 7, 40), (3, 1, 1), (4, 9, 70)):
        x = RNG.integers(0, 99, shape).astype(char)
        y = ca.ndimage.correlate(x, weights, "f8", "constant", 2.5)
        theirs = scipy.ndimage.correlate(x, weights, "f8", "constant", 2.5)
        np.testing.assert_allclose(y, theirs, rtol=1e-5, atol=1e-3)
