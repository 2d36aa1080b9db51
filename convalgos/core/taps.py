"""Which kernel elements meet the input, and not its padding."""

from __future__ import annotations

from typing import Any


def taps_met(problem: Any, dimension: int) -> int:
    """Kernel elements that meet the input, summed over the outputs of a dimension of a `ConvProblem`."""
    p = problem
    low, stride, dilation = p.padding[dimension][0], p.stride[dimension], p.dilation[dimension]
    size, outputs, met = p.spatial[dimension], p.spatial_out[dimension], 0
    for tap in range(p.kernel[dimension]):
        before = low - tap * dilation  # elements of padding before the one under the first output
        first = max(0, -(-before // stride))
        met += max(0, min(outputs, (size + before - 1) // stride + 1) - first)
    return met


def taps_meeting(problem: Any, dimension: int, output: int) -> tuple[int, int, int]:
    """(input under the first kernel element of an output that meets the input, that one, their end)."""
    p = problem
    start = output * p.stride[dimension] - p.padding[dimension][0]
    size, taps, dilation = p.spatial[dimension], p.kernel[dimension], p.dilation[dimension]
    first = min(taps, -(min(0, start) // dilation))
    end = min(taps, (size - 1 - start) // dilation + 1)
    return start + first * dilation, first, max(first, end)


def meets_padding_only(problem: Any) -> bool:
    """Whether every output ends within the padding before the input, in some dimension."""
    return any(
        (out - 1) * step + reach <= low  # where the last output ends, from the first element of padding
        for out, step, reach, (low, _) in zip(
            problem.spatial_out, problem.stride, problem.kernel_extent, problem.padding, strict=True
        )
    )
