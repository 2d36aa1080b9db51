"""One kernel for functions of elements of many types: blocks of them, widened to 64 bits, computed, narrowed.

It is told what to do by a code, so that networks need no kernel for each function and type. Elements of
float32 travel as their bits, in the low half of a word.
"""

from __future__ import annotations

from collections.abc import Callable

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.integers import Integers
from convalgos.cpu.vectors.simd import Value, Vec, carray, ir, pointer

WORD = 8  # bytes of an element of a block
BLOCK = 256  # elements of a block
BUFFER = BLOCK * WORD + 64  # bytes of one, to whole vectors
MOST = 3  # operands

# y has `count` elements of `size` bytes; a task has buffers in `scratch`, one an operand, in `room` bytes,
# and `code` is a place in `CODES`. The records of the operands are at `table`.
TYPED_FIELDS = fields("y table scratch room operands code size count tasks")
# An operand is seen as (d0, d1, d2, d3), as many elements as y, of which s0 to s3 are the steps in elements,
# the last 0 or 1. `kind` is a place in `KINDS`.
OPERAND_FIELDS = fields("x kind d0 d1 d2 d3 s0 s1 s2 s3")
KINDS = ((1, 0), (1, 1), (2, 0), (2, 1), (4, 0), (4, 1), (8, 1))  # bytes, and whether they have a sign


@jit.specialise
def typed_share(LANES: int) -> jit.Kernel:
    """The elements of a task, a run of them."""

    def typed_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, TYPED_FIELDS)[0]
        first, end = a.count * task // a.tasks, a.count * (task + 1) // a.tasks
        buffers = a.scratch + task * a.room
        while first < end:
            count = min(BLOCK, end - first)
            for i in range(a.operands):
                x = carray(pointer(a.table), MOST, OPERAND_FIELDS)[i]
                to, done = buffers + i * BUFFER, 0
                while done < count:
                    i3, rest = (first + done) % x.d3, (first + done) // x.d3
                    run = min(x.d3 - i3, count - done)
                    at = rest // (x.d2 * x.d1) * x.s0 + rest // x.d2 % x.d1 * x.s1 + rest % x.d2 * x.s2
                    elements_to_words(WORD, LANES, x.kind, x.x, at + i3 * x.s3, x.s3, to + done * WORD, run)
                    done = done + run
            compute(WORD, LANES, a.code, buffers, buffers + BUFFER, buffers + 2 * BUFFER, count)
            words_to_elements(WORD, LANES, a.size, buffers, a.y + first * a.size, count)
            first = first + count

    return typed_share


# --- elements to words and back -------------------------------------------------------------------


@simd.emitter
def elements_to_words(v: Vec, kind: Value, x: Value, at: Value, step: Value, to: Value, count: Value) -> None:
    """to[i] = x[at + i * step]; up to whole vectors behind the last are written, too."""
    wide = Integers(v.b, v.lanes, WORD)
    for number, (size, signed) in enumerate(KINDS):
        own = Integers(v.b, v.lanes, size)
        with v.b.if_then(v.b.icmp_signed("==", kind, v.integer(number))):
            source, target = own.at(v.pointer(x), at), v.pointer(to)
            with v.choose(v.isub(step, 1)) as (along, one):
                with along, v.loop(v.idiv(v.iadd(count, v.lanes - 1), v.lanes)) as i:
                    begin = v.imul(i, v.lanes)
                    loaded = own.load_masked(source, begin, own.mask(v.isub(count, begin)))
                    wide.store(own.resized(loaded, WORD, bool(signed)), target, begin)
                with one:
                    spread = own.resized(own.broadcast(source), WORD, bool(signed))
                    with v.loop(v.idiv(v.iadd(count, v.lanes - 1), v.lanes)) as i:
                        wide.store(spread, target, v.imul(i, v.lanes))


