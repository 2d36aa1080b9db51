"""Which kernel elements meet the input, and not its padding."""

from __future__ import annotations

import math
from typing import Any


def taps_met(problem: Any, dimension: int) -> int:
    """Kernel elements that meet the input, summed over the outputs of a dimension of a `ConvProblem`."""
    p = problem
    low, stride, dilation = p.padding[dimension][0], p.stride[dimension], p.dilation[dimension]
    size, outputs, taps = p.spatial[dimension], p.spatial_out[dimension], p.kernel[dimension]
    if low == 0 and (outputs - 1) * stride + (taps - 1) * dilation < size:
        return int(outputs * taps)
    met = 0
    for end, sign in ((low + size, 1), (low, -1)):  # all before the end of the input, but those before it
        met += sign * _pairs_before(end, stride, dilation)
        met -= sign * _pairs_before(end - outputs * stride, stride, dilation)  # of outputs beyond the last
        met -= sign * _pairs_before(end - taps * dilation, stride, dilation)  # of taps beyond the last
        met += sign * _pairs_before(end - outputs * stride - taps * dilation, stride, dilation)  # of both
    return met


def _pairs_before(end: int, stride: int, dilation: int) -> int:
    """How many outputs and taps, of as many as one likes, have output * stride + tap * dilation < end."""
    if end <= 0:
        return 0
    apart = stride // math.gcd(stride, dilation)  # taps so far apart lie whole strides apart,
    step, found = apart * dilation // stride, 0  # so many
    for first in range(0, min(end, apart * dilation), dilation):
        taps, outputs = -(-(end - first) // (apart * dilation)), -(-(end - first) // stride)
        found += taps * outputs - step * taps * (taps - 1) // 2
    return found


def taps_meeting(problem: Any, dimension: int, output: int) -> tuple[int, int, int]:
    """(input under the first kernel element of an output that meets the input, that one, their end)."""
    p = problem
    start = output * p.stride[dimension] - p.padding[dimension][0]
    size, taps, dilation = p.spatial[dimension], p.kernel[dimension], p.dilation[dimension]
    first = min(taps, -(min(0, start) // dilation))
    end = min(taps, (size - 1 - start) // dilation + 1)
    return start + first * dilation, first, max(first, end)


def meets_padding_only(problem: Any) -> bool:
    """Whether all kernel elements of every output lie within the padding, in some dimension."""
    # without padding before it the first output meets x
    return any(low > 0 and not taps_met(problem, i) for i, (low, _) in enumerate(problem.padding))
