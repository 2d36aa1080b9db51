"""Usual kernels on rows of bfloat16, which are loaded in lines; see `halves.LineMaps` and `shifted_rows`.

The even and the odd elements that a line consists of are what a stride of 2 wants. Without a stride the even
and the odd outputs of a line are summed in a vector each: they meet even and odd elements in turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from convalgos.cpu.vectors.halves import LineMaps
from convalgos.cpu.vectors.simd import Value, Vec


def reads_lines(vectors: int, stride: int) -> bool:
    """Whether so many vectors of outputs side by side are whole lines, or read such."""
    return stride == 2 or vectors == 2


def line_operands(
    v: Vec,
    m: LineMaps,
    ends: tuple[int, int],
    vectors: int,
    stride: int,
    line: Value,
    lanes: dict[int, Value],
) -> Callable[[int, int], Value]:
    """(s, k) -> line[stride * (k*lanes + i) + s - before] for i in lanes; without a stride, where k tells
    even outputs from odd ones, line[2 * i + k + s].

    Args:
        ends: (before, behind), elements that are read beside whole vectors.
        lanes: of vectors of `lanes` elements, counted from the first that is read, those that lie in the row.
    """
    before, behind = ends
    first, last, words = -1 if before else 0, vectors * stride, m.words()
    loaded: dict[int, tuple[Any, Any]] = {}
    found: dict[tuple[int, int], Any] = {}

    def mask_of(n: int) -> Value:
        """Of elements from n * lanes on; None: all."""
        if not first <= n < last + (behind > 0):
            return v.first_lanes(0)
        few = v.lanes_from(v.lanes - before) if n < 0 else v.first_lanes(behind) if n == last else None
        return lanes.get(n - first, few)

    def part(p: int, n: int) -> Value:
        """Even elements of a line, or odd ones."""
        if n not in loaded:
            masks, at = [mask_of(2 * n), mask_of(2 * n + 1)], 2 * n * v.lanes
            if masks == [None, None]:
                loaded[n] = words.load(line, at)
            else:
                low, high = (v.first_lanes(v.lanes) if mask is None else mask for mask in masks)
                loaded[n] = words.load_masked(line, at, v.shuffle(low, high, range(2 * v.lanes)))
        return loaded[n][p]

    def operand(s: int, k: int) -> Value:
        column, p = divmod(s - before if stride == 2 else s + k, 2)
        beside, lane = divmod(column, v.lanes)
        n = beside + (k if stride == 2 else 0)
        if (2 * n * v.lanes + p, lane) not in found:
            value = part(p, n)
            if lane:
                value = v.shuffle(value, part(p, n + 1), range(lane, lane + v.lanes))
            found[2 * n * v.lanes + p, lane] = v.floats(value)
        return found[2 * n * v.lanes + p, lane]

    return operand