@simd.emitter
def words_to_elements(v: Vec, size: Value, x: Value, to: Value, count: Value) -> None:
    """to[i] = the low bytes of x[i]."""
    wide = Integers(v.b, v.lanes, WORD)
    for number in (1, 2, 4, 8):
        own = Integers(v.b, v.lanes, number)
        with v.b.if_then(v.b.icmp_signed("==", size, v.integer(number))):
            source, target = v.pointer(x), v.pointer(to)
            with v.loop(v.idiv(v.iadd(count, v.lanes - 1), v.lanes)) as i:
                begin = v.imul(i, v.lanes)
                value = wide.resized(wide.load(source, begin), number)
                own.store_masked(value, target, begin, own.mask(v.isub(count, begin)))


# --- functions of words ---------------------------------------------------------------------------


@simd.emitter
def compute(v: Vec, code: Value, a: Value, b: Value, c: Value, count: Value) -> None:
    """a[i] = the function of a code of a[i], b[i] and c[i]."""
    v.b.function.attributes.add("optsize")  # or loops are unrolled, which takes most of the compiler's time
    w = Integers(v.b, v.lanes, WORD)
    for number, function in enumerate(FUNCTIONS.values()):
        if function is None:
            continue
        with v.b.if_then(v.b.icmp_signed("==", code, v.integer(number))):
            sources = [v.pointer(x) for x in (a, b, c)]
            with v.loop(v.idiv(v.iadd(count, v.lanes - 1), v.lanes)) as i:
                at = v.imul(i, v.lanes)
                operands = [w.load(source, at) for source in sources[: function.__code__.co_argcount - 1]]
                w.store(function(w, *operands), sources[0], at)


def _truth(w: Integers, bits: Value) -> Value:
    return w.b.zext(bits, w.type)


def _float(w: Integers, x: Value) -> Value:
    """float32 of the low half of words."""
    return w.b.bitcast(w.resized(x, 4), ir.VectorType(ir.FloatType(), w.lanes))


def _bits(w: Integers, x: Value) -> Value:
    """Words of float32."""
    return w.b.zext(w.b.bitcast(x, ir.VectorType(ir.IntType(32), w.lanes)), w.type)


def _compared(sign: str) -> Callable[[Integers, Value, Value], Value]:
    return lambda w, a, b: _truth(w, w.b.icmp_signed(sign, a, b))


def _compared_floats(sign: str) -> Callable[[Integers, Value, Value], Value]:
    return lambda w, a, b: _truth(w, w.b.fcmp_ordered(sign, _float(w, a), _float(w, b)))


def _divisor(w: Integers, b: Value) -> tuple[Value, Value, Value]:
    """(what a processor can divide all numbers by, where b is 0, where it is -1)."""
    none, turns = (w.b.icmp_signed("==", b, w.const(n)) for n in (0, -1))
    return w.b.select(w.b.or_(none, turns), w.const(1), b), none, turns


def _quotient(w: Integers, a: Value, b: Value) -> Value:
    """Towards zero, and 0 by 0."""
    by, none, turns = _divisor(w, b)
    found = w.b.select(turns, w.sub(w.zero(), a), w.b.sdiv(a, by))
    return w.b.select(none, w.zero(), found)


def _rest(w: Integers, a: Value, b: Value) -> Value:
    """Of the sign of a, and 0 by 0."""
    return w.b.srem(a, _divisor(w, b)[0])


def _modulo(w: Integers, a: Value, b: Value) -> Value:
    """Of the sign of b, and 0 by 0."""
    rest = _rest(w, a, b)
    other = w.b.icmp_signed("<", w.b.xor(rest, b), w.zero())
    turned = w.b.and_(other, w.b.icmp_signed("!=", rest, w.zero()))
    return w.add(rest, w.b.select(turned, b, w.zero()))


def _selected(w: Integers, a: Value, b: Value, c: Value) -> Value:
    return w.b.select(w.b.icmp_signed("!=", a, w.zero()), b, c)


def _larger_float(w: Integers, a: Value, b: Value) -> Value:
    """One of them that is NaN, if any is."""
    return _extreme(w, ">=", a, b)


def _smaller_float(w: Integers, a: Value, b: Value) -> Value:
    return _extreme(w, "<=", a, b)


