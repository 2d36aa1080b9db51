"""How a product of rows by filters is cut: panels that suit any number of rows, and tiles that suit these."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from convalgos.core.machine import vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import dealt_panels
from convalgos.cpu.gemm.blocked_cut import tile_cycles
from convalgos.cpu.runtime.threads import cached_by_threads, plan_threads
from convalgos.cpu.vectors import simd

# Rows of tiles by their vectors of filters: few, as each is a kernel.
TILE_ROWS = {
    64: {4: (6, 4), 3: (8, 6, 4), 2: (8, 4), 1: (8, 4)},
    32: {2: (6, 4), 1: (8, 6, 4)},
    16: {2: (4, 3), 1: (6, 4, 3)},
}
USUAL = 12  # rows for which panels are made: few, as more hide what theirs cost


@dataclass(frozen=True)
class UnpackedRowsCut(dealt_panels.DealtPanels):
    """How the product is cut."""

    problem: ConvProblem  # the 3-D view, of maps of some size
    panels: int
    rows: int  # of inputs
    tall: int  # of these, that a tile has
    tasks: int

    @property
    def tiles(self) -> int:
        """Of all rows; the last one may have fewer."""
        return -(-self.rows // self.tall)

    def of_rows(self, rows: int) -> UnpackedRowsCut:
        """That of so many rows."""
        p, vectors = self.problem, self.vectors_of
        tall = best_height(rows, p.gemm_k, vectors, self.panels, self.tasks)[1]
        return UnpackedRowsCut(p, self.panels, rows, tall, self.tasks)

    @property
    def cycles(self) -> float:
        """Of the busiest task."""
        p = self.problem
        return product_cycles(self.rows, p.gemm_k, self.vectors_of, self.panels, self.tall, self.tasks)


@lru_cache(1024)
def heights(vectors: int, panels: int) -> set[int]:
    """Rows of tiles that wide panels have as well as narrow ones, of so many vectors in some panels."""
    kernels = TILE_ROWS[vector_bytes()]
    return {*kernels[-(-vectors // panels)]}.intersection(kernels[vectors // panels])


def product_cycles(rows: int, taps: int, vectors: int, panels: int, tall: int, tasks: int) -> float:
    """Of the first task, whose panels are the wider ones, and which has as many tiles as any."""
    tiles, rest = -(-rows // tall), (rows - 1) % tall + 1
    last = min(n for n in heights(vectors, panels) if n >= rest)

    def of_panel(width: int) -> float:
        return (tiles - 1) * tile_cycles(tall, width, taps) + tile_cycles(last, width, taps)

    (wider, wide), (_, narrow) = dealt_panels.panel_widths(vectors, panels)
    first = -(-panels * tiles // tasks) / tiles  # panels, or parts of one
    most = min(first, wider)
    return most * of_panel(wide) + (first - most) * (of_panel(narrow) if first > most else 0.0)


def best_height(rows: int, taps: int, vectors: int, panels: int, tasks: int) -> tuple[float, int]:
    """(cycles, rows of a tile): high tiles, or such that hardly any rows lack."""
    tried = heights(vectors, panels)
    return min((product_cycles(rows, taps, vectors, panels, n, tasks), n) for n in tried)


@lru_cache(1024)
def panels_of_filters(filters: int, taps: int, dtype_bytes: int, threads: int) -> int:
    """Those that suit USUAL rows: for any number of rows, so that filters are packed once for all batches."""
    vectors = -(-filters // simd.lanes(dtype_bytes))
    counts = [-(-vectors // wide) for wide in TILE_ROWS[vector_bytes()]]
    tried = {*counts, *(dealt_panels.panels_of_parts(vectors, count, threads) for count in counts)}
    fitting = [n for n in tried if -(-vectors // n) in TILE_ROWS[vector_bytes()]]
    return min(fitting, key=lambda n: (best_height(USUAL, taps, vectors, n, threads)[0], n))


@cached_by_threads(256)
def unpacked_rows_cut(problem: ConvProblem) -> UnpackedRowsCut:
    """Panels that suit any number of rows, and the tiles that suit these ones."""
    p, threads = problem.as_3d, plan_threads()
    count = panels_of_filters(p.gemm_n, p.gemm_k, p.itemsize, threads)
    return UnpackedRowsCut(p, count, 0, 0, threads).of_rows(p.gemm_m)
