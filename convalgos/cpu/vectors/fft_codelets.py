"""Short Fourier transforms, written once over abstract values.

A complex value is a pair (re, im) of abstract reals, where None stands for a part that is exactly zero, so
that real inputs cost nothing extra. Everything is built from one operation, `axpy(a, x, y)` = a * x + y with
a constant a, and y None for zero, as in `convalgos.core.cook_toom`: on NumPy arrays the functions transform
arrays, on vectors they emit straight-line kernels.

Lengths are products of 2, 3 and 5. A transform of length n = r * m is r transforms of every r-th element,
joined by m butterflies of radix r (Cooley and Tukey, 1965). In butterflies of radix 2 the twiddle factor
becomes a ratio of its parts and a scale, which takes 6 fused operations (Linzer and Feig, "Implementation
of efficient FFT algorithms on fused multiply-add architectures", 1993).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

RealAxpy = Callable[[float, Any, Any], Any]  # (a, x, y) -> a * x + y, where y may be None for 0
Complex = tuple[Any, Any]  # (re, im); None is 0

FORWARD, INVERSE = -1, 1  # sign of the exponent


def radix(n: int) -> int:
    """The smallest prime factor of a length that can be transformed.

    Raises:
        ValueError: n is not a product of 2, 3 and 5.
    """
    for r in (2, 3, 5):
        if n % r == 0:
            return r
    raise ValueError(f"n={n} must be a product of 2, 3 and 5")


def fft(axpy: RealAxpy, x: Sequence[Complex], sign: int) -> list[Complex]:
    """y[k] = sum_j x[j] exp(sign 2 pi i j k / n), unscaled.

    Example:
        >>> fft(lambda a, x, y: a * x if y is None else a * x + y, [(1.0, None), (2.0, None)], FORWARD)
        [(3.0, None), (-1.0, None)]
    """
    n = len(x)
    if n == 1:
        return list(x)
    r = radix(n)
    m = n // r
    parts = [fft(axpy, x[q::r], sign) for q in range(r)]
    y: list[Complex] = [(None, None)] * n
    for k in range(m):
        y[k::m] = _join(axpy, [part[k] for part in parts], k, n, sign)
    return y


def rfft(axpy: RealAxpy, x: Sequence[Any]) -> list[Complex]:
    """The first n // 2 + 1 values of the forward transform of n reals; the others are their conjugates."""
    n = len(x)
    if n == 1:
        return [(x[0], None)]
    r = radix(n)
    m = n // r
    parts = [rfft(axpy, x[q::r]) for q in range(r)]
    y: list[Complex] = [(None, None)] * (n // 2 + 1)
    for k in range(m // 2 + 1):
        for j, value in enumerate(_join(axpy, [part[k] for part in parts], k, n, FORWARD)):
            at = k + j * m
            if at <= n // 2:
                y[at] = value
            else:
                y[n - at] = conjugate(axpy, value)
    return [(re, None if k in (0, n / 2) else im) for k, (re, im) in enumerate(y)]


def irfft(axpy: RealAxpy, x: Sequence[Complex], n: int) -> list[Any]:
    """n reals from the first n // 2 + 1 values of their transform, times n. `rfft` run backwards."""
    if n == 1:
        return [x[0][0]]
    r = radix(n)
    m = n // r
    parts: list[list[Complex]] = [[] for _ in range(r)]
    for k in range(m // 2 + 1):
        ends = [k + j * m for j in range(r)]
        values = [x[at] if at <= n // 2 else conjugate(axpy, x[n - at]) for at in ends]
        for q, value in enumerate(_dft(axpy, values, INVERSE)):
            re, im = _twiddle(axpy, value, q * k, n, INVERSE)
            parts[q].append((re, None if k in (0, m / 2) else im))
    y = [None] * n
    for q in range(r):
        y[q::r] = irfft(axpy, parts[q], m)
    return y


def conjugate(axpy: RealAxpy, a: Complex) -> Complex:
    return a[0], _sum(axpy, -1, a[1], None)


def _join(axpy: RealAxpy, values: list[Complex], k: int, n: int, sign: int) -> list[Complex]:
    """Butterfly: the transform of values[q] * exp(sign 2 pi i q k / n)."""
    if len(values) == 2:
        turned, scale = _turn(axpy, values[1], k, n, sign)
        return [_add(axpy, s * scale, turned, values[0]) for s in (1, -1)]
    return _dft(axpy, [_twiddle(axpy, a, q * k, n, sign) for q, a in enumerate(values)], sign)


def _dft(axpy: RealAxpy, x: list[Complex], sign: int) -> list[Complex]:
    """A transform of prime length from its definition, with x[j] and x[n - j] taken together."""
    n = len(x)
    if n == 2:
        return [_add(axpy, s, x[1], x[0]) for s in (1, -1)]
    pairs = [(x[j], x[n - j]) for j in range(1, n // 2 + 1)]
    sums = [_add(axpy, 1, b, a) for a, b in pairs]
    differences = [_add(axpy, -1, b, a) for a, b in pairs]
    first = x[0]
    for s in sums:
        first = _add(axpy, 1, s, first)
    y = [first] * n
    for k in range(1, n // 2 + 1):
        even, odd = x[0], (None, None)
        for j, (s, d) in enumerate(zip(sums, differences, strict=True), 1):
            angle = 2 * math.pi * j * k / n
            even = _add(axpy, math.cos(angle), s, even)
            odd = _add(axpy, sign * math.sin(angle), d, odd)
        turned = _sum(axpy, -1, odd[1], None), odd[0]  # times i
        y[k] = _add(axpy, 1, turned, even)
        y[n - k] = _add(axpy, -1, turned, even)
    return y


def _twiddle(axpy: RealAxpy, a: Complex, k: int, n: int, sign: int) -> Complex:
    """a * exp(sign 2 pi i k / n)."""
    turned, scale = _turn(axpy, a, k, n, sign)
    return _add(axpy, scale, turned, (None, None))


def _turn(axpy: RealAxpy, a: Complex, k: int, n: int, sign: int) -> tuple[Complex, float]:
    """(b, scale) with b * scale = a * exp(sign 2 pi i k / n), where b takes two operations at most."""
    k %= n
    re, im = a
    if k == 0:
        return a, 1.0
    if 2 * k == n:
        return a, -1.0
    if 4 * k in (n, 3 * n):  # b = i a
        return (_sum(axpy, -1, im, None), re), float(sign if 4 * k == n else -sign)
    cos, sin = math.cos(2 * math.pi * k / n), sign * math.sin(2 * math.pi * k / n)
    if abs(cos) >= abs(sin):
        ratio = sin / cos
        return (_sum(axpy, -ratio, im, re), _sum(axpy, ratio, re, im)), cos
    ratio = cos / sin
    return (_sum(axpy, -1, im, _sum(axpy, ratio, re, None)), _sum(axpy, ratio, im, re)), sin


def _add(axpy: RealAxpy, a: float, x: Complex, y: Complex) -> Complex:
    """a * x + y with a real a."""
    return _sum(axpy, a, x[0], y[0]), _sum(axpy, a, x[1], y[1])


def _sum(axpy: RealAxpy, a: float, x: Any, y: Any) -> Any:
    """a * x + y, where x and y may be None."""
    return y if x is None else x if a == 1 and y is None else axpy(a, x, y)