def _extreme(w: Integers, sign: str, a: Value, b: Value) -> Value:
    x, y = _float(w, a), _float(w, b)
    first = w.b.or_(w.b.fcmp_ordered(sign, x, y), w.b.fcmp_unordered("uno", x, x))
    return w.b.select(first, a, b)


def _whole(bits: int) -> Callable[[Integers, Value], Value]:
    """A float32 towards zero, in so many bits; the least number where it has more, or is NaN."""
    end = 2.0 ** (bits - 1)

    def of(w: Integers, a: Value) -> Value:
        x = _float(w, a)
        low, high = (ir.Constant(x.type, [n] * w.lanes) for n in (-end, end))
        inside = w.b.and_(w.b.fcmp_ordered(">=", x, low), w.b.fcmp_ordered("<", x, high))
        kind = ir.VectorType(ir.IntType(bits), w.lanes)
        found = w.b.fptosi(w.b.select(inside, x, ir.Constant(x.type, None)), kind)
        least = ir.Constant(kind, [-(1 << (bits - 1))] * w.lanes)
        found = w.b.select(inside, found, least)
        return found if bits == 64 else w.b.sext(found, w.type)

    return of


def _float_of(w: Integers, a: Value) -> Value:
    return _bits(w, w.b.sitofp(a, ir.VectorType(ir.FloatType(), w.lanes)))


def _size_of_float(w: Integers, a: Value) -> Value:
    return w.bit_and(a, w.const(0x7FFFFFFF))


FUNCTIONS: dict[str, Callable[..., Value] | None] = {  # a place is a code; None: the first operand itself
    "same": None,
    "add": lambda w, a, b: w.add(a, b),
    "subtract": lambda w, a, b: w.sub(a, b),
    "multiply": lambda w, a, b: w.mul(a, b),
    "quotient": _quotient,
    "mod": _modulo,
    "fmod": _rest,
    "maximum": lambda w, a, b: w.larger(a, b),
    "minimum": lambda w, a, b: w.smaller(a, b),
    "clip": lambda w, a, b, c: w.smaller(w.larger(a, b), c),
    "equal": _compared("=="),
    "less": _compared("<"),
    "greater": _compared(">"),
    "less_equal": _compared("<="),
    "greater_equal": _compared(">="),
    "logical_and": lambda w, a, b: w.bit_and(a, b),
    "logical_or": lambda w, a, b: w.bit_or(a, b),
    "logical_xor": lambda w, a, b: w.bit_xor(a, b),
    "logical_not": lambda w, a: w.bit_xor(a, w.const(1)),
    "negative": lambda w, a: w.sub(w.zero(), a),
    "absolute": lambda w, a: w.larger(a, w.sub(w.zero(), a)),
    "sign": lambda w, a: w.sub(_compared(">")(w, a, w.zero()), _compared("<")(w, a, w.zero())),
    "where": _selected,
    "is_any": lambda w, a: _truth(w, w.b.icmp_signed("!=", a, w.zero())),
    "float of whole": _float_of,
    "maximum floats": _larger_float,
    "minimum floats": _smaller_float,
    "clip floats": lambda w, a, b, c: _smaller_float(w, _larger_float(w, a, b), c),
    "equal floats": _compared_floats("=="),
    "less floats": _compared_floats("<"),
    "greater floats": _compared_floats(">"),
    "less_equal floats": _compared_floats("<="),
    "greater_equal floats": _compared_floats(">="),
    "isnan floats": lambda w, a: _truth(w, w.b.fcmp_unordered("uno", _float(w, a), _float(w, a))),
    "isinf floats": lambda w, a: _compared("==")(w, _size_of_float(w, a), w.const(0x7F800000)),
    "is_any floats": lambda w, a: _truth(w, w.b.icmp_signed("!=", _size_of_float(w, a), w.zero())),
    "whole of 32 bits": _whole(32),
    "whole of 64 bits": _whole(64),
}
CODES = {name: code for code, name in enumerate(FUNCTIONS)}
