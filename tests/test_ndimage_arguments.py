"""What callers of `convalgos.ndimage` may write: SciPy's rules, and its kinds of errors."""

import numpy as np
import pytest
from scipy.ndimage import _ni_support as scipys

from convalgos.core.boundaries import BOUNDARIES
from convalgos.ndimage import arguments


@pytest.mark.parametrize("output", [None, "float32", np.int16, np.dtype("f8"), "array"])
def test_outputs_are_those_of_scipy(output):
    x = np.arange(6, dtype=np.uint8).reshape(2, 3)
    output = np.full((2, 3), 7.0)[:, ::-1] if isinstance(output, str) and output == "array" else output
    found, expected = arguments.output_array(output, x), scipys._get_output(output, x)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert (found is output) == isinstance(output, np.ndarray)
    found = arguments.output_array(np.complex64, x, True)
    assert found.dtype == np.complex64


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: arguments.output_array(np.empty((3, 2)), x),
        lambda x: arguments.output_array("U3", x),
        lambda x: arguments.output_array(np.empty((2, 3)), x, True),
        lambda x: arguments.boundary_of("edge"),
        lambda x: arguments.boundary_of(["reflect"]),
        lambda x: arguments.per_axis("sigma", (1, 2, 3), 2),
    ],
)
def test_what_scipy_refuses_by_a_runtime_error(wrong):
    for kind in (RuntimeError, ValueError):
        with pytest.raises(kind):
            wrong(np.zeros((2, 3)))


def test_axes_and_origins():
    assert arguments.several_axes(None, 3) == (0, 1, 2)
    assert arguments.several_axes((-1, 0), 3) == (2, 0)
    assert arguments.several_axes(-1, 3) == (2,)
    assert arguments.per_axis("mode", "wrap", 2) == ["wrap", "wrap"]
    for axes in ((3,), (0, 0), (0, -3), object()):
        with pytest.raises(ValueError, match=r"ax[ei]s"):
            arguments.several_axes(axes, 3)
    with pytest.raises(np.exceptions.AxisError):
        arguments.one_axis(2, 2)
    assert [arguments.checked_origin(o, 4) for o in (-2, 1)] == [-2, 1]
    for origin, size in ((-3, 4), (2, 4), (2, 3), (1, 1)):
        with pytest.raises(ValueError, match="Invalid origin"):
            arguments.checked_origin(origin, size)


def test_every_mode_has_a_boundary():
    assert set(arguments.BOUNDARY_OF.values()) <= set(BOUNDARIES)
    with pytest.raises(TypeError, match="float16"):
        arguments.input_array("input", np.zeros(3, np.float16))


@pytest.mark.parametrize("swapped", [False, True])
def test_results_go_to_any_array(swapped):
    """In place, with steps, in the other byte order: what is written has none of these."""
    x = np.arange(12.0).reshape(3, 4)
    expected = x * 2 + 1

    def write(source, laid):
        assert np.array_equal(source, x) and not np.shares_memory(laid, x)
        assert laid.flags.c_contiguous and laid.dtype.isnative
        laid[...] = expected

    for output in (x, x[::-1], np.empty((3, 8))[:, ::2], np.empty((3, 4))):
        output = output.astype(">f8") if swapped else output
        assert arguments.fill(output, x, lambda shape: write) is output
        np.testing.assert_array_equal(output, expected)
