"""Writes into one of many arrays are found in some elements of each."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed (CI installs it)")

from convalgos.torch.sampled_memory import SampledMemory


def arrays(*types):
    made = [np.arange(n * 6).astype(t).reshape(n, 3, 2) for n, t in enumerate(types, 1)]
    return [*made, made[0][0, 0, 0, ...], np.zeros((40, 50), "f4").T, np.ones((9, 8), "f4")[::2, ::3]]


@pytest.mark.parametrize("types", [("f4", "f8", "i8", "i4"), ("f4", "f2", "i1", "?"), ("u1",)])
def test_each_array_that_is_written_is_found(types):
    for i in range(len(types) + 3):
        given = arrays(*types)
        sampled = SampledMemory(given)
        assert sampled.is_as_it_was()
        given[i][...] = ~given[i] if given[i].dtype == bool else 1 - given[i]
        assert not sampled.is_as_it_was()


def test_upper_bytes_and_ends_of_memory():
    given = [np.zeros(4, "f8"), np.zeros(3, "u1")[1:]]
    sampled = SampledMemory(given)
    given[0].view("u1")[7] = 3
    assert not sampled.is_as_it_was()


def test_nothing_to_look_at():
    assert SampledMemory([]).is_as_it_was()
