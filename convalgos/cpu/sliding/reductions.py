"""Vectors of elements that windows reduce, and what is done to lines of them."""

from __future__ import annotations

from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_chunks
from convalgos.cpu.vectors.integers import Integers
from convalgos.cpu.vectors.lanes import load_lanes, store_lanes
from convalgos.cpu.vectors.simd import Register, Value, Vec, function_of, ir

MINIMUM, MAXIMUM, MEAN, WEIGHTED, LINED = range(5)  # the last two: sum * weight + bias, of a plane or a line
FLOAT, SIGNED, UNSIGNED = range(3)  # elements in memory
SHORT = 2  # bytes of exact sums of bytes
UNROLLED = 4  # vectors that are reduced at a time


class SlidingElements:
    """Vectors of a form that take `stored` bytes each in memory. v: of what they are computed in."""

    def __init__(self, v: Vec, stored: int, form: int, reduction: int):
        self.form, self.reduction = form, reduction
        self.as_integers = form != FLOAT and (reduction in (MINIMUM, MAXIMUM) or v.size == SHORT)
        self.v: Vec = Integers(v.b, v.lanes, v.size) if self.as_integers else v
        self.maps: Vec = v if form == FLOAT else Integers(v.b, v.lanes, stored)

    def load(self, pointer: Value, offset: Value = 0, mask: Value = None) -> Value:
        """Of memory, as it is computed with."""
        maps = self.maps
        x = load_lanes(maps, pointer, offset, mask)
        if self.form == FLOAT:
            return x
        if isinstance(maps, Integers) and self.as_integers:
            return maps.resized(x, self.v.size, self.form == SIGNED)
        return (maps.b.sitofp if self.form == SIGNED else maps.b.uitofp)(x, self.v.type)

    def store(self, value: Value, pointer: Value, offset: Value = 0, mask: Value = None) -> None:
        """Of what is computed, to memory."""
        b, maps, held = self.v.b, self.maps, self.v.size
        if self.form != FLOAT and not self.as_integers:
            held = 8 if maps.size == 8 or (maps.size, self.form) == (4, UNSIGNED) else 4
            convert = b.fptoui if (maps.size, self.form) == (8, UNSIGNED) else b.fptosi
            value = convert(value, ir.VectorType(ir.IntType(8 * held), maps.lanes))
        value = value if held == maps.size else b.trunc(value, maps.type)
        store_lanes(maps, value, pointer, offset, mask)

    def reduced(self, total: Value, further: Value) -> Value:
        b = self.v.b
        if self.reduction >= MEAN:
            return b.add(total, further) if self.as_integers else b.fadd(total, further)
        sign = "<" if self.reduction == MINIMUM else ">"
        if not self.as_integers:
            return b.select(b.fcmp_ordered(sign, further, total), further, total)
        compare = b.icmp_signed if self.form == SIGNED else b.icmp_unsigned
        return b.select(compare(sign, further, total), further, total)

    def numbers(self, address: Value) -> tuple[Value, Value]:
        """What `finished` takes, of `mean_numbers`, or weight and bias."""
        at = self.v.pointer(address)
        return self.v.broadcast(at), self.v.broadcast(at, 1)

    def finished(self, total: Value, numbers: tuple[Value, Value]) -> Value:
        """The mean of a sum, or its product with a weight, and a bias."""
        b, (first, second) = self.v.b, numbers
        if self.reduction == WEIGHTED:
            return self.v.fma(total, first, second)
        if self.as_integers:
            wide = ir.VectorType(ir.IntType(32), self.v.lanes)
            product = b.mul(b.zext(total, wide), b.zext(first, wide))
            high = b.trunc(b.lshr(product, ir.Constant(wide, [16] * self.v.lanes)), self.v.type)
            return b.select(b.icmp_unsigned("==", first, self.v.zero()), total, b.lshr(high, second))
        quotient = b.fdiv(total, first)
        if self.form == FLOAT:
            return quotient
        kind = ir.FunctionType(self.v.type, [self.v.type])
        return b.call(function_of(b, kind, f"llvm.trunc.{self.v.suffix}"), [quotient])


