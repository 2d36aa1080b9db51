"""Fill values that the numbers of an image cannot hold, around windows whose results are of another type."""

import numpy as np
import pytest
import scipy.ndimage

from convalgos import ndimage

IMAGE = np.arange(120).reshape(3, 40) % 101


@pytest.mark.parametrize("name", ["minimum_filter1d", "maximum_filter1d", "minimum_filter", "maximum_filter"])
@pytest.mark.parametrize("of", ["B", "h", "I", "i", "Q", "q"])
@pytest.mark.parametrize("into", ["f", "d", "q"])
def test_fractions_and_infinities(name, of, into):
    for fill in (0.1, 4.7, -1.5, 1e10, 1e30, -1e30, np.inf, -np.inf):
        how = {"mode": "constant", "cval": fill}
        wanted = getattr(scipy.ndimage, name)(IMAGE.astype(of), 3, output="d", **how)
        if into == "q" and (fill == 1e10 or not np.all(np.abs(wanted) < 2.0**53)):
            continue  # as what SciPy casts it is not defined
        found = getattr(ndimage, name)(IMAGE.astype(of), 3, output=into, **how)
        assert np.array_equal(found, wanted.astype(into)), fill


@pytest.mark.parametrize("dtype", ["q", "Q"])
def test_infinity_is_beyond_the_largest_integer(dtype):
    x = np.full((3, 9), np.iinfo(dtype).max, dtype)
    x[1, 4] -= 1
    found = ndimage.minimum_filter(x, 3, mode="constant", cval=np.inf)
    assert np.array_equal(found, ndimage.minimum_filter(x, 3, mode="nearest"))
