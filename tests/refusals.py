"""Errors of ours come alone: a user sees one traceback, and not what was caught on the way to it.

`conftest` lets every `pytest.raises` of every test ask this, so all tables of invalid input are walked.
"""

from contextlib import contextmanager
from pathlib import Path

import pytest

import convalgos as ca

PACKAGE = str(Path(ca.__file__).parent)
KINDS = (ValueError, TypeError, ca.Unsupported)

_raises = pytest.raises


def is_ours(error):
    """Whether it was raised in a line of the library, and says something to its user."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return (
        isinstance(error, KINDS) and last is not None and last.tb_frame.f_code.co_filename.startswith(PACKAGE)
    )


def assert_alone(error):
    """No "direct cause", and nothing "during handling of the above exception", where the error is ours."""
    if is_ours(error):
        assert error.__cause__ is None, f"{error!r} has a cause: {error.__cause__!r}"
        told = error.__suppress_context__ or error.__context__ is None
        assert told, f"{error!r} came during the handling of {error.__context__!r}"


def raises(expected, *call, **named):
    """`pytest.raises`, of errors that come alone."""
    return _raises(expected, *call, **named) if call else _checked(_raises(expected, **named))


@contextmanager
def _checked(context):
    with context as refusal:
        yield refusal
    assert_alone(refusal.value)
