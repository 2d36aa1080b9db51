"""Logarithms of float32 in vectors.

Source: ln by reduction to [sqrt(1/2), sqrt(2)], Cody and Waite, Software Manual for the Elementary Functions,
1980.
"""

from __future__ import annotations

from convalgos.cpu.vectors.activations import FLOATS
from convalgos.cpu.vectors.simd import Value, Vec, ir

# ln(1 + f) / f by powers of f, interpolated at Chebyshev's nodes of [sqrt(1/2) - 1, sqrt(2) - 1]
LOGARITHM = (
    1.0, -0.499999881, 0.333333462, -0.250015795, 0.200009391, -0.166083694, 0.141996503, -0.132660314,
    0.128066108, -0.0745118633,
)  # fmt: skip
HALF_ROOT = 0x3F3504F3  # the bits of sqrt(1/2)


def logarithm(v: Vec, x: Value) -> Value:
    """ln x of normal numbers above 0: the exponent times ln 2, and a polynomial of the mantissa less 1.

    NaN, and what is no such number, become some number.
    """
    of = FLOATS[4]
    words = ir.VectorType(ir.IntType(32), v.lanes)

    def each(value: int) -> Value:
        return ir.Constant(words, [value] * v.lanes)

    bits = v.b.bitcast(x, words)
    above = v.b.sub(bits, each(HALF_ROOT))
    exponent = v.b.ashr(above, each(of.fraction))
    mantissa = v.b.sub(bits, v.b.shl(exponent, each(of.fraction)))  # of [sqrt(1/2), sqrt(2))
    f = v.fsub(v.b.bitcast(mantissa, v.type), v.const(1))
    series = v.const(LOGARITHM[-1])
    for coefficient in reversed(LOGARITHM[:-1]):
        series = v.fma(series, f, v.const(coefficient))
    whole = v.b.sitofp(exponent, v.type)
    return v.fma(whole, v.const(of.ln2_high), v.fma(series, f, v.fmul(whole, v.const(of.ln2_low))))
