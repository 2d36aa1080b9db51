"""Number-theoretic transforms of blocks of integers: one task takes a block through all that is done to it.

1. `residue_share` reduces a block modulo a prime, transforms it, multiplies it by the spectrum of the filter,
   and transforms it back; or it stores its spectrum, which is how filters are prepared.
2. `garner_share` finds integers from their residues.

Levels of the transform whose halves are at least a vector long go over memory, two at a time, with roots that
a whole half shares; the last ones take a square of lanes x lanes in registers, turned over, where each lane
has roots of its own. The order of a spectrum is that in which it comes, the same for both factors.
Elements of x and of results are integers of 32 or 64 bits, residues are words, below 4 p before they are
reduced.
"""

from __future__ import annotations

from typing import Any

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.integers import Integers, words_of
from convalgos.cpu.vectors.simd import Value, Vec, carray, copy_bytes, pointer
from convalgos.cpu.vectors.transpose import transpose

WORD = 4  # bytes of a residue
# Addresses of what a prime brings, in the order of `residues.Prime`
PRIME_FIELDS = fields("reduction roots inverse_roots tile_roots inverse_tile_roots spectrum")
# Of blocks of n elements that begin `step` apart in x, `count` from `first` on go to y, block behind block,
# and those of the next prime `plane` elements behind. `prepares`: spectra go there instead.
RESIDUE_FIELDS = fields("x y n step first count plane blocks primes prime_count prepares scratch tasks")
GARNER_FIELDS = fields("residues y plane count table tasks")


