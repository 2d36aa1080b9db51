"""The filters of a gradient's phases, made of filters that lie in memory in any way."""

from itertools import product

import numpy as np
import pytest

import convalgos as ca
from convalgos.core.backward.polyphase import phases
from convalgos.core.errors import missing
from convalgos.cpu.backward.filter_rotation import rotated_filters, rotated_together
from convalgos.cpu.backward.subproblems import filters_of, subproblems

needs_kernels = pytest.mark.skipif(missing("llvmlite") is not None, reason="no llvmlite")
LAYERS = (
    "n1 c5 h9 w9 k7 r3 s3 p1",
    "n1 c16 h9 w9 k16 r1 s1",
    "n1 c17 h9 w9 k33 r4 s4 stride2 p1",
    "n1 c18 h12 w12 k20 r5 s5 stride2 p2",
    "n1 c6 h12 w12 k9 r2 s3 stride2,3",
    "n1 c3 w40 k2 s9 stride4 p4",
    "n1 c8 h9 w9 k12 r3 s3 p1 groups4 stride2",
    "n1 c3 d5 h6 w7 k4 t3 r2 s3 stride1,2,2",
    "n1 c4 h20 w20 k6 r3 s3 stride2 dilation3",
)


def disguises(w):
    """The filter as it lies, and other arrays of the same numbers."""
    yield w
    yield np.asfortranarray(w)
    yield np.ascontiguousarray(np.flip(w))[(slice(None, None, -1),) * w.ndim]
    yield np.ascontiguousarray(w.swapaxes(0, 1)).swapaxes(0, 1)
    axes = tuple(range(2, w.ndim))
    yield np.flip(np.ascontiguousarray(np.flip(w.swapaxes(0, 1), axes)), axes).swapaxes(0, 1)
    wide = np.zeros([2 * n for n in w.shape], w.dtype)
    wide[(slice(None, None, 2),) * w.ndim] = w
    yield wide[(slice(None, None, 2),) * w.ndim]


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("text", LAYERS)
def test_filters_of_any_strides_are_rotated(text, dtype):
    problem = ca.ConvProblem.parse(f"{text} backward_data").replace(dtype=dtype)
    w = np.random.default_rng(0).standard_normal(problem.w_shape).astype(dtype)
    found = [p for p in phases(problem) if p.forward]
    expected = [p.filter(w, problem.groups) for p in found]
    for other in disguises(w):
        assert np.array_equal(other, w)
        for made, wanted in zip(rotated_filters(found, other, problem.groups), expected, strict=True):
            assert made.flags.c_contiguous and np.array_equal(made, wanted)
    constant = np.broadcast_to(w[:1, :1, ...][(..., *(slice(0, 1),) * len(problem.kernel))], w.shape)
    for made, phase in zip(rotated_filters(found, constant, problem.groups), found, strict=True):
        assert np.array_equal(made, phase.filter(constant, problem.groups))


@needs_kernels
def test_phases_that_are_alike_are_one_filter():
    problem = ca.ConvProblem.parse("n1 c17 h34 w34 k33 r4 s4 stride2 backward_data")
    (together,) = subproblems(problem, 2.0)
    assert together.are_alike and len(together.phases) == 4
    w = np.random.default_rng(0).standard_normal(problem.w_shape).astype("f")
    expected = np.concatenate([phase.filter(w, 1) for phase in together.phases])
    for other in disguises(w):
        assert np.array_equal(rotated_together(together.phases, other), expected)
        assert np.array_equal(filters_of((together,), other, 1)[0], expected)
    unlike = subproblems(ca.ConvProblem.parse("n1 c3 h33 w33 k5 r5 s5 stride2 p2 backward_data"), 2.0)
    assert not unlike[0].are_alike and len(unlike[0].phases) == 4


@needs_kernels
@pytest.mark.parametrize(
    "algorithm", ["cpu.direct", "cpu.winograd.f4x2", "cpu.fft_tiles.t16", "cpu.im2col.own"]
)
def test_plans_read_filters_as_they_lie(algorithm):
    problem = ca.ConvProblem.parse("n1 c17 h34 w34 k33 r4 s4 stride2 backward_data")
    rng = np.random.default_rng(0)
    dy, w = (rng.standard_normal(shape).astype("f") for shape in problem.array_shapes[:2])
    plan = ca.plan(problem, algorithm=algorithm)
    expected = plan(dy, w)
    for other in (*disguises(w), w.astype(">f4")):
        assert np.array_equal(plan(dy, plan.prepare(other)), expected)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (3, 2, 0, 1)])
def test_orders_of_transposed_filters(groups, axes):
    """Turned round, with channels and filters of each group in each other's place."""
    pytest.importorskip("jax")
    from convalgos.jax.filter_order import FilterOrder

    w = np.arange(6 * 4 * 3 * 2.0).reshape(6, 4, 3, 2)
    shape = tuple(w.shape[axes.index(i)] for i in range(4))
    given = np.ascontiguousarray(w.transpose([axes.index(i) for i in range(4)]))
    order = FilterOrder(shape, axes, groups)
    own = order.own(given, np)
    assert own.shape == order.own_shape == (4 * groups, 6 // groups, 3, 2)
    for group, k, c in product(range(groups), range(6 // groups), range(4)):
        assert np.array_equal(own[group * 4 + c, k], w[group * (6 // groups) + k, c, ::-1, ::-1])
