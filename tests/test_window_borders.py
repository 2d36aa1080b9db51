"""Tables of what windows see beyond the ends of an axis are those of the boundaries, for axes of any size."""

import numpy as np
import pytest

from convalgos.core.axis_windows import AxisWindow
from convalgos.core.boundaries import BOUNDARIES
from convalgos.core.window_borders import border_elements, filling, sources_along


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_borders_of_axes_of_all_sizes(boundary):
    for taps in (1, 2, 3, 8):
        for low in range(taps):
            for size in (*range(1, 4 * taps + 3), 1000):
                window = AxisWindow(size, taps, low, boundary)
                expected = window.sources
                np.testing.assert_array_equal(sources_along(window), expected)
                np.testing.assert_array_equal(sources_along(window, 2), [*expected, 0, 0])
                ends = [*expected[:low], *expected[low + size :], 0]
                np.testing.assert_array_equal(border_elements(window._replace(size=0), size), ends)


def test_windows_that_lie_elsewhere():
    for window in (
        AxisWindow(9, 3, 5, "wrap"),
        AxisWindow(9, 3, 0, "edge", 4),
        AxisWindow(5, 3, 3, "zero", 11),
    ):
        np.testing.assert_array_equal(sources_along(window, 1), [*window.sources, 0])


def test_tables_are_not_written_and_bounded():
    table = border_elements(AxisWindow(0, 5, 2, "reflect"), 40)
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 1
    for size in range(1, 3000):
        sources_along(AxisWindow(size, 3, 1, "edge"))
    assert sources_along.cache_info().currsize <= sources_along.cache_info().maxsize <= 512


@pytest.mark.parametrize("count", [1, 7, 8, 9, 1000])
def test_values_to_fill_with(count):
    found = filling(2.5, np.dtype(np.float32), count)
    assert count <= len(found) <= 2 * count and found.dtype == np.float32
    assert (found == 2.5).all()
