"""Squares of lanes x lanes turned over: between the order of channels and the order of pixels.

channels_first holds a row of pixels for each channel, and vectors of channels want the channels of a pixel
side by side. A square is read as `lanes` vectors, transposed in registers and written as `lanes` vectors. The
operations differ in their tails (whole squares need no masks), and in what they do to finished values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from convalgos.cpu.vectors.simd import Value, Vec, emitter


def transpose(v: Vec, rows: Sequence[Any]) -> list[Any]:
    """lanes x lanes transpose, first inside 16-byte blocks (cheap shuffles), then of the blocks."""
    block = 16 // v.size  # elements of a block
    rows = list(rows)
    for first in range(0, v.lanes, block):
        rows[first : first + block] = _transpose_blocks(v, rows[first : first + block])
    columns: list[Any] = [None] * v.lanes
    for j in range(block):
        for c, column in enumerate(_transpose_lanes(v, rows[j::block], block)):
            columns[c * block + j] = column
    return columns


def transpose_few(v: Vec, rows: Sequence[Any]) -> list[Any]:
    """Columns of 2, 4, ... up to `lanes` rows, as vectors of so many elements: (rows, lanes) transposed."""
    if len(rows) == v.lanes:
        return transpose(v, rows)
    block = min(len(rows), 16 // v.size)  # elements of a block
    turned = [_transpose_blocks(v, list(rows[first : first + block])) for first in range(0, len(rows), block)]
    columns = []
    for column in range(v.lanes):
        begin, j = column // block * block, column % block
        parts = [v.shuffle(r[j], r[j], range(begin, begin + block)) for r in turned]
        while len(parts) > 1:  # neighbours side by side
            size = parts[0].type.count
            parts = [v.shuffle(a, b, range(2 * size)) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        columns.append(parts[0])
    return columns


def interleaved(v: Vec, rows: Sequence[Any]) -> list[Any]:
    """The elements 0 of some vectors beside each other, then the elements 1, and so on.

    Of so many vectors as have a factor p, p sets are interleaved first: p - 1 shuffles of a vector for each.
    """
    count = len(rows)
    if count == 1:
        return list(rows)
    p = next(n for n in range(2, count + 1) if count % n == 0)
    sets = zip(*(interleaved(v, rows[first::p]) for first in range(p)), strict=True)
    return [part for vectors in sets for part in _interleaved_sets(v, vectors)]


def shuffles(count: int) -> int:
    """Of each vector that `interleaved` makes of so many."""
    for p in range(2, count + 1):
        if count % p == 0:
            return p - 1 + shuffles(count // p)
    return 0


def _interleaved_sets(v: Vec, rows: Sequence[Any]) -> list[Any]:
    """`interleaved` of a prime number of vectors: each vector of the result takes them up one by one."""
    found = []
    for first in range(0, len(rows) * v.lanes, v.lanes):
        places = [divmod(i, len(rows)) for i in range(first, first + v.lanes)]  # (lane, row) of each lane
        part = v.shuffle(rows[0], rows[1], [lane + (row == 1) * v.lanes for lane, row in places])
        for taken, vector in enumerate(rows[2:], 2):
            order = [v.lanes + lane if row == taken else i for i, (lane, row) in enumerate(places)]
            part = v.shuffle(part, vector, order)
        found.append(part)
    return found


def _transpose_blocks(v: Vec, r: list[Any]) -> list[Any]:
    """Transposes each 16-byte block of a power of 2 rows in place."""
    n, rows = v.lanes, len(r)
    starts = range(0, n, rows)
    if (
        rows == 2 or rows > 4
    ):  # halves of blocks, row by row of both halves: 2, 4, 8, ... of them side by side
        for _ in range(rows.bit_length() - 1):
            pairs = zip(r[: rows // 2], r[rows // 2 :], strict=True)
            orders = [
                [s + source * n + half + e for s in starts for e in range(rows // 2) for source in (0, 1)]
                for half in (0, rows // 2)
            ]
            r = [v.shuffle(a, b, order) for a, b in pairs for order in orders]
        return r

    def pick(a: Any, b: Any, order: Sequence[tuple[int, int]]) -> Any:
        return v.shuffle(a, b, [s + source * n + e for s in starts for source, e in order])

    low = [pick(r[i], r[i + 1], [(0, 0), (1, 0), (0, 1), (1, 1)]) for i in (0, 2)]
    high = [pick(r[i], r[i + 1], [(0, 2), (1, 2), (0, 3), (1, 3)]) for i in (0, 2)]
    halves = ([(0, 0), (0, 1), (1, 0), (1, 1)], [(0, 2), (0, 3), (1, 2), (1, 3)])
    return [pick(a, b, half) for a, b in (low, high) for half in halves]


def _transpose_lanes(v: Vec, r: list[Any], block: int) -> list[Any]:
    """Transposes a square of 16-byte blocks: even blocks and odd blocks of pairs, recursively."""
    if len(r) == 1:
        return r
    n = v.lanes

    def pick(a: Any, b: Any, first: int) -> Any:
        blocks = range(first * block, n, 2 * block)
        return v.shuffle(a, b, [s + i + e for s in (0, n) for i in blocks for e in range(block)])

    pairs = list(zip(r[0::2], r[1::2], strict=True))
    result: list[Any] = [None] * len(r)
    for parity in (0, 1):
        result[parity::2] = _transpose_lanes(v, [pick(a, b, parity) for a, b in pairs], block)
    return result


@emitter
def load_square(
    v: Vec, x: Value, x_stride: Value, rows: Value, columns: Value, target: Value, target_stride: Value
) -> None:
    """target[j][i] = x[i][j] for i < rows <= lanes, j < columns <= lanes; lanes beyond rows become 0.

    Turns a row of pixels of `lanes` channels into pixels of `lanes` channels. Writes whole vectors for all
    `lanes` pixels: target needs room for them.
    """
    source, to = v.pointer(x), v.pointer(target)
    inside = v.mask(columns)
    last = v.isub(rows, 1)
    read = []
    for i in range(v.lanes):
        valid = v.b.icmp_signed("<", v.integer(i), rows)
        row = v.b.select(valid, v.integer(i), last)
        value = v.load_masked(source, v.imul(row, x_stride), inside)
        read.append(v.b.select(valid, value, v.zero()))
    for j, value in enumerate(transpose(v, read)):
        v.store(value, to, v.imul(target_stride, j))


@emitter
def load_square_to(
    v: Vec, x: Value, x_stride: Value, rows: Value, places: Value, target: Value, target_stride: Value,
    spare: Value,
) -> None:  # fmt: skip
    """target[places[j]][i] = x[i][j] for i < rows <= lanes, and all j < lanes whose place is not negative.

    Only x[i] up to the last such j is read; `spare` has room for a vector. Lanes beyond rows become 0.
    """
    source = v.pointer(x)
    found = [v.table64(places, j) for j in range(v.lanes)]
    there = [v.b.icmp_signed(">=", place, v.integer(0)) for place in found]
    columns = v.integer(0)
    for j, valid in enumerate(there):
        columns = v.b.select(valid, v.integer(j + 1), columns)
    inside, last = v.mask(columns), v.isub(rows, 1)
    read = []
    for i in range(v.lanes):
        valid = v.b.icmp_signed("<", v.integer(i), rows)
        value = v.load_masked(source, v.imul(v.b.select(valid, v.integer(i), last), x_stride), inside)
        read.append(v.b.select(valid, value, v.zero()))
    step = v.imul(target_stride, v.size)
    for place, valid, value in zip(found, there, transpose(v, read), strict=True):
        at = v.iadd(target, v.imul(place, step))
        v.store(value, v.pointer(v.b.select(valid, at, spare)))


@emitter
def load_whole_square(v: Vec, x: Value, x_stride: Value, target: Value, target_stride: Value) -> None:
    """`load_square` of lanes x lanes, in half its time."""
    row, to = v.step(v.pointer(x), 0), v.pointer(target)
    read = []
    for i in range(v.lanes):
        row = v.step(row, x_stride) if i else row
        read.append(v.load(row))
    for j, value in enumerate(transpose(v, read)):
        v.store(value, to, v.imul(target_stride, j))


@emitter
def place_square(
    v: Vec, x: Value, x_stride: Value, rows: Value, columns: Value, y: Value, y_stride: Value
) -> None:
    """y[i][j] = x[j][i] for i < rows <= lanes, j < columns <= lanes: `store_square` of finished values."""
    _store_rows(v, _turned(v, x, x_stride), rows, columns, y, y_stride)


@emitter
def place_whole_square(v: Vec, x: Value, x_stride: Value, y: Value, y_stride: Value) -> None:
    """`place_square` of lanes x lanes, in half its time."""
    row = v.step(v.pointer(y), 0)
    for i, value in enumerate(_turned(v, x, x_stride)):
        row = v.step(row, y_stride) if i else row
        v.store(value, row)


@emitter
def store_square(
    v: Vec, x: Value, x_stride: Value, bias: Value, relu: Value, rows: Value, columns: Value, y: Value,
    y_stride: Value,
) -> None:  # fmt: skip
    """y[i][j] = x[j][i] + bias[i] for i < rows <= lanes, j < columns <= lanes, at least 0 with relu.

    Turns pixels of `lanes` channels into rows of pixels. Reads whole vectors of `lanes` pixels of x, and
    of bias, which holds `lanes` elements; writes nothing outside.
    """
    _store_rows(v, _finished_square(v, x, x_stride, bias, relu), rows, columns, y, y_stride)


@emitter
def store_whole_square(
    v: Vec, x: Value, x_stride: Value, bias: Value, relu: Value, y: Value, y_stride: Value
) -> None:
    """`store_square` of lanes x lanes: without masks, which are slow where y is beyond L2."""
    row = v.step(v.pointer(y), 0)
    for i, value in enumerate(_finished_square(v, x, x_stride, bias, relu)):
        row = v.step(row, y_stride) if i else row
        v.store(value, row)


@emitter
def stream_square(
    v: Vec, x: Value, x_stride: Value, bias: Value, relu: Value, y: Value, y_stride: Value
) -> None:
    """`store_square` of lanes x lanes, around the caches; y and its rows must be aligned to a vector."""
    to = v.pointer(y)
    for i, row in enumerate(_finished_square(v, x, x_stride, bias, relu)):
        v.store_nontemporal(row, to, v.imul(y_stride, i))


def _store_rows(v: Vec, values: Sequence[Any], rows: Any, columns: Any, y: Any, y_stride: Any) -> None:
    """The first `rows` of `lanes` rows, and their first `columns`."""
    to = v.pointer(y)
    inside = v.mask(columns)
    last = v.isub(rows, 1)
    for i in reversed(range(v.lanes)):  # rows beyond the last write to it first, and it writes last itself
        v.store_masked(values[i], to, v.imul(v.imin(i, last), y_stride), inside)


def _turned(v: Vec, x: Any, x_stride: Any) -> list[Any]:
    """`lanes` pixels turned into rows."""
    source = v.pointer(x)
    return transpose(v, [v.load(source, v.imul(x_stride, j)) for j in range(v.lanes)])


def _finished_square(v: Vec, x: Any, x_stride: Any, bias: Any, relu: Any) -> list[Any]:
    """`lanes` pixels with bias and activation, turned into rows."""
    source = v.pointer(x)
    add = v.load(v.pointer(bias))
    low = v.lower_bound(relu)
    return transpose(
        v, [v.fmax(v.fadd(v.load(source, v.imul(x_stride, j)), add), low) for j in range(v.lanes)]
    )
