"""Arguments as no program should give them: taken for what they are, or refused by name."""

import random

import numpy as np
import pytest
from refusals import assert_alone

import convalgos as ca
from convalgos.api import planning
from convalgos.core import arguments, machine

X, W, DY = np.ones((1, 2, 5, 5), "f4"), np.ones((2, 2, 3, 3), "f4"), np.ones((1, 2, 3, 3), "f4")
PROBLEM = ca.ConvProblem(X.shape, W.shape)
PLAIN = {"algorithm": "cpu.reference"}  # compiles nothing
REFUSED = (ValueError, TypeError, ca.Unsupported)

ODD = [
    *(True, False, 1.0, 1.5, float("nan"), float("inf"), -1, 0, 1, 2, 10**400, 1j, None, Ellipsis, type, len),
    *(2**31, 2**40, 2**62, 2**63, 2**64, -(2**63), "", "1", "same", "x" * 99, b"1", slice(1), object()),
    *((), [], {}, set(), (1,), (1, 1), [1, 1], (1, 2, 3), {1: 2}, {1, 2}, range(1, 3), [[[1]]], (None, 1)),
    *((1.0, 1), (True, 1), (1, True), (1, -1), (1, 2**63), (np.int8(1), 1), ((1, 1), (1, 1)), ((1, 1), 1)),
    *(
        ((1.0, 1), (1, 1)),
        ((1, True), (1, 1)),
        ((1, 2, 3), (1, 1)),
        np.int8(1),
        np.uint64(2**63),
        np.bool_(True),
    ),
    *(
        np.float32(1),
        np.array(1),
        np.array(1.0),
        np.array([1, 1]),
        np.array([1.0, 1.0]),
        np.ones((2, 2), int),
    ),
    *(np.array([]), np.array([True, False]), np.array(["1"])),
]
STEPS = ("stride", "padding", "dilation", "groups")
CALLS = {
    "conv": (lambda **a: ca.conv(X, W, **(PLAIN | a)), (*STEPS, "mode", "layout", "activation", "residual")),
    "backward_data": (
        lambda **a: ca.conv_backward_data(DY, W, **({"x_shape": X.shape} | PLAIN | a)),
        (*STEPS, "x_shape", "mode", "layout"),
    ),
    "backward_weights": (
        lambda **a: ca.conv_backward_weights(X, DY, **({"w_shape": W.shape} | PLAIN | a)),
        (*STEPS, "w_shape", "mode", "layout"),
    ),
    "transpose": (
        lambda **a: ca.conv_transpose(X, W, **(PLAIN | a)),
        (*STEPS, "output_padding", "mode", "layout", "activation"),
    ),
    "problem": (
        lambda **a: ca.ConvProblem(**({"x_shape": X.shape, "w_shape": W.shape} | a)),
        (*STEPS, "x_shape", "w_shape", "mode", "layout", "dtype", "direction", "compute_dtype"),
    ),
    "parse": (ca.ConvProblem.parse, ("text",)),
    "plan": (
        lambda **a: ca.plan(**({"problem": PROBLEM} | PLAIN | a)),
        (
            *("problem", "device", "effort", "workspace_limit", "max_rel_error", "deterministic", "allow"),
            *(
                "time_budget",
                "deny",
                "strict_nan",
                "expected_calls",
                "weights_constant",
                "on_miss",
                "selector",
            ),
        ),
    ),
}
CASES = [(call, name) for call, (_, names) in CALLS.items() for name in names]


def answer(call, name, value):
    """What a call says: the shape of its result, or the kind of its refusal."""
    try:
        found = CALLS[call][0](**{name: value})
    except REFUSED as error:
        return error
    return getattr(found, "shape", None) or str(found)


def label(value):
    return f"{type(value).__name__} {arguments.shown(value)[:40]}"


