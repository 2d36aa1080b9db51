"""Activations of vectors, as `core/epilogue` defines them, by polynomials: of exp, of the tail of Phi, and
of what GELU of floats lies below max(x, 0), whose coefficients stand in tables that are permuted.

Results are off by no more than `ULPS` units in the last place, NaN stays NaN, and infinities go to the limits
of the function.

Source: exp by reduction to [-ln 2 / 2, ln 2 / 2], Cody and Waite, Software Manual for the Elementary
Functions, 1980; exp(t^2) erfc(t) as a polynomial in 1 / (1 + a t), Hastings, Approximations for Digital
Computers, 1955.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from convalgos.core.epilogue import BELOW, KINDS, LEVEL, TANH_CUBE, TANH_SCALE
from convalgos.cpu.vectors.instructions import Value, Vec, function_of, ir, lanes

# Tables of 2^f, which two vectors hold, or one: bits of the number of their entries, and 2^(u / entries) by
# powers of u from the first on, |u| <= 1/2, relatively right to 5.3e-8 and 2.5e-8. By the lanes of a vector.
POWERS = {
    16: (5, (0.021661166101694107, 0.0002345961838727817)),
    8: (3, (0.08664340525865555, 0.0037540255580097437, 0.00010839106107596308)),
}
# The tail of GELU: the step from point to point, and the degree between. By the lanes of a vector.
PIECES = {16: (0.4, 5), 8: (0.9, 7)}
NONE, CLIP = 0, KINDS["clip"].code  # codes: of no activation; the others are those of `KINDS`
ULPS = 4  # units in the last place of the larger of a value and a quarter, by which it may be off

_NAMES = {kind.code: name for name, kind in KINDS.items()}
GELUS: dict[str, Callable[[float], float]] = {  # shares of x that they are
    "gelu": lambda x: math.erfc(-x * math.sqrt(0.5)) / 2,
    "gelu_tanh": lambda x: 1 / (1 + math.exp(-TANH_SCALE * (x + TANH_CUBE * x**3))),
}


class Float(NamedTuple):
    """What differs between elements of 4 and of 8 bytes."""

    fraction: int  # bits of it
    bias: int  # of the exponent
    ln2_high: float  # of few enough bits that its products with exponents are exact
    ln2_low: float
    least: float  # exp of less is 0, and of more infinite
    most: float
    terms: int  # of the series of exp
    tail: tuple[float, ...]  # exp(t^2) erfc(t) / q by powers of q, interpolated at Chebyshev's nodes
    tail_end: float  # of t, up to which this holds; exp(-t^2) is 0 from there on


LOGARITHM_TERMS = {4: 7, 8: 16}  # of the series of `_softplus`, whose z^2 is no more than 1/9
TAIL_STEP = 0.3  # q = 1 / (1 + 0.3 t)
FLOATS = {
    4: Float(
        23, 127, 0.693145751953125, 1.428606765330187e-06, -104.0, 89.0, 8,
        (
            0.169172898, 0.17095556, 0.146728741, 0.220869155, -0.107884418, 0.565965821, -0.527524324,
            0.492639178, -0.130922632,
        ), 10.5,
    ),
    8: Float(
        52, 1023, 0.693147180369123816490, 1.90821492927058770002e-10, -746.0, 710.0, 14,
        (
            0.16925687504124332, 0.16925687659045832, 0.16164026921134503, 0.14640806390475464,
            0.1245746392779154, 0.09833660811718124, 0.06946022500529812, 0.04776967117380434,
            0.0037085252543736743, 0.06798129085927984, -0.17619022579389176, 0.38185505383393725,
            -0.6947762558933213, 0.9700516434580568, -1.0532200794959004, 0.8536313743884663,
            -0.4747177360187449, 0.15361585731908067, -0.010069019624828356, -0.012977863890410125,
            0.005029697356900363, -0.0006254900749985677,
        ), 27.5,
    ),
}  # fmt: skip


def activate(v: Vec, kind: int, x: Value, a: Value, b: Value) -> Value:
    """The activation of a code for each lane of x; a and b hold its two numbers in all lanes."""
    name = _NAMES.get(kind)
    if name is None:
        return x
    if name == "relu":
        return v.fmax(x, v.zero())
    if name == "clip":
        return fmin(v, v.fmax(x, a), b)
    if name == "leaky_relu":
        return v.b.select(v.b.fcmp_ordered("<", x, v.zero()), v.fmul(x, a), x)
    if name == "sigmoid":
        return _sigmoid(v, x)
    if name == "tanh":
        return _tanh(v, x)
    if name == "elu":
        below = v.fmul(a, _exponential_less_one(v, fmin(v, x, v.zero())))
        return v.fmul(b, v.b.select(v.b.fcmp_ordered(">", x, v.zero()), x, below))
    if name == "softplus":
        return _softplus(v, x)
    if name in GELUS and v.size == 4 and v.lanes in PIECES:
        return _below_ramp(v, x, GELUS[name])
    if name == "hard_swish":
        share = fmin(v, v.fmax(v.fadd(x, v.const(3)), v.zero()), v.const(6))
        plain = v.fmul(v.fmax(x, v.const(BELOW)), v.fmul(share, v.const(1 / 6)))
        return v.fma(plain, v.fadd(a, v.const(1)), b)
    if name == "silu":
        share = _sigmoid(v, x)
    elif name == "gelu":
        share = _normal_distribution(v, x)
    elif name == "mish":
        power = exponential(v, fmin(v, x, v.const(LEVEL)))
        square = v.fma(power, power, v.fadd(power, power))  # (1 + e)^2 - 1
        share = _quotient(v, square, v.fadd(square, v.const(2)))
    else:  # gelu_tanh
        cube = v.fmul(v.fmul(v.fmul(v.const(TANH_CUBE), x), x), x)
        share = _sigmoid(v, v.fmul(v.const(TANH_SCALE), v.fadd(x, cube)))
    return v.fmul(v.fmax(x, v.const(BELOW)), share)  # a share of 0 from there on, of infinity as well


def activate_in_turn(v: Vec, kind: int, x: Value, a: Value, b: Value) -> Value:
    """`activate` of one of many vectors in registers, before that of the next one begins.

    The compiler would rather compute all of them together, for which there are too few registers.
    """
    if kind in (NONE, CLIP):
        return activate(v, kind, x, a, b)

    def in_turn(vector: Value) -> Value:
        return v.b.asm(ir.FunctionType(v.type, [v.type]), "", "=v,0", [vector], True)

    return in_turn(activate(v, kind, in_turn(x), a, b))


def exponential(v: Vec, x: Value) -> Value:
    """exp(x): the integer part of x / ln 2 becomes the exponent, and a series gives the rest."""
    of = FLOATS[v.size]
    rest, exponent = _reduced(v, fmin(v, v.fmax(x, v.const(of.least)), v.const(of.most)))
    series = v.const(1 / math.factorial(of.terms - 1))
    for k in reversed(range(of.terms - 1)):
        series = v.fma(series, rest, v.const(1 / math.factorial(k)))
    # by two factors, as one alone may be infinite where the result is not
    half = v.b.ashr(exponent, ir.Constant(exponent.type, [1] * v.lanes))
    for part in (half, v.b.sub(exponent, half)):
        series = v.fmul(series, _power_of_two(v, part))
    return series


def exponential_of_less(v: Vec, x: Value) -> Value:
    """exp(x) of what is no more than 0; floats are 0 where it has no exponent of its own."""
    if v.size != 4 or v.lanes not in POWERS or v.lanes > lanes(v.size):  # blocks may be wider than vectors
        return exponential(v, x)
    near, power = _factors_by_table(v, x, 1, all_digits=True)
    made = v.fmul(near, power)
    return v.b.select(v.b.fcmp_ordered("<", x, v.const(-126 * math.log(2))), v.zero(), made)


def _reduced(v: Vec, x: Value) -> tuple[Value, Value]:
    """(rest, exponent): x = rest + ln 2 * exponent, where |rest| is no more than ln 2 / 2."""
    of, words = FLOATS[v.size], ir.VectorType(ir.IntType(8 * v.size), v.lanes)
    # adding it rounds to an integer, which is then in the lowest bits
    magic = v.const(1.5 * 2.0**of.fraction)
    shifted = v.fma(x, v.const(1 / math.log(2)), magic)
    whole = v.fsub(shifted, magic)
    rest = v.fma(whole, v.const(-of.ln2_low), v.fma(whole, v.const(-of.ln2_high), x))
    return rest, v.b.sub(v.b.bitcast(shifted, words), v.b.bitcast(magic, words))


def _power_of_two(v: Vec, exponent: Value) -> Value:
    """2^exponent, of integers that floats have as exponents."""
    of = FLOATS[v.size]
    bias, fraction = (ir.Constant(exponent.type, [n] * v.lanes) for n in (of.bias, of.fraction))
    return v.b.bitcast(v.b.shl(v.b.add(exponent, bias), fraction), v.type)


def _exponential_less_one(v: Vec, x: Value) -> Value:
    """exp(x) - 1 of x up to 2 `LEVEL`, with its digits near 0."""
    of = FLOATS[v.size]
    rest, exponent = _reduced(v, v.fmax(x, v.const(-LEVEL)))
    series = v.const(1 / math.factorial(of.terms))
    for k in reversed(range(1, of.terms)):
        series = v.fma(series, rest, v.const(1 / math.factorial(k)))
    power = _power_of_two(v, exponent)
    return v.fma(power, v.fmul(series, rest), v.fsub(power, v.const(1)))


def _tanh(v: Vec, x: Value) -> Value:
    """(exp(2 x) - 1) / (exp(2 x) + 1)."""
    twice = fmin(v, v.fadd(x, x), v.const(LEVEL))
    less_one = _exponential_less_one(v, twice)
    return _quotient(v, less_one, v.fadd(less_one, v.const(2)))


def _softplus(v: Vec, x: Value) -> Value:
    """max(x, 0) + ln(1 + e), e = exp(-|x|): ln((1 + z) / (1 - z)) is twice a series of odd powers of z."""
    size = v.fmax(x, v.fsub(v.zero(), x))
    power = exponential(v, v.fsub(v.zero(), size))
    z = _quotient(v, power, v.fadd(power, v.const(2)))
    square, last = v.fmul(z, z), LOGARITHM_TERMS[v.size] - 1
    series = v.const(2 / (2 * last + 1))
    for k in reversed(range(last)):
        series = v.fma(series, square, v.const(2 / (2 * k + 1)))
    return v.fma(series, z, v.fmax(x, v.zero()))


def _sigmoid(v: Vec, x: Value) -> Value:
    """1 / (1 + exp(-x)), which is 0 where x is far below."""
    one = v.const(1)
    if v.size == 4 and v.lanes in POWERS:
        return _reciprocal(v, _one_and_power(v, x))
    return v.b.fdiv(one, v.fadd(one, exponential(v, v.fsub(v.zero(), x))))


def _one_and_power(v: Vec, x: Value) -> Value:
    """1 + exp(-x) of floats."""
    near, power = _power_by_table(v, x)
    return v.fma(near, power, v.const(1))


def _power_by_table(v: Vec, x: Value) -> tuple[Value, Value]:
    """Two factors of exp(-x) of any floats."""
    # The lowest value is a quarter of a step beyond 2^128, whose entry in the table becomes infinity.
    low, high = -(128 + 0.25 / (1 << POWERS[v.lanes][0])) * math.log(2), 126 * math.log(2)
    return _factors_by_table(v, fmin(v, v.fmax(x, v.const(low)), v.const(high)), -1)


def _factors_by_table(v: Vec, x: Value, sign: int, all_digits: bool = False) -> tuple[Value, Value]:
    """Two factors of exp(sign x) of floats that have one: steps of a part of an octave, by a table, and a
    series between.

    Args:
        all_digits: of far values, too, whose error grows with their exponent otherwise.
    """
    bits, series = POWERS[v.lanes]
    words, exact = ir.VectorType(ir.IntType(32), v.lanes), sign * (1 << bits) / math.log(2)
    steps, shift = v.const(exact), ir.Constant(words, [FLOATS[4].fraction - bits] * v.lanes)
    magic = v.const(1.5 * 2.0 ** FLOATS[4].fraction)  # adding it rounds, and its own bits are shifted out
    shifted = v.fma(x, steps, magic)
    rest = v.fma(x, steps, v.fsub(magic, shifted))
    if all_digits:
        rest = v.fma(x, v.const(exact - float(np.float32(exact))), rest)
    number = v.b.bitcast(shifted, words)
    near = v.b.add(v.b.bitcast(_step_of_octave(v, number, bits), words), v.b.shl(number, shift))
    power = v.const(series[-1])
    for coefficient in (*reversed(series[:-1]), 1.0):
        power = v.fma(power, rest, v.const(coefficient))
    return v.b.bitcast(near, v.type), power


def _step_of_octave(v: Vec, number: Value, bits: int) -> Value:
    """2^(i / 2^bits) for the lowest bits of a number, less these bits where they will be added."""
    count = 1 << bits
    where = np.arange(count, dtype=np.int32) << FLOATS[4].fraction - bits
    table = (np.exp2(np.arange(count) / count).astype(np.float32).view(np.int32) - where).view(np.float32)
    parts = [ir.Constant(v.type, list(map(float, part))) for part in table.reshape(-1, v.lanes)]
    if len(parts) == 1:
        return _entry(v, parts[0], number)
    kind = ir.FunctionType(v.type, [v.type, number.type, v.type])
    choose = function_of(v.b, kind, "llvm.x86.avx512.vpermi2var.ps.512")
    return v.b.call(choose, [parts[0], number, parts[1]])


def _quotient(v: Vec, x: Value, of: Value) -> Value:
    """x / of, where that is at least one, and no more than 2^126."""
    if v.size * v.lanes < 64 or v.size == 8:
        return v.b.fdiv(x, of)
    return v.fmul(x, _reciprocal(v, of))


def _reciprocal(v: Vec, x: Value) -> Value:
    """1 / x of floats of at least one: by a step of Newton where an instruction has half of the digits."""
    one = v.const(1)
    if v.size * v.lanes < 64:
        return v.b.fdiv(one, x)
    kind = ir.FunctionType(v.type, [v.type, v.type, ir.IntType(16)])
    estimate = function_of(v.b, kind, "llvm.x86.avx512.rcp14.ps.512")
    near = v.b.call(estimate, [x, v.zero(), ir.Constant(ir.IntType(16), -1)])
    finite = fmin(v, x, v.const(2.0**126))  # infinity times zero is no number
    return v.fma(near, v.fma(finite, v.b.fneg(near), one), near)


def _normal_distribution(v: Vec, x: Value) -> Value:
    """Phi(x) = erfc(-x / sqrt 2) / 2, with the relative precision of its tail."""
    of = FLOATS[v.size]
    size = v.fmax(x, v.fsub(v.zero(), x))
    size = fmin(v, size, v.const(of.tail_end * math.sqrt(2)))
    t = v.fmul(size, v.const(math.sqrt(0.5)))
    q = v.b.fdiv(v.const(1), v.fma(t, v.const(TAIL_STEP), v.const(1)))
    series = v.const(of.tail[-1])
    for coefficient in reversed(of.tail[:-1]):
        series = v.fma(series, q, v.const(coefficient))
    # exp(-x^2 / 2) of the rounded square, and what rounding took from it
    square = v.fmul(size, size)
    lost = v.fma(size, size, v.fsub(v.zero(), square))
    minus_half = v.const(-0.5)
    density = exponential(v, v.fmul(square, minus_half))
    density = v.fma(density, v.fmul(lost, minus_half), density)
    tail = v.fmul(v.fmul(v.fmul(q, series), v.const(0.5)), density)
    above = v.b.fcmp_ordered(">", x, v.zero())
    return v.b.select(above, v.fsub(v.const(1), tail), tail)


def _below_ramp(v: Vec, x: Value, share: Callable[[float], float]) -> Value:
    """x * share(x) of floats, where share(-x) = 1 - share(x), and 0 far below: max(x, 0) less a tail.

    The tail, t * share(-t) of t = |x|, is a polynomial of the distance from the nearest of some points, whose
    coefficients stand in one vector each.
    """
    step, _ = PIECES[v.lanes]
    size = v.b.call(function_of(v.b, ir.FunctionType(v.type, [v.type]), f"llvm.fabs.{v.suffix}"), [x])
    t = fmin(v, size, v.const((v.lanes - 1) * step))
    magic = v.const(1.5 * 2.0 ** FLOATS[4].fraction)  # adding it rounds, and leaves the number of the point
    shifted = v.fma(t, v.const(1 / step), magic)
    rest = v.fma(t, v.const(1 / step), v.fsub(magic, shifted))
    point = v.b.bitcast(shifted, ir.VectorType(ir.IntType(32), v.lanes))
    tail = None
    for power in reversed(_tail_by_pieces(share, v.lanes)):
        near = _entry(v, ir.Constant(v.type, list(map(float, power))), point)
        tail = near if tail is None else v.fma(tail, rest, near)
    return v.fsub(v.fmax(x, v.zero()), tail)


def _tail_by_pieces(share: Callable[[float], float], points: int) -> np.ndarray:
    """(degree + 1, points) coefficients of t * share(-t) by powers of (t - its point) / step.

    They are interpolated at Chebyshev's nodes of half a step around. The first point is 0, where the tail is
    exactly 0, and from the last one on there is none.
    """
    step, degree = PIECES[points]
    found = np.zeros((degree + 1, points))
    for point in range(points - 1):
        of_zero = int(point == 0)  # that of the tail / t is found, for t >= 0
        nodes = np.cos((np.arange(degree + 1 - of_zero) + 0.5) * np.pi / (degree + 1 - of_zero)) / 2
        nodes = (nodes + 0.5) / 2 if of_zero else nodes
        t = (nodes + point) * step
        values = [share(-at) * (step if of_zero else at) for at in t]
        found[of_zero:, point] = np.linalg.solve(np.vander(nodes, increasing=True), values)
    return found.astype(np.float32)


def _entry(v: Vec, table: Value, number: Value) -> Value:
    """That of a vector which the lowest bits of a number say, in each lane."""
    kind = ir.FunctionType(v.type, [v.type, number.type])
    name = "llvm.x86.avx512.permvar.sf.512" if v.lanes == 16 else "llvm.x86.avx2.permps"
    return v.b.call(function_of(v.b, kind, name), [table, number])


def fmin(v: Vec, x: Value, high: Value) -> Value:
    """min(x, high), where a NaN in x stays."""
    return v.b.select(v.b.fcmp_ordered(">", x, high), high, x)
