"""A user's mistake is told once: without the errors that were caught while it was found."""

import ast
from functools import cache

import numpy as np
import pytest
from command_line import run
from refusals import PACKAGE, assert_alone, is_ours
from source_trees import trees

import convalgos as ca

X, W = np.ones((1, 2, 5, 5), "f4"), np.ones((2, 2, 3, 3), "f4")
PROBLEM = ca.ConvProblem(X.shape, W.shape)


def _called_with_a_filter_of(own, other):
    """A plan by one algorithm is given a filter that another one has prepared."""
    return ca.plan(PROBLEM, algorithm=own)(X, ca.plan(PROBLEM, algorithm=other).prepare(W))


# Files where an error is raised while another one is handled, and why no user sees both.
CHAINED = {
    "tools/cli/main.py": "click prints the message alone",
    "tools/gpu_check/process.py": "told to the caller in the same file, which catches it",
}

CALLS = {  # what no table of the other tests has
    "a list among the arguments": lambda: ca.conv(X, W.astype("f8"), stride=[1, 1]),
    "a list that is refused": lambda: ca.conv(X, W, stride=[1, 1, 1]),
    "a list in a gradient": lambda: ca.conv_backward_data(X, W, [1, 2, 7, 7.5], stride=[1, 1]),
    "a dtype that is not computed": lambda: ca.conv(X.astype(int), W.astype(int), padding=[1, 1]),
    "lists as arrays": lambda: ca.conv(X.tolist(), [[W.tolist()]]),
    "an object as an array": lambda: ca.conv(object(), W),
    "an activation": lambda: ca.conv(X, W, activation=["clip", 2, 1]),
    "a call of a plan": lambda: ca.plan(PROBLEM)(X, W.astype("f8")),
    "a filter of another plan": lambda: _called_with_a_filter_of("cpu.direct", "cpu.winograd.f2x3"),
    "no algorithm within the limits": lambda: ca.plan(PROBLEM, allow="cpu.winograd", strict_nan=True),
    "an algorithm that cannot": lambda: ca.plan(PROBLEM, algorithm="cpu.depthwise"),
    "no device": lambda: ca.plan(PROBLEM, device="cuda:99"),
    "no ranker": lambda: ca.explain(PROBLEM, selector="nobody"),
    "nothing measured": lambda: ca.plan(PROBLEM, on_miss="error"),
    "wisdom that is none": lambda: ca.wisdom.merge(__file__),
    "wisdom that is nowhere": lambda: ca.wisdom.verify(sample="all"),
    "a text": lambda: ca.ConvProblem.parse("n1 c1 h9 k1 s1"),
    "a field": lambda: PROBLEM.replace(stride=None),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_errors_come_alone(call, wisdom):
    with pytest.raises(Exception) as refusal:
        call()
    assert is_ours(refusal.value)
    assert_alone(refusal.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", "n1 c4"),
        ("explain", "n1 c1 w9 k1 s1", "--device", "cuda:99"),
        ("bench", "--json", "/nowhere/at/all.json", "--problem", "n1 c1 w9"),
        ("wisdom", "merge", __file__),
    ],
    ids=" ".join,
)
def test_commands_say_a_sentence(arguments):
    told = run(*arguments, status=2).output
    assert "Error: " in told and "Traceback" not in told and "exception" not in told


def test_every_expected_error_is_looked_at():
    """What `conftest` does of `pytest.raises`."""
    with (
        pytest.raises(AssertionError, match="came during the handling of KeyError"),
        pytest.raises(ValueError),
    ):
        try:
            {}[0]
        except KeyError:
            ca.ConvProblem.parse("")


@cache
def chained():
    """Files in which an error is raised within a handler of another one, and not `from None`."""
    found = set()
    for path, tree in trees().items():
        handlers = (n for n in ast.walk(tree) if isinstance(n, ast.ExceptHandler))
        raised = (n for h in handlers for n in ast.walk(h) if isinstance(n, ast.Raise) and n.exc)
        if any(n.cause is None or ast.unparse(n.cause) != "None" for n in raised):
            found.add(path.relative_to(PACKAGE).as_posix())
    return found


def test_handlers_raise_from_none():
    assert chained() == CHAINED.keys()
