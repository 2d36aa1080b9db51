"""Sums of lines as float64, in SciPy's order: of those next to whole numbers.

Each product waits for the sum before it, so that some vectors are summed at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from convalgos.cpu.filtering.line_elements import loaded, stored
from convalgos.cpu.filtering.line_sums import tap_sums
from convalgos.cpu.vectors.lanes import lane_masks
from convalgos.cpu.vectors.simd import Value, Vec, vector_bytes

AT_ONCE = 4  # vectors


class OrderedSums:
    """Writes the sums in an order of lines of a kind in memory.

    Args:
        line: emits the address of the line of a tap.
        weights: the address of as many float64.
    """

    def __init__(self, v: Vec, KIND: int, line: Callable[[Value], Value], weights: Value, taps: Value):
        self.v = Vec(v.b, vector_bytes() // 8, 8)
        self._kind, self._line = KIND, line
        self._weights, self._taps = self.v.pointer(weights), taps

    def of(self, ORDER: int, place: Value, rest: Value, vectors: int) -> list[Value]:
        """Some vectors from a place on, of which so many elements are left."""
        masks, places = lane_masks(self.v, rest, vectors), self._places(place, vectors)

        def line(t: Value) -> list[Value]:
            source = self.v.pointer(self._line(t))
            return [
                loaded(self.v, self._kind, source, at, mask) for at, mask in zip(places, masks, strict=True)
            ]

        return tap_sums(self.v, ORDER, line, self._weights, self._taps, vectors)

    def store(self, KIND: int, totals: Sequence[Value], out: Value, place: Value, rest: Value) -> None:
        """Write the sums of `of` as a kind."""
        masks, places = lane_masks(self.v, rest, len(totals)), self._places(place, len(totals))
        for total, at, mask in zip(totals, places, masks, strict=True):
            stored(self.v, KIND, total, out, at, mask)

    def _places(self, place: Value, vectors: int) -> list[Value]:
        return [self.v.iadd(place, m * self.v.lanes) for m in range(vectors)]
