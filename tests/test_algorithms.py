"""Every algorithm of the CPU, held to what `convalgos.testing` holds algorithms to."""

from dataclasses import dataclass

import numpy as np
import pytest
from helpers import cpu_algorithms, may_serve

import convalgos as ca
from convalgos.core.errors import Unsupported
from convalgos.cpu.direct import Direct
from convalgos.cpu.reference import Reference, ReferencePlan
from convalgos.testing import CHECKS, check, check_algorithm
from convalgos.testing.contract import (
    IN_SIXTEEN_BITS,
    LAID,
    LAYOUTS,
    MANY_FILTERS,
    SIXTEEN_BITS,
    WITH_NAN,
)
from convalgos.testing.problems import suited

ELSEWHERE = ("random_problems", "gradients")  # test_random_layers.py and test_gradients.py go further
PROMISES = [name for name in CHECKS if name not in ELSEWHERE]


OF_FLOATS = (
    "answers", "figures", "not_a_number", "arrays_as_they_come", "repeats", "equal_filters", "sixteen_bits",
)  # fmt: skip


OF_TYPES = {"integers": {"int8", "uint8"}, "binary": {"binary"}}
ON = {
    "not_a_number": WITH_NAN, "arrays_as_they_come": LAID, "repeats": LAID, "equal_filters": MANY_FILTERS,
    "sixteen_bits": (
        *IN_SIXTEEN_BITS, *(f"{text} float16 {layout}" for text in SIXTEEN_BITS for layout in LAYOUTS),
    ),
}  # fmt: skip


def promised(algorithm, promise):
    """Whether a check is of types, and has problems, that an algorithm computes."""
    if promise in OF_FLOATS and "float32" not in algorithm.dtypes:
        return False
    if promise in OF_TYPES and not OF_TYPES[promise] & set(algorithm.dtypes):
        return False
    if promise == "equal_filters" and not algorithm.equal_bits:
        return False
    problems = (suited(algorithm, ca.ConvProblem.parse(text)) for text in ON.get(promise, ()))
    return promise not in ON or may_serve(algorithm, *problems)


CASES = [(p, a) for p in PROMISES for a in cpu_algorithms() if promised(a, p)]


@pytest.mark.parametrize(("promise", "algorithm"), CASES, ids=[f"{p}-{a.id}" for p, a in CASES])
def test_algorithm(promise, algorithm):
    problem = ca.ConvProblem.parse("n1 c3 h16 w17 k5 r3 s3 p1")
    if not CHECKS[promise](algorithm) and promise != "refusals":  # of which some have none
        pytest.skip(f"none of the problems of this check: {algorithm.why_not(problem)}")


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


# --- of all that is checked ------------------------------------------------------------------


def test_an_algorithm_is_checked_whole():
    found = check_algorithm(Direct(), only=["figures", "repeats"])
    assert found.id == "cpu.direct" and found.runs["figures"] > 100 and found.runs["repeats"] > 2


def wrong(**changes):
    return type("Wrong", (Direct,), changes)()


@pytest.mark.parametrize(
    ("check", "changes"),
    [
        ("figures", {"cost": lambda self, problem, machine: float("nan")}),
        ("figures", {"least": lambda self, problem, machine: 1e9}),
        ("figures", {"workspace_bytes": lambda self, problem: 1.5}),
        ("refusals", {"why_not": lambda self, problem: "No." if problem.ndim == 3 else None}),
        ("others_refused", {"why_not": lambda self, problem: None}),
    ],
)
def test_a_broken_promise_is_told(check, changes):
    with pytest.raises(AssertionError, match=rf"cpu.direct breaks the contract:\n{check}: "):
        check_algorithm(wrong(**changes), only=[check])


def test_what_cannot_be_checked_says_why():
    with pytest.raises(TypeError, match="instance of a subclass of Algorithm"):
        check_algorithm(Direct)
    with pytest.raises(ValueError, match="only='speed' must be among answers"):
        check_algorithm(Direct(), only=["speed"])
    with pytest.raises(ValueError, match="serves none of the problems: it is Monday today"):
        check_algorithm(wrong(why_not=lambda self, problem: "it is Monday today"), only=["answers"])
    gpu = next(a for a in ca.algorithms() if a.device == "gpu")
    with pytest.raises(Unsupported, match="gpu_check --one"):
        check_algorithm(gpu)
