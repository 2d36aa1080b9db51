"""Fourier transforms of a tile of a plane, in vectors: along columns, along rows with the products, and back.

A tile has H rows and W columns of reals, H = 16 R and W = 16 S; H / 2 is a multiple of the lanes of a vector.
Vectors hold neighbours of a row while columns are transformed, and frequencies of columns while rows are:
between both, squares of registers are turned over. So no transform has anything to move within a vector.

- `columns_to_spectrum`: reals to H / 2 rows of complex values. The first one is real, and so is the one of
  frequency H / 2, which is its imaginary part here: together they are one complex row like the others.
- `multiply_spectrum`: each row is transformed, multiplied by the filter's, and transformed back, in the first
  cache. In the first row, sums of a spectrum and its mirror image take both apart again.
- `spectrum_to_columns`: back to reals, which are stored with a bias.

A transform of 16 R elements is R transforms of 16, of every R-th element, joined by 16 of R elements (Cooley
and Tukey 1965). Both are codelets; their loops are kept, as code in one piece would not fit the registers.

The spectrum lies as (groups of `lanes` frequencies, W, 2, lanes), `group` elements from one to the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import fft_codelets, simd
from convalgos.cpu.vectors.fft_codelets import FORWARD, INVERSE, Complex
from convalgos.cpu.vectors.simd import Value, Vec
from convalgos.cpu.vectors.transpose import transpose

POINTS = 16  # of the codelet that every length is made of


class _Buffer:
    """Memory of a kernel, in vectors."""

    def __init__(self, v: Vec, vectors: int):
        self._v, self._space = v, v.buffer(vectors)

    def _at(self, place: Value) -> Value:
        return self._v.imul(place, self._v.lanes) if not isinstance(place, int) else place * self._v.lanes

    def get(self, place: Value) -> Value:
        return self._v.load(self._space, self._at(place))

    def put(self, place: Value, value: Value) -> None:
        self._v.store(self._v.zero() if value is None else value, self._space, self._at(place))

    def pair(self, place: Value) -> Complex:
        """The complex value of two vectors, the place-th."""
        at = self._v.imul(place, 2)
        return self.get(at), self.get(self._v.iadd(at, 1))

    def put_pair(self, place: Value, value: Complex) -> None:
        at = self._v.imul(place, 2)
        self.put(at, value[0])
        self.put(self._v.iadd(at, 1), value[1])


def _turned(v: Vec, value: Complex, cos: Value, sin: Value, sign: int) -> Complex:
    """value * (cos + sign i sin), of vectors."""
    re, im = value
    minus = v.b.fneg(re if sign == FORWARD else im)  # which becomes a part of the sum
    if sign == FORWARD:
        return v.fma(im, sin, v.fmul(re, cos)), v.fma(minus, sin, v.fmul(im, cos))
    return v.fma(minus, sin, v.fmul(re, cos)), v.fma(re, sin, v.fmul(im, cos))


def _turned_by_table(v: Vec, values: list[Complex], table: Value, row: Value, sign: int) -> list[Complex]:
    """values[q] * exp(sign 2 pi i k q / n); table: cosines and sines of (row, q)."""
    begin = v.at(v.pointer(table), v.imul(row, 2 * len(values)))
    found = values[:1]
    for q, value in enumerate(values[1:], 1):
        cos, sin = v.broadcast(begin, 2 * q), v.broadcast(begin, 2 * q + 1)
        found.append(_turned(v, value, cos, sin, sign))
    return found


def _half_turned(v: Vec, values: list[Complex], sign: int) -> list[Complex]:
    """values[q] * exp(sign pi i q / n) of n values."""
    found = []
    for q, (re, im) in enumerate(values):
        angle = math.pi * q / len(values)
        cos, sin = math.cos(angle), sign * math.sin(angle)
        if im is None:
            found.append((v.scale(cos, re), v.scale(sin, re) if q else None))
        else:
            found.append((v.axpy(-sin, im, v.scale(cos, re)), v.axpy(sin, re, v.scale(cos, im))))
    return found


def _conjugate(v: Vec, value: Complex) -> Complex:
    return value[0], v.b.fneg(value[1])


# --- columns ---------------------------------------------------------------------------------


@simd.emitter
def transform_columns(
    v: Vec, R: int, rows: Value, column: Value, turns: Value, target: Value, group: Value
) -> None:
    """The spectra of `lanes` columns; rows: addresses of H rows, column: elements from there on.

    target: of the first of these columns in the spectrum.
    """
    half = R * POINTS // 2
    work, spectrum = _Buffer(v, R * POINTS), _Buffer(v, 2 * half)  # of real parts, and of imaginary ones
    with v.loop(R) as q:
        x = [v.load(v.pointer(v.table64(rows, v.iadd(q, R * n))), column) for n in range(POINTS)]
        place = v.imul(q, POINTS)
        first, *inner, last = fft_codelets.rfft(v.axpy, x)
        work.put(place, first[0])
        work.put(v.iadd(place, 1), last[0])
        for i, value in enumerate(inner, 1):
            for part in (0, 1):
                work.put(v.iadd(place, 2 * i + part), value[part])

    def put(place: Value, value: Complex) -> None:
        spectrum.put(place, value[0])
        spectrum.put(v.iadd(place, half), value[1])

    ends = fft_codelets.rfft(v.axpy, [work.get(POINTS * q) for q in range(R)])
    put(0, (ends[0][0], ends[-1][0]))
    for j, value in enumerate(ends[1:-1], 1):
        put(POINTS * j, value)
    middle = _half_turned(v, [(work.get(POINTS * q + 1), None) for q in range(R)], FORWARD)
    for j, value in enumerate(fft_codelets.fft(v.axpy, middle, FORWARD)[: R // 2]):
        put(POINTS * j + POINTS // 2, value)
    with v.loop(POINTS // 2 - 1) as i:
        k = v.iadd(i, 1)
        places = [v.iadd(POINTS * q, v.imul(k, 2)) for q in range(R)]
        values = [(work.get(place), work.get(v.iadd(place, 1))) for place in places]
        values = _turned_by_table(v, values, turns, k, FORWARD)
        for j, value in enumerate(fft_codelets.fft(v.axpy, values, FORWARD)):
            if j < R // 2:
                put(v.iadd(k, POINTS * j), value)
            else:
                put(v.isub(POINTS * (R - j), k), _conjugate(v, value))
    to = v.pointer(target)
    with v.loop(half // v.lanes) as g:
        for part in (0, 1):
            first = v.iadd(v.imul(g, v.lanes), part * half)
            square = transpose(v, [spectrum.get(v.iadd(first, i)) for i in range(v.lanes)])
            begin = v.at(to, v.imul(g, group))
            for j, value in enumerate(square):
                v.store(value, begin, (2 * j + part) * v.lanes)


@simd.emitter
def restore_columns(
    v: Vec, R: int, source: Value, group: Value, turns: Value, rows: Value, column: Value, columns: Value,
    bias: Value, relu: Value,
) -> None:  # fmt: skip
    """`transform_columns` run backwards; rows: addresses of H rows of outputs, of which the first `columns`
    from `column` on are stored."""
    half = R * POINTS // 2
    work, spectrum = _Buffer(v, R * POINTS), _Buffer(v, 2 * half)
    begin = v.pointer(source)
    with v.loop(half // v.lanes) as g:
        for part in (0, 1):
            at = v.at(begin, v.imul(g, group))
            square = transpose(v, [v.load(at, (2 * j + part) * v.lanes) for j in range(v.lanes)])
            first = v.iadd(v.imul(g, v.lanes), part * half)
            for i, value in enumerate(square):
                spectrum.put(v.iadd(first, i), value)

    def get(place: Value) -> Complex:
        return spectrum.get(place), spectrum.get(v.iadd(place, half))

    ends = [get(POINTS * j) for j in range(R // 2)]
    first, last = ends[0]
    for q, value in enumerate(fft_codelets.irfft(v.axpy, [(first, None), *ends[1:], (last, None)], R)):
        work.put(POINTS * q, value)
    middle = [get(POINTS * j + POINTS // 2) for j in range(R // 2)]
    middle += [_conjugate(v, value) for value in middle[::-1]]
    middle = _half_turned(v, fft_codelets.fft(v.axpy, middle, INVERSE), INVERSE)
    for q, (re, _) in enumerate(middle):
        work.put(POINTS * q + 1, re)
    with v.loop(POINTS // 2 - 1) as i:
        k = v.iadd(i, 1)
        values = [get(v.iadd(k, POINTS * j)) for j in range(R // 2)]
        values += [_conjugate(v, get(v.isub(POINTS * (R - j), k))) for j in range(R // 2, R)]
        values = fft_codelets.fft(v.axpy, values, INVERSE)
        for q, value in enumerate(_turned_by_table(v, values, turns, k, INVERSE)):
            place = v.iadd(POINTS * q, v.imul(k, 2))
            work.put(place, value[0])
            work.put(v.iadd(place, 1), value[1])
    add, low, mask = v.broadcast(v.pointer(bias)), v.lower_bound(relu), v.mask(columns)
    with v.loop(R) as q:
        place = v.imul(q, POINTS)
        points: list[Complex] = [(work.get(place), None)]
        for i in range(1, POINTS // 2):
            points.append((work.get(v.iadd(place, 2 * i)), work.get(v.iadd(place, 2 * i + 1))))
        points.append((work.get(v.iadd(place, 1)), None))
        for n, value in enumerate(fft_codelets.irfft(v.axpy, points, POINTS)):
            to = v.pointer(v.table64(rows, v.iadd(q, R * n)))
            v.store_masked(v.fmax(v.fadd(value, add), low), to, column, mask)


# --- rows ------------------------------------------------------------------------------------


@simd.emitter
def multiply_frequencies(v: Vec, S: int, FIRST: int, rows: Value, w: Value, turns: Value) -> None:
    """rows (W, 2, lanes): transformed, multiplied by w, and transformed back, in place.

    w: (16, S, 2, lanes), of frequency k + 16 j at (k, j); of the FIRST group (W, 4, lanes), a factor of the
    spectrum and one of its conjugate mirror image.
    """
    work, held = _Buffer(v, 2 * S * POINTS), v.pointer(rows)
    factors = v.pointer(w)

    def pair(pointer: Value, place: Value) -> Complex:
        at = v.at(pointer, v.imul(place, 2 * v.lanes))
        return v.load(at), v.load(at, v.lanes)

    def joined(k: Value) -> list[Complex]:
        values = [work.pair(v.iadd(k, POINTS * q)) for q in range(S)]
        return fft_codelets.fft(v.axpy, _turned_by_table(v, values, turns, k, FORWARD), FORWARD)

    def parted(k: Value, values: list[Complex]) -> None:
        values = fft_codelets.fft(v.axpy, values, INVERSE)
        for q, value in enumerate(_turned_by_table(v, values, turns, k, INVERSE)):
            work.put_pair(v.iadd(k, POINTS * q), value)

    with v.loop(S) as q:
        x = [pair(held, v.iadd(q, S * n)) for n in range(POINTS)]
        for k, value in enumerate(fft_codelets.fft(v.axpy, x, FORWARD)):
            work.put_pair(v.iadd(v.imul(q, POINTS), k), value)
    if FIRST:
        with v.loop(POINTS) as k:
            for j, value in enumerate(joined(k)):
                work.put_pair(v.iadd(k, POINTS * j), value)
        with v.loop(S * POINTS // 2 + 1) as f:
            mirror = v.b.select(v.b.icmp_signed("==", f, v.integer(0)), f, v.isub(S * POINTS, f))
            values = [work.pair(f), work.pair(mirror)]
            products = []
            for place, (one, other) in ((f, values), (mirror, values[::-1])):
                at = v.imul(place, 2)
                product = _product(v, one, pair(factors, at), None)
                products.append(_product(v, _conjugate(v, other), pair(factors, v.iadd(at, 1)), product))
            work.put_pair(f, products[0])
            work.put_pair(mirror, products[1])
        with v.loop(POINTS) as k:
            parted(k, [work.pair(v.iadd(k, POINTS * j)) for j in range(S)])
    else:
        with v.loop(POINTS) as k:
            values = []
            for j, value in enumerate(joined(k)):
                factor = pair(factors, v.iadd(v.imul(k, S), j))
                values.append(_product(v, value, factor, None))
            parted(k, values)
    with v.loop(S) as q:
        x = [work.pair(v.iadd(v.imul(q, POINTS), k)) for k in range(POINTS)]
        for n, (re, im) in enumerate(fft_codelets.fft(v.axpy, x, INVERSE)):
            at = v.at(held, v.imul(v.iadd(q, S * n), 2 * v.lanes))
            v.store(re, at)
            v.store(im, at, v.lanes)


def _product(v: Vec, a: Complex, b: Complex, added: Complex | None) -> Complex:
    """a * b + added."""
    if added is None:
        re, im = v.fmul(a[0], b[0]), v.fmul(a[0], b[1])
    else:
        re, im = v.fma(a[0], b[0], added[0]), v.fma(a[0], b[1], added[1])
    return v.fma(v.b.fneg(a[1]), b[1], re), v.fma(a[1], b[0], im)


# --- kernels ---------------------------------------------------------------------------------


@jit.specialise
def columns_to_spectrum(SIZE: int, LANES: int, R: int) -> Callable[..., None]:
    """All columns of a tile."""

    def columns_to_spectrum(rows: int, columns: int, turns: int, target: int, group: int) -> None:
        for c in range(0, columns, LANES):
            transform_columns(SIZE, LANES, R, rows, c, turns, target + 2 * c * LANES * SIZE, group)

    return columns_to_spectrum


@jit.specialise
def spectrum_to_columns(SIZE: int, LANES: int, R: int) -> Callable[..., None]:
    """The first columns of a tile."""

    def spectrum_to_columns(
        source: int, group: int, turns: int, rows: int, columns: int, bias: int, relu: int
    ) -> None:
        for c in range(0, columns, LANES):
            at = source + 2 * c * LANES * SIZE
            restore_columns(SIZE, LANES, R, at, group, turns, rows, c, columns - c, bias, relu)

    return spectrum_to_columns


@jit.specialise
def multiply_spectrum(SIZE: int, LANES: int, S: int) -> Callable[..., None]:
    """All groups of frequencies of a tile."""

    def multiply_spectrum(rows: int, group: int, groups: int, w: int, turns: int) -> None:
        multiply_frequencies(SIZE, LANES, S, 1, rows, w, turns)
        w += 4 * POINTS * S * LANES * SIZE
        for g in range(1, groups):
            multiply_frequencies(SIZE, LANES, S, 0, rows + g * group * SIZE, w, turns)
            w += 2 * POINTS * S * LANES * SIZE

    return multiply_spectrum


def turns_of(parts: int) -> list[list[tuple[float, float]]]:
    """(16, parts, 2): cosine and sine of 2 pi k q / (16 parts), of (k, q)."""
    step = 2 * math.pi / (POINTS * parts)
    return [[(math.cos(step * k * q), math.sin(step * k * q)) for q in range(parts)] for k in range(POINTS)]
