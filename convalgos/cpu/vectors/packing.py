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
    to_shorts, *to_bytes = PACKS[v.lanes * 4]
    low, high = (_packed(v, to_shorts, words[i], words[i + 1]) for i in (0, 2))
    packed = _packed(v, to_bytes[not signed], low, high)  # of each 16 bytes, 4 are of each vector
    places = {}
    for vector in range(4):
        for lane in range(v.lanes):
            number, phase = divmod(vector, 4 // step)
            place = number * 4 // step * v.lanes + lane * (4 // step) + phase
            places[place] = lane // 4 * 16 + vector * 4 + lane % 4
    return v.shuffle(packed, packed, [places[i] for i in range(4 * v.lanes)])


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
