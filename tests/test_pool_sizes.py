"""Pooling of maps of many sizes, one after the other: windows are looked at once, and right for each size."""

import dataclasses

import numpy as np
import pytest

import convalgos as ca
from convalgos.api import pool_kind
from convalgos.core.pool_problem import PoolProblem
from convalgos.cpu.pooling import tables

RNG = np.random.default_rng(5)
WINDOWS = [
    {"kernel": 3, "stride": 2, "padding": 1},
    {"kernel": 2},
    {"kernel": (3, 2), "stride": 1, "ceil_mode": True},
    {"kernel": 2, "stride": 3, "padding": ((1, 0), (0, 1)), "dilation": 2},
]


def defined(x: np.ndarray, reduction: str, count_padding: bool, **windows) -> np.ndarray:
    """By the definition: each window by itself."""
    problem = PoolProblem.of(x.shape, reduction=reduction, count_padding=count_padding, **windows)
    y = np.empty(problem.y_shape)
    rows, columns = problem.windows
    for i in range(y.shape[2]):
        for j in range(y.shape[3]):
            at = [w.first[o] + np.arange(w.taps[o]) * w.dilation for w, o in ((rows, i), (columns, j))]
            window = x[:, :, at[0][:, None], at[1]].reshape(*x.shape[:2], -1)
            if reduction == "max":
                y[:, :, i, j] = window.max(-1)
            else:
                y[:, :, i, j] = window.sum(-1) / (rows.divisor[i] * columns.divisor[j])
    return y


@pytest.mark.parametrize("windows", WINDOWS, ids=map(str, range(len(WINDOWS))))
def test_sizes_by_turns(windows):
    sizes = [tuple(map(int, RNG.integers(4, 40, 2))) for _ in range(20)] + [(4, 90), (70, 4)]
    for turn in range(2):
        for size in sizes[::-1] if turn else sizes:
            x = RNG.standard_normal((1, 3, *size)).astype("f4")
            y = ca.max_pool(x, **windows)
            np.testing.assert_array_equal(y, defined(x, "max", True, **windows))
            expected = defined(x, "mean", False, **windows)
            mean = ca.avg_pool(x, count_padding=False, **windows)
            np.testing.assert_allclose(mean, expected, rtol=1e-5, atol=1e-5)
            dx = ca.max_pool_backward(np.ones_like(y), x, **windows)
            assert dx.sum() == y.size and not dx[x == x.min((2, 3), keepdims=True)].any()


def test_problems_of_other_shapes_are_those_of_their_arguments():
    for windows in (*WINDOWS, {"kernel": 5, "padding": 2}):
        known = PoolProblem.of((1, 2, 20, 20), **windows)
        for _ in range(20):
            shape = (1, 3, *map(int, RNG.integers(1, 12, 2)))
            try:
                expected = PoolProblem.of(shape, **windows)
            except ValueError:
                assert known.of_shape(shape) is None
                continue
            found = known.of_shape(shape)
            assert found == expected and dataclasses.asdict(found) == dataclasses.asdict(expected)
            assert found.y_shape == expected.y_shape and found.extent == expected.extent


def test_what_depends_on_the_size_is_found_for_each():
    """All of a map, and padding by name; and windows that a smaller map has none of are refused."""
    for size in (5, 8, 5, 9):
        x = RNG.standard_normal((1, 2, size, size)).astype("f4")
        np.testing.assert_array_equal(ca.max_pool(x)[..., 0, 0], x.max((2, 3)))
        assert ca.max_pool(x, 3, stride=2, padding="same").shape[2:] == (-(-size // 2),) * 2
        ca.max_pool(x, 4)
    with pytest.raises(ValueError, match="is 4 long, but x has 3 elements"):
        ca.max_pool(x[..., :3, :], 4)


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(pool_kind, "KINDS", 3)
    x = RNG.standard_normal((1, 1, 12, 12)).astype("f4")
    for kernel in range(1, 9):
        ca.max_pool(x, kernel, stride=3)
    assert 0 < len(pool_kind._problems) <= 3
    for size in range(9, 9 + 2 * tables.AXES):
        ca.avg_pool(RNG.standard_normal((1, 1, size, 9)).astype("f4"), 3, stride=1)
    for cached in (tables._rows, tables.column_blocks, tables.columns_from, tables._column_counts):
        assert cached.cache_info().currsize <= tables.AXES
