"""Exact transforms: the matrices of Winograd's short convolutions, and how to apply them.

F(m, r) computes m outputs of a correlation with r taps from alpha = m + r - 1 products:

    y = AT [(G g) * (BT d)]        y (m,), g (r,), d (alpha,)

Toom and Cook's construction evaluates the polynomials at alpha - 1 points and at infinity (Winograd,
"Arithmetic complexity of computations", 1980; Lavin and Gray, "Fast algorithms for convolutional neural
networks", 2016). Everything here is rational arithmetic; `multiply` applies a matrix to abstract values, so
that one definition runs on fractions, on NumPy arrays and on vectors that emit a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

Matrix = tuple[tuple[Fraction, ...], ...]
Pair = tuple[int, int]  # of rows, or of columns
Axpy = Callable[[Fraction, Any, Any], Any]  # (a, x, y) -> a * x + y, where y may be None for 0

# Finite points for each alpha. The error of a transform hangs on them more than on anything else (Barabasz
# et al., "Error analysis and improving the accuracy of Winograd convolution", 2020). A search over eighths
# finds no set whose `amplification` is 5 % less; eighths and their products are exact in floats, and +- pairs
# share half of their work.
POINTS: dict[int, tuple[Fraction, ...]] = {
    alpha: tuple(Fraction(p) for p in points.split())
    for alpha, points in {
        4: "0 1 -1",
        5: "0 3/2 -3/2 1/2",
        6: "0 5/8 -5/8 3/2 -3/2",
        7: "0 7/8 -7/8 2 -2 3/8",
        8: "0 1/2 -1/2 1 -1 2 -2",
    }.items()
}


class CookToom(NamedTuple):
    """The matrices of F(m, r): AT (m, alpha), G (alpha, r), BT (alpha, alpha)."""

    AT: Matrix
    G: Matrix
    BT: Matrix


@cache
def cook_toom(m: int, r: int, points: tuple[Fraction, ...] | None = None) -> CookToom:
    """The exact matrices of F(m, r), at `POINTS[m + r - 1]` or other distinct points.

    Raises:
        ValueError: m or r is not positive, or the points are too few or not distinct.

    Example:
        >>> cook_toom(2, 3).G[1]
        (Fraction(1, 2), Fraction(1, 2), Fraction(1, 2))
    """
    if m < 1 or r < 1:
        raise ValueError(f"m={m} and r={r} must be at least 1")
    alpha = m + r - 1
    if alpha == 1:  # a single product
        one = ((Fraction(1),),)
        return CookToom(one, one, one)
    if points is None and alpha not in POINTS:
        raise ValueError(f"m={m}, r={r}: there are points for m + r - 1 = {', '.join(map(str, POINTS))} only")
    a = [Fraction(p) for p in (POINTS[alpha] if points is None else points)]
    if len(set(a)) != len(a) or len(a) != alpha - 1:
        raise ValueError(f"points={points} must be {alpha - 1} distinct numbers")
    at = [[p**i for p in a] + [Fraction(i == m - 1)] for i in range(m)]
    g, bt = [], []
    for j, p in enumerate(a):
        others = a[:j] + a[j + 1 :]
        scale = Fraction(1)
        for q in others:
            scale *= p - q
        g.append([p**i / scale for i in range(r)])
        bt.append([*_with_roots(others), Fraction(0)])
    g.append([Fraction(i == r - 1) for i in range(r)])
    bt.append(_with_roots(a))
    return CookToom(*(tuple(map(tuple, matrix)) for matrix in (at, g, bt)))


@cache
def amplification(m: int, r: int, points: tuple[Fraction, ...] | None = None) -> float:
    """How much larger the rounding errors of F(m, r) in one dimension are than those of direct sums.

    For independent data of unit variance, the variance of product i is |G_i|^2 |BT_i|^2, each product errs
    in proportion to its size, and output a adds them with weights AT[a][i]; a direct sum has variance r.
    The worst output counts. F(2, 3) has 1.3, F(4, 3) 2.9, F(6, 3) 6.8.
    """
    return growth(cook_toom(m, r, points), r)


def transposed_amplification(m: int, r: int) -> float:
    """`amplification` of the gradient, B [(G g) * (A dy)], whose tiles of alpha elements are added where they
    overlap. F(2, 3) has 1.3, F(4, 3) 2.7, F(6, 3) 6.2."""
    at, g, bt = cook_toom(m, r)
    variance = [_norm2(g_i) * _norm2(a_i) for g_i, a_i in zip(g, zip(*at, strict=True), strict=True)]
    of_tile = [sum(c * c * v for c, v in zip(row, variance, strict=True)) for row in zip(*bt, strict=True)]
    worst = max(sum(of_tile[first::m]) for first in range(m))
    return float(float(worst / r) ** 0.5)


def growth(form: CookToom, r: int) -> float:
    """`amplification` of any such matrices, for r taps."""
    at, g, bt = form
    variance = [_norm2(g_i) * _norm2(b_i) for g_i, b_i in zip(g, bt, strict=True)]
    worst = max(sum(c * c * v for c, v in zip(row, variance, strict=True)) for row in at)
    return float(float(worst / r) ** 0.5)


def multiply(axpy: Axpy, matrix: Matrix, x: Sequence[Any]) -> list[Any]:
    """matrix @ x for abstract values, which only `axpy(a, x, y)` = a * x + y combines (y None is 0).

    Columns, or else rows, that differ only in some signs, as the points +p and -p make them, are computed
    together.
    """
    columns = _sign_pairs(tuple(zip(*matrix, strict=True)))
    if columns:
        return _sharing_columns(axpy, matrix, x, columns)
    return _sharing_rows(axpy, matrix, x, _sign_pairs(matrix))


def multiply_2d(
    axpy: Axpy,
    rows: Matrix,
    columns: Matrix,
    load: Callable[[int, int], Any],
    store: Callable[[int, int, Any], None],
) -> None:
    """store(i, j, value) the elements of rows @ x @ columns^T, where load(i, j) is x[i][j].

    Rows that share no work are computed one after the other, each loading what it needs again: a kernel
    that held all of the half-transformed table would run out of registers, and stores cost more than loads.
    """
    for group in _row_groups(rows):
        part = tuple(rows[i] for i in group)
        needed = [any(row[k] for row in part) for k in range(len(rows[0]))]
        half = [  # one column after the other
            multiply(axpy, part, [load(k, j) if used else None for k, used in enumerate(needed)])
            for j in range(len(columns[0]))
        ]
        for i, row in zip(group, zip(*half, strict=True), strict=True):
            for j, value in enumerate(multiply(axpy, columns, row)):
                store(i, j, value)


def transform_lines(
    dims: int,
    load: Callable[[int, int], Any],
    size: int,
    line: Callable[[Sequence[Any]], Sequence[Any]],
) -> list[Sequence[Any]]:
    """A transform of lines of `size` along both dimensions of a table, or along its only row: its rows."""
    rows: list[Sequence[Any]] = [[load(i, j) for j in range(size)] for i in range(size if dims == 2 else 1)]
    if dims == 2:
        rows = list(zip(*(line(c) for c in zip(*rows, strict=True)), strict=True))
    return [line(row) for row in rows]


# --- inside ------------------------------------------------------------------------------------


def _with_roots(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients, constant first, of the product of (z - root)."""
    polynomial = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *polynomial]
        polynomial = [s - root * p for s, p in zip(shifted, [*polynomial, Fraction(0)], strict=True)]
    return polynomial


