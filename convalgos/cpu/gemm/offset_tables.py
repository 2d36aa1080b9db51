"""Offsets of what lies at regular distances along five dimensions, as the pixels of a block, or taps.

A block at the end of a map is cut short: it has a table for each way of being so. Tables are filled by a
kernel: plans are made for every size of a map.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.runtime.records import record_of_words
from convalgos.cpu.vectors.simd import carray, copy_bytes, pointer

VARIANTS = 16  # ways of being cut short along the last four dimensions
TABLE_FIELDS = fields("m n o p q last_n last_o last_p last_q s_m s_n s_o s_p s_q variants length table")

Five = tuple[int, ...]


def tables_of_offsets(
    counts: Five, totals: Five, strides: Five, length: int, variants: int = 1
) -> np.ndarray:
    """(variants, length) int64 offsets, and behind them the last one again.

    Args:
        counts, totals: of a block, and of all, of which the last block has what is left.
        strides: elements between neighbours.
        variants: 1 for whole blocks only, or VARIANTS, numbered as by `blocking.table_number`.
    """
    lasts = [total % n or n if n else 0 for n, total in zip(counts[1:], totals[1:], strict=True)]
    table = aligned_empty(variants * length, np.int64)
    values = *counts, *lasts, *strides, variants, length, jit.data_address()(table)
    record = record_of_words(TABLE_FIELDS, values)
    jit.launch(fill_tables(), jit.data_address()(record), 1)
    return table.reshape(variants, length)


@jit.specialise
def fill_tables() -> Callable[..., None]:
    """`tables_of_offsets`. Most blocks can be short in few dimensions, and many tables are the same."""

    def fill_tables(args: int, task: int) -> None:
        a = carray(pointer(args), 1, TABLE_FIELDS)[0]
        for variant in range(a.variants):
            n, o = a.last_n if variant // 8 % 2 else a.n, a.last_o if variant // 4 % 2 else a.o
            p, q = a.last_p if variant // 2 % 2 else a.p, a.last_q if variant % 2 else a.q
            same = (n < a.n) * 8 + (o < a.o) * 4 + (p < a.p) * 2 + (q < a.q)
            at = a.table + variant * a.length * 8
            if same < variant:
                copy_bytes(at, a.table + same * a.length * 8, a.length * 8)
                continue
            table, found, last = carray(pointer(at), a.length, np.int64), 0, 0
            for h in range(a.m):
                for i in range(n):
                    for j in range(o):
                        for k in range(p):
                            row = h * a.s_m + i * a.s_n + j * a.s_o + k * a.s_p
                            for column in range(q):
                                table[found + column] = row + column * a.s_q
                            found, last = found + q, row + (q - 1) * a.s_q
            for spare in range(found, a.length):
                table[spare] = last

    return fill_tables
