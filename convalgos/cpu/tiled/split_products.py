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

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.gemm import digit_tiles, split_tiles
from convalgos.cpu.gemm.digit_terms import SPREAD
from convalgos.cpu.gemm.split_terms import ENTRY_BYTES, ENTRY_LINES, TILE_BYTES, pack_entry, write_terms
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.tiled.driver import BOX_ARGUMENTS, box_of, image_tiles
from convalgos.cpu.tiled.split_schedule import SplitBoxSchedule
from convalgos.cpu.vectors import matrix_tiles
from convalgos.cpu.vectors.simd import call, carray, pointer

ROWS = matrix_tiles.ROWS
STEPS, SPLIT_TURNS = len(split_tiles.PRODUCTS), len(split_tiles.SPLIT_AFTER)
HIDDEN = 3  # rows that products hide while they are split: with 5 of them 64 channels took 1.1 times as long
CONFIGURED = 64  # bytes of a configuration: behind two kernels, one for tiles of each number of rows
KERNELS = 64  # bytes of their addresses, and of the spread from which on digits have all products

PACK_FIELDS = fields("w packed panels phases channels vectors tasks")


def product_table(cut: SplitBoxSchedule) -> np.ndarray:
    """What is read at `a.offsets`: kernels, and configurations of matrix tiles of each height."""
    table = np.zeros(KERNELS + (ROWS + 1) * CONFIGURED, np.uint8)
    tile_sums = digit_tiles.sum_digit_tiles if cut.form.scaled else split_tiles.sum_split_tiles
    kernels = [tile_sums(cut.lanes, count, cut.vectors) for count in (1, 2)]
    limit = 0 if cut.products > cut.form.products else SPREAD
    table[:24] = np.array([*kernels, limit], np.int64).view(np.uint8)
    for rows in range(1, ROWS + 1):
        shapes = [(rows, 16)] * 6 + [(16, 16)] * 2
        table[KERNELS + rows * CONFIGURED :][:CONFIGURED] = matrix_tiles.configuration(shapes)
    return table


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
        rows = (box.n1 - box.n0) * (box.o1 - box.o0) * image_tiles(a, box)
        tiles = (rows + 15) // 16
        tile = (rows + tiles - 1) // tiles  # rows of each
        matrix_tiles.load_configuration(4, 16, a.offsets + KERNELS + tile * CONFIGURED)
        kernels = carray(pointer(a.offsets), 2, np.int64)
        point_taps = carray(pointer(a.point_taps), (a.points, 2), np.int64)
        blocks = (a.channels + 31) // 32  # entries of a phase
        most = a.rows.phases * a.columns.phases * blocks
        term, m_row = tiles * tile * 64, a.panel * 4
        table = carray(pointer(own), most, np.int64)
        for entry in range(most):
            table[entry] = entry * 3 * term
        x = own + (most * 8 + 63) // 64 * 64
        other = x + most * 3 * term
        products = shared + a.points * a.v_point * 4
        u_entry, pairs = a.vectors * ENTRY_BYTES, (tiles + 1) // 2
        lines = (a.vectors * ENTRY_LINES + 2 * STEPS * pairs - 1) // (2 * STEPS * pairs)
        fetched = 2 * STEPS * lines * 64  # with an entry, bytes that follow those with the entry before
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


@jit.specialise
def pack_points() -> Callable[..., None]:
    """Float32 (panel, phase, channel, filter) to (panel, phase, entry, term, vector, word, filter)."""

    def pack_points(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PACK_FIELDS)[0]
        entries = (a.channels + 31) // 32
        for panel in range(a.panels * task // a.tasks, a.panels * (task + 1) // a.tasks):
            for phase in range(a.phases):
                w = a.w + (panel * a.phases + phase) * a.channels * a.vectors * 64
                to = a.packed + (panel * a.phases + phase) * entries * a.vectors * ENTRY_BYTES
                for c in range(0, a.channels, 32):
                    for j in range(a.vectors):
                        pack_entry(
                            4, 16, w + (c * a.vectors + j) * 64, a.vectors * 16, a.channels - c,
                            to + j * TILE_BYTES, a.vectors * TILE_BYTES,
                        )  # fmt: skip
                    to += a.vectors * ENTRY_BYTES

    return pack_points


def split_filter(u: np.ndarray, cut: SplitBoxSchedule) -> np.ndarray:
    """The terms of a transformed filter (groups, points, panels, taps, panel), as bytes."""
    packed = aligned_empty(cut.problem.groups * cut.u_bytes, np.uint8)
    panels, tasks = cut.problem.groups * cut.points * cut.panels, jit.thread_count()
    address = jit.data_address()
    sizes = panels, cut.phases, cut.problem.w_shape[1], cut.vectors, tasks
    record = np.array([(address(u), address(packed), *sizes)], PACK_FIELDS)
    jit.launch(pack_points(), address(record), tasks)
    return packed
