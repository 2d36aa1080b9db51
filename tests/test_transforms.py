"""Winograd's matrices are exact, their points are good, and one definition of a product serves all values."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from convalgos.core.cook_toom import POINTS, amplification, cook_toom, multiply, multiply_2d

SIZES = [(2, 3), (4, 3), (6, 3), (2, 5), (4, 5), (4, 2), (3, 4), (1, 5), (5, 1), (1, 1)]


def exact(a, x, y):
    return a * x if y is None else a * x + y


def in_arrays(a, x, y):
    return float(a) * x if y is None else float(a) * x + y


def product(matrix, x):
    return [sum((a * v for a, v in zip(row, x, strict=True)), Fraction(0)) for row in matrix]


@pytest.mark.parametrize(("m", "r"), SIZES)
def test_matrices_correlate_exactly(m, r):
    at, g, bt = cook_toom(m, r)
    alpha = m + r - 1
    assert [len(at), len(g), len(bt)] == [m, alpha, alpha]
    for tap in range(r):
        taps = product(g, [Fraction(tap == k) for k in range(r)])
        for at_input in range(alpha):
            data = product(bt, [Fraction(at_input == k) for k in range(alpha)])
            y = product(at, [u * v for u, v in zip(taps, data, strict=True)])
            assert y == [at_input == i + tap for i in range(m)]


@pytest.mark.parametrize(("m", "r"), SIZES)
def test_multiply_is_the_matrix_product(m, r):
    rng = np.random.default_rng(0)
    for matrix in cook_toom(m, r):
        x = [Fraction(int(v), 7) for v in rng.integers(-99, 99, len(matrix[0]))]
        assert multiply(exact, matrix, x) == product(matrix, x)


def product_2d(rows, columns, x):
    """rows @ x @ columns^T by `multiply_2d`, for an array x (height, width, ...)."""
    y = np.full((len(rows), len(columns), *x.shape[2:]), np.nan)

    def store(i, j, value):
        assert np.isnan(y[i, j]).all(), f"({i}, {j}) is stored twice"
        y[i, j] = value

    multiply_2d(in_arrays, rows, columns, lambda i, j: x[i, j], store)
    return y


@pytest.mark.parametrize(("m", "r"), [(2, 3), (4, 3), (6, 3), (4, 5)])
def test_multiply_2d_on_arrays_convolves(m, r):
    rng = np.random.default_rng(0)
    at, g, bt = cook_toom(m, r)
    alpha = m + r - 1
    x = rng.standard_normal((alpha, alpha, 5))
    w = rng.standard_normal((r, r, 5))
    y = product_2d(at, at, product_2d(g, g, w) * product_2d(bt, bt, x))
    windows = np.lib.stride_tricks.sliding_window_view(x, (r, r), axis=(0, 1))
    assert np.allclose(y, np.einsum("hwcij,ijc->hwc", windows, w), atol=1e-12)


def test_pairs_of_points_share_work():
    """F(4, 3): a plain BT takes 20 operations, one for each nonzero but a first 1 in each row."""
    operations = []

    def count(a, x, y):
        if a != 1 or y is not None:
            operations.append(a)
        return 0

    for matrix, most in zip(cook_toom(4, 3), (12, 9, 12), strict=True):
        operations.clear()
        multiply(count, matrix, [0] * len(matrix[0]))
        assert len(operations) <= most


@pytest.mark.parametrize("alpha", [4, 5, 6])
def test_no_other_eighths_amplify_errors_5_percent_less(alpha):
    candidates = [Fraction(n, 8) for n in range(1, 25)]
    r = 3
    m = alpha + 1 - r
    least = float("inf")
    for pair in combinations(candidates, (alpha - 2) // 2):
        symmetric = (Fraction(0), *pair, *(-p for p in pair))
        odd = [()] if alpha % 2 == 0 else [(p,) for p in candidates if p not in pair]
        for extra in odd:
            least = min(least, amplification(m, r, (*symmetric, *extra)))
    assert least <= amplification(m, r) <= 1.05 * least
    assert len(set(POINTS[alpha])) == alpha - 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [((0, 3), "m=0"), ((9, 9), "m=9"), ((2, 3, (0, 1)), "points"), ((2, 3, (0, 1, 1)), "points")],
)
def test_refusals_name_the_argument(arguments, named):
    with pytest.raises(ValueError, match=named):
        cook_toom(*arguments)
