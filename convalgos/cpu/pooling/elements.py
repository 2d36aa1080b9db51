"""Elements of every type that is pooled, as vectors to be reduced.

Floats of 16 bits are widened to float32 when they are loaded and rounded when they are stored; integers of 8
bits stay such. A NaN in a window is its maximum, as torch and NumPy have it.
"""

from __future__ import annotations

from convalgos.cpu.compile import code_generation
from convalgos.cpu.vectors import halves
from convalgos.cpu.vectors.instructions import Value, Vec, ir
from convalgos.cpu.vectors.integers import Integers
from convalgos.cpu.vectors.lanes import store_lanes

FLOAT, BRAIN, HALF = halves.SAME, halves.BRAIN, halves.HALF  # forms of elements
SIGNED, UNSIGNED = HALF + 1, HALF + 2
FORMS = {
    "float32": FLOAT, "float64": FLOAT, "bfloat16": BRAIN, "float16": HALF, "int8": SIGNED, "uint8": UNSIGNED,
}  # fmt: skip
MAX, MEAN = range(2)


def can_convert(form: int) -> bool:
    """Whether this processor converts elements of a form in registers."""
    return form != HALF or code_generation.has("f16c")


class PoolElements:
    """Vectors of a form, reduced by a reduction. v: of what they are computed in.

    `v` loads and stores what is in scratch, `maps` what is in x and y.
    """

    def __init__(self, v: Vec, form: int, reduction: int):
        self.form, self.reduction = form, reduction
        integers = form in (SIGNED, UNSIGNED)
        self.v: Vec = Integers(v.b, v.lanes, v.size) if integers else v
        self.maps = self.v if integers else halves.maps(v, form)

    def identity(self) -> Value:
        """What changes no reduction."""
        if self.reduction == MEAN:
            return self.v.zero()
        least = {SIGNED: -(1 << 7), UNSIGNED: 0}
        return self.v.const(least.get(self.form, float("-inf")))

    def reduced(self, total: Value, further: Value) -> Value:
        if self.reduction == MEAN:
            return self.v.fadd(total, further)
        b = self.v.b
        if self.form in (SIGNED, UNSIGNED):
            return b.select(self.exceeds(further, total), further, total)
        return self.v.larger(total, further)

    def exceeds(self, further: Value, total: Value) -> Value:
        """Lanes in which a maximum changes: the further element is larger, or NaN."""
        b = self.v.b
        if self.form in (SIGNED, UNSIGNED):
            compare = b.icmp_signed if self.form == SIGNED else b.icmp_unsigned
            return compare(">", further, total)
        # NaN counts as infinity in a total, so that one comparison tells of both: the last NaN wins
        infinity = self.v.const(float("inf"))
        bounded = b.select(b.fcmp_ordered("<", total, infinity), total, infinity)
        return b.fcmp_unordered(">", further, bounded)

    def over_lanes(self, value: Value) -> Value:
        """The reduction of all lanes, in the first lane."""
        lanes = self.v.lanes
        while lanes > 1:
            lanes //= 2
            order = [lanes + i if i < lanes else i for i in range(self.v.lanes)]
            value = self.reduced(value, self.v.shuffle(value, value, order))
        return value

    def load(self, pointer: Value, offset: Value = 0, mask: Value = None) -> Value:
        """Of x; all elements, or those of a mask."""
        if mask is None:
            return self.maps.load(pointer, offset)
        return self.maps.load_masked(pointer, offset, mask)

    def load_one(self, pointer: Value, offset: Value) -> Value:
        """One element of x, of floats."""
        b = self.v.b
        value = b.load(self.maps.at(pointer, offset), typ=self.maps.element)
        if self.form == HALF:
            return b.fpext(b.bitcast(value, ir.HalfType()), self.v.element)
        if self.form == BRAIN:
            word = ir.IntType(32)
            return b.bitcast(b.shl(b.zext(value, word), ir.Constant(word, 16)), self.v.element)
        return value

    def store(self, value: Value, pointer: Value, offset: Value = 0, mask: Value = None) -> None:
        """Of y."""
        store_lanes(self.maps, value, pointer, offset, mask)
