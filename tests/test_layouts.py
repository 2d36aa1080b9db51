"""The order of x and y in memory: plain and blocked layouts of arrays and of problems."""

import numpy as np
import pytest

import convalgos as ca
from convalgos.core import layouts
from convalgos.core.problem import ConvProblem

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
@pytest.mark.parametrize("shape", [(2, 40, 5), (1, 3, 4, 6), (2, 16, 3, 2, 2), (0, 5, 4), (1, 0, 4, 4)])
def test_arrays_go_into_a_layout_and_back(layout, shape):
    array = RNG.standard_normal(shape)
    laid = layouts.laid(array, layout)
    assert laid.shape == layouts.array_shape(layout, shape)
    assert np.array_equal(layouts.to_logical(laid, layout, shape[1]), array)


def test_where_a_channel_lies_in_blocks():
    array = np.arange(2 * 20 * 3).reshape(2, 20, 3)
    laid = layouts.laid(array, "blocked8")  # (2, 3, 3, 8)
    assert laid[1, 2, 1, 3] == array[1, 19, 1]
    assert not laid[:, 2, :, 4:].any(), "lanes beyond C"


@pytest.mark.parametrize(
    "words", ["blocked16", "blocked8 y_channels_last", "y_blocked16", "channels_last y_blocked4"]
)
def test_layouts_of_a_problem(words):
    problem = ConvProblem.parse(f"n2 c20 h7 w5 k33 r3 s3 p1 {words}")
    assert str(problem) == f"n2 c20 h7 w5 k33 r3 s3 p1 {words}"
    assert problem.array_shapes[0] == layouts.array_shape(problem.layout, (2, 20, 7, 5))
    assert problem.array_shapes[2] == layouts.array_shape(problem.y_layout, (2, 33, 7, 5))
    x, w = RNG.standard_normal((2, 20, 7, 5)).astype("f4"), RNG.standard_normal((33, 20, 3, 3)).astype("f4")
    bias = RNG.standard_normal(33).astype("f4")
    y = ca.plan(problem, algorithm="cpu.reference")(layouts.laid(x, problem.layout), w, bias=bias)
    expected = ca.conv(x, w, bias, padding=1, algorithm="cpu.reference")
    assert np.array_equal(problem.logical(2, y), expected)


def test_a_change_of_layout_is_of_both_maps_unless_they_differ():
    same = ConvProblem.parse("c4 h8 w8 k4 r3 s3")
    assert same.replace(layout="channels_last").y_layout == "channels_last"
    assert same.replace(y_layout="blocked16").replace(layout="channels_last").y_layout == "blocked16"


@pytest.mark.parametrize(
    "words", ["blocked16 uint8", "y_blocked8 int8", "y_channels_last uint8", "blocked16 backward_data"]
)
def test_layouts_that_go_with_nothing_are_refused(words):
    with pytest.raises(ValueError, match="layout='"):
        ConvProblem.parse(f"c4 h8 w8 k4 r3 s3 {words}")


def test_algorithms_say_which_layouts_they_take():
    problem = ConvProblem.parse("c4 h8 w8 k4 r3 s3 y_blocked4 float64")
    with pytest.raises(ca.Unsupported, match="blocked4"):
        ca.plan(problem, algorithm="cpu.depthwise.rows")
