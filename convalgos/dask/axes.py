"""How one spatial dimension is split: which elements of its input each block of the result reads.

Neighbouring blocks of a result read the same elements where their windows overlap: the halo. Padding is added
only at the ends of the whole map: every output sums what it sums in the whole. A block at an end holds all
that the border there is made of; where a map goes on from its other end, its blocks read on there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from convalgos.core.boundaries import COPIES, ZERO

Chunks = tuple[int, ...]
Range = tuple[int, int]  # [first, stop) of an axis


class Window(NamedTuple):
    """The problem that a block is, along an axis: its padding, and the size of its result."""

    low: int
    high: int
    size: int


class Reach(NamedTuple):
    """What a block of the result reads of the whole input, one range after the other, and its padding."""

    ranges: tuple[Range, ...]
    low: int
    high: int


@dataclass(frozen=True)
class AxisSplit:
    """A split dimension: what each block reads of the whole input, and its window."""

    reads: tuple[tuple[Range, ...], ...]
    windows: tuple[Window, ...]

    @property
    def sizes(self) -> Chunks:
        """Chunks of the result."""
        return tuple(w.size for w in self.windows)


@dataclass(frozen=True)
class Axis:
    """One dimension of a convolution: x of `size` elements, y of `outputs`."""

    size: int
    outputs: int
    stride: int
    low: int  # padding
    extent: int  # elements that the dilated kernel spans
    boundary: str = ZERO

    def forward(self, chunks: Sequence[int], granule: int = 1) -> AxisSplit:
        """Split by the chunks of x: an output belongs to the block in which the middle of its window lies.

        Args:
            granule: blocks of y begin at multiples of so many outputs, as tiles of the whole map do.
        """
        middle = (self.extent - 1) // 2

        def result_cut(cut: int) -> int:
            first = -(-(cut + self.low - middle) // self.stride)  # whose middle lies behind the cut
            return (first + granule // 2) // granule * granule

        halo = max(self.extent // 2 + granule // 2 * self.stride, self._border(granule))
        cuts = _merged(chunks, halo, result_cut, self.outputs)
        if self.boundary != ZERO and len(cuts) == 2:
            return _split(cuts, self._read_all)
        return _split(cuts, self._read_around if self.boundary == "wrap" else self._read_by_outputs)

    def backward(self, chunks: Sequence[int]) -> AxisSplit:
        """Split a gradient of x by the chunks of dy: the inverse of `forward`."""
        middle = (self.extent - 1) // 2

        def result_cut(cut: int) -> int:
            return cut * self.stride - self.low + middle

        halo = self.extent // 2 // self.stride + 1
        cuts = _merged(chunks, halo, result_cut, self.size)
        return _split(cuts, self._read_by_inputs)

    def _border(self, granule: int) -> int:
        """Elements of a chunk at an end, so that its block reads one, and what the border is made of."""
        if self.boundary in (ZERO, "wrap"):
            return 0
        copied = max(self.low, self._high) if self.boundary in COPIES else 0
        return copied + 1 + (granule + 1) * self.stride  # by which a cut of y may lie inside that of x

    @property
    def _high(self) -> int:
        """Padding that is read, behind the last element."""
        return max(0, (self.outputs - 1) * self.stride - self.low + self.extent - self.size)

    def _windows(self, first: int, stop: int) -> Range:
        """What the windows of outputs [first, stop) span, in the whole map or in its padding."""
        begin = first * self.stride - self.low
        return begin, (stop - 1) * self.stride - self.low + self.extent if stop > first else begin

    def _read_by_outputs(self, first: int, stop: int) -> Reach:
        """Of x, by outputs [first, stop)."""
        begin, end = self._windows(first, stop)
        low_end, high_end = _clip(begin, self.size), _clip(end, self.size)
        low = min(max(0, low_end - begin), end - begin)
        return Reach(((low_end, high_end),), low, end - begin - low - (high_end - low_end))

    def _read_all(self, first: int, stop: int) -> Reach:
        """Of x, by all outputs, though windows may lie in the border alone."""
        return Reach(((0, self.size),), self.low, self._high)

    def _read_around(self, first: int, stop: int) -> Reach:
        """The same of a map that goes on from its ends."""
        return Reach(around(*self._windows(first, stop), self.size), 0, 0)

    def _read_by_inputs(self, first: int, stop: int) -> Reach:
        """Of dy, by gradients of inputs [first, stop); padding is that of the convolution onto these outputs.

        It begins with an output whose window begins at or before `first`, so that no padding is negative.
        """
        if not self.outputs:
            return Reach(((0, 0),), 0, 0)
        reached = -(-(first + self.low - self.extent + 1) // self.stride)
        begin = max(0, min(reached, (first + self.low) // self.stride, self.outputs - 1))
        end = min(self.outputs, (stop - 1 + self.low) // self.stride + 1)
        end = max(end, begin + 1)
        reach = (end - 1) * self.stride - self.low + self.extent
        return Reach(((begin, end),), first - (begin * self.stride - self.low), max(0, reach - stop))


def around(low: int, high: int, n: int) -> tuple[Range, ...]:
    """The elements [low, high) of an axis of n that goes on from its ends.

    Example:
        >>> around(-2, 6, 5)
        ((3, 5), (0, 5), (0, 1))
    """
    found = []
    while low < high:
        first = low % n
        stop = min(n, first + high - low)
        found.append((first, stop))
        low += stop - first
    return tuple(found) or ((0, 0),)


def _clip(value: int, size: int) -> int:
    return min(max(value, 0), size)


def _merged(
    chunks: Iterable[int], halo: int, result_cut: Callable[[int], int], results: int
) -> list[tuple[int, int]]:
    """(in the input, in the result) of every cut, both ends included.

    A chunk that is smaller than the halo, or that would have no result, is one with the next.
    """
    ends = list(accumulate(chunks, initial=0))
    size = ends[-1]
    cuts = [(0, 0)]
    for end in ends[1:-1]:
        at = result_cut(end)
        if end - cuts[-1][0] >= max(1, halo) and size - end >= halo and cuts[-1][1] < at < results:
            cuts.append((end, at))
    return [*cuts, (size, results)]


def _split(cuts: list[tuple[int, int]], reach: Callable[[int, int], Reach]) -> AxisSplit:
    results = [(first, stop) for (_, first), (_, stop) in pairwise(cuts)]
    reaches = [reach(first, stop) for first, stop in results]
    return AxisSplit(
        tuple(r.ranges for r in reaches),
        tuple(Window(r.low, r.high, stop - first) for (first, stop), r in zip(results, reaches, strict=True)),
    )