@simd.emitter
def reduce_down(
    v: Vec, STORED: int, FORM: int, REDUCTION: int, FINISH: int, rows: Value, column: Value, taps: Value,
    target: Value, count: Value, numbers: Value,
) -> None:  # fmt: skip
    """target[i] = the reduction of rows[j][column + i] over j < taps; rows: addresses, column: in bytes."""
    of = SlidingElements(v, STORED, FORM, REDUCTION)
    to = v.pointer(target)
    by = of.numbers(numbers) if FINISH else None

    def chunk(first: Value, vectors: int, mask: Value = None) -> None:
        def row(j: Value) -> Value:
            return of.maps.at(v.pointer(v.iadd(v.table64(rows, j), column)), first)

        begin = row(0)
        totals = [Register(of.v, of.load(begin, i * v.lanes, mask)) for i in range(vectors)]
        with v.loop(v.isub(taps, 1)) as j:
            further = row(v.iadd(j, 1))
            for i, total in enumerate(totals):
                total.set(of.reduced(total.value, of.load(further, i * v.lanes, mask)))
        for i, total in enumerate(totals):
            value = total.value if by is None else of.finished(total.value, by)
            of.v.store(value, of.v.at(to, first), i * v.lanes)  # behind the end, too

    loop_chunks(of.v, of.maps, count, UNROLLED, chunk)


@simd.emitter
def join_rows(
    v: Vec, STORED: int, FORM: int, REDUCTION: int, MAPPED: int, FINISH: int, one: Value, other: Value,
    target: Value, count: Value, numbers: Value,
) -> None:  # fmt: skip
    """target[i] = the reduction of one[i] and other[i], which is MAPPED: of memory, not computed."""
    of = SlidingElements(v, STORED, FORM, REDUCTION)
    left, right, to = v.pointer(one), v.pointer(other), v.pointer(target)
    by = of.numbers(numbers) if FINISH else None

    def chunk(first: Value, vectors: int, mask: Value = None) -> None:
        for i in range(vectors):
            at = v.iadd(first, i * v.lanes)
            further = of.load(right, at, mask) if MAPPED else of.v.load(right, at)
            value = of.reduced(of.v.load(left, at), further)
            of.v.store(value if by is None else of.finished(value, by), to, at)

    loop_chunks(of.v, of.maps, count, UNROLLED, chunk)


@simd.emitter
def reduce_along_line(
    v: Vec, STORED: int, FORM: int, REDUCTION: int, ADDS: int, FINISH: int, source: Value, added: Value,
    target: Value, count: Value, taps: Value, step: Value, last: Value, numbers: Value,
) -> None:  # fmt: skip
    """target[i] = the reduction of source[i + last], source[i + j * step] over j < taps - 1, and added[i].

    With FINISH the target is in memory, else it is readable and writable for a vector behind its end.
    """
    of = SlidingElements(v, STORED, FORM, REDUCTION)
    begin, to, more = v.pointer(source), v.pointer(target), v.pointer(added)
    by = of.numbers(numbers) if FINISH and REDUCTION in (MEAN, WEIGHTED) else None

    def chunk(first: Value, vectors: int, mask: Value = None) -> None:
        at = of.v.at(begin, first)
        ends = of.v.at(at, last)
        totals = [Register(of.v, of.v.load(ends, i * v.lanes)) for i in range(vectors)]
        with v.loop(v.isub(taps, 1)) as j:
            further = of.v.at(at, v.imul(j, step))
            for i, total in enumerate(totals):
                total.set(of.reduced(total.value, of.v.load(further, i * v.lanes)))
        for i, total in enumerate(totals):
            value = total.value
            if ADDS:
                value = of.reduced(value, of.v.load(of.v.at(more, first), i * v.lanes))
            if by is not None:
                value = of.finished(value, by)
            if FINISH and REDUCTION == LINED:
                line = of.v.at(v.pointer(numbers), v.imul(2, v.iadd(first, i * v.lanes)))
                value = of.v.fma(value, of.v.load(line), of.v.load(line, v.lanes))
            if FINISH:
                of.store(value, of.maps.at(to, first), i * v.lanes, mask)
            else:
                of.v.store(value, of.v.at(to, first), i * v.lanes)

    loop_chunks(of.v, of.maps, count, UNROLLED, chunk)


@simd.emitter
def copy_lines(
    v: Vec, target: Value, target_step: Value, source: Value, source_step: Value, lines: Value, count: Value
) -> None:  # fmt: skip
    """target[r][i] = source[r][i] of some lines, which lie so many bytes apart."""
    n = Integers(v.b, v.lanes, v.size)
    whole = n.idiv(count, n.lanes)
    done = n.imul(whole, n.lanes)
    mask = n.mask(n.isub(count, done))
    with n.loop(lines) as r:
        to, of = n.pointer(n.iadd(target, n.imul(r, target_step))), n.iadd(source, n.imul(r, source_step))
        with n.loop(whole) as i:
            at = n.imul(i, n.lanes)
            n.store(n.load(n.pointer(of), at), to, at)
        n.store_masked(n.load(n.pointer(of), done), to, done, mask)
