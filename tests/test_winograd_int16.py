"""Winograd of 8-bit integers: ranges of the transforms, sums that wrap, corners of the data, all schedules.

Types, zero points, layouts and both roundings are tested with all other algorithms of integers.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

from convalgos import ConvProblem
from convalgos.core.quantization import Quantization
from convalgos.cpu.reference import Reference
from convalgos.cpu.tiled import integer_transforms as transforms
from convalgos.cpu.winograd_int16 import ALGORITHMS, WinogradInt16, WinogradInt16Plan, short_schedule


class Numbers:
    """What transforms ask of vectors, on Python's integers."""

    add, sub, mul = int.__add__, int.__sub__, int.__mul__
    const, left = int, int.__lshift__


def matrix(m):
    """Of the inputs, (m + 2, m + 2)."""
    units = np.eye(m + 2, dtype=int).tolist()
    return np.array([transforms.input_points(Numbers, m, unit) for unit in units]).T


@pytest.mark.parametrize("m", [2, 4])
def test_transformed_inputs_and_filters_fit_16_bits(m):
    both = np.kron(matrix(m), matrix(m))
    high, low = np.maximum(both, 0).sum(1), np.minimum(both, 0).sum(1)
    extremes = [high * 127 - low * 128, high * 128 - low * 127]  # of any data of int8, or of uint8 less 128
    assert {2: 512, 4: 24990}[m] == np.max(extremes) <= transforms.MOST
    with_share = transforms.FILTER[m] * transforms.SHARE[m][:, None]
    sizes = [np.abs(np.kron(f, f)).sum(1).max() for f in (with_share, transforms.FILTER[m])]
    assert 128 * sizes[0] <= transforms.MOST and 255 * sizes[1] <= transforms.MOST


@pytest.mark.parametrize("m", [2, 4])
def test_products_at_the_points_are_the_convolution_times_the_denominator(m):
    rng = np.random.default_rng(m)
    d, g = rng.integers(-128, 128, m + 2), rng.integers(-255, 256, 3)
    points = matrix(m) @ d * (transforms.FILTER[m] * transforms.SHARE[m][:, None] @ g)
    outputs = transforms.output_tile(Numbers, m, points.tolist())
    assert outputs == [2 * transforms.ODD[m] * int(d[i : i + 3] @ g) for i in range(m)]


@pytest.mark.parametrize(
    ("low", "high", "shared"), [(-128, 127, True), (-255, 0, False), (0, 255, False)], ids=str
)
def test_filters_with_zero_points_may_leave_their_share_to_the_outputs(low, high, shared):
    w = np.array(list(product((low, high), repeat=9))).reshape(-1, 3, 3)
    points, has_share = transforms.filter_points(w, 4, True, True)
    assert has_share == shared
    rows = transforms.FILTER[4] * (transforms.SHARE[4][:, None] if shared else 1)
    assert np.array_equal(points.reshape(6, 6, -1), np.einsum("ir,js,krs->ijk", rows, rows, w))


@dataclass(frozen=True)
class Forced(WinogradInt16):
    """With a schedule of the test's choice."""

    cuts: tuple[int, int, int, int] = (1, 1, 1, 1)
    team: bool = False

    def plan(self, problem):
        whole = short_schedule(problem, self.m, 2)
        cuts = tuple(min(c, n) for c, n in zip(self.cuts, whole.grid, strict=True))
        return WinogradInt16Plan(problem, self, whole.cut_into(cuts, self.team))


def corners(rng, dtype, shape):
    ends = np.iinfo(dtype)
    return rng.choice(np.array([ends.min, ends.max], dtype), size=shape)


def check(algorithm, text, zero_point_of_w):
    problem, rng = ConvProblem.parse(text), np.random.default_rng(7)
    x, w = (
        corners(rng, t, s)
        for t, s in zip((problem.dtype, problem.w_dtype), problem.array_shapes, strict=False)
    )
    pad = int(corners(rng, problem.dtype, ()))
    quantization = Quantization(x_zero_point=pad, w_zero_point=zero_point_of_w)
    bias = rng.integers(-(2**31), 2**31, problem.K, dtype=np.int32)
    answers = []
    for one in (algorithm, Reference()):
        plan = one.serve(problem)
        answers.append(plan(x, plan.prepare(w, quantization), bias=bias))
    assert np.array_equal(*answers)


@pytest.mark.parametrize("cuts", [(1, 1, 1, 1), (2, 3, 2, 3)], ids=str)
@pytest.mark.parametrize(
    ("text", "zero_point"),
    [
        ("uint8 w_int8 n2 c35 h13 w40 k20 r3 s3 p1", 0),
        ("int8 w_uint8 n2 c33 h9 w11 k6 r3 s3 p0:2,3:1 groups3 channels_last", 255),
        ("int8 n1 c6 h21 w26 k10 r5 s5 p2 stride2", -128),  # phases with a tap less
        ("uint8 w_int8 n1 c4 d5 h9 w10 k6 t3 r3 s3 p2,1,1 dilation2,1,1", 127),  # slices of padding
        ("uint8 n3 c17 w70 k9 s3 p2 channels_last", 3),
    ],
    ids=str,
)
@pytest.mark.parametrize("m", [2, 4])
def test_corners_are_exact(m, text, zero_point, cuts):
    check(Forced(m, cuts=cuts, team=cuts[0] == 1), text, zero_point)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a.id)
def test_the_longest_sums_are_told_and_longer_ones_refused(algorithm):
    """All products have one sign, and their sums at the points wrap around many times."""
    problem = ConvProblem.parse("int8 w_uint8 n1 c1827 h6 w6 k1 r3 s3")
    x, w = np.full(problem.x_shape, -128, np.int8), np.full(problem.w_shape, 255, np.uint8)
    assert algorithm.serve(problem)(x, w).max() == 1827 * 9 * -128 * 255  # 0.9999 of 2**29
    longer = problem.replace(x_shape=(1, 1828, 6, 6), w_shape=(1, 1828, 3, 3))
    assert algorithm.why_not(longer) == "tells sums of up to 16448 products; these are of 16452"


def test_a_plan_takes_filters_and_biases_in_turns():
    """What a workspace has ready of one filter is not what another runs with."""
    problem, rng = ConvProblem.parse("uint8 w_int8 y_uint8 n1 c4 h6 w6 k4 r3 s3"), np.random.default_rng(1)
    x = rng.integers(0, 256, problem.x_shape, np.uint8)
    plans = [one.serve(problem) for one in (ALGORITHMS[1], Reference())]
    prepared = []
    for zero_point in (0, 130):
        w = rng.integers(-128, 128, problem.w_shape, np.int8)
        quantization = Quantization(x_zero_point=zero_point, y_scale=300.0 + zero_point)
        prepared.append([plan.prepare(w, quantization) for plan in plans])
    biases = None, rng.integers(-(2**14), 2**14, problem.K, dtype=np.int32)
    for filters, bias, activation in product(prepared * 2, biases, (None, "relu")):
        y, exact = (
            plan(x, w, bias=bias, activation=activation) for plan, w in zip(plans, filters, strict=True)
        )
        assert np.array_equal(y, exact)
