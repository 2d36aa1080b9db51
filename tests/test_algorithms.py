"""Every algorithm on every awkward problem, against the float64 reference."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from helpers import (
    EXACT,
    check,
    check_all,
    cpu_algorithms,
    example,
    table_problems,
)

import convalgos as ca
from convalgos.core.plan import numpy_dtype
from convalgos.core.problem import DIRECTIONS
from convalgos.cpu.reference import Reference, ReferencePlan, reference
from convalgos.select import current_machine

each_algorithm = pytest.mark.parametrize("algorithm", cpu_algorithms(), ids=lambda a: a.id)
each_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


@each_dtype
@each_algorithm
def test_answers(algorithm, dtype):
    if not check_all(algorithm, (problem for problem, _ in table_problems(algorithm, dtype))):
        pytest.skip(next(reason for _, reason in table_problems(algorithm, dtype)))


@each_dtype
@each_algorithm
def test_refusals_say_why(algorithm, dtype):
    for problem, reason in table_problems(algorithm, dtype):
        if reason is None:
            continue
        assert reason == reason.strip() and "\n" not in reason, f"{problem}: {reason!r} is not one sentence"
        assert len(reason.split()) > 2, f"{problem}: {reason!r} is not a sentence"
        with pytest.raises(ca.Unsupported) as refusal:
            ca.plan(problem, algorithm=algorithm.id)
        assert reason in str(refusal.value)
        assert algorithm.id in str(refusal.value)


@each_dtype
@each_algorithm
def test_figures_for_the_selector(algorithm, dtype):
    machine = current_machine()
    for problem, reason in table_problems(algorithm, dtype):
        if reason is None:
            computed = algorithm.computed(problem)
            if not problem.is_empty:
                cost = algorithm.cost(computed, machine)
                assert math.isfinite(cost) and cost > 0, f"{problem}: cost {cost}"
            workspace = algorithm.workspace_bytes(computed)
            assert type(workspace) is int and workspace >= 0, f"{problem}: workspace {workspace!r}"


@each_algorithm
def test_other_directions_and_precisions_are_refused(algorithm):
    problem = ca.ConvProblem((1, 4, 8, 8), (4, 4, 3, 3))
    others = [d for d in DIRECTIONS if d not in algorithm.directions]
    for changes in (
        *({"direction": direction} for direction in others),
        {"compute_dtype": "tf32"},
        {"dtype": "float64", "compute_dtype": "float32"},
        {"dtype": "float16", "compute_dtype": "float16"},
    ):
        with pytest.raises(ca.Unsupported, match="cannot serve"):
            algorithm.serve(problem.replace(**changes))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@each_algorithm
def test_sixteen_bits_are_rounded_once(algorithm, dtype):
    """Data of 16 bits are computed in float32: an output is off by its own rounding and that error only."""
    served = 0
    for text in (
        "n2 c3 h9 w8 k5 r3 s3 p1",
        "n1 c4 h9 w8 k4 r5 s5 p2 groups4",
        "n1 c8 w30 k6 s4 p1",
        "n1 c8 w30 k6 s2",
    ):
        for layout in ("channels_first", "channels_last"):
            problem = ca.ConvProblem.parse(text).replace(dtype=dtype, layout=layout)
            wide = problem.replace(dtype="float32", layout="channels_first")
            if algorithm.why_not(wide.replace(layout=layout)):
                continue
            served += 1
            x, w, bias, _ = (array.astype(numpy_dtype(dtype)) for array in example(wide, "reals"))
            y = reference(wide, *(array.astype(np.float64) for array in (x, w, bias)))
            last = layout == "channels_last"
            plan = ca.plan(problem, algorithm=algorithm.id)
            found = plan(np.moveaxis(x, 1, -1) if last else x, w, bias=bias)
            assert found.dtype == x.dtype
            found = (np.moveaxis(found, -1, 1) if last else found).astype(np.float64)
            allowed = np.abs(y) * problem.eps / 2 + algorithm.error_bound(wide) * np.abs(y).max()
            assert (np.abs(found - y) <= allowed * 1.01).all(), f"{problem}: off by {np.abs(found - y).max()}"
    if not served:
        pytest.skip(algorithm.why_not(wide))


@each_algorithm
def test_not_a_number_and_infinity_are_never_lost(algorithm):
    """An output that reads a NaN is NaN, after ReLU too; one that reads an infinity is not finite."""
    served = 0
    for text in (
        "n2 c3 h16 w17 k5 r3 s3 p1",
        "n1 c4 h16 w17 k4 r3 s3 p1 groups4",
        "n1 c3 w40 k5 s3 p1",
        "n1 c3 h16 w17 k5 r5 s5 p2",
        "n1 c3 h16 w17 k5 r4 s4 p2",
        "n1 c3 h16 w17 k5 r2 s2 p1",
    ):
        problem = ca.ConvProblem.parse(text)
        if algorithm.why_not(problem):
            continue
        served += 1
        plan = algorithm.serve(problem)
        w = np.ones(problem.w_shape, np.float32)
        for value in (np.nan, np.inf, -np.inf):
            x = np.ones(problem.x_shape, np.float32)
            clean = plan(x, w)
            x[0, 1, ..., 7] = value
            y = plan(x, w)
            last = 7 + problem.padding[-1][0]  # of the outputs that read it
            group = slice(None) if problem.groups == 1 else slice(1, 2)
            touched = np.zeros(problem.y_shape, bool)
            touched[0, group, ..., last - problem.kernel[-1] + 1 : last + 1] = True
            assert not np.isfinite(y[touched]).any(), f"{problem}: {value} was lost"
            if np.isnan(value):
                rectified = plan(x, w, activation="relu")
                assert np.isnan(rectified[touched]).all(), f"{problem}: ReLU lost NaN"
            if algorithm.family in EXACT:
                assert np.array_equal(y[~touched], clean[~touched]), f"{problem}: {value} spread"
    if not served:
        pytest.skip(algorithm.why_not(problem))


# --- the check itself ------------------------------------------------------------------------


class Broken(ReferencePlan):
    """The reference with one mistake in it."""

    mistake: str

    def new_workspace(self):
        return np.empty(1, self._dtype)

    def run(self, x, w, bias, activation, y, workspace):
        super().run(x, w, None if self.mistake == "bias" else bias, activation, y, workspace)
        if self.mistake == "workspace":
            y += workspace[0]  # nobody has written it
        elif self.mistake == "x":
            x.flat[0] += 1
        elif self.mistake == "outside":
            beyond = np.lib.stride_tricks.as_strided(y.reshape(-1)[-1:], (2,), (y.itemsize,))
            beyond[1] = 0
        elif self.mistake == "unwritten":
            y.flat[-1] = np.nan
        elif self.mistake == "inexact":
            y *= 1 + np.finfo(y.dtype).eps
        elif self.mistake == "error":
            y *= 1.001


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("bias", "is over the bound|not exact"),
        ("workspace", "outputs are NaN"),
        ("x", "wrote x"),
        ("outside", "wrote outside y"),
        ("unwritten", "1 of .* outputs are NaN"),
        ("inexact", "not exact"),
        ("error", "is over the bound"),
    ],
)
def test_the_check_finds_mistakes(mistake, message):
    @dataclass(frozen=True)
    class Mistaken(Reference):
        def plan(self, problem):
            plan = Broken(problem, self)
            plan.mistake = mistake
            return plan

    problem = ca.ConvProblem.parse("n1 c3 h6 w7 k4 r3 s3 p1")
    check(Reference(), problem, "integers")
    with pytest.raises(AssertionError, match=message):
        check(Mistaken(), problem, "integers" if mistake == "inexact" else "reals")
