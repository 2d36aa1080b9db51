"""Products on transformed tiles as sums of three digits of eight bits, on matrix tiles.

V of a point is split by each thread that multiplies there, into scratch that stays in its L2, each row in its
own unit; filters were split when they were prepared. Six or eight products of digits are summed for one of
float32 (see `gemm.digit_tiles`), and brought to M.

U is (group, point, panel): phases of entries (entry, digit, vector of filters, word, filter) with four
channels in a word, and behind them the units of the filters; behind all panels lie the scales of the
channels of each group (`gemm.channel_scales`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convalgos.cpu.gemm import digit_tiles
from convalgos.cpu.gemm.digit_terms import (
    CHANNELS,
    HEAD,
    SUMS,
    bring_together,
    find_spread,
    find_units,
    largest_of_pixels,
    scales_at,
    write_digits,
)
from convalgos.cpu.gemm.split_terms import ENTRY_BYTES, TILE_BYTES
from convalgos.cpu.runtime import jit
from convalgos.cpu.tiled.driver import BOX_ARGUMENTS, box_of
from convalgos.cpu.tiled.split_rows import CONFIGURED, KERNELS, rows_in_tiles
from convalgos.cpu.vectors import matrix_tiles
from convalgos.cpu.vectors.simd import call, carray, pointer

STEPS = digit_tiles.PRODUCTS


@jit.helper
def point_digits(
    a: Any, v: int, phase: int, phases: int, rows: int, scales: int, head: int, to: int, term: int
) -> None:
    """Rows of V at a point, of some phases from one on -> their units, and (entry, digit, row, channels).

    Units lie HEAD bytes behind `head`, their spread 64.
    """
    units, squares = head + HEAD, carray(pointer(head), 8, np.int64)
    for i in range(8):
        squares[i] = 0
    vectors, entries = (a.channels + 15) // 16, (a.channels + 63) // 64
    last = a.channels - 16 * (vectors - 1)
    for i in range(phases):
        source = v + (phase + i) * a.channel_blocks * 64
        largest_of_pixels(4, 16, source, a.v_row, rows, vectors, 16, last, scales, units, i, head)
    find_units(4, 16, units, rows)
    find_spread(4, 16, units, rows, head, phases * a.channels, head + 64)
    whole = a.channels // 64
    last_scales = scales + whole * 256 if scales else 0
    for i in range(phases):
        source = v + (phase + i) * a.channel_blocks * 64
        for row in range(rows):  # neighbouring lines are fetched ahead
            write_digits(
                4, 16, source + row * a.v_row * 4, 64, whole, 16, 64, scales, 64, units + row * 4, 0,
                to + row * 64, term, 3 * term,
            )  # fmt: skip
        if whole < entries:
            write_digits(
                4, 16, source + whole * 256, a.v_row, rows, 16, a.channels - 64 * whole, last_scales, 0,
                units, 1, to + whole * 3 * term, term, 64,
            )  # fmt: skip
        to += 3 * term * entries


@jit.specialise
def multiply_digits() -> Callable[..., None]:
    """V and U -> M, for some (point, panel) items of a box: `driver.multiply_box` of digits of float32.

    While a panel is multiplied, the next one is fetched into L2.
    """

    def multiply_digits(args: int, index: int, first: int, last: int, shared: int, own: int) -> None:
        a = carray(pointer(args), 1, BOX_ARGUMENTS)[0]
        box = box_of(a, index)
        rows, tiles, tile, blocks, most, term, x, lines, fetched = rows_in_tiles(
            a, box, own, CHANNELS, STEPS
        )  # fmt: skip
        matrix_tiles.load_configuration(4, 16, a.offsets + KERNELS + tile * CONFIGURED)
        kernels = carray(pointer(a.offsets), 3, np.int64)
        point_taps = carray(pointer(a.point_taps), (a.points, 2), np.int64)
        sums = x + most * 3 * term
        head = sums + SUMS * 4 * TILE_BYTES
        units = head + HEAD
        products = shared + a.points * a.v_point * 4
        u_entry, m_row = a.vectors * ENTRY_BYTES, a.panel * 4
        u_panel = most * u_entry + (a.vectors + 1) * 64
        all_panels = a.groups * a.points * a.panels * u_panel
        scales = scales_at(a.w + all_panels + box.group * (64 + (a.channels + 63) // 64 * 256))
        split = -1  # the point whose rows x has
        for item in range(first, last):
            point, panel = item // a.panels, item % a.panels
            phase, phases = point_taps[point, 0] // a.channels, point_taps[point, 1] // a.channels
            if point != split:
                point_digits(a, shared + point * a.v_point * 4, phase, phases, rows, scales, head, x, term)
                split = point
            m = products + (point * a.m_point + panel * a.m_panel) * 4
            base = a.w + ((box.group * a.points + point) * a.panels + panel) * u_panel
            u = base + phase * blocks * u_entry
            filter_units, ahead = base + most * u_entry, u + u_panel
            spreads = carray(pointer(filter_units + a.vectors * 64), a.vectors, np.int64)
            spread = carray(pointer(head + 64), 1, np.int64)[0] * max(spreads[0], spreads[a.vectors - 1])
            least = 1 if spread > kernels[2] else 0
            for i in range(0, tiles, 2):
                together = min(2, tiles - i)
                call(
                    kernels[together - 1],
                    (
                        x + i * tile * 64, tile * 64, 64, term, own, phases * blocks, u, 0, sums,
                        a.vectors * TILE_BYTES, 4 * TILE_BYTES, ahead + i // 2 * most * fetched, fetched // 2,
                        fetched, lines, least,
                    ),
                )  # fmt: skip
                for j in range(together):
                    at, row = sums + j * a.vectors * TILE_BYTES, (i + j) * tile
                    bring_together(
                        a.vectors, at, 4 * TILE_BYTES, tile, units + row * 4, filter_units, m + row * m_row,
                        a.panel, least,
                    )  # fmt: skip
        matrix_tiles.release_tiles(4, 16)

    return multiply_digits
