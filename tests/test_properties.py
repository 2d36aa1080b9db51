"""What convolution is, told without a reference: impulse, linearity, shift, groups, dimensions.

Held on auto, on an algorithm of each family and on those that random layers hardly meet, on random problems
bent until it serves them; all are held to the reference elsewhere.
"""

from itertools import product

import numpy as np
import pytest
from helpers import choosy, cpu_algorithms, served_problems, serves, why_not_here
from hypothesis import given
from hypothesis import strategies as st
from test_random_layers import RARE

import convalgos as ca
from convalgos.select import find_algorithm
from convalgos.select.measure.accuracy import random_arrays

DENSE = [a for a in cpu_algorithms() if "float32" in a.dtypes and not a.skips_zeros and not a.patterns]
OF_FAMILIES = {a.family: a.id for a in DENSE}.values()
CHOICES = ["auto", *(a.id for a in DENSE if a.id in OF_FAMILIES or a.id in RARE)]


@pytest.fixture(params=CHOICES, scope="module")
def choice(request):
    if request.param != "auto" and (reason := why_not_here(request.param)):
        pytest.skip(f"{request.param} {reason}")
    return request.param


def plan_where_served(choice: str, problem: ca.ConvProblem):
    return ca.plan(problem, algorithm=choice if serves(choice, problem) else "auto")


def tolerance(plan) -> float:
    return 8 * find_algorithm(plan.algorithm).error_bound(plan.problem)


def logical(plan, x, w):
    """The plan on logical arrays, in and out."""
    if plan.problem.layout == "channels_first":
        return plan(x, w)
    return np.moveaxis(plan(np.moveaxis(x, 1, -1), w), -1, 1)


def arrays(problem, seed=0):
    return random_arrays(problem.replace(layout="channels_first"), seed)


def assert_near(found, expected, allowed):
    worst = float(np.abs(found - expected).max(initial=0))
    assert worst <= allowed, f"off by {worst:.2e}, allowed {allowed:.2e}"


@given(data=st.data())
@choosy
def test_an_impulse_gives_the_filter_back(choice, data):
    problem = data.draw(served_problems(choice))
    plan = ca.plan(problem, algorithm=choice)
    _, w = arrays(problem)
    at = tuple(data.draw(st.integers(0, size - 1)) for size in problem.x_shape)
    x = np.zeros(problem.x_shape, np.float32)
    x[at] = 1
    expected = np.zeros(problem.y_shape, np.float32)
    image, channel, *position = at
    group, inside = divmod(channel, problem.w_shape[1])
    filters = slice(group * problem.gemm_n, (group + 1) * problem.gemm_n)
    for tap in product(*map(range, problem.kernel)):
        seen = [
            (p + low - t * d, s)
            for p, t, d, s, (low, _) in zip(
                position, tap, problem.dilation, problem.stride, problem.padding, strict=True
            )
        ]
        where = [start // s for start, s in seen]
        if any(start % s for start, s in seen):
            continue
        if all(0 <= o < size for o, size in zip(where, problem.spatial_out, strict=True)):
            if problem.mode == "convolution":
                tap = tuple(r - 1 - t for t, r in zip(tap, problem.kernel, strict=True))
            expected[(image, filters, *where)] = w[(filters, inside, *tap)]
    assert_near(logical(plan, x, w), expected, tolerance(plan) * np.abs(w).max())


@given(data=st.data())
@choosy
def test_linear_in_input_and_filter(choice, data):
    problem = data.draw(served_problems(choice))
    plan = ca.plan(problem, algorithm=choice)
    (x1, w1), (x2, w2) = arrays(problem, 1), arrays(problem, 2)
    a, b = np.float32(0.75), np.float32(-1.5)
    y11, y21, y12 = logical(plan, x1, w1), logical(plan, x2, w1), logical(plan, x1, w2)
    allowed = tolerance(plan) * (1 + max(np.abs(y).max(initial=0) for y in (y11, y21, y12)))
    assert_near(logical(plan, a * x1 + b * x2, w1), a * y11 + b * y21, allowed)
    assert_near(logical(plan, x1, a * w1 + b * w2), a * y11 + b * y12, allowed)


@given(data=st.data())
@choosy
def test_a_shift_of_the_input_by_the_stride_shifts_the_output_by_one(choice, data):
    problem = data.draw(served_problems(choice))
    plan = ca.plan(problem, algorithm=choice)
    x, w = arrays(problem)
    axis = data.draw(st.integers(2, x.ndim - 1))
    step = problem.stride[axis - 2]
    x, moved = np.moveaxis(x, axis, -1).copy(), np.zeros_like(np.moveaxis(x, axis, -1))
    x[..., -step:] = 0  # what the shift pushes out
    moved[..., step:] = x[..., :-step]
    y, y_moved = (np.moveaxis(logical(plan, np.moveaxis(v, -1, axis), w), axis, -1) for v in (x, moved))
    assert_near(y_moved[..., 1:], y[..., :-1], tolerance(plan) * (1 + np.abs(y).max(initial=0)))


@given(data=st.data())
@choosy
def test_groups_are_convolutions_side_by_side(choice, data):
    problem = data.draw(served_problems(choice, groups=(2, 3, 4)))
    groups = problem.groups if problem.groups > 1 else 2  # where it serves no groups: the side, not the whole
    inputs, filters = problem.w_shape[1], problem.gemm_n
    whole = problem.replace(
        x_shape=(problem.N, groups * inputs, *problem.spatial),
        w_shape=(groups * filters, *problem.w_shape[1:]),
        groups=groups,
    )
    side = problem.replace(
        x_shape=(problem.N, inputs, *problem.spatial), w_shape=(filters, *problem.w_shape[1:]), groups=1
    )
    together, one = plan_where_served(choice, whole), plan_where_served(choice, side)
    x, w = arrays(whole)
    sides = [
        logical(one, x[:, g * inputs : (g + 1) * inputs], w[g * filters : (g + 1) * filters])
        for g in range(groups)
    ]
    expected = np.concatenate(sides, axis=1)
    allowed = max(tolerance(together), tolerance(one)) * (1 + np.abs(expected).max(initial=0))
    assert_near(logical(together, x, w), expected, allowed)


@pytest.mark.parametrize("choice", [c for c in CHOICES if c != "cpu.fft_planes"], indirect=True)  # of planes
@given(data=st.data())
@choosy
def test_one_dimension_is_two_with_a_height_of_one(choice, data):
    problem = data.draw(served_problems(choice, dimensions=(1,)))
    flat = ca.ConvProblem(
        (*problem.x_shape[:2], 1, *problem.spatial),
        (*problem.w_shape[:2], 1, *problem.kernel),
        (1, *problem.stride),
        ((0, 0), *problem.padding),
        (1, *problem.dilation),
        problem.groups,
        layout=problem.layout,
        mode=problem.mode,
    )
    line = ca.plan(problem, algorithm=choice)
    plane = plan_where_served(choice, flat)
    x, w = arrays(problem)
    y = logical(line, x, w)
    allowed = max(tolerance(line), tolerance(plane)) * (1 + np.abs(y).max(initial=0))
    assert_near(logical(plane, x[:, :, None], w[:, :, None])[:, :, 0], y, allowed)
