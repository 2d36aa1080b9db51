"""The peak of products of short numbers, by the best instruction of the processor.

Matrix tiles where there are any, else dot products of vectors, else int8 widened to 16 bits. As in the
micro-kernels, sums stay in registers and operands are loaded from the first cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from convalgos.core.allocator import aligned_zeros
from convalgos.core.machine import vector_bytes
from convalgos.cpu.compile.code_generation import has
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import matrix_tiles, microkernel
from convalgos.cpu.vectors.integers import words_of
from convalgos.cpu.vectors.simd import Value, Vec, carray, emitter, pointer

BYTE_TILES, BRAIN_TILES, BYTE_DOTS, BYTE_PAIRS, BRAIN_DOTS = range(5)
FEATURES: dict[str, dict[int, tuple[str, ...]]] = {  # of the processor, by LLVM, fastest first
    "int8": {
        BYTE_TILES: ("amx-int8", "avx512f"), BYTE_DOTS: ("avx512vnni", "avx512vl"), BYTE_PAIRS: (),
    },
    "bfloat16": {BRAIN_TILES: ("amx-bf16", "avx512bf16"), BRAIN_DOTS: ("avx512bf16", "avx512vl")},
}  # fmt: skip
MATRIX = (BYTE_TILES, BRAIN_TILES)
IN_A_WORD = {BYTE_TILES: 4, BYTE_DOTS: 4}  # products; else two
TILE_BYTES = 4 << 10  # of four tiles
STEPS = 64  # of a round, whose filters fill a third of a 48 KiB cache
ROUNDS = 2000
WORD_PEAK_FIELDS = fields("repeats configuration x w y tasks")


def best_kind(dtype: str) -> int | None:
    """What multiplies "int8" or "bfloat16" here, or None."""
    for kind, features in FEATURES[dtype].items():
        if has(*features) and (kind not in MATRIX or matrix_tiles.permitted()):
            return kind
    return None


@emitter
def tile_products(v: Vec, KIND: int, x: Value, w: Value, y: Value, steps: Value) -> None:
    """Sums of 2 x 2 matrix tiles, whose operands, two tiles of x and two of w, are loaded in each step."""
    name = "bf16ps" if KIND == BRAIN_TILES else "usd"
    with v.loop(steps):
        for operand in range(4):
            source = v.at(v.pointer(x if operand < 2 else w), 256 * (operand % 2))
            matrix_tiles.load_tile(v, 4 + operand, source, 64)
        for total in range(4):
            matrix_tiles.tile_dot(v, name, total, 4 + total // 2, 6 + total % 2)
    for total in range(4):
        matrix_tiles.store_tile(v, total, v.at(v.pointer(y), 256 * total), 64)


@emitter
def vector_products(
    v: Vec, KIND: int, ROWS: int, VECTORS: int, x: Value, w: Value, y: Value, steps: Value
) -> None:
    """Sums of ROWS words of x by VECTORS of filters, as in the micro-kernel of float32."""
    i = words_of(v)
    of: Any = v if KIND == BRAIN_DOTS else i
    wide = range(VECTORS)
    sums = [[of.register(of.load(v.pointer(y), j * v.lanes)) for j in wide] for _ in range(ROWS)]
    with v.loop(steps) as t:
        tap = v.at(v.pointer(w), v.imul(t, VECTORS * v.lanes))
        weights = [i.load(tap, j * v.lanes) for j in wide]
        for n, row in enumerate(sums):
            value = i.broadcast(v.at(v.pointer(x), v.iadd(t, n * STEPS)))
            for total, weight in zip(row, weights, strict=True):
                if KIND == BYTE_DOTS:
                    total.set(i.dot4(total.value, value, weight))
                elif KIND == BYTE_PAIRS:
                    total.set(i.dot2(total.value, value, weight, False))
                else:
                    total.set(i.brain_dot2(total.value, value, weight))
    for n, row in enumerate(sums):
        for j, total in enumerate(row):
            of.store(total.value, v.pointer(y), (n * VECTORS + j) * v.lanes)


@jit.specialise
def word_products(KIND: int, LANES: int, ROWS: int, VECTORS: int) -> jit.Kernel:
    def word_products(args: int, task: int) -> None:
        a = carray(pointer(args), 1, WORD_PEAK_FIELDS)[0]
        y = a.y + task * max(TILE_BYTES, 4 * LANES * ROWS * VECTORS)
        if KIND <= BRAIN_TILES:
            matrix_tiles.load_configuration(4, LANES, a.configuration)
            for _ in range(a.repeats):
                tile_products(4, LANES, KIND, a.x, a.w, y, STEPS)
            matrix_tiles.release_tiles(4, LANES)
        else:
            for _ in range(a.repeats):
                vector_products(4, LANES, KIND, ROWS, VECTORS, a.x, a.w, y, STEPS)

    return word_products


class WordProducts(NamedTuple):
    """A kernel of products, how many operations a task of it is, and what it reads and writes."""

    kernel: int
    operations: float
    arguments: dict[str, np.ndarray | int]


def word_products_of(kind: int, threads: int) -> WordProducts:
    """The peak's product of words."""
    vectors = max(microkernel.REGISTER_TILES[vector_bytes()])
    rows = microkernel.REGISTER_TILES[vector_bytes()][vectors]
    lanes = vector_bytes() // 4
    words = rows * vectors * lanes
    if kind in MATRIX:
        words = 4 * 16 * matrix_tiles.ROWS * matrix_tiles.WORDS
    operations = 2 * IN_A_WORD.get(kind, 2) * words * STEPS * ROUNDS
    configuration = matrix_tiles.configuration([(16, 16)] * 8)
    arrays: dict[str, np.ndarray | int] = {
        "x": aligned_zeros(max(4 * STEPS * rows, TILE_BYTES), np.uint8),
        "w": aligned_zeros(max(4 * STEPS * vectors * lanes, TILE_BYTES), np.uint8),
        "y": aligned_zeros(threads * max(4 * rows * vectors * lanes, TILE_BYTES), np.uint8),
        "configuration": configuration, "repeats": ROUNDS,
    }  # fmt: skip
    return WordProducts(word_products(kind, lanes, rows, vectors), operations, arrays)