@pytest.mark.parametrize(("call", "name"), CASES)
def test_odd_arguments_are_refused_by_name(call, name):
    for value in ODD:
        found = answer(call, name, value)  # anything but what REFUSED holds goes through, and fails here
        if isinstance(found, REFUSED):
            assert_alone(found)
            told = str(found)
            of_shapes = "shape" in told or "problem" in told  # what does not go together, told by its sizes
            assert name in told or of_shapes, f"{label(value)}: {told}"
            assert len(told) < 2000, label(value)


@pytest.mark.parametrize(("call", "name"), [case for case in CASES if case[1] in STEPS])
def test_the_answer_does_not_depend_on_what_was_asked_before(call, name):
    def kind(found):
        return type(found) if isinstance(found, REFUSED) else found

    values = [value for value in ODD if not isinstance(value, str)]
    first = []
    for value in values:
        planning.forget_plans()
        first.append(kind(answer(call, name, value)))
    order = list(range(len(values))) * 2
    random.Random(13).shuffle(order)
    for i in order:
        assert kind(answer(call, name, values[i])) == first[i], label(values[i])


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    "value", [1.0, True, np.float32(1), np.True_, (1.0, 1), (True, 1), [1, np.True_], b"1"]
)
def test_what_is_only_equal_to_an_integer_is_not_one(name, value):
    if name == "groups" and isinstance(value, tuple):
        value = value[0]
    with pytest.raises(ValueError, match=f"^{name}="):
        ca.ConvProblem(X.shape, W.shape, **{name: value})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"stride": 2**31}, "stride=2147483648 must be at most"),
        ({"dilation": 2**62}, "dilation=.* must be at most"),
        ({"padding": 2**63}, "padding=9223372036854775808 must be at most"),
        ({"padding": 2**40}, "padding=.* has more elements than an array can have"),
        ({"x_shape": (1, 2, 2**63, 5)}, "x_shape=9223372036854775808 must be at most"),
        ({"x_shape": (2**30, 2, 2**20, 2**20)}, "x_shape=.* has more elements"),
        ({"w_shape": (2**59, 2, 3, 3)}, "w_shape=.* has more elements"),
        ({"x_shape": (1, 2, 2**29, 2**29), "w_shape": (2, 2, 2**10, 2**10)}, "flops"),
        ({"x_shape": (1, 2, 10**5000, 5)}, "x_shape=<int> must be at most"),
    ],
)
def test_what_64_bits_do_not_count_is_refused_in_words(changes, told):
    with pytest.raises(ValueError, match=told):
        ca.ConvProblem(**({"x_shape": X.shape, "w_shape": W.shape} | changes))


def test_numbers_of_many_digits_are_refused_in_words():
    for text in (
        f"n1 c1 w{'9' * 5000} k1 s1",
        f"n1 c1 w9 k1 s1 p{'9' * 5000}",
        f"n1 c1 w9 k1 s1 stride{10**30}",
    ):
        with pytest.raises(ValueError, match=r"digits, of which|must be at most"):
            ca.ConvProblem.parse(text)


@pytest.mark.parametrize("call", [ca.plan, ca.find])
def test_a_problem_of_36_tebibytes_is_refused_in_words(call):
    problem = ca.ConvProblem.parse("n1 c1 w10000000000000 k1 s3")
    with pytest.raises(
        ca.Unsupported, match=r"x, w, y take 74,505.8 GiB, and this machine has .* GiB of memory"
    ):
        call(problem)


def test_what_a_file_may_hold_is_planned(monkeypatch):
    """Arrays may lie in files, and be larger than memory."""
    monkeypatch.setattr(planning, "memory_bytes", lambda: PROBLEM.bytes // 2)
    ca.plan(PROBLEM, algorithm="cpu.reference")
    monkeypatch.setattr(planning, "memory_bytes", lambda: None)
    ca.plan(PROBLEM, algorithm="cpu.reference")
    assert machine.memory_bytes() > 1 << 28
