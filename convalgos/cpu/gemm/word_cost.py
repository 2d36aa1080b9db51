"""Predicted time of a product of words, from the cycles of its parts."""

from __future__ import annotations

import math

from convalgos.core.machine import Machine, cache_sizes, vector_bytes
from convalgos.cpu.gemm.word_blocking import (
    CONVERTED,
    COPIED,
    SQUARED,
    TILE,
    TILE_BASE,
    TILE_LEAST,
    TILE_ROW,
    WordBlocking,
)
from convalgos.cpu.gemm.word_tiles import BRAIN, PAIRS

# Cycles on a Xeon (Granite Rapids)
TILE_CALL = 60  # of a tile of sums: to call, to begin and to end
OUTPUT = 5.5  # of a vector of sums that is finished
TURNED = 9.0  # and of one that is transposed
L2_VECTOR, L3_VECTOR = 1.5, 5.0  # of a vector of the filter, from the second and the third cache
SUM = {BRAIN: 4.0, PAIRS: 1.0}  # of a vector of products; other instructions run two in a cycle
ISSUED = 1.05  # times the products of vectors, as they wait for loads


def word_seconds(cut: WordBlocking, machine: Machine) -> float:
    """Seconds in which the threads read x, sum and write y."""
    p = cut.problem
    threads = machine.threads
    rate = machine.peak_float32 / threads / (vector_bytes() // 4 * 4)  # cycles in a second
    blocks = p.N * p.spatial_out[0] * cut.blocks[0] * cut.blocks[1] * p.groups
    tiles = blocks * cut.tiles
    vectors = (cut.panels - 1) * cut.vectors + cut.last_vectors
    chunks = len(cut.offsets)
    last = p.layout == "channels_last"
    if cut.engine.matrix:
        product = TILE * max(TILE_LEAST, TILE_BASE + TILE_ROW * cut.tile)
        if cut.vectors == 1:
            product *= 1.5  # of so few filters each tile of pixels is read for one product
        sums = tiles * vectors * chunks * product
    else:
        of_vector = SUM.get(cut.engine.kind, 0.5) * ISSUED
        sums = tiles * vectors * chunks * cut.words * cut.tile * of_vector
    finished = tiles * vectors * cut.tile * (OUTPUT if last else TURNED)
    called = tiles * cut.panels * TILE_CALL
    filter_bytes = 4 * cut.words_of_filter * vectors * cut.lanes
    far = filter_bytes * p.groups > cache_sizes()[1]
    read = blocks / p.groups * p.groups * filter_bytes / vector_bytes() * (L3_VECTOR if far else L2_VECTOR)
    copied = 0.0
    if not cut.in_place:
        each = COPIED if last and p.groups == 1 else CONVERTED if last else SQUARED
        vectors_read = cut.input_bytes / vector_bytes()
        if cut.flat:
            each = each * p.stride[2] / p.kernel[2] + COPIED
        copied = cut.parts * blocks * vectors_read * each
    units = blocks * cut.parts
    balance = math.ceil(units / threads) * threads / units
    busy = max(sums + called, read * (1 if cut.engine.matrix else 0.5)) + finished
    return balance * (busy + copied) / threads / rate
