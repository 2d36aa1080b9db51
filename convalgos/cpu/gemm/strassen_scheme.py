"""The order of Strassen's products: where each begins, and to which sums it goes.

Each of the 7 products of halves begins with what earlier ones left, and ends where later ones begin, so that
few sums are read and written on the way. In quarters 7 times 7 products go the same way. The operands are
those of `strassen_tiles`.

Source: Strassen 1969, "Gaussian elimination is not optimal", with the 15 additions of Winograd 1971; the
order is that of Douglas et al. 1994, "GEMMW", which needs two places beside those of y.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from convalgos.cpu.runtime.plan import fields

SIDES = 2, 4  # parts that there are schemes for
PRODUCTS = 7  # of halves
NOWHERE = 0  # of places; those of y begin at 1, row by row, and then there are two for sums on the way
SUM_ALONE = -1  # in the place of an operand: a sum without a product
STEP = fields("operand first started out out_with also also_with")


class SumStep(NamedTuple):
    """total = [first] + [started] + product; [out] = total (+ [out_with]); [also] = total (+ [also_with]).

    The numbers are places. Without a product [out] += [first] and [also] += [first].
    """

    operand: int
    first: int = NOWHERE
    started: int = NOWHERE
    out: int = NOWHERE
    out_with: int = NOWHERE
    also: int = NOWHERE
    also_with: int = NOWHERE


def product_count(side: int) -> int:
    """Of `side` parts a side."""
    return int(PRODUCTS ** (side.bit_length() - 1))


@cache
def place_count(side: int) -> int:
    """Of `side` parts a side, with that which is nowhere."""
    return 1 + side * side + 2


@cache
def steps_of_parts(side: int) -> np.ndarray:
    """(steps,) of STEP, which sum y in 2 or 4 parts a side."""
    return np.array([tuple(step) for step in _steps(side)], STEP)


def _steps(side: int) -> list[SumStep]:
    first, second = 1 + side * side, 2 + side * side
    if side == 2:
        return _halves(0, (1, 2, 3, 4), None, first, second)
    # the outer products sum four places of y at once
    tops = [[1 + 8 * i + 2 * j + at for at in (0, 1, 4, 5)] for i in (0, 1) for j in (0, 1)]
    y11, y12, y21, y22 = tops
    plan: list[tuple[list[int], list[int] | None]] = [
        (y12, None), (y11, y12), (y12, y12), (y22, y12), (y21, y22), ([], None), (y12, y12),
    ]  # fmt: skip
    steps = []
    for number, (out, begun) in enumerate(plan):
        at = number * PRODUCTS
        steps += _halves(at, out, begun, first, second) if out else _to_both(at, y12, y22, first, second)
    return steps


def _halves(at: int, y: Sequence[int], begun: Sequence[int] | None, first: int, second: int) -> list[SumStep]:
    """The products from number `at` on, to four places of y, which begin with those of `begun`.

    first, second: places for sums on the way.
    """
    b = begun or (NOWHERE,) * 4
    return [
        SumStep(at, out=first),
        SumStep(at + 1, first, b[0], y[0]),
        SumStep(at + 2, first, out=first),
        SumStep(at + 3, first, out=second, also=y[3], also_with=b[3]),
        SumStep(at + 4, second, b[2], y[2]),
        SumStep(at + 5, out=first, out_with=first, also=y[3], also_with=y[3]),
        SumStep(at + 6, first, b[1], y[1]),
    ]


def _to_both(at: int, one: Sequence[int], other: Sequence[int], first: int, second: int) -> list[SumStep]:
    """The same, added to four places and to four others."""

    def to(i: int) -> dict[str, int]:
        return {"out": one[i], "out_with": one[i], "also": other[i], "also_with": other[i]}

    return [
        SumStep(at, out=first),
        SumStep(at + 1, first, **to(0)),
        SumStep(at + 2, first, out=first),
        SumStep(at + 3, first, out=second),
        SumStep(at + 4, second, **to(2)),
        SumStep(at + 5, out=first, out_with=first, also=second, also_with=second),
        SumStep(SUM_ALONE, second, out=one[3], also=other[3]),
        SumStep(at + 6, first, **to(1)),
    ]
