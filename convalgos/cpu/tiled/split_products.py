"""Products on transformed tiles as sums of three bfloat16, on matrix tiles.

V of a point is split once by each thread that multiplies there, into scratch that stays in its L2,
where it can between the products of the point before; filters were split when they were prepared. Six
products of bfloat16 are summed for one of float32, which is as exact (see `gemm.split_tiles`).

U is (group, point, panel, phase, entry, term, vector of filters, word, filter); a word has two channels that
lie half an entry apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convalgos.cpu.gemm import split_tiles
from convalgos.cpu.gemm.split_terms import CHANNELS, ENTRY_BYTES, write_terms
from convalgos.cpu.runtime import jit
from convalgos.cpu.tiled.driver import BOX_ARGUMENTS, box_of
from convalgos.cpu.tiled.split_rows import CONFIGURED, KERNELS, rows_in_tiles
from convalgos.cpu.vectors import matrix_tiles
from convalgos.cpu.vectors.simd import call, carray, pointer

STEPS, SPLIT_TURNS = len(split_tiles.PRODUCTS), len(split_tiles.SPLIT_AFTER)
HIDDEN = 3  # rows that products hide while they are split: with 5 of them 64 channels took 1.1 times as long


@jit.helper
def split_point(a: Any, v: int, phase: int, phases: int, rows: int, to: int, term: int) -> None:
    """Rows of V at a point -> (entry, term, row, CHANNELS) of bfloat16, of some phases from one on."""
    blocks, rest = a.channels // 32, a.channels % 32
    for i in range(phases):
        source = v + (phase + i) * a.channel_blocks * a.lanes * 4
        for row in range(rows):  # neighbouring lines are fetched ahead
            write_terms(4, 16, source, 16, 32, blocks, 16, 16, to + row * 64, 3 * term, term)
            source += a.v_row * 4
        to += 3 * term * blocks
        if rest:
            source = v + ((phase + i) * a.channel_blocks * a.lanes + blocks * 32) * 4
            write_terms(4, 16, source, 16, a.v_row, rows, min(16, rest), max(0, rest - 16), to, 64, term)
            to += 3 * term


@jit.helper
def rows_ahead(a: Any, rows: int, calls: int, point: int) -> Any:
    """Rows of the point behind this one that each of SPLIT_TURNS of each entry splits, in so many calls."""
    point_taps = carray(pointer(a.point_taps), (a.points, 2), np.int64)
    count = (rows + SPLIT_TURNS * calls - 1) // (SPLIT_TURNS * calls)
    fits = a.channels % 32 == 0 and point_taps[point + 1, 1] == point_taps[point, 1]
    return count if fits and count <= HIDDEN and SPLIT_TURNS * count <= rows else 0


@jit.specialise
def multiply_split() -> Callable[..., None]:
    """V and U -> M, for some (point, panel) items of a box: `driver.multiply_box` of split float32.

    While a panel is multiplied, the next one is fetched into L2.
    """

    def multiply_split(args: int, index: int, first: int, last: int, shared: int, own: int) -> None:
        a = carray(pointer(args), 1, BOX_ARGUMENTS)[0]
        box = box_of(a, index)
        rows, tiles, tile, blocks, most, term, x, lines, fetched = rows_in_tiles(
            a, box, own, CHANNELS, STEPS
        )  # fmt: skip
        matrix_tiles.load_configuration(4, 16, a.offsets + KERNELS + tile * CONFIGURED)
        kernels = carray(pointer(a.offsets), 2, np.int64)
        point_taps = carray(pointer(a.point_taps), (a.points, 2), np.int64)
        other = x + most * 3 * term
        products = shared + a.points * a.v_point * 4
        u_entry, m_row, pairs = a.vectors * ENTRY_BYTES, a.panel * 4, (tiles + 1) // 2
        split = -1  # the point whose rows x has
        for item in range(first, last):
            point, panel = item // a.panels, item % a.panels
            phase, phases = point_taps[point, 0] // a.channels, point_taps[point, 1] // a.channels
            v = shared + point * a.v_point * 4
            if point != split:
                split_point(a, v, phase, phases, rows, x, term)
                split = point
            # the rows of the next point are split between the products of this one
            begin, count, soon = max(first, point * a.panels), 0, 0
            turns = min(last, (point + 1) * a.panels) - begin
            if begin + turns < last:
                count = rows_ahead(a, rows, turns * pairs, point)
                soon = v + (a.v_point + point_taps[point + 1, 0] // a.channels * a.channel_blocks * 16) * 4
            m = products + (point * a.m_point + panel * a.m_panel) * 4
            u = a.w + (((box.group * a.points + point) * a.panels + panel) * most + phase * blocks) * u_entry
            ahead = u + most * u_entry
            for i in range(0, tiles, 2):
                row = ((item - begin) * pairs + i // 2) * SPLIT_TURNS * count
                some = count if row < rows else 0
                row = min(row, rows - SPLIT_TURNS * count)
                call(
                    kernels[min(1, tiles - i - 1)],
                    (
                        x + i * tile * 64, tile * 64, 64, term, own, phases * blocks, u, 0,
                        m + i * tile * m_row, tile * m_row, ahead + i // 2 * most * fetched, fetched // 2,
                        fetched, lines, soon + row * a.v_row * 4, a.v_row * 4, 64, 128, some,
                        other + row * 64, 3 * term,
                    ),
                )  # fmt: skip
            if count and item + 1 == begin + turns:
                x, other, split = other, x, point + 1
        matrix_tiles.release_tiles(4, 16)

    return multiply_split
