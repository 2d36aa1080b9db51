"""Gradients and transposed convolutions against torch in float64, over random problems."""

import math

import numpy as np
import pytest
from helpers import choosy
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import convalgos as ca
from convalgos.core.plan import flipped, numpy_dtype
from convalgos.select import find_algorithm, needs

torch = pytest.importorskip("torch", reason="torch is not installed (CI installs it)")
many = settings(choosy, max_examples=40)


@st.composite
def problems(draw):
    """Kernels larger than the map, strides larger than the kernel, inputs that no output reads, nothing."""
    ndim = draw(st.integers(1, 3))
    groups, inputs, filters = draw(
        st.sampled_from(
            [(1, 1, 1), (1, 3, 5), (1, 18, 33), (2, 3, 2), (3, 2, 17), (4, 1, 1), (17, 1, 1), (5, 1, 2),
             (2, 0, 3), (2, 3, 0)]
        )
    )  # fmt: skip

    def per_dim(*values):
        return tuple(draw(st.sampled_from(values)) for _ in range(ndim))

    kernel, stride, dilation = per_dim(1, 2, 3, 3, 5), per_dim(1, 1, 2, 3, 6), per_dim(1, 1, 2, 3)
    padding = tuple(zip(per_dim(0, 1, 2, 7), per_dim(0, 0, 1, 4), strict=True))
    sizes = tuple(
        max(1, d * (r - 1) + 1 - sum(pads)) + draw(st.integers(0, 9))
        for d, r, pads in zip(dilation, kernel, padding, strict=True)
    )
    return ca.ConvProblem(
        (draw(st.sampled_from((1, 2, 3, 0))), groups * inputs, *sizes),
        (groups * filters, inputs, *kernel),
        stride, padding, dilation, groups,
        mode=draw(st.sampled_from(("cross_correlation", "convolution"))),
        layout=draw(st.sampled_from(("channels_first", "channels_last"))),
        dtype=draw(st.sampled_from(("float32", "float32", "float64", "float16", "bfloat16"))),
    )  # fmt: skip


def draw_arrays(problem, *shapes):
    """Random arrays of the problem's dtype, logical."""
    rng = np.random.default_rng(len(str(problem)))
    return [rng.standard_normal(s).astype(np.float32).astype(numpy_dtype(problem.dtype)) for s in shapes]


def wide(array):
    return torch.from_numpy(array.astype(np.float64))


def how(problem):
    names = ("stride", "padding", "dilation", "groups", "mode", "layout")
    return {name: getattr(problem, name) for name in names}


def in_memory(problem, array):
    last = problem.layout == "channels_last"
    return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if last else array


def torch_gradients(problem, x, w, dy):
    """(dx, dw, db) in float64; torch pads both sides alike, so x is padded before, which autograd crops."""
    p = problem
    bias = torch.zeros(p.K, dtype=torch.float64, requires_grad=True)
    leaves = wide(x).requires_grad_(), wide(w).requires_grad_(), bias
    if 0 in (*p.x_shape, *p.w_shape):
        return np.zeros(p.x_shape), np.zeros(p.w_shape), dy.astype(np.float64).sum((0, *range(2, dy.ndim)))
    padded = torch.nn.functional.pad(leaves[0], [side for pads in reversed(p.padding) for side in pads])
    convolve = getattr(torch.nn.functional, f"conv{p.ndim}d")
    kernel = leaves[1].flip(tuple(range(2, dy.ndim))) if p.mode == "convolution" else leaves[1]
    y = convolve(padded, kernel, bias, p.stride, 0, p.dilation, p.groups)
    assert tuple(y.shape) == p.y_shape
    return [g.numpy() for g in torch.autograd.grad(y, leaves, wide(dy))]


def assert_close(found, expected, typical, bound):
    """typical: the size of a random result; where there are few, they may all be small by accident."""
    found = found.astype(np.float64)
    assert found.shape == expected.shape
    worst = np.abs(found - expected).max(initial=0)
    assert worst <= bound * max(typical, np.abs(expected).max(initial=0)), f"{worst:.1e}, bound {bound:.1e}"


@given(problem=problems())
@many
@example(ca.ConvProblem.parse("n1 c4 h3 w2 k6 r5 s5 p1:2,3:0 stride2 groups2 float16"))  # beyond the map
@example(ca.ConvProblem.parse("n2 c3 h14 w9 k5 r2 s1 stride5,4 channels_last"))  # inputs that nothing reads
@example(ca.ConvProblem.parse("n1 c17 w50 k34 s4 p3:0 dilation3 groups17 convolution bfloat16"))
def test_gradients_are_those_of_torch(problem):
    x, w, dy = draw_arrays(problem, problem.x_shape, problem.w_shape, problem.y_shape)
    right = torch_gradients(problem, x, w, dy)
    x, dy, same = in_memory(problem, x), in_memory(problem, dy), how(problem)
    plans = {
        direction: ca.plan(problem.replace(direction=direction), weights_constant=False)
        for direction in ("backward_data", "backward_weights")
    }
    dx = ca.conv_backward_data(dy, w, x.shape, algorithm=plans["backward_data"].algorithm, **same)
    dw, db = ca.conv_backward_weights(
        x, dy, w.shape, algorithm=plans["backward_weights"].algorithm, return_bias=True, **same
    )
    assert dx.dtype == dw.dtype == db.dtype == x.dtype
    assert np.array_equal(plans["backward_data"](dy, w), dx)
    assert np.array_equal(plans["backward_weights"](x, dy), dw)
    for found, expected, (direction, plan) in zip(
        (dx, dw), (in_memory(problem, right[0]), right[1]), plans.items(), strict=True
    ):
        asked = problem.replace(direction=direction)
        bound = needs(find_algorithm(plan.algorithm, asked), asked)[1]
        assert_close(found, expected, math.sqrt(asked.reduction), bound)
    assert_close(db, right[2], 1.0, problem.eps)


@given(problem=problems(), data=st.data())
@many
def test_transposed_convolutions_are_those_of_torch(problem, data):
    p = problem
    assume(0 not in (*p.x_shape, *p.w_shape))
    more = tuple(data.draw(st.integers(0, max(s, d) - 1)) for s, d in zip(p.stride, p.dilation, strict=True))
    x, w, bias = draw_arrays(p, p.y_shape, p.w_shape, (p.C,))
    transpose = getattr(torch.nn.functional, f"conv_transpose{p.ndim}d")
    kernel = wide(np.ascontiguousarray(flipped(w) if p.mode == "convolution" else w))
    whole = transpose(wide(x), kernel, wide(bias), p.stride, 0, more, p.groups, p.dilation).numpy()
    inside = tuple(
        slice(low, size - high) for size, (low, high) in zip(whole.shape[2:], p.padding, strict=True)
    )
    expected = np.maximum(in_memory(p, whole[(slice(None), slice(None), *inside)]), 0)
    assume(expected.size)
    found = ca.conv_transpose(
        in_memory(p, x), w, bias, output_padding=more, activation="relu", algorithm="cpu.direct", **how(p)
    )
    assert found.dtype == x.dtype
    asked = p.replace(direction="backward_data")
    bound = needs(find_algorithm("cpu.direct", asked), asked)[1]
    assert_close(found, expected, math.sqrt(asked.reduction), bound)
