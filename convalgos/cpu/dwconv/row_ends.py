"""Vectors that reach over the ends of a row of x, where something else than zeros lies beyond the edges.

Such a vector is loaded near the end, whole, and a table puts its lanes in order, and the fill value between
them. Where rows go round another vector is loaded from the other end. No copy of a row is made.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.boundaries import OUTSIDE
from convalgos.cpu.vectors.instructions import Value, Vec, function_of, ir

ONE_END, BOTH_ENDS = 1, 2  # that a vector is loaded from: only rows that go round need both
WORD = 4  # bytes of what is put in order, of elements of any type


class EndedRow(NamedTuple):
    """A row of x and what lies beyond its ends."""

    size: int
    low: int  # places of padding before it
    sources: np.ndarray  # the element of x at each place of the padded row, or OUTSIDE
    ends: int  # that a vector is loaded from


class RowEnd(NamedTuple):
    """What `EndVec.load_masked` takes for a vector over an end of a row: an entry of `end_table`."""

    address: Value


class EndVec(Vec):
    """Vectors of rows with borders: entries of tables of lanes are addresses of how a vector is put together.

    Args:
        ends: that are loaded from.
        size: elements of a row.
        fill: the address of what the lanes hold that are copies of none.
    """

    def __init__(self, v: Vec, ends: int, size: Value, fill: Value):
        super().__init__(v.b, v.lanes, v.size)
        self._ends, self._inside = ends, v.mask(size)
        self._fill = v.b.bitcast(v.broadcast(v.pointer(fill)), self._words)

    @property
    def _words(self) -> Any:
        return ir.VectorType(ir.IntType(8 * WORD), self.lanes * self.size // WORD)

    def words(self) -> Vec:
        words, plain = copy.copy(self), super().words()
        words.element, words.type, words.suffix = plain.element, plain.type, plain.suffix
        return words

    def lanes_of(self, bits: Any) -> Any:
        return RowEnd(bits)

    def load_masked(self, pointer: Any, offset: Any, mask: Any) -> Any:
        if not isinstance(mask, RowEnd):
            return super().load_masked(pointer, offset, mask)
        loaded = []
        for i in range(self._ends):
            at = self.iadd(offset, self.table64(mask.address, i))
            loaded.append(self.b.bitcast(super().load_masked(pointer, at, self._inside), self._words))
        order = self.b.load(self.pointer(self.iadd(mask.address, 8 * self._ends)), typ=self._words)
        order.align = WORD
        first, second = [*loaded, self._fill][:2]
        return self.b.bitcast(self._ordered(first, second, order), self.type)

    def _ordered(self, a: Any, b: Any, order: Any) -> Any:
        """Words of a and, behind these, of b."""
        count = self._words.count
        if count == 16:
            kind = ir.FunctionType(self._words, [self._words] * 3)
            permute = function_of(self.b, kind, "llvm.x86.avx512.vpermi2var.d.512")
            return self.b.call(permute, [a, order, b])
        if count == 8:
            kind = ir.FunctionType(self._words, [self._words] * 2)
            permute = function_of(self.b, kind, "llvm.x86.avx2.permd")
            first, second = (self.b.call(permute, [each, order]) for each in (a, b))
            of_first = self.b.icmp_signed("<", order, ir.Constant(self._words, [count] * count))
            return self.b.select(of_first, first, second)
        both, index = self.shuffle(a, b, range(2 * count)), ir.IntType(32)
        value = a
        for i in range(count):
            place = ir.Constant(index, i)
            word = self.b.extract_element(both, self.b.extract_element(order, place))
            value = self.b.insert_element(value, word, place)
        return value


def end_table(row: EndedRow, places: np.ndarray, lanes: int, itemsize: int) -> np.ndarray:
    """(*places, bytes): how vectors that begin at some places of the padded row are put together.

    Of each the elements from its place to what is loaded, as int64, and the order of words.
    """
    far_end = max(0, row.size - lanes)  # where the last load begins
    read = places[..., None] + np.arange(lanes)  # (*places, lanes)
    padded = (read >= 0) & (read < len(row.sources))  # no output reads the others
    sources = np.where(padded, row.sources[np.where(padded, read, 0)], OUTSIDE)
    loads = np.zeros((*places.shape, row.ends), np.int64)
    order = np.full(sources.shape, lanes)  # of elements; behind one load lies the fill value
    left = sources != OUTSIDE
    for i in range(row.ends):
        first = np.where(left, sources, row.size).min(-1).clip(0, far_end)  # (*places,)
        behind = sources - first[..., None]
        met = left & (behind < lanes)
        order = np.where(met, behind + i * lanes, order)
        loads[..., i] = first - (places - row.low)
        left &= ~met
    assert not left.any()
    words = itemsize // WORD
    order = (order[..., None] * words + np.arange(words)).reshape(*places.shape, -1).astype(np.int32)
    return np.concatenate([loads.view(np.uint8), order.view(np.uint8)], -1)
