"""Integers of images that are flat in parts, where sums lie next to whole numbers: those of SciPy."""

import numpy as np
import pytest
import scipy.ndimage

from convalgos import ndimage
from convalgos.core.setting import threads_of_calls

SHAPES = [(1, 400), (90, 70), (37, 200), (70, 9, 5), (300, 2), (2, 2, 2), (129, 33)]
FILTERS = [
    ("gaussian_filter", lambda x, g: (x, g.uniform(0.4, 7, x.ndim))),
    ("gaussian_filter1d", lambda x, g: (x, g.uniform(0.4, 9), int(g.integers(x.ndim)))),
    ("gaussian_filter1d", lambda x, g: (x, g.uniform(0.4, 5), int(g.integers(x.ndim)), 1)),
    ("correlate1d", lambda x, g: (x, share(g.random(int(g.integers(2, 9)))), int(g.integers(x.ndim)))),
    ("correlate", lambda x, g: (x, share(g.random(few_taps(x, g))))),
    ("correlate", lambda x, g: (x, share(product(x, g)))),
]


def share(w):
    return (w / np.abs(w).sum()).astype(np.float32)


def product(x, g):
    """Negative weights, which are a product along the first two axes."""
    w = -np.multiply.outer(*(g.random(n) for n in few_taps(x, g)[:2]))
    return w.reshape(w.shape + (1,) * (x.ndim - 2))


def few_taps(x, g):
    """No more than an axis has elements: SciPy reads what lies far beyond in another place."""
    return [int(g.integers(1, min(n, 6) + 1)) for n in x.shape]


def flat_in_parts(shape, dtype, g):
    """Images of one number, of two that meet along each axis, in blobs, in slopes, and with few others."""
    limits = np.iinfo(dtype)
    numbers = [0, limits.min, limits.max, 1, int(g.integers(limits.min, limits.max))]
    one, other = (np.full(shape, g.choice(numbers), dtype) for _ in range(2))
    noise = g.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)
    places = np.indices(shape)
    blobs = scipy.ndimage.gaussian_filter(g.standard_normal(shape), 4) > 0
    yield one
    for axis, n in enumerate(shape):
        yield np.where(places[axis] < g.integers(n + 1), one, other)
    yield np.where(blobs, one, noise)
    yield np.where(blobs, one, other)
    yield np.where(g.random(shape) < 0.002, noise, one)
    yield (places * g.integers(0, 3, [len(shape)] + [1] * len(shape))).sum(0).astype(dtype)


@pytest.mark.parametrize("char", "BbHh")
@pytest.mark.parametrize("name, arguments", FILTERS)
def test_integers_are_those_of_scipy(name, arguments, char):
    for number, shape in enumerate(SHAPES):
        g = np.random.default_rng([number, ord(char)])
        for x in flat_in_parts(shape, np.dtype(char), g):
            given = arguments(x, g)
            for mode, cval in (("reflect", 0), ("constant", 3)):
                expected = getattr(scipy.ndimage, name)(*given, mode=mode, cval=cval)
                with threads_of_calls(1 + number % 3):
                    found = getattr(ndimage, name)(*given, mode=mode, cval=cval)
                np.testing.assert_array_equal(found, expected)
