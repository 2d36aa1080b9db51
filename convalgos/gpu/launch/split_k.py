"""Split-K: a sum whose tiles do not fill the device is cut into parts, which several blocks sum.

Each part has its own sums in the workspace. One more kernel adds them up in a fixed order, so that the bits
are the same in every run (split_k.cuh).

Source: "split-K" in CUTLASS's documentation.
"""

from __future__ import annotations

import math

from convalgos.core.problem import ConvProblem

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)  # numbers of parts that are tried
LEAST_STEPS = 4  # of a part
ADDERS = 256  # threads of a block that adds parts up


def splits_of(steps: int) -> list[int]:
    """Numbers of parts that a sum of so many steps may have."""
    return [parts for parts in SPLITS if parts == 1 or steps // parts >= LEAST_STEPS]


def parts_bytes(problem: ConvProblem, parts: int) -> int:
    """Of the sums of all parts: none where there is one, which writes the result itself.

    Sums are float32 for all types but float64.
    """
    return parts * math.prod(problem.array_shapes[2]) * max(4, problem.itemsize) if parts > 1 else 0