def _norm2(row: Sequence[Fraction]) -> Fraction:
    return sum((a * a for a in row), Fraction(0))


def _sign_pairs(rows: Matrix) -> list[tuple[int, int]]:
    """Disjoint pairs of rows of equal magnitudes, with some signs equal and some opposite."""
    pairs: list[tuple[int, int]] = []
    for i, k in combinations(range(len(rows)), 2):
        both = [(a, b) for a, b in zip(rows[i], rows[k], strict=True) if a or b]
        taken = {index for pair in pairs for index in pair}
        if (
            not taken & {i, k}
            and all(abs(a) == abs(b) for a, b in both)
            and len({a == b for a, b in both}) == 2
        ):
            pairs.append((i, k))
    return pairs


def _sharing_columns(
    axpy: Axpy, matrix: Matrix, x: Sequence[Any], pairs: Sequence[tuple[int, int]]
) -> list[Any]:
    """Rows need only the sum or the difference of x[j] and x[k], for each pair (j, k)."""
    one = Fraction(1)
    both = {j: (k, axpy(one, x[k], x[j]), axpy(-one, x[k], x[j])) for j, k in pairs}
    alone = set(range(len(x))) - {index for pair in pairs for index in pair}
    y = []
    for row in matrix:
        terms = [(row[j], x[j]) for j in alone]
        terms += [(row[j], total if row[j] == row[k] else less) for j, (k, total, less) in both.items()]
        y.append(_combine(axpy, terms))
    return y


def _sharing_rows(
    axpy: Axpy, matrix: Matrix, x: Sequence[Any], pairs: Sequence[tuple[int, int]]
) -> list[Any]:
    """Both rows of a pair (i, k) are made of the same two parts, added in one and subtracted in the other."""
    y: list[Any] = [None] * len(matrix)
    for i, k in pairs:
        same: list[tuple[Fraction, Any]] = []
        opposite: list[tuple[Fraction, Any]] = []
        for a, b, value in zip(matrix[i], matrix[k], x, strict=True):
            (same if a == b else opposite).append((a, value))
        lead = next(a for a, _ in reversed(opposite) if a)  # taken out of a part, it costs nothing there
        part = _combine(axpy, [(a / lead, value) for a, value in opposite])
        rest = _combine(axpy, same)
        y[i], y[k] = axpy(lead, part, rest), axpy(-lead, part, rest)
    for i in set(range(len(matrix))) - {index for pair in pairs for index in pair}:
        y[i] = _combine(axpy, list(zip(matrix[i], x, strict=True)))
    return y


def _row_groups(matrix: Matrix) -> list[tuple[int, ...]]:
    """Rows whose product `multiply` shares."""
    if _sign_pairs(tuple(zip(*matrix, strict=True))):
        return [tuple(range(len(matrix)))]
    pairs = _sign_pairs(matrix)
    paired = {index for pair in pairs for index in pair}
    return [*pairs, *((i,) for i in range(len(matrix)) if i not in paired)]


def _combine(axpy: Axpy, terms: Sequence[tuple[Fraction, Any]]) -> Any:
    """Sum of a * value, beginning with a factor 1 where there is one: it costs nothing."""
    total = None
    for a, value in sorted(terms, key=lambda term: term[0] != 1):
        if a:
            total = axpy(a, value, total)
    return total
