"""Filters as sums of outer products of 1-D filters.

Source: the separable filters of Treitel and Shanks 1971, "The design of multistage separable planar filters",
by singular values.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convalgos.core.filter_patterns import share_of

Array = np.ndarray[Any, Any]
ROUNDING = 4  # units in the last place of the largest weight, by which products may differ from a filter


def line_factors(w: Array, is_single: bool = False) -> list[Array] | None:
    """1-D filters whose outer product is w, in float64; None where there are none.

    Of integers they are integers, too. Those of one element are 1, except the last.

    is_single: what is summed is float32, so that each weight may differ by `ROUNDING` of its own units, as
        the products of lines of float32 do.
    """
    if not w.any():
        return None
    rounding, w = ROUNDING * float(np.finfo(w.dtype).eps), w.astype(np.float64)
    whole = bool((w == np.rint(w)).all()) and np.abs(w).max() < 2.0**63  # integers of 64 bits
    at = np.unravel_index(np.abs(w).argmax(), w.shape)
    lines = [np.moveaxis(w, i, -1)[tuple(np.delete(at, i))] for i in range(w.ndim)]  # through the largest
    if whole:
        places = [line[i] for line, i in zip(lines, at, strict=True)]
        lines = [
            line // (np.gcd.reduce(line.astype(np.int64)) * np.sign(place))
            for line, place in zip(lines, places, strict=True)
        ]
        others = math.prod(float(line[i]) for line, i in zip(lines, at, strict=True))
        lines[-1] = lines[-1] * (w[at] // others)
    else:
        lines[:-1] = [line / w[at] for line in lines[:-1]]
    product = lines[0]
    for line in lines[1:]:
        product = product[..., None] * line
    allowed: Any = 0.0 if whole else rounding * np.abs(w).max()
    if is_single and not whole:
        allowed = np.maximum(allowed, ROUNDING * float(np.finfo(np.float32).eps) * np.abs(w))
    return lines if bool((np.abs(product - w) <= allowed).all()) else None


def outer_products(w: Array, terms: int, left_out: float = 0.0) -> tuple[Array, Array]:
    """(filters, terms, rows) and (filters, terms, columns) whose products sum up to w, or nearly.

    By singular values, in float64; of one term without them, so that those of integers are integers.

    Args:
        w: (filters, rows, columns).
        left_out: the share of a filter that may be, as `core.filter_patterns` has it.

    Raises:
        ValueError: a filter is no sum of so few.
    """
    wide = w.astype(np.float64)
    if terms == 1 and (found := _single_products(w)):
        return found
    # (filters, rows, n), (filters, n), (filters, n, columns)
    u, values, v = np.linalg.svd(wide, full_matrices=False)
    left, right = np.swapaxes(u[:, :, :terms] * values[:, None, :terms], 1, 2), v[:, :terms]
    rest = np.einsum("ktr,kts->krs", left, right) - wide  # (filters, rows, columns)
    off = np.abs(rest).max((1, 2))
    allowed = ROUNDING * float(np.finfo(w.dtype).eps) * math.sqrt(w[0].size) * np.abs(wide).max((1, 2))
    shares = share_of(rest[:, None], wide[:, None])[:, 0]
    if (far := (off > allowed) & (shares > left_out)).any():
        k = int(far.argmax())
        raise ValueError(
            f"w[{k}] must be a sum of {terms} outer products, as the problem's pattern tells, and differs "
            f"from the nearest by {off[k]:.1e}, a share of {shares[k]:.1e}: "
            "convalgos.filter_pattern(w) tells its pattern"
        )
    short = max(0, terms - left.shape[1])  # where there are fewer rows or columns
    left, right = (np.pad(a, ((0, 0), (0, short), (0, 0))) for a in (left, right))
    return left, right


def _single_products(w: Array) -> tuple[Array, Array] | None:
    """The one term of each filter, where `line_factors` finds those of all."""
    pairs = [line_factors(one) if one.any() else [one[:, 0], one[0]] for one in w]
    left = np.array([pair[0] for pair in pairs if pair], np.float64)
    right = np.array([pair[1] for pair in pairs if pair], np.float64)
    return (left[:, None], right[:, None]) if len(left) == len(w) else None
