"""Channels of bfloat16 in lines: the sums of even channels lie in one vector, those of odd ones in another.

See `halves.LineMaps`: half as many instructions widen a line as its halves would take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from convalgos.cpu.dwconv.channel_taps import GroupChannels, Load, Total
from convalgos.cpu.vectors.halves import LINE_FORMS, LineMaps
from convalgos.cpu.vectors.simd import Value, Vec


def in_lines(form: int, channels: int, filters: int, vectors: int) -> bool:
    """Whether a kernel for so many channels and filters of a group, and vectors of a pixel, loads lines."""
    return form in LINE_FORMS and channels == filters == 1 and vectors == 2


def line_order(lanes: int) -> list[list[int]]:
    """Channels of the two vectors of a line."""
    return [list(range(first, 2 * lanes, 2)) for first in (0, 1)]


class LineChannels(GroupChannels):
    """One channel and filter in a group; the sums of a pixel are two registers.

    Args:
        w_vector: from the weights of the even channels to those of the odd ones.
    """

    def __init__(self, v: Vec, form: int, step: Value, w_vector: Value):
        super().__init__(v, form, 1, 1, step)
        self._w_vector = w_vector

    def _maps(self, v: Vec) -> Vec:
        return LineMaps(v, self._form)

    def weight(self, w: Value, tap: int) -> tuple[Any, Any]:
        return super().weight(w, tap), super().weight(self._v.at(w, self._w_vector), tap)

    def add(self, total: Total, value: Any, weight: Any) -> None:
        for of_half in zip(total, value, weight, strict=True):
            super().add(*of_half)

    def units(self, sums: Sequence[Sequence[Total]]) -> list[list[Total]]:
        return [list(zip(*sums, strict=True))]

    def finished(self, total: Total, activation: tuple[int, Value, Value]) -> tuple[Any, ...]:
        return tuple(super(LineChannels, self).finished(half, activation) for half in total)

    def _loads(self, channel: int) -> Load:
        return self.maps.load
