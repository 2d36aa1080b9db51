"""Short convolutions by fewer products than Toom and Cook's points allow with small constants.

As F(m, r) of `core.cook_toom`, a form computes m outputs of a correlation with r taps from `alpha` products
of transformed inputs and transformed taps, but alpha is more than m + r - 1:

- `Nested`: the taps in blocks of three, F(n, blocks) over the blocks, F(3, 3) inside each;
- `SymbolicFourier`: a ring of six, whose Fourier transform stays in symbols, and corrections for what the
  ring gets wrong.

Transforms are written over abstract values, which only `axpy(a, x, y)` = a * x + y combines: run on
fractions they are their own proof, on vectors they emit a kernel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Any

from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.cook_toom import Axpy, CookToom, Matrix, cook_toom, growth, multiply

NESTED, SYMBOLIC = range(2)  # kinds of forms, as kernels take them
BLOCK = 3  # taps of a block of a nested form, and outputs of its inner one
RING = 6
Row = list[Fraction]


class BilinearForm(ABC):
    """m outputs of r taps. Outputs are those of `gather` times `scale`."""

    scale = Fraction(1)

    def __init__(self, m: int, r: int):
        self.m, self.r = m, r

    @property
    def inputs(self) -> int:
        return self.m + self.r - 1

    @property
    @abstractmethod
    def alpha(self) -> int:
        """Products."""

    @abstractmethod
    def spread(self, axpy: Axpy, x: Sequence[Any]) -> list[Any]:
        """(inputs,) to (alpha,)."""

    @abstractmethod
    def spread_filter(self, axpy: Axpy, w: Sequence[Any]) -> list[Any]:
        """(r,) to (alpha,)."""

    @abstractmethod
    def gather(self, axpy: Axpy, products: Sequence[Any]) -> list[Any]:
        """(alpha,) to (m,)."""

    @cached_attribute
    def amplification(self) -> float:
        """`cook_toom.amplification` of the whole form."""
        one, zero = Fraction(1), Fraction(0)

        def units(n: int) -> list[Row]:
            return [[one if i == j else zero for i in range(n)] for j in range(n)]

        columns = [[self.scale * v for v in self.gather(combine, unit)] for unit in units(self.alpha)]
        at = tuple(zip(*columns, strict=True))
        g = tuple(zip(*(self.spread_filter(combine, unit) for unit in units(self.r)), strict=True))
        bt = tuple(zip(*(self.spread(combine, unit) for unit in units(self.inputs)), strict=True))
        return growth(CookToom(at, g, bt), self.r)


def combine(a: Fraction, x: Any, y: Any) -> Any:
    """a * x + y of numbers; y may be None for 0."""
    return a * x if y is None else a * x + y


class Nested(BilinearForm):
    """F(n, blocks) of F(3, 3), for m = 3 n outputs; taps that the last block lacks are zeros."""

    def __init__(self, m: int, r: int):
        super().__init__(m, r)
        self._blocks = -(-r // BLOCK)
        self.inner = cook_toom(BLOCK, BLOCK)
        points = (Fraction(0), Fraction(1)) if m // BLOCK + self._blocks == 4 else None
        self.outer = cook_toom(m // BLOCK, self._blocks, points)

    @property
    def alpha(self) -> int:
        return len(self.inner.BT) * len(self.outer.BT)

    def spread(self, axpy: Axpy, x: Sequence[Any]) -> list[Any]:
        wide = len(self.inner.BT)
        parts = (x[start : start + wide] for start in range(0, BLOCK * len(self.outer.BT), BLOCK))
        return self._over_blocks(axpy, self.inner.BT, self.outer.BT, parts)

    def spread_filter(self, axpy: Axpy, w: Sequence[Any]) -> list[Any]:
        parts = (w[start : start + BLOCK] for start in range(0, self.r, BLOCK))
        return self._over_blocks(axpy, self.inner.G, self.outer.G, parts)

    def gather(self, axpy: Axpy, products: Sequence[Any]) -> list[Any]:
        wide = len(self.inner.BT)
        parts = (products[start : start + wide] for start in range(0, len(products), wide))
        return self._over_blocks(axpy, self.inner.AT, self.outer.AT, parts)

    @staticmethod
    def _over_blocks(axpy: Axpy, inner: Matrix, outer: Matrix, parts: Any) -> list[Any]:
        """The inner matrix times each part, what is missing at its end being zero; then the outer one over
        all parts."""
        each = []
        for part in parts:
            values = multiply(axpy, tuple(row[: len(part)] for row in inner), part)
            each.append([axpy(Fraction(0), part[0], None) if v is None else v for v in values])
        over = [multiply(axpy, outer, values) for values in zip(*each, strict=True)]
        return [value for values in zip(*over, strict=True) for value in values]


class SymbolicFourier(BilinearForm):
    """A ring of six inputs amid those of a tile, and a product for each tap that it takes from its other end.

    Roots of order 6 are a + b s, where s is a symbol: s^2 = s - 1, or s^2 = -s - 1 for those of order 3. So
    transforms add and subtract only, and of integers everything is exact but for the scale of a sixth.
    """

    scale = Fraction(1, RING)

    def __init__(self, m: int, r: int):
        super().__init__(m, r)
        self.start = (self.inputs - RING) // 2  # of the ring in the inputs
        self._back = _inverse_of_ring()
        self.wrapped = [  # (output, tap, input that it needs, input that the ring takes in its place)
            (j, t, j + t, self.start + (j + t - self.start) % RING)
            for j in range(m)
            for t in range(r)
            if not 0 <= j + t - self.start < RING
        ]

    @property
    def alpha(self) -> int:
        return 8 + len(self.wrapped)

    def spread(self, axpy: Axpy, x: Sequence[Any]) -> list[Any]:
        ring = x[self.start : self.start + RING]
        less = [axpy(Fraction(-1), x[taken], x[needed]) for _, _, needed, taken in self.wrapped]
        return multiply(axpy, _ring_matrix(), ring) + less

    def spread_filter(self, axpy: Axpy, w: Sequence[Any]) -> list[Any]:
        rows = tuple(tuple(row[-t % RING] for t in range(self.r)) for row in _ring_matrix())
        return multiply(axpy, rows, w) + [w[t] for _, t, _, _ in self.wrapped]

    def gather(self, axpy: Axpy, products: Sequence[Any]) -> list[Any]:
        ring = multiply(axpy, self._back, products[:8])
        outputs = [ring[(j - self.start) % RING] for j in range(self.m)]
        for (j, *_), product in zip(self.wrapped, products[8:], strict=True):
            outputs[j] = axpy(Fraction(RING), product, outputs[j])
        return outputs


@cache
def bilinear_form(kind: int, m: int, r: int) -> BilinearForm:
    """A form of a kind: NESTED or SYMBOLIC.

    Example:
        >>> bilinear_form(SYMBOLIC, 6, 3).alpha, bilinear_form(NESTED, 6, 9).alpha
        (10, 20)
    """
    return (Nested, SymbolicFourier)[kind](m, r)


# --- inside ------------------------------------------------------------------------------------

# Powers of a root of order 3 and of one of order 6, as (a, b) of a + b s.
ROOTS = (
    ((1, 0), (0, 1), (-1, -1), (1, 0), (0, 1), (-1, -1)),
    ((1, 0), (0, 1), (-1, 1), (-1, 0), (0, -1), (1, -1)),
)


@cache
def _ring_matrix() -> Matrix:
    """(8, 6): the values at 1 and -1, then of each complex root a, b and what a product of both needs."""
    rows = [[1] * RING, [(-1) ** i for i in range(RING)]]
    for root, sign in zip(ROOTS, (-1, 1), strict=True):
        a, b = ([power[part] for power in root] for part in (0, 1))
        rows += [a, b, [p + sign * q for p, q in zip(a, b, strict=True)]]
    return tuple(tuple(map(Fraction, row)) for row in rows)


@cache
def _inverse_of_ring() -> Matrix:
    """(6, 8): products at the roots to six times the elements of the ring.

    With p = ac and q = bd, (a + bs)(c + ds) is p - q + (ad + bc - q) s for the root of order 3, where
    (a - b)(c - d) = p + q - (ad + bc), and p - q + (ad + bc + q) s for that of order 6, where
    (a + b)(c + d) = p + q + (ad + bc).
    """
    residues = [  # of the product: (6, 8)
        [1, 0, 0, 0, 0, 0, 0, 0],
        [0, 1, 0, 0, 0, 0, 0, 0],
        [0, 0, 1, -1, 0, 0, 0, 0],
        [0, 0, 1, 0, -1, 0, 0, 0],
        [0, 0, 0, 0, 0, 1, -1, 0],
        [0, 0, 0, 0, 0, -1, 0, 1],
    ]
    matrix = _ring_matrix()
    values = [matrix[i] for i in (0, 1, 2, 3, 5, 6)]  # (6, 6): of the ring
    inverse = _inverse(values)
    columns = list(zip(*residues, strict=True))
    return tuple(
        tuple(RING * sum((a * b for a, b in zip(row, c, strict=True)), Fraction(0)) for c in columns)
        for row in inverse
    )


def _inverse(matrix: Sequence[Sequence[Fraction]]) -> list[Row]:
    """By elimination."""
    n = len(matrix)
    rows = [[*row, *(Fraction(i == j) for j in range(n))] for i, row in enumerate(matrix)]
    for i in range(n):
        pivot = next(k for k in range(i, n) if rows[k][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for k in range(n):
            if k != i:
                rows[k] = [a - rows[k][i] * b for a, b in zip(rows[k], rows[i], strict=True)]
    return [row[n:] for row in rows]
