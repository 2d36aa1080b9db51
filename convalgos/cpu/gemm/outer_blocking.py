"""How the gradient of a 1x1 filter is cut where it is summed in tiles of channels by channels.

Pixels are cut into parts, each with sums of its own, and parts into blocks, whose panel of x stays in the
first cache while all rows of a unit are summed; rows of dw are cut into blocks, whose sums stay in L2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from convalgos.core.allocator import whole_lines
from convalgos.core.machine import cache_sizes, vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import outer_tiles, tile_sums
from convalgos.cpu.gemm.dealt_panels import DealtPanels, panel_widths
from convalgos.cpu.runtime.threads import cached_by_threads, plan_threads
from convalgos.cpu.vectors import simd

# Rows of dy that fit the registers beside a number of vectors of x: {vectors: rows}. All are at one address,
# so that more fit than in `microkernel.REGISTER_TILES`.
OUTER_TILES = {
    64: {4: 6, 3: 8, 2: 12, 1: 16},  # 32 registers
    32: {2: 6, 1: 10},  # 16 registers
    16: {2: 4, 1: 8},
}  # even: a kernel has tiles of so many rows, of 1 and of 2 less
FIRST_CACHE = 0.5  # of it, for the panel of x of a block
MOST_BLOCK, LEAST_BLOCK = 256, 16  # pixels
SECOND_CACHE = 0.25  # of it, for the sums of a block of rows
PARTS = 8  # of the pixels, at most,
PART_PIXELS = 3072  # each of so many at least,
PART_ELEMENTS = 1 << 17  # and of at most so many elements of dw
UNEVEN = 1.07  # times the work of the average thread, that of the busiest, from which on it matters
# Cycles of a thread that makes two products of vectors in each; Xeon (Sapphire Rapids)
LOADS = 0.5  # of a pixel of a tile, for each load where these take longer than the products,
LATENCY = 4.0  # or until its sums are there,
LINES = 2.0  # for each line of dy, which comes from L2,
FAR, FAR_LINES = 2048, 3.0  # or where pixels of dy lie further apart (bytes) than is fetched ahead,
TILE = 60.0  # of a tile of a block, to begin and to end,
PACKING = 2.5  # and of a pixel, for each vector that goes into a panel


@dataclass(frozen=True)
class OuterBlocking(DealtPanels):
    """Tiles, blocks and parts. `problem` has x and dy swapped where `exchanged`: its x is in panels."""

    problem: ConvProblem
    exchanged: bool
    rows: int  # of a tile
    panels: int  # of a group
    parts: int = 1  # of the pixels
    row_blocks: int = 1  # of the rows of a group
    panel_blocks: int = 1  # of its panels

    @property
    def columns(self) -> int:
        """Of dw, of a group: channels of x."""
        return self.problem.w_shape[1]

    @property
    def vectors_of(self) -> int:
        """Of the columns of a group, the last one with lanes of padding."""
        return -(-self.columns // simd.lanes(self.problem.itemsize))

    @property
    def padded(self) -> int:
        """Columns of a group with those of padding."""
        return self.vectors_of * simd.lanes(self.problem.itemsize)

    @property
    def block(self) -> int:
        """Pixels whose panel of x stays in the first cache."""
        fitting = int(FIRST_CACHE * cache_sizes()[0]) // (self.panel * self.problem.itemsize)
        return max(LEAST_BLOCK, min(MOST_BLOCK, fitting))

    @property
    def most_rows(self) -> int:
        """Of a block of rows."""
        return -(-self.problem.gemm_n // self.row_blocks)

    @property
    def row_tiles(self) -> int:
        """Of a block of rows."""
        return -(-self.most_rows // self.rows)

    @property
    def units(self) -> int:
        return self.parts * self.problem.groups * self.row_blocks * self.panel_blocks

    @property
    def most_panels(self) -> int:
        """Of a block of panels."""
        return -(-self.panels // self.panel_blocks)

    @property
    def unit_bytes(self) -> int:
        """Of the sums of a unit."""
        return self.most_rows * min(self.padded, self.most_panels * self.panel) * self.problem.itemsize

    @property
    def reads(self) -> int:
        """Elements of x and dy that all units read of a pixel of a group."""
        return self.row_blocks * self.columns + self.panel_blocks * self.problem.gemm_n

    @property
    def sums_bytes(self) -> int:
        """Of all parts."""
        p = self.problem
        return whole_lines(self.parts * p.groups * p.gemm_n * self.padded * p.itemsize)

    @property
    def packed_bytes(self) -> int:
        """Of a task, a panel of x of a block, and a line apart."""
        return whole_lines(self.block * self.panel * self.problem.itemsize) + simd.LINE

    @property
    def spread(self) -> int:
        """Tiles that share the fetching of a line of all pixels of the next block."""
        line = simd.LINE // self.problem.itemsize
        columns = min(self.columns, self.most_panels * self.panel)
        lines = -(-self.most_rows // line) + -(-columns // line) + 2
        return max(1, self.row_tiles * self.most_panels // lines)

    @property
    def cycles(self) -> float:
        """Of all threads."""
        p = self.problem
        rows = self.most_rows / self.row_tiles
        lines = 1 + (rows - 1) * p.itemsize / simd.LINE
        lines *= LINES if p.K * p.itemsize <= FAR else FAR_LINES
        pixel = PACKING * self.vectors_of
        for count, vectors in panel_widths(self.vectors_of, self.panels):
            tile = max(rows * vectors / 2, LOADS * (rows + vectors), LATENCY)
            pixel += count * self.row_tiles * (tile + lines + TILE / self.block)
        return self.row_blocks * p.groups * p.gemm_m * pixel


@cached_by_threads(256)
def outer_blocking(problem: ConvProblem) -> OuterBlocking:
    """Of a 1x1 filter in channels_last: the tiles that suit it best, as it is or with x and dy swapped."""
    p: ConvProblem = problem.as_3d
    found = _of_tiles(p, False)
    if p.is_plain_product and p.groups == 1:
        found += _of_tiles(p.with_valid(x_shape=p.y_shape, w_shape=(p.C, p.gemm_n, 1, 1, 1)), True)
    return min(found, key=lambda cut: cut.cycles)


def _of_tiles(p: ConvProblem, exchanged: bool) -> list[OuterBlocking]:
    """A cut for each number of vectors of a tile."""
    needed, found = -(-p.w_shape[1] // simd.lanes(p.itemsize)), []
    # The parts are part of the answer's last bits: neither threads nor caches have a say.
    parts = max(1, min(PARTS, p.gemm_m // PART_PIXELS)) if p.K * p.w_shape[1] <= PART_ELEMENTS else 1
    threads, limit = plan_threads(), int(SECOND_CACHE * cache_sizes()[1])
    for widest, most in OUTER_TILES[vector_bytes()].items():
        if widest > needed:
            continue
        cut = _dealt(OuterBlocking(p, exchanged, most, -(-needed // widest), parts), threads, limit)
        rows = -(-cut.most_rows // cut.row_tiles)
        found.append(replace(cut, rows=rows + rows % 2))  # even, so that kernels are few
    return found


def _dealt(cut: OuterBlocking, threads: int, limit: int) -> OuterBlocking:
    """The blocks of rows and panels that share out evenly, have sums of at most `limit` bytes, and read
    least."""
    found = []
    for panel_blocks in sorted({n for e in range(9) for n in (1 << e, 3 << e) if n <= cut.panels}):
        of_panels = replace(cut, panel_blocks=panel_blocks)
        least = -(-of_panels.unit_bytes // limit)
        for row_blocks in range(least, max(least, cut.problem.gemm_n // cut.rows) + 1):
            tried = replace(of_panels, row_blocks=row_blocks)
            uneven = -(-tried.units // threads) * threads / tried.units
            found.append(((uneven if uneven > UNEVEN else 1.0, tried.reads), tried))
            if uneven <= UNEVEN:
                break
    return min(found, key=lambda pair: pair[0])[1]


def outer_kernels(size: int) -> Iterator[tuple[Callable[..., object], tuple[int, ...]]]:
    """(factory, parameters) of the kernels that any cut may ask for, of elements of so many bytes."""
    lanes, table = simd.lanes(size), OUTER_TILES[vector_bytes()]
    yield tile_sums.add_tile, (size, lanes)
    for vectors in range(1, max(table) + 1):
        yield outer_tiles.pack_channels, (size, lanes, vectors)
        for rows in range(2, max(most for widest, most in table.items() if widest >= vectors) + 1, 2):
            yield outer_tiles.sum_outer_tiles, (size, lanes, rows, vectors)
