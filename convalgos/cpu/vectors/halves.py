"""Maps of 16-bit floating point in the place of float32: widened when loaded, rounded when stored.

Products and sums are those of float32. bfloat16 is the upper half of a float32, so that a shift widens it;
float16 has instructions of its own. Both are rounded to the nearest, ties to even, and a NaN stays one.
"""

from __future__ import annotations

from typing import Any

from convalgos.cpu.vectors.instructions import Vec, ir
from convalgos.cpu.vectors.integers import Integers, rounded_halves, shorts_of, widened_halves, words_of

__all__ = [
    "BRAIN", "HALF", "LINE_FORMS", "NATIVE_BRAIN", "SAME", "HalfMaps", "LineMaps", "lines_of", "maps",
]  # fmt: skip

# Elements of maps: those that are computed with; bfloat16, and rounded by an instruction; float16
SAME, BRAIN, NATIVE_BRAIN, HALF = range(4)
LINE_FORMS = (BRAIN, NATIVE_BRAIN)  # that `LineMaps` are of
UPPER = -65536  # the bits of the upper half of a word


def maps(v: Vec, form: int) -> Vec:
    """What loads from maps and stores to them, where v computes."""
    return v if form == SAME else HalfMaps(v, form)


class HalfMaps(Vec):
    """Vectors of float32 whose elements in memory are of 16 bits; offsets count those."""

    def __init__(self, v: Vec, form: int, as_words: bool = False):
        super().__init__(v.b, v.lanes, v.size)
        self.form, self._as_words, self._short = form, as_words, shorts_of(v)
        self.element = self._short.element

    def words(self) -> Vec:
        """The same, of which integers of 32 bits are loaded: the bits of what is widened."""
        return HalfMaps(self, self.form, True)

    def mask(self, count: Any) -> Any:
        return self._short.mask(count)

    def load(self, pointer: Any, offset: Any = 0) -> Any:
        return self._loaded(self._short.load(pointer, offset))

    def load_masked(self, pointer: Any, offset: Any, mask: Any) -> Any:
        return self._loaded(self._short.load_masked(pointer, offset, mask))

    def broadcast(self, pointer: Any, offset: Any = 0) -> Any:
        return self._loaded(self._short.broadcast(pointer, offset))

    def store(self, value: Any, pointer: Any, offset: Any = 0) -> None:
        self._short.store(self._rounded(value), pointer, offset)

    def store_masked(self, value: Any, pointer: Any, offset: Any, mask: Any) -> None:
        self._short.store_masked(self._rounded(value), pointer, offset, mask)

    def _rounded(self, floats: Any) -> Any:
        """NATIVE_BRAIN makes zeros of denormal numbers."""
        if self.form == NATIVE_BRAIN:
            return self._short.native_brain_of(floats)
        return rounded_halves(self, int(self.form != HALF), floats)

    def _loaded(self, halves: Any) -> Any:
        value = widened_halves(self, int(self.form != HALF), halves)
        if not self._as_words:
            return value
        return self.b.bitcast(value, ir.VectorType(ir.IntType(32), self.lanes))


class LineMaps(HalfMaps):
    """Lines of bfloat16, of twice as many elements as there are lanes: loads give the even and the odd ones.

    A word of 32 bits holds two neighbours. The upper one is a float32 but for its lower bits, and a shift
    makes one of the other: two instructions widen a line, half as many as its halves would take.
    """

    def __init__(self, v: Vec, form: int, as_words: bool = False):
        super().__init__(v, form, as_words)
        self._line = Integers(v.b, 2 * v.lanes, 2)

    def words(self) -> Vec:
        return LineMaps(self, self.form, True)

    def mask(self, count: Any) -> Any:
        return self._line.mask(count)

    def load(self, pointer: Any, offset: Any = 0) -> tuple[Any, Any]:
        return self._loaded(self._line.load(pointer, offset))

    def load_masked(self, pointer: Any, offset: Any, mask: Any) -> tuple[Any, Any]:
        return self._loaded(self._line.load_masked(pointer, offset, mask))

    def store(self, value: Any, pointer: Any, offset: Any = 0) -> None:
        self._line.store(self._interleaved(value), pointer, offset)

    def store_masked(self, value: Any, pointer: Any, offset: Any, mask: Any) -> None:
        self._line.store_masked(self._interleaved(value), pointer, offset, mask)

    def _loaded(self, halves: Any) -> tuple[Any, Any]:
        word = words_of(self)
        line = self.b.bitcast(halves, word.type)
        even, odd = word.left(line, 16), word.bit_and(line, word.const(UPPER))
        return (even, odd) if self._as_words else (self.floats(even), self.floats(odd))

    def _interleaved(self, value: Any) -> Any:
        if self.form == NATIVE_BRAIN:
            return self.b.bitcast(words_of(self).native_brain_pairs(*value), self._line.type)
        order = [n // 2 + n % 2 * self.lanes for n in range(2 * self.lanes)]
        low, high = (self._rounded(half) for half in value)
        return self.shuffle(low, high, order)


def lines_of(m: Vec) -> LineMaps | None:
    """The same maps in lines, where they can be."""
    return LineMaps(m, m.form) if isinstance(m, HalfMaps) and m.form in LINE_FORMS else None
