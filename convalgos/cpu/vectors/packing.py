"""Vectors packed: four of words as one of bytes, and lanes that are kept side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from convalgos.cpu.vectors.instructions import Vec, function_of, ir

# Of `llvm.x86`, by bytes of a vector: words to 16 bits, and these to bytes with a sign or without one
PACKS = {
    64: ("avx512.packssdw.512", "avx512.packsswb.512", "avx512.packuswb.512"),
    32: ("avx2.packssdw", "avx2.packsswb", "avx2.packuswb"),
    16: ("sse2.packssdw.128", "sse2.packsswb.128", "sse2.packuswb.128"),
}


NEAREST = {64: "avx512.mask.cvtps2dq.512", 32: "avx.cvt.ps2dq.256", 16: "sse2.cvtps2dq"}


def woven_bytes(v: Vec, packed: Any, step: int = 4) -> Any:
    """The bytes of `packed_in_order`, of each 16 of which 4 are of each vector, in another order.

    v: of 4-byte elements. step: with 4 one vector behind the other; with 1 lanes of all four side by side;
    with 2 those of the first two, and then those of the others.
    """
    places = {}
    for vector in range(4):
        for lane in range(v.lanes):
            number, phase = divmod(vector, 4 // step)
            place = number * 4 // step * v.lanes + lane * (4 // step) + phase
            places[place] = lane // 4 * 16 + vector * 4 + lane % 4
    return v.shuffle(packed, packed, [places[i] for i in range(4 * v.lanes)])


def interleaved_bytes(v: Vec, rows: Sequence[Any]) -> list[Any]:
    """Four vectors of bytes as four of words, each of a byte of every row.

    Lane 4 * b + i of the n-th is of byte 16 * b + 4 * n + i: blocks of 16 bytes are interleaved alone, and
    `quads` has them in order, as has `packed_in_order` the bytes of what is computed of them.
    """
    count = 4 * v.lanes

    def zipped(a: Any, b: Any, size: int, high: int) -> Any:
        """Elements of a and b by turns, of the lower or the higher half of each 16 bytes."""
        half = 8 // size
        order = [
            block * 2 * half + high * half + i + side * count // size
            for block in range(count // 16)
            for i in range(half)
            for side in (0, 1)
        ]
        kind = ir.VectorType(ir.IntType(8 * size), count // size)
        return v.shuffle(v.b.bitcast(a, kind), v.b.bitcast(b, kind), order)

    pairs = [[zipped(a, b, 1, high) for high in (0, 1)] for a, b in (rows[:2], rows[2:])]
    words = [zipped(pairs[0][high], pairs[1][high], 2, last) for high in (0, 1) for last in (0, 1)]
    return [v.b.bitcast(word, ir.VectorType(ir.IntType(32), v.lanes)) for word in words]


def packed_in_order(v: Vec, words: Sequence[Any], signed: bool) -> Any:
    """The bytes of what was computed of `interleaved_bytes`."""
    low, high = (shorts_of_words(v, words[i], words[i + 1]) for i in (0, 2))
    return bytes_of_shorts(v, low, high, signed)


def shorts_of_words(v: Vec, a: Any, b: Any) -> Any:
    """16 bits of two vectors of int32, whose 16 bytes come by turns; beyond is the least or the largest."""
    return _packed(v, PACKS[v.lanes * 4][0], a, b)


def bytes_of_shorts(v: Vec, low: Any, high: Any, signed: bool) -> Any:
    """8 bits of two vectors of 16 bits, likewise."""
    return _packed(v, PACKS[v.lanes * 4][1 if signed else 2], low, high)


def added_shorts(v: Vec, a: Any, b: Any) -> Any:
    """a + b of 16 bits; beyond is the least or the largest."""
    name = f"llvm.sadd.sat.v{2 * v.lanes}i16"
    return v.b.call(function_of(v.b, ir.FunctionType(a.type, [a.type, a.type]), name), [a, b])


def limited_bytes(v: Vec, value: Any, low: Any, high: Any, signed: bool) -> Any:
    """min(max(value, low), high) of bytes."""
    kind, sign = ir.FunctionType(value.type, [value.type] * 2), "s" if signed else "u"
    for name, limit in (("max", low), ("min", high)):
        of_bytes = function_of(v.b, kind, f"llvm.{sign}{name}.v{4 * v.lanes}i8")
        value = v.b.call(of_bytes, [value, limit])
    return value


def to_nearest(v: Vec, floats: Any) -> Any:
    """int32 nearest to float32, ties to even; beyond is -2**31."""
    words = ir.VectorType(ir.IntType(32), v.lanes)
    name = f"llvm.x86.{NEAREST[v.lanes * 4]}"
    if v.lanes < 16:
        return v.b.call(function_of(v.b, ir.FunctionType(words, [v.type]), name), [floats])
    kind = ir.FunctionType(words, [v.type, words, ir.IntType(16), ir.IntType(32)])
    zero, all_, as_set = ir.Constant(words, [0] * 16), ir.IntType(16)(-1), ir.IntType(32)(4)
    return v.b.call(function_of(v.b, kind, name), [floats, zero, all_, as_set])


def quads(v: Vec, vectors: Sequence[Any]) -> list[Any]:
    """Vectors computed of `interleaved_bytes` in order: four lanes of each by turns."""
    blocks = v.lanes // 4
    places = [(i, block) for block in range(blocks) for i in range(4)]  # of blocks, in their new order
    return [_chosen_quads(v, vectors, places[n : n + blocks]) for n in range(0, 4 * blocks, blocks)]


def lane_quads(v: Vec, vectors: Sequence[Any]) -> list[Any]:
    """Four vectors in order as those computed of `interleaved_bytes`: `quads` brings them back."""
    blocks = v.lanes // 4
    return [
        _chosen_quads(v, vectors, [divmod(4 * block + i, blocks) for block in range(blocks)])
        for i in range(4)
    ]


def _chosen_quads(v: Vec, vectors: Sequence[Any], chosen: Sequence[tuple[int, int]]) -> Any:
    """One vector of blocks of four lanes: (which of the vectors, block of it) each."""
    n, value = v.lanes, None
    for half in (0, 1):  # two of the vectors at a time
        order, here = [], [i // 2 == half for i, _ in chosen]
        for (i, block), inside in zip(chosen, here, strict=True):
            order += [(i % 2) * n + 4 * block + lane if inside else lane for lane in range(4)]
        part = v.shuffle(vectors[2 * half], vectors[2 * half + 1], order)
        if value is None:
            value = part
        else:
            taken = [n + at if here[at // 4] else at for at in range(n)]
            value = v.shuffle(value, part, taken)
    return value


def in_order(words: Vec, vectors: Sequence[Any], step: int = 4) -> list[Any]:
    """Four vectors of sums with neighbours side by side."""
    n = words.lanes
    low, high = (
        [side * n + lane for lane in range(first, first + n // 2) for side in (0, 1)] for first in (0, n // 2)
    )

    def woven(a: Any, b: Any) -> list[Any]:
        return [words.shuffle(a, b, low), words.shuffle(a, b, high)]

    a, b, c, d = vectors
    if step == 4:
        return [a, b, c, d]
    if step == 2:
        return [*woven(a, b), *woven(c, d)]
    even, odd = woven(a, c), woven(b, d)
    return [*woven(even[0], odd[0]), *woven(even[1], odd[1])]


def compressed(v: Vec, value: Any, kept: Any) -> Any:
    """The lanes of a mask side by side from lane 0 on, then zeros. v: of the lanes of `value`.

    The processor has AVX-512, and "avx512vbmi2" for bytes.
    """
    kind = ir.FunctionType(v.type, [v.type, v.type, v.bits])
    name = f"llvm.x86.avx512.mask.compress.{v.suffix}"
    return v.b.call(function_of(v.b, kind, name), [value, v.zero(), kept])


def _packed(v: Vec, name: str, a: Any, b: Any) -> Any:
    bits = a.type.element.width
    half = ir.VectorType(ir.IntType(bits // 2), 2 * a.type.count)
    kind = ir.FunctionType(half, [a.type, a.type])
    return v.b.call(function_of(v.b, kind, f"llvm.x86.{name}"), [a, b])
