"""Lines filtered block by block: each is read, transformed, multiplied, transformed back and written.

A real line x of n elements is a complex one of half as many, z[j] = x[j] + i x[j + n / 2], modulo
X^(n / 2) - i, as X^(n / 2) is i where X^n is -1: what goes round comes back with the other sign, and nobody
looks at it. So real spectra need not be split. Each level takes a node modulo X^(4 q) - r to four modulo
X^q - d i^k, where d is a fourth root of r, and one level, where there is an odd number of halvings, a node to
two. Real and imaginary parts lie apart.

Levels whose parts are at least a vector long go over memory, with roots that a whole part shares; the last
ones take a square of lanes x lanes, turned over, where each lane is a node. The order of a spectrum is that
in which it comes, the same for both factors: nothing is reversed.

A task takes its blocks one after the other through scratch of one block, which stays in L1 or L2.

Source: Fiduccia 1972, "Polynomial evaluation via the division algorithm: the fast Fourier transform
revisited"; for real lines Crandall and Fagin 1994, "Discrete weighted transforms and large-integer
arithmetic".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.finish import finish_run
from convalgos.cpu.runtime.plan import arguments
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec, carray, copy_bytes, pointer, zero_bytes
from convalgos.cpu.vectors.transpose import transpose

Complex = tuple[Any, Any]

LINE_ARGUMENTS = arguments(
    "tasks lines blocks channels rows n step size out low x_n x_c x_h y_n y_k y_h roots tile_roots w_channel "
    "imaginary lane_bytes prepares"
)


@jit.helper
def read_part(target: int, line: int, first: int, count: int, length: int, size: int) -> None:
    """Elements [first, first + count) of a line, which has zeros around its `length`."""
    before = min(count, max(0, -first))
    end = min(count, max(before, length - first))
    zero_bytes(target, before * size)
    copy_bytes(target + before * size, line + (first + before) * size, (end - before) * size)
    zero_bytes(target + end * size, (count - end) * size)


@simd.emitter
def write_part(v: Vec, x: Value, bias: Value, relu: Value, count: Value, y: Value) -> None:
    """y[i] = x[i] + bias[0] for i < count, at least 0 with relu."""
    source, to = v.pointer(x), v.pointer(y)
    add, low = v.broadcast(v.pointer(bias)), v.lower_bound(relu)
    whole = v.idiv(count, v.lanes)
    with v.loop(whole) as i:
        at = v.imul(i, v.lanes)
        v.store(v.fmax(v.fadd(v.load(source, at), add), low), to, at)
    at = v.imul(whole, v.lanes)
    inside = v.mask(v.isub(count, at))
    v.store_masked(v.fmax(v.fadd(v.load_masked(source, at, inside), add), low), to, at, inside)


@jit.specialise
def filter_line_blocks(SIZE: int, LANES: int) -> jit.Kernel:
    """Lines of images, channels and rows; or, where it prepares, the spectra of filters (channels, size)."""

    def filter_line_blocks(args: int, task: int) -> None:
        a = carray(pointer(args), 1, LINE_ARGUMENTS)[0]
        units = a.lines * a.blocks
        re = a.scratch + task * a.lane_bytes
        im = re + a.imaginary
        half = a.n // 2
        tiles = half // (LANES * LANES)
        vectors = half // LANES
        odd = 0
        while 2 << odd <= vectors:
            odd += 1
        odd = odd % 2  # levels over memory
        for unit in range(units * task // a.tasks, units * (task + 1) // a.tasks):
            line, block = unit // a.blocks, unit % a.blocks
            image, channel, row = line // (a.rows * a.channels), line // a.rows % a.channels, line % a.rows
            source = a.x + (image * a.x_n + channel * a.x_c + row * a.x_h) * SIZE
            first = block * a.step - a.low
            read_part(re, source, first, half, a.size, SIZE)
            read_part(im, source, first + half, half, a.size, SIZE)
            part, nodes, roots = half, 1, a.roots
            if odd:
                part = part // 2
                forward_level(SIZE, LANES, 2, re, im, part, 1, roots)
                nodes, roots = 2, roots + 2 * SIZE
            while part > LANES:
                part = part // 4
                forward_level(SIZE, LANES, 4, re, im, part, nodes, roots)
                nodes, roots = nodes * 4, roots + nodes * 6 * SIZE
            if a.prepares:
                square_spectra(SIZE, LANES, re, im, tiles, a.tile_roots, a.y + channel * a.w_channel * SIZE)
            else:
                multiply_square(SIZE, LANES, re, im, tiles, a.tile_roots, a.w + channel * a.w_channel * SIZE)
                while nodes >= 4:
                    nodes = nodes // 4
                    roots = roots - nodes * 6 * SIZE
                    inverse_level(SIZE, LANES, 4, re, im, part, nodes, roots)
                    part = part * 4
                if odd:
                    inverse_level(SIZE, LANES, 2, re, im, part, 1, a.roots)
                place = block * a.step
                y = a.y + (image * a.y_n + channel * a.y_k + row * a.y_h + place) * SIZE
                count = min(a.step, a.out - place)
                reals = min(count, half)
                bias = a.bias + channel * SIZE
                write_part(SIZE, LANES, re, bias, a.relu, reals, y)
                write_part(SIZE, LANES, im, bias, a.relu, count - reals, y + reals * SIZE)
                finish_run(a, y, count)

    return filter_line_blocks


# --- over memory ---------------------------------------------------------------------------------


@simd.emitter
def forward_level(v: Vec, RADIX: int, re: Value, im: Value, part: Value, nodes: Value, roots: Value) -> None:
    """A level of all nodes, each of RADIX parts of so many elements."""
    _all_nodes(v, RADIX, re, im, part, nodes, roots, part_node)


@simd.emitter
def inverse_level(v: Vec, RADIX: int, re: Value, im: Value, part: Value, nodes: Value, roots: Value) -> None:
    """`forward_level` back, times RADIX."""
    _all_nodes(v, RADIX, re, im, part, nodes, roots, join_node)


def _all_nodes(
    v: Vec, radix: int, re: Value, im: Value, part: Value, nodes: Value, roots: Value,
    turned: Callable[[Vec, list[Complex], list[Complex]], list[Complex]],
) -> None:  # fmt: skip
    """Vectors of the parts of each node -> what `turned` makes of them, in their places."""
    reals, imaginaries, table = v.pointer(re), v.pointer(im), v.pointer(roots)
    with v.loop(nodes) as node:
        first = v.imul(node, v.imul(part, radix))
        powers = _shared_roots(v, radix, table, node)
        with v.loop(v.idiv(part, v.lanes)) as i:
            places = [v.iadd(v.iadd(first, v.imul(i, v.lanes)), v.imul(part, k)) for k in range(radix)]
            values = [(v.load(reals, at), v.load(imaginaries, at)) for at in places]
            for value, at in zip(turned(v, values, powers), places, strict=True):
                v.store(value[0], reals, at)
                v.store(value[1], imaginaries, at)


def _shared_roots(v: Vec, radix: int, table: Value, node: Value) -> list[Complex]:
    """The powers of d of a node, in all lanes."""
    at = v.imul(node, 2 * (radix - 1))
    places = [v.iadd(at, 2 * m) for m in range(radix - 1)]
    return [(v.broadcast(table, place), v.broadcast(table, v.iadd(place, 1))) for place in places]


def memory_radices(half: int, lanes: int) -> list[int]:
    """Of the levels from one node of `half` elements to nodes of a vector."""
    levels = (half // lanes).bit_length() - 1
    return [2] * (levels % 2) + [4] * (levels // 2)


def tile_radices(lanes: int) -> list[int]:
    """Of the levels inside a vector."""
    return memory_radices(lanes, 1)


# --- in squares ----------------------------------------------------------------------------------


@simd.emitter
def square_spectra(v: Vec, re: Value, im: Value, tiles: Value, roots: Value, spectrum: Value) -> None:
    """The last levels; the spectrum is (tiles, lanes, 2, lanes)."""
    target = v.pointer(spectrum)
    with v.loop(tiles) as tile:
        rows = _Square(v, re, im, roots, tile)
        rows.turn()
        for node, values in rows.forward():
            for i, value in enumerate(values):
                place = v.iadd(rows.first2, 2 * v.lanes * (node * len(values) + i))
                v.store(value[0], target, place)
                v.store(value[1], target, v.iadd(place, v.lanes))


@simd.emitter
def multiply_square(v: Vec, re: Value, im: Value, tiles: Value, roots: Value, spectrum: Value) -> None:
    """The last levels, the products with the spectrum of a filter, and these levels back."""
    factors = v.pointer(spectrum)
    with v.loop(tiles) as tile:
        rows = _Square(v, re, im, roots, tile)
        rows.turn()
        for node, values in rows.forward():
            products = []
            for i, value in enumerate(values):
                place = v.iadd(rows.first2, 2 * v.lanes * (node * len(values) + i))
                w = v.load(factors, place), v.load(factors, v.iadd(place, v.lanes))
                products.append(times(v, value, w))
            rows.join_last(node, products)
        rows.inverse()
        rows.turn()


class _Square:
    """A square of a line in memory: rows of coefficients, whose lanes are nodes, once it is turned over."""

    def __init__(self, v: Vec, re: Value, im: Value, roots: Value, tile: Value):
        self.v = v
        first = v.imul(tile, v.lanes**2)
        self.parts = v.at(v.pointer(re), first), v.at(v.pointer(im), first)
        self.first2 = v.imul(first, 2)
        self.roots = v.at(v.pointer(roots), v.imul(tile, 2 * v.lanes * (v.lanes - 1)))
        self.levels = []  # (radix, rows of a part, nodes, where the roots begin)
        part, nodes, begin = v.lanes, 1, 0
        for radix in tile_radices(v.lanes):
            part //= radix
            self.levels.append((radix, part, nodes, begin))
            begin += nodes * (radix - 1)
            nodes *= radix

    def turn(self) -> None:
        v = self.v
        for part in self.parts:
            for i, row in enumerate(transpose(v, [v.load(part, i * v.lanes) for i in range(v.lanes)])):
                v.store(row, part, i * v.lanes)

    def forward(self) -> Iterator[tuple[int, list[Complex]]]:
        """All levels; of the last one (node, values) are handed out, and not stored."""
        for number, level in enumerate(self.levels):
            radix, part, nodes, _ = level
            for node in range(nodes):
                powers = self._roots(level, node)
                for row in range(part):
                    places = [(node * radix + k) * part + row for k in range(radix)]
                    values = part_node(self.v, [self._load(at) for at in places], powers)
                    if number + 1 == len(self.levels):
                        yield node, values
                    else:
                        self._store(values, places)

    def join_last(self, node: int, values: list[Complex]) -> None:
        level = self.levels[-1]
        places = [node * level[0] + k for k in range(level[0])]
        self._store(join_node(self.v, values, self._roots(level, node)), places)

    def inverse(self) -> None:
        """All levels but the last, back."""
        for level in self.levels[-2::-1]:
            radix, part, nodes, _ = level
            for node in range(nodes):
                powers = self._roots(level, node)
                for row in range(part):
                    places = [(node * radix + k) * part + row for k in range(radix)]
                    self._store(join_node(self.v, [self._load(at) for at in places], powers), places)

    def _roots(self, level: tuple[int, int, int, int], node: int) -> list[Complex]:
        radix, _, _, begin = level
        v = self.v
        at = [2 * v.lanes * (begin + node * (radix - 1) + m) for m in range(radix - 1)]
        return [(v.load(self.roots, place), v.load(self.roots, place + v.lanes)) for place in at]

    def _load(self, row: int) -> Complex:
        re, im = (self.v.load(part, row * self.v.lanes) for part in self.parts)
        return re, im

    def _store(self, values: list[Complex], rows: list[int]) -> None:
        for value, row in zip(values, rows, strict=True):
            for number, part in zip(value, self.parts, strict=True):
                self.v.store(number, part, row * self.v.lanes)


# --- on values -----------------------------------------------------------------------------------


def part_node(v: Vec, a: list[Complex], powers: list[Complex]) -> list[Complex]:
    """sum_m a_m (d i^k)^m for each k, or of two a_0 + d a_1 and a_0 - d a_1."""
    t = [a[0], *(times(v, value, d) for value, d in zip(a[1:], powers, strict=True))]
    if len(a) == 2:
        return [_add(v, t[0], t[1]), _sub(v, t[0], t[1])]
    even, odd = _add(v, t[0], t[2]), _sub(v, t[0], t[2])
    more, less = _add(v, t[1], t[3]), _sub(v, t[1], t[3])
    return [_add(v, even, more), _turned(v, odd, less, 1), _sub(v, even, more), _turned(v, odd, less, -1)]


def join_node(v: Vec, b: list[Complex], powers: list[Complex]) -> list[Complex]:
    """`part_node` back, times as many."""
    if len(b) == 2:
        t = [_add(v, b[0], b[1]), _sub(v, b[0], b[1])]
    else:
        even, odd = _add(v, b[0], b[2]), _sub(v, b[0], b[2])
        more, less = _add(v, b[1], b[3]), _sub(v, b[1], b[3])
        t = [_add(v, even, more), _turned(v, odd, less, -1), _sub(v, even, more), _turned(v, odd, less, 1)]
    return [t[0], *(_times_conjugate(v, value, d) for value, d in zip(t[1:], powers, strict=True))]


def times(v: Vec, a: Complex, b: Complex) -> Complex:
    return v.fma(a[0], b[0], v.b.fneg(v.fmul(a[1], b[1]))), v.fma(a[0], b[1], v.fmul(a[1], b[0]))


def _times_conjugate(v: Vec, a: Complex, b: Complex) -> Complex:
    return v.fma(a[0], b[0], v.fmul(a[1], b[1])), v.fma(a[1], b[0], v.b.fneg(v.fmul(a[0], b[1])))


def _add(v: Vec, a: Complex, b: Complex) -> Complex:
    return v.fadd(a[0], b[0]), v.fadd(a[1], b[1])


def _sub(v: Vec, a: Complex, b: Complex) -> Complex:
    return v.fsub(a[0], b[0]), v.fsub(a[1], b[1])


def _turned(v: Vec, a: Complex, b: Complex, sign: int) -> Complex:
    """a + i b, or a - i b."""
    return v.axpy(-sign, b[1], a[0]), v.axpy(sign, b[0], a[1])
