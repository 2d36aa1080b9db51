"""Filters packed again by recorded launches have the bits of those that are packed anew."""

import numpy as np
import pytest

from convalgos.core.prepared_filter import PreparedFilter
from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import Packed
from convalgos.cpu.runtime.recorded_packing import recorded_packing
from convalgos.network.dynamic_plans import DynamicConvolutionPlan
from convalgos.network.planned import PlanLimits
from convalgos.select import choose, find_algorithm
from convalgos.select.constraints import Constraints

NUMBERS = np.random.default_rng(3)


def drawn(*shape):
    return NUMBERS.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize(
    "name", ["cpu.direct", "cpu.direct.pixels", "cpu.winograd.f4x3", "cpu.winograd.f2x3"]
)
def test_packed_again(name, groups):
    """Also where the last panel is partly empty, and for the second time on other values."""
    problem = ConvProblem(
        (2, 7 * groups, 11, 9), (37 * groups, 7, 3, 3), 1, 1, groups=groups, dtype=np.float32
    )
    plan = choose.choose_plan(problem, "cpu", Constraints(allow=name))
    w = drawn(*problem.w_shape)
    recorded = recorded_packing(plan.pack_filter, w)
    assert recorded is not None
    w[...] = drawn(*problem.w_shape)
    for launch in recorded.launches:
        jit.launch(launch.kernel, launch.record, launch.tasks)
    x, filters = drawn(*problem.x_shape), plan.prepare(w)
    begin = jit.data_address()(recorded.packed)
    again = PreparedFilter(filters.key, Packed(recorded.packed, begin))
    np.testing.assert_array_equal(plan(x, again), plan(x, filters))


def test_what_reads_copies_is_not_recorded():
    """Nor what brings a packed filter into yet another form, or is no launch."""
    problem = ConvProblem((1, 16, 12, 12), (16, 16, 3, 3), 1, 1, dtype=np.float32)
    plan = choose.choose_plan(problem, "cpu", Constraints(allow="cpu.direct"))
    w = drawn(*problem.w_shape)
    assert recorded_packing(lambda a: plan.pack_filter(a.copy()), w) is None
    assert recorded_packing(lambda a: plan.pack_filter(a) * 1, w) is None
    assert recorded_packing(np.copy, w) is None
    assert recorded_packing(plan.pack_filter, w) is not None


@pytest.mark.parametrize("x, w", [((1, 8, 9, 9), (24, 8, 1, 1)), ((1, 32, 40, 40), (32, 32, 3, 3))])
def test_a_run_is_launches(x, w):
    """Where arrays lie in order; each run reads the filter of this time."""
    problem = ConvProblem(x, w, 1, w[-1] // 2, dtype=np.float32)
    made = DynamicConvolutionPlan(problem, PlanLimits(), None, None)
    arrays = drawn(*x), drawn(*w), np.full(problem.y_shape, np.nan, np.float32)
    bound = made.bind(*arrays)
    assert bound.launches is not None
    for _ in range(2):
        arrays[1][...] = drawn(*w)
        arrays[2].fill(np.nan)
        bound.run()
        right = choose.choose_plan(problem, "cpu", Constraints(allow="cpu.reference"))(*arrays[:2])
        most = find_algorithm(made.algorithm).error_bound(problem)  # of what this machine picks
        assert np.abs(arrays[2] - right).max() <= most * np.abs(right).max()