class Modular:
    """Instructions on vectors of residues."""

    def __init__(self, v: Vec, reduction: Value):
        self.m = m = words_of(v)
        self.wide = Integers(v.b, v.lanes // 2, 8)
        self.low = self.wide.const(0xFFFFFFFF)
        self.table = m.pointer(reduction)
        self.p = m.broadcast(self.table, 0)
        self.p2 = m.add(self.p, self.p)

    def reduced(self, x: Value, limit: Value) -> Value:
        """x, or x - limit where that is not negative."""
        less = self.m.sub(x, limit)
        return self.m.b.select(self.m.b.icmp_unsigned("<", x, less), x, less)

    def constant(self, address: Value, at: Any) -> tuple[Value, Value]:
        """A constant in all lanes, and its c' as words of 64 bits."""
        m = self.m
        c = m.broadcast(address, at)
        c_high = m.broadcast(address, m.iadd(at, 1))
        return c, self.wide.bit_and(m.viewed(c_high, self.wide), self.low)

    def product(self, x: Value, c: Value, even: Value, odd: Value) -> Value:
        """x c modulo p, below 2 p; even, odd: c' of these lanes, as words of 64 bits."""
        m, wide = self.m, self.wide
        pairs = m.viewed(x, wide)
        low = wide.right(wide.mul(wide.bit_and(pairs, self.low), even), 32, signed=False)
        high = wide.mul(wide.right(pairs, 32, signed=False), odd)
        quotient = wide.bit_or(low, wide.bit_xor(high, wide.bit_and(high, self.low)))
        return m.sub(m.mul(x, c), m.mul(m.viewed(quotient, m), self.p))

    def by_constant(self, x: Value, c: tuple[Value, Value]) -> Value:
        return self.product(x, c[0], c[1], c[1])

    def by_vector(self, x: Value, c: Value, c_high: Value) -> Value:
        pairs = self.m.viewed(c_high, self.wide)
        return self.product(
            x, c, self.wide.bit_and(pairs, self.low), self.wide.right(pairs, 32, signed=False)
        )

    def split(self, a: Value, t: Value) -> tuple[Value, Value]:
        """a + t and a - t, below 4 p, of a below 4 p and t below 2 p."""
        a = self.reduced(a, self.p2)
        return self.m.add(a, t), self.m.add(self.m.sub(a, t), self.p2)

    def join(self, a: Value, b: Value) -> tuple[Value, Value]:
        """a + b, below 2 p, and a - b, below 4 p, of both below 2 p."""
        return self.reduced(self.m.add(a, b), self.p2), self.m.add(self.m.sub(a, b), self.p2)


# --- kernels ---------------------------------------------------------------------------------


@jit.specialise
def residue_share(LANES: int, SIZE: int) -> jit.Kernel:
    """The blocks and primes of a task, one after the other in its scratch of n words.

    x are integers of SIZE bytes; those of 4 bytes lie between -2^29 and 2^29.
    """

    def residue_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, RESIDUE_FIELDS)[0]
        items = a.blocks * a.prime_count
        buffer = a.scratch + task * a.n * 4
        for item in range(items * task // a.tasks, items * (task + 1) // a.tasks):
            block, index = item // a.prime_count, item % a.prime_count
            p = carray(pointer(a.primes), a.prime_count, PRIME_FIELDS)[index]
            if SIZE == 4:
                lift_words(4, LANES, a.x + block * a.step * 4, buffer, a.n // LANES, p.reduction)
            else:
                reduce_words(4, LANES, a.x + block * a.step * 8, buffer, a.n // LANES, p.reduction)
            half = a.n // 2
            levels = 0
            while half >> levels >= LANES:
                levels += 1
            quarter = a.n // 4
            if levels % 2 == 1:
                first_halves(4, LANES, buffer, half, p.reduction)
                quarter = quarter // 2
            nodes = a.n // (4 * quarter)
            while quarter >= LANES:
                for node in range(nodes):
                    forward_quarters(
                        4, LANES, buffer + node * quarter * 16, quarter, p.roots, node, p.reduction
                    )
                quarter, nodes = quarter // 4, nodes * 4
            tiles = a.n // (LANES * LANES)
            if a.prepares:
                tile_spectra(4, LANES, buffer, tiles, p.tile_roots, p.reduction)
                copy_bytes(a.y + index * a.plane * 4, buffer, a.n * 4)
            else:
                multiply_tiles(4, LANES, buffer, tiles, p.tile_roots, p.inverse_tile_roots, p.spectrum,
                              p.reduction)  # fmt: skip
                quarter = LANES
                while quarter * 4 <= a.n:
                    nodes = a.n // (4 * quarter)
                    for node in range(nodes):
                        at = buffer + node * quarter * 16
                        inverse_quarters(4, LANES, at, quarter, p.inverse_roots, node, p.reduction)
                    quarter = quarter * 4
                if levels % 2 == 1:
                    last_halves(4, LANES, buffer, half, p.reduction)
                target = a.y + (index * a.plane + block * a.count) * 4
                copy_bytes(target, buffer + a.first * 4, a.count * 4)

    return residue_share


@jit.specialise
def garner_share(LANES: int, PRIMES: int, SIZE: int) -> jit.Kernel:
    """A run of vectors of integers of SIZE bytes, from so many residues of each."""

    def garner_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, GARNER_FIELDS)[0]
        vectors = a.count // LANES
        first, end = vectors * task // a.tasks, vectors * (task + 1) // a.tasks
        source, target = a.residues + first * LANES * 4, a.y + first * LANES * SIZE
        from_residues(4, LANES, PRIMES, SIZE, source, target, a.plane, end - first, a.table)

    return garner_share


# --- over memory -----------------------------------------------------------------------------


@simd.emitter
def lift_words(v: Vec, x: Value, target: Value, vectors: Value, reduction: Value) -> None:
    """Residues below p of signed words whose absolute values are below p."""
    m = words_of(v)
    source, to, p = m.pointer(x), m.pointer(target), m.broadcast(m.pointer(reduction), 0)
    with v.loop(vectors) as i:
        at = v.imul(i, v.lanes)
        word = m.load(source, at)
        m.store(m.add(word, m.bit_and(m.right(word, 31), p)), to, at)


@simd.emitter
def reduce_words(v: Vec, x: Value, target: Value, vectors: Value, reduction: Value) -> None:
    """Residues below 3 p of signed integers of 64 bits: high * 2^32 + low, both as numbers without a sign."""
    r = Modular(v, reduction)
    m, long = r.m, Integers(v.b, v.lanes // 2, 8)
    source, to = long.pointer(x), m.pointer(target)
    power, one = r.constant(r.table, 1), r.constant(r.table, 3)
    offset, sign = m.broadcast(r.table, 5), m.const(1 << 31)
    with v.loop(vectors) as i:
        pair = [m.viewed(long.load(source, v.imul(i, v.lanes)), m)]
        pair.append(m.viewed(long.load(source, v.iadd(v.imul(i, v.lanes), v.lanes // 2)), m))
        low = m.shuffle(pair[0], pair[1], range(0, 2 * v.lanes, 2))
        high = m.bit_xor(m.shuffle(pair[0], pair[1], range(1, 2 * v.lanes, 2)), sign)
        total = m.add(r.by_constant(high, power), r.by_constant(low, one))
        m.store(m.add(r.reduced(total, r.p2), offset), to, v.imul(i, v.lanes))


@simd.emitter
def first_halves(v: Vec, x: Value, half: Value, reduction: Value) -> None:
    """The level of the root, whose c is 1."""
    r = Modular(v, reduction)
    m, at = r.m, r.m.pointer(x)
    with v.loop(v.idiv(half, v.lanes)) as i:
        low, high = v.imul(i, v.lanes), v.iadd(v.imul(i, v.lanes), half)
        a, b = r.split(m.load(at, low), r.reduced(m.load(at, high), r.p2))
        m.store(a, at, low)
        m.store(b, at, high)


@simd.emitter
def last_halves(v: Vec, x: Value, half: Value, reduction: Value) -> None:
    """`first_halves` back."""
    r = Modular(v, reduction)
    m, at = r.m, r.m.pointer(x)
    with v.loop(v.idiv(half, v.lanes)) as i:
        low, high = v.imul(i, v.lanes), v.iadd(v.imul(i, v.lanes), half)
        a, b = r.join(m.load(at, low), m.load(at, high))
        m.store(a, at, low)
        m.store(r.reduced(b, r.p2), at, high)


@simd.emitter
def forward_quarters(v: Vec, x: Value, quarter: Value, roots: Value, node: Value, reduction: Value) -> None:
    """Two levels of a node: its halves, then theirs."""
    r = Modular(v, reduction)
    m, at, table = r.m, r.m.pointer(x), r.m.pointer(roots)
    parent = r.constant(table, v.imul(node, 2))
    children = [r.constant(table, v.iadd(v.imul(node, 4), 2 * i)) for i in range(2)]
    with v.loop(v.idiv(quarter, v.lanes)) as i:
        places = [v.iadd(v.imul(i, v.lanes), v.imul(quarter, k)) for k in range(4)]
        a = [m.load(at, place) for place in places]
        a[0], a[2] = r.split(a[0], r.by_constant(a[2], parent))
        a[1], a[3] = r.split(a[1], r.by_constant(a[3], parent))
        a[0], a[1] = r.split(a[0], r.by_constant(a[1], children[0]))
        a[2], a[3] = r.split(a[2], r.by_constant(a[3], children[1]))
        for value, place in zip(a, places, strict=True):
            m.store(value, at, place)


@simd.emitter
def inverse_quarters(v: Vec, x: Value, quarter: Value, roots: Value, node: Value, reduction: Value) -> None:
    """`forward_quarters` back, times 4: all below 2 p before and after."""
    r = Modular(v, reduction)
    m, at, table = r.m, r.m.pointer(x), r.m.pointer(roots)
    parent = r.constant(table, v.imul(node, 2))
    children = [r.constant(table, v.iadd(v.imul(node, 4), 2 * i)) for i in range(2)]
    with v.loop(v.idiv(quarter, v.lanes)) as i:
        places = [v.iadd(v.imul(i, v.lanes), v.imul(quarter, k)) for k in range(4)]
        a = [m.load(at, place) for place in places]
        for one, two, c in ((0, 1, children[0]), (2, 3, children[1]), (0, 2, parent), (1, 3, parent)):
            a[one], less = r.join(a[one], a[two])
            a[two] = r.by_constant(less, c)
        for value, place in zip(a, places, strict=True):
            m.store(value, at, place)


# --- in registers ----------------------------------------------------------------------------


@simd.emitter
def tile_spectra(v: Vec, x: Value, tiles: Value, roots: Value, reduction: Value) -> None:
    """The last levels of squares of lanes x lanes; the spectrum is below p."""
    r = Modular(v, reduction)
    at, table = r.m.pointer(x), r.m.pointer(roots)
    with v.loop(tiles) as tile:
        first = v.imul(tile, v.lanes * v.lanes)
        rows = transpose(r.m, [r.m.load(at, v.iadd(first, i * v.lanes)) for i in range(v.lanes)])
        rows = _forward_levels(r, rows, table, v.imul(tile, 2 * v.lanes * (v.lanes - 1)))
        for i, row in enumerate(rows):
            r.m.store(r.reduced(r.reduced(row, r.p2), r.p), at, v.iadd(first, i * v.lanes))


@simd.emitter
def multiply_tiles(
    v: Vec, x: Value, tiles: Value, roots: Value, inverse_roots: Value, spectrum: Value, reduction: Value
) -> None:
    """The last levels forward, the products with the filter's spectrum, and these levels back."""
    r = Modular(v, reduction)
    m = r.m
    at, table, inverse, factors = (m.pointer(address) for address in (x, roots, inverse_roots, spectrum))
    with v.loop(tiles) as tile:
        first = v.imul(tile, v.lanes * v.lanes)
        of_roots = v.imul(tile, 2 * v.lanes * (v.lanes - 1))
        rows = transpose(m, [m.load(at, v.iadd(first, i * v.lanes)) for i in range(v.lanes)])
        rows = _forward_levels(r, rows, table, of_roots)
        for i, row in enumerate(rows):
            place = v.iadd(v.imul(first, 2), 2 * i * v.lanes)
            rows[i] = r.by_vector(row, m.load(factors, place), m.load(factors, v.iadd(place, v.lanes)))
        parts, height = v.lanes // 2, 1
        while parts:
            for part in range(parts):
                c, c_high = _root(r, inverse, of_roots, parts - 1 + part)
                for i in range(part * 2 * height, part * 2 * height + height):
                    rows[i], less = r.join(rows[i], rows[i + height])
                    rows[i + height] = r.by_vector(less, c, c_high)
            parts, height = parts // 2, height * 2
        for i, row in enumerate(transpose(m, rows)):
            m.store(row, at, v.iadd(first, i * v.lanes))


def _forward_levels(r: Modular, rows: list[Any], table: Value, of_roots: Value) -> list[Any]:
    """Rows are the coefficients of a node, and its values at the end; lanes are nodes."""
    parts, height = 1, len(rows) // 2
    while height:
        for part in range(parts):
            c, c_high = _root(r, table, of_roots, parts - 1 + part)
            for i in range(part * 2 * height, part * 2 * height + height):
                product = r.by_vector(rows[i + height], c, c_high)
                rows[i], rows[i + height] = r.split(rows[i], product)
        parts, height = parts * 2, height // 2
    return rows


def _root(r: Modular, table: Value, of_roots: Value, index: int) -> tuple[Value, Value]:
    """The roots of a level's part for all lanes, with their c'."""
    place = r.m.iadd(of_roots, 2 * index * r.m.lanes)
    return r.m.load(table, place), r.m.load(table, r.m.iadd(place, r.m.lanes))


@simd.emitter
def from_residues(
    v: Vec, PRIMES: int, SIZE: int, residues: Value, y: Value, plane: Value, vectors: Value, table: Value
) -> None:
    """y = digit 0 + p0 (digit 1 + p1 (...)) modulo 2^64, less the product of all primes if negative.

    Of SIZE bytes of y, these are the low ones.
    """
    m, long = words_of(v), Integers(v.b, v.lanes, 8)
    kept = Integers(v.b, v.lanes, SIZE)
    source, to, rows = m.pointer(residues), kept.pointer(y), m.pointer(table)
    width = 2 * (3 + 2 * PRIMES)  # words of a row
    of_prime = [Modular(v, v.iadd(table, i * width * 4)) for i in range(PRIMES)]
    scalars = Integers(v.b, 1, 8)
    last = v.iadd(table, (PRIMES - 1) * width * 4)

    def wide(address: Value) -> Value:
        """A word of 64 bits in all lanes."""
        return long.spread(v.b.load(scalars.pointer(address), typ=scalars.element))

    with v.loop(vectors) as i:
        digits: list[Any] = []
        total = long.const(0)
        for k, r in enumerate(of_prime):
            digit = m.load(source, v.iadd(v.imul(plane, k), v.imul(i, v.lanes)))  # below 2 p
            for j, before in enumerate(digits):
                less = m.add(m.sub(digit, before), r.p2)
                row = k * width + 2 * (3 + 2 * j)
                c = m.broadcast(rows, row)
                c_high = m.viewed(m.broadcast(rows, row + 2), r.wide)
                digit = r.by_constant(less, (c, r.wide.bit_and(c_high, r.low)))
            digit = r.reduced(digit, r.p)
            digits.append(digit)
            weight = wide(v.iadd(table, k * width * 4 + 8))
            total = long.add(total, long.mul(m.resized(digit, 8, signed=False), weight))
        half = m.right(of_prime[-1].p, 1, signed=False)
        negative = v.b.icmp_unsigned(">", digits[-1], half)
        total = v.b.select(negative, long.sub(total, wide(v.iadd(last, 16))), total)
        kept.store(long.resized(total, SIZE), to, v.imul(i, v.lanes))
