"""What is known of a filter: the pattern by which some algorithms compute it in less time."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from convalgos.core import arguments
from convalgos.core.arrays import as_numpy
from convalgos.core.filter_patterns import UNSTRUCTURED, pattern_within
from convalgos.core.recent_filters import LARGEST

FEWEST = 49  # taps of a kernel that is worth a look; smaller ones are as fast without a pattern


def filter_pattern(w: ArrayLike, max_rel_error: float = 0.0) -> str:
    """How the kernels of a filter are made, as `ConvProblem` and `plan` take it in `pattern`.

    Args:
        w: (K, C/groups, *kernel), real.
        max_rel_error: the limit on the error of results that the pattern is for, as `plan` takes it. By
            default nothing may be left out of w but rounding.

    Returns:
        "box" where all weights of each kernel are alike; "gaussian" where each is a sampled Gaussian; "rank1"
        to "rank8" where each is a sum of so many outer products of 1-D filters, which are fewer than its
        rows; with `max_rel_error` "rank3~0.0004" where fewer are enough, if so large a share of w is left
        out: what goes by it is chosen only where `plan` gets a `max_rel_error`, too; else "unstructured".

    Raises:
        ValueError: names the argument, its value and what would be valid.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> w = np.outer([1, 2, 1], [1, 0, -1]).reshape(1, 1, 3, 3).astype(np.float32)
        >>> ca.filter_pattern(w)
        'rank1'
        >>> problem = ca.ConvProblem((1, 1, 64, 64), w.shape, padding=1, pattern=ca.filter_pattern(w))
        >>> str(problem)
        'n1 c1 h64 w64 k1 r3 s3 p1 rank1'
        >>> rows, columns = np.mgrid[-7:8, -7:8]
        >>> disk = (rows**2 + columns**2 < 50).astype(np.float32)[None, None]
        >>> ca.filter_pattern(disk), ca.filter_pattern(disk, max_rel_error=0.5)
        ('rank6', 'rank3~0.18')
    """
    given = as_numpy("w", w)
    if not 3 <= given.ndim <= 5 or given.dtype.kind not in "fiu":
        raise ValueError(
            f"w has shape {arguments.shown(given.shape)} and dtype {given.dtype}, but must be a real filter "
            "(K, C/groups, *kernel)"
        )
    arguments.check_number("max_rel_error", max_rel_error, 0)
    if not np.isfinite(given).all():
        return "unstructured"
    return pattern_within(given, float(max_rel_error))


def pattern_in_call(w: Any, max_rel_error: float | None) -> tuple[Any, ...]:
    """What `call_plans` adds to the limits of a call that has this one: that its filter is not constant, and
    its pattern, found again while its bytes are the same. Nothing where it has no pattern."""
    if max_rel_error is None or type(w) is not np.ndarray or w.dtype.char not in "fd" or w.ndim < 4:
        return ()
    if w.shape[1] != 1 or not 0 < w.nbytes <= LARGEST or math.prod(w.shape[2:]) < FEWEST:
        return ()
    pattern = _pattern_of_bytes(w.tobytes(), w.dtype.char, w.shape, max_rel_error)
    return () if pattern == UNSTRUCTURED else (False, pattern)


@lru_cache(64)
def _pattern_of_bytes(content: bytes, dtype: str, shape: tuple[int, ...], max_rel_error: float) -> str:
    return filter_pattern(np.frombuffer(content, dtype).reshape(shape), max_rel_error)
