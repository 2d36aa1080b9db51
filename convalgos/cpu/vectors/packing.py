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


def woven_bytes(v: Vec, words: Sequence[Any], signed: bool, step: int = 4) -> Any:
    """The bytes of four vectors of int32, all of which are numbers of 8 bits.

    v: of 4-byte elements. step: with 4 one vector behind the other; with 1 lanes of all four side by side;
    with 2 those of the first two, and then those of the others.
    """
    packed = packed_in_order(v, words, signed)  # of each 16 bytes, 4 are of each vector
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
    to_shorts, *to_bytes = PACKS[v.lanes * 4]
    low, high = (_packed(v, to_shorts, words[i], words[i + 1]) for i in (0, 2))
    return _packed(v, to_bytes[not signed], low, high)


def quads(v: Vec, vectors: Sequence[Any]) -> list[Any]:
    """Vectors computed of `interleaved_bytes` in order: four lanes of each by turns."""
    n, blocks = v.lanes, v.lanes // 4
    places = [(i, block) for block in range(blocks) for i in range(4)]  # of blocks, in their new order
    found = []
    for first in range(0, len(places), blocks):
        chosen = places[first : first + blocks]
        value = None
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
        found.append(value)
    return found


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
