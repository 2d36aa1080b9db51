"""Products on transformed tiles as sums of three digits of eight bits, on matrix tiles.

V of a point is split by each thread that multiplies there, into scratch that stays in its L2, each row in its
own unit; filters were split when they were prepared. Six or eight products of digits are summed for one of
float32 (see `gemm.digit_tiles`), and brought to M.

U is (group, point, panel): phases of entries (entry, digit, vector of filters, word, filter) with four
channels in a word, and behind them the units of the filters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.gemm import digit_tiles
from convalgos.cpu.gemm.digit_filter import filter_spreads
from convalgos.cpu.gemm.digit_terms import (
    HEAD,
    SUMS,
    bring_together,
    find_spread,
    largest_of_pixels,
    pack_digits,
    unit_bits,
    write_digits,
)
from convalgos.cpu.gemm.split_terms import ENTRY_BYTES, ENTRY_LINES, TILE_BYTES
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.tiled.driver import BOX_ARGUMENTS, box_of, image_tiles
from convalgos.cpu.tiled.split_products import CONFIGURED, KERNELS
from convalgos.cpu.tiled.split_schedule import SplitBoxSchedule
from convalgos.cpu.vectors import matrix_tiles
from convalgos.cpu.vectors.simd import call, carray, pointer

STEPS = digit_tiles.PRODUCTS

PACK_FIELDS = fields("w packed units spreads panels phases channels vectors tasks")


@jit.helper
def point_digits(a: Any, v: int, phase: int, phases: int, rows: int, head: int, to: int, term: int) -> None:
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
        largest_of_pixels(4, 16, source, a.v_row, rows, vectors, 16, last, units, i, head)
    found = carray(pointer(units), rows, np.int32)
    for row in range(rows):
        found[row] = unit_bits(found[row])
    find_spread(4, 16, units, rows, head, phases * a.channels, head + 64)
    whole = a.channels // 64
    for i in range(phases):
        source = v + (phase + i) * a.channel_blocks * 64
        for row in range(rows):  # neighbouring lines are fetched ahead
            write_digits(
                4, 16, source + row * a.v_row * 4, 64, whole, 16, 64, units + row * 4, 0, to + row * 64, term,
                3 * term,
            )  # fmt: skip
        if whole < entries:
            write_digits(
                4, 16, source + whole * 256, a.v_row, rows, 16, a.channels - 64 * whole, units, 1,
                to + whole * 3 * term, term, 64,
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
        rows = (box.n1 - box.n0) * (box.o1 - box.o0) * image_tiles(a, box)
        tiles = (rows + 15) // 16
        tile = (rows + tiles - 1) // tiles  # rows of each
        matrix_tiles.load_configuration(4, 16, a.offsets + KERNELS + tile * CONFIGURED)
        kernels = carray(pointer(a.offsets), 3, np.int64)
        point_taps = carray(pointer(a.point_taps), (a.points, 2), np.int64)
        blocks = (a.channels + 63) // 64  # entries of a phase
        most = a.rows.phases * a.columns.phases * blocks
        term, m_row = tiles * tile * 64, a.panel * 4
        table = carray(pointer(own), most, np.int64)
        for entry in range(most):
            table[entry] = entry * 3 * term
        x = own + (most * 8 + 63) // 64 * 64
        sums = x + most * 3 * term
        head = sums + SUMS * 4 * TILE_BYTES
        units = head + HEAD
        products = shared + a.points * a.v_point * 4
        u_entry, pairs = a.vectors * ENTRY_BYTES, (tiles + 1) // 2
        u_panel = most * u_entry + (a.vectors + 1) * 64
        lines = (a.vectors * ENTRY_LINES + 2 * STEPS * pairs - 1) // (2 * STEPS * pairs)
        fetched = 2 * STEPS * lines * 64  # with an entry, bytes that follow those with the entry before
        split = -1  # the point whose rows x has
        for item in range(first, last):
            point, panel = item // a.panels, item % a.panels
            phase, phases = point_taps[point, 0] // a.channels, point_taps[point, 1] // a.channels
            if point != split:
                point_digits(a, shared + point * a.v_point * 4, phase, phases, rows, head, x, term)
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


@jit.specialise
def pack_point_digits() -> Callable[..., None]:
    """Float32 (panel, phase, channel, filter), and the largest sizes of filters as bits, to U."""

    def pack_point_digits(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PACK_FIELDS)[0]
        entries = (a.channels + 63) // 64
        u_panel = a.phases * entries * a.vectors * ENTRY_BYTES + (a.vectors + 1) * 64
        for panel in range(a.panels * task // a.tasks, a.panels * (task + 1) // a.tasks):
            to = a.packed + panel * u_panel
            units = to + u_panel - (a.vectors + 1) * 64
            found = carray(pointer(units), a.vectors * 16, np.int32)
            largest = carray(pointer(a.units + panel * a.vectors * 64), a.vectors * 16, np.int32)
            for i in range(a.vectors * 16):
                found[i] = unit_bits(largest[i])
            spreads = carray(pointer(units + a.vectors * 64), a.vectors, np.int64)
            known = carray(pointer(a.spreads + panel * a.vectors * 8), a.vectors, np.int64)
            for i in range(a.vectors):
                spreads[i] = known[i]
            for phase in range(a.phases):
                w = a.w + (panel * a.phases + phase) * a.channels * a.vectors * 64
                for c in range(0, a.channels, 64):
                    for j in range(a.vectors):
                        pack_digits(
                            4, 16, w + (c * a.vectors + j) * 64, a.vectors * 16, a.channels - c,
                            units + j * 64, to + j * TILE_BYTES, a.vectors * TILE_BYTES,
                        )  # fmt: skip
                    to += a.vectors * ENTRY_BYTES

    return pack_point_digits


def digit_filter(u: np.ndarray, cut: SplitBoxSchedule) -> np.ndarray:
    """The digits of a transformed filter (groups, points, panels, taps, panel), as bytes."""
    packed = aligned_empty(cut.problem.groups * cut.u_bytes, np.uint8)
    panels, tasks = cut.problem.groups * cut.points * cut.panels, jit.thread_count()
    address = jit.data_address()
    largest = np.maximum(u.max(axis=3), -u.min(axis=3))  # (groups, points, panels, panel)
    spreads = filter_spreads(largest, np.einsum("gpntf,gpntf->gpnf", u, u), u.shape[3])
    sizes = panels, cut.phases, cut.problem.w_shape[1], cut.vectors, tasks
    arrays = map(address, (u, packed, largest, spreads))
    record = np.array([(*arrays, *sizes)], PACK_FIELDS)
    jit.launch(pack_point_digits(), address(record), tasks)
    return packed
