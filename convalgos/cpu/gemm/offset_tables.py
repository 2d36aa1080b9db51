"""Offsets of what lies at regular distances along five dimensions, as the pixels of a block, or taps.

A block at the end of a map is cut short: there is a table for each way of being so. Tables are filled by a
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

TABLE_FIELDS = fields("m n o p q last_n last_o last_p last_q s_m s_n s_o s_p s_q variants length table")

Sizes = tuple[int, ...]


def tables_of_offsets(counts: Sizes, totals: Sizes, strides: Sizes, length: int) -> np.ndarray:
    """(ways of being cut short, length) int64 offsets, and behind them the last one again.

    Args:
        counts, totals: of a block, and of all, of which the last block has what is left.
        strides: elements between neighbours.
    """
    lasts = short_counts(counts[1:], totals[1:])
    variants = ways_to_be_short(counts[1:], lasts)
    table = aligned_empty(variants * length, np.int64)
    values = *counts, *lasts, *strides, variants, length, jit.data_address()(table)
    record = record_of_words(TABLE_FIELDS, values)
    jit.launch(fill_tables(), jit.data_address()(record), 1)
    return table.reshape(variants, length)


def short_counts(counts: Sizes, totals: Sizes) -> Sizes:
    """What the last block has along each dimension."""
    return tuple([total % n or n if n else 0 for n, total in zip(counts, totals, strict=True)])


def ways_to_be_short(counts: Sizes, lasts: Sizes) -> int:
    """How many tables there are: up to the last number that `blocking.table_number` gives a block, which has
    a bit for each of the four dimensions along which it is short."""
    n, o, p, q = [last < count for count, last in zip(counts, lasts, strict=True)]
    return 1 + 8 * n + 4 * o + 2 * p + q


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
