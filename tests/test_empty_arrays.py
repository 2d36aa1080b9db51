"""Dimensions of size zero: choices, rankings, pooling and scales of nothing, which convolve to the bias."""

import numpy as np
import pytest

import convalgos as ca

EMPTY = (  # without images, channels, filters, both in groups, or pixels
    "n0 c8 h10 w5 k8 r3 s3 p1",
    "n2 c0 h10 w5 k8 r3 s3",
    "n1 c48 h10 w5 k0 r3 s4 stride1,3 channels_last",
    "n2 c0 d3 h7 w2 k0 t1 r2 s1 groups4 convolution",
    "n1 c0 h0 w0 k0 r1 s1",
    "n1 c4 h0 w5 k4 r3 s3 p3 backward_data",
    "n1 c0 w9 k0 s3 groups2 backward_weights float64",
)


@pytest.mark.parametrize("text", EMPTY)
@pytest.mark.parametrize(
    "limits",
    [{}, {"strict_nan": True}, {"workspace_limit": 0}, {"max_rel_error": 0.1}, {"equal_bits": True}],
    ids=str,
)
def test_choices_on_nothing(text, limits):
    problem = ca.ConvProblem.parse(text)
    assert problem.is_empty
    plan = ca.plan(problem, **limits)
    assert plan.workspace_bytes == 0
    assert all(c.workspace_bytes == 0 for c in ca.explain(problem, **limits).candidates)
    x, w, y = (np.full(shape, 1, problem.dtype) for shape in problem.array_shapes)
    assert np.array_equal(plan(x, w, out=y), np.zeros_like(y))


POOLS = ({}, {"kernel": 2}, {"kernel": 3, "stride": 2, "padding": 1}, {"kernel": 2, "dilation": 2})


@pytest.mark.parametrize("kind", POOLS, ids=str)
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (2, 0, 8, 8), (0, 3, 8), (0, 4, 5, 5, 5)])
def test_pooling_of_nothing(shape, layout, kind):
    x = np.zeros(shape, np.float32)
    x = np.moveaxis(x, 1, -1).copy() if layout == "channels_last" else x
    for _ in range(3):  # the third call goes straight to what the second found
        y, indices = ca.max_pool(x, **kind, layout=layout, return_indices=True)
        assert y.shape == indices.shape and y.size == 0 and indices.dtype == np.int64
        assert ca.max_pool(x, **kind, layout=layout).shape == y.shape
        assert ca.avg_pool(x, **kind, layout=layout, out=np.empty_like(y)).shape == y.shape
        assert ca.max_pool_backward(y, x, **kind, layout=layout).shape == x.shape
        assert ca.max_pool_backward(y, x, **kind, layout=layout, indices=indices).shape == x.shape
        assert ca.avg_pool_backward(y, x.shape, **kind, layout=layout).shape == x.shape


def test_windows_that_meet_no_element_have_no_share_in_a_gradient():
    """The first window has a tap before the only column, and the next one behind it."""
    windows = {"kernel": 3, "stride": 4, "padding": ((2, 0), (4, 3)), "dilation": (1, 3)}
    windows |= {"ceil_mode": True, "count_padding": False}
    x = np.ones((1, 2, 1, 1), np.float32)
    assert np.isnan(ca.avg_pool(x, **windows)).tolist() == [[[[True, False]], [[True, False]]]]
    dy = np.float32([[[[5, 3]], [[5, 2]]]])
    assert ca.avg_pool_backward(dy, x.shape, **windows).ravel().tolist() == [3, 2]


@pytest.mark.parametrize(
    "text", ["n1 c1 w5 k1 s40 p50 stride55", "n2 c2 h5 w9 k2 r40 s4 p50,1 stride55,1 groups2"]
)
def test_strided_outputs_on_both_sides_of_the_map_are_exactly_zero(text):
    """The map lies between two outputs; what a transform gives there is noise."""
    problem = ca.ConvProblem.parse(text)
    assert problem.is_empty
    x, w = (np.full(shape, 0.1, np.float32) for shape in (problem.x_shape, problem.w_shape))
    for algorithm in ("auto", "cpu.fft.gauss"):
        assert not ca.plan(problem, algorithm=algorithm)(x, w).any()
    gradient = ca.plan(problem.replace(direction="backward_data"))
    assert not gradient(np.ones(problem.y_shape, "f4"), w).any()
