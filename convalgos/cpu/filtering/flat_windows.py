"""Windows over elements that are all the same: their sum in SciPy's order is found once.

Such sums are next to whole numbers wherever weights add up to about 1, so that each of them would be summed
again: in masks, in padding, in skies and in highlights that are cut off.
"""

from __future__ import annotations

from collections.abc import Callable

from convalgos.cpu.filtering.ordered_sums import any_of
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.instructions import ir
from convalgos.cpu.vectors.integers import Integers
from convalgos.cpu.vectors.lanes import load_lanes
from convalgos.cpu.vectors.simd import Value, Vec, vector_bytes

WORD = ir.IntType(64)
ALWAYS = ir.Constant(ir.IntType(1), 1)
NONE = -1  # no element has these bits: shorter ones have zeros before them, and of 8 bytes it is no number


class FlatWindows:
    """Writes what finds the sums of flat windows in lines of elements of so many bytes.

    Args:
        line: emits the address of a line.
        window: emits (lines of a window, elements of each that it spans, whether to look for flat ones
            takes less time than to sum them), where these are asked for.
    """

    def __init__(
        self, v: Vec, size: int, line: Callable[[Value], Value],
        window: Callable[[], tuple[Value, Value, Value]],
    ):  # fmt: skip
        self._v, self._line = Integers(v.b, vector_bytes() // size, size), line
        self._window = window
        wide = Vec(v.b, vector_bytes() // 8, 8)
        self._wide, self._sum = wide, wide.register(wide.zero())
        self._known = variable_of(v, v.integer(NONE))  # what the last flat windows were of
        self._end = variable_of(v, v.integer(0))  # up to where elements are known to be that

    def sum_of(self, at: Value, count: Value, in_order: Callable[[], Value]) -> tuple[Value, Value]:
        """(whether windows from a place on are all flat, a float64 vector of their sum if they are).

        Args:
            count: of windows.
            in_order: emits sums in order, of which the first lane is that of the window at the place.
        """
        b = self._v.b
        flat, other = self.find(at, count)
        with b.if_then(other, likely=False):
            total = in_order()
            self._sum.set(self._wide.shuffle(total, total, [0] * self._wide.lanes))
        return flat, self._sum.value

    def find(self, at: Value, count: Value) -> tuple[Value, Value]:
        """(whether windows from a place on are all flat, whether they are, and of another element than the
        last ones)."""
        b, n = self._v.b, self._v
        flat, other = variable_of(n, n.integer(0)), variable_of(n, n.integer(0))
        rows, columns, pays = self._window()
        end = n.isub(n.iadd(n.iadd(at, count), columns), 1)
        first, last = self._element(n.integer(0), at), self._element(n.isub(rows, 1), n.isub(end, 1))
        middle = self._element(n.idiv(rows, 2), n.idiv(n.iadd(at, end), 2))
        alike = b.and_(b.icmp_unsigned("==", first, last), b.icmp_unsigned("==", first, middle))
        with b.if_then(b.and_(pays, alike), likely=False):
            begin = n.imax(at, b.load(self._end, typ=WORD))
            unequal = self._unequal(rows, first, begin, end)
            b.store(b.select(unequal, n.integer(0), end), self._end)
            with b.if_then(b.not_(unequal)):
                b.store(n.integer(1), flat)
                differs = b.icmp_unsigned("!=", first, b.load(self._known, typ=WORD))
                b.store(b.zext(differs, WORD), other)
                b.store(first, self._known)
        is_flat, is_other = (b.icmp_unsigned("!=", b.load(w, typ=WORD), n.integer(0)) for w in (flat, other))
        return is_flat, is_other

    def forget_place(self) -> None:
        """That the next windows are not those of the same lines further on."""
        self._v.b.store(self._v.integer(0), self._end)

    def _element(self, row: Value, at: Value) -> Value:
        """The bits of one."""
        n = self._v
        bits = n.b.load(n.at(n.pointer(self._line(row)), at), typ=n.element)
        return bits if n.size == 8 else n.b.zext(bits, WORD)

    def _unequal(self, rows: Value, first: Value, begin: Value, end: Value) -> Value:
        """Whether any element of the lines between two places is another one."""
        n, same, found = self._v, self._v.spread(first), self._v.register(self._v.zero())
        width = n.imax(n.isub(end, begin), 0)

        def look(at: Value, mask: Value = None) -> None:
            """A vector of each line."""
            with n.loop(rows) as row:
                value = load_lanes(n, n.pointer(self._line(row)), n.iadd(begin, at), mask)
                value = value if mask is None else n.b.select(mask, value, same)
                found.set(n.bit_or(found.value, n.bit_xor(value, same)))

        with n.choose(n.isub(width, n.lanes)) as (then, otherwise):
            with then, n.loop(n.idiv(n.iadd(width, n.lanes - 1), n.lanes)) as i:
                look(n.imin(n.imul(i, n.lanes), n.isub(width, n.lanes)))
            with otherwise:
                look(n.integer(0), n.mask(width))
        return any_of(n, [n.b.icmp_unsigned("!=", found.value, n.zero())])


def variable_of(v: Vec, value: Value) -> Value:
    """A variable of the kernel's own, an integer."""
    slot = simd.allocate(v.b, WORD)
    v.b.store(value, slot)
    return slot


def flat_lines(
    v: Vec, size: int, address: Callable[[Value], Value], taps: Value, MANY: int = 1
) -> FlatWindows:
    """Of windows with a tap in each of some lines, which may be one line, shifted by an element each.

    MANY: windows below each other that are asked for at a time; there are as many more lines.
    """

    def window() -> tuple[Value, Value, Value]:
        one, final = v.integer(1), v.isub(taps, 1)
        first, second, last = (address(t) for t in (v.integer(0), v.imin(one, final), final))
        apart = v.b.icmp_signed("==", v.isub(second, first), v.integer(size))
        along = v.b.icmp_signed("==", v.isub(last, first), v.imul(final, size))
        shifted = v.b.and_(apart, along)
        rows, columns = v.b.select(shifted, one, v.iadd(taps, MANY - 1)), v.b.select(shifted, taps, one)
        return rows, columns, ALWAYS if MANY > 1 or size == 2 else shifted

    return FlatWindows(v, size, address, window)
