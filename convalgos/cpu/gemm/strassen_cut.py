"""How a 1x1 layer is cut for Strassen's products: blocks of pixels, passes over channels, panels of filters.

The operands of a block stay in L2 while the panels of filters pass, and those of a pass over a panel while
the tiles of the block do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from convalgos.core import profiles
from convalgos.core.allocator import whole_lines
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import cache_sizes, vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import packed_blocking, strassen_scheme
from convalgos.cpu.gemm.blocked_cut import BLOCKED_TILES, row_view
from convalgos.cpu.gemm.strassen_scheme import SUM_ALONE
from convalgos.cpu.runtime.threads import cached_by_threads, plan_threads
from convalgos.cpu.vectors import simd

PASS = 0.31  # of L2, for the filters of a pass over a panel
ROOM = 0.7  # of L2, for the operands of a block
LEAST_ROWS = 8  # of a tile: smaller ones read too many filters
MOST_ROWS = 14  # of a tile; Zen 4, with one vector of filters, where 28 were slower
FAR = 0.25  # of the last cache: where x and y take more, x comes from memory; and where filters do, these
# Cycles of a thread, two products of vectors in each, of layers of convbench: on Zen 4, whose products of 64
# bytes take both of its units, and on a Xeon (AVX-512 and AMX), whose products hide little of the rest. In
# between they go by what lines outside of the first cache cost: a fifth of the way on Zen 5. For
CYCLES = {
    "product": (0.519, 0.5),  # a product of vectors,
    "step": (19.5, 142.0),  # a tile of an operand to begin and end,
    "moved": (0.277, 0.52),  # a vector of sums to be read or written on the way,
    "packed": (0.784, 9.0),  # a vector of x, or of operands, which is written and read,
    "stored": (4.44, 11.8),  # a vector of y,
    "turned": (2.69, 5.7),  # and where pixels are neighbours in it;
    "strided": (2.0, 3.5),  # a vector of x that lies a stride from the next one, and is copied;
    "far": (0.092, 0.65),  # a byte of x from memory,
    "filter": (0.0062, 0.0755),  # of filters,
    "far filter": (0.014, 0.0),  # beyond that of those from memory,
    "spilled": (0.0118, 0.059),  # and of what does not fit L2, again for each panel
}
LEAST_WAIT = 0.19  # `packed_blocking.loss_to_lines` of a Zen 4
ALIKE = 2.0  # times as many outputs, up to which maps are cut into blocks of about the same size
OF_LAYER = ("lanes", "products", "panels", "passes", "depth", "section", "pass_bytes")  # maps of all sizes


@dataclass(frozen=True)
class StrassenCut:
    """Parts of pixels, channels and filters, and what is taken of them at once."""

    problem: ConvProblem  # all pixels of a map in a row
    side: int  # parts: 2 for one level, 4 for two
    vectors: int  # of filters of a tile
    blocks: int  # of the pixels of an image
    parts: int  # of the panels, for different threads

    @cached_attribute
    def lanes(self) -> int:
        return simd.lanes(self.problem.itemsize)

    @cached_attribute
    def image(self) -> int:
        """Pixels."""
        return int(math.prod(self.problem.spatial_out))

    @cached_attribute
    def products(self) -> int:
        return strassen_scheme.product_count(self.side)

    @cached_attribute
    def panels(self) -> int:
        """Of filters, each of `side` parts of a tile's vectors; the last one with zeros."""
        return -(-self.problem.K // (self.side * self.vectors * self.lanes))

    @cached_attribute
    def pixels(self) -> int:
        """Of a part of a block. Where a block has fewer in all, its last parts overlap."""
        return math.ceil(math.ceil(self.image / self.blocks) / self.side)

    @cached_attribute
    def tiles(self) -> int:
        """Of a part of a block."""
        return -(-self.pixels // most_rows(self.vectors))

    @cached_attribute
    def rows(self) -> int:
        """Pixels of the first tiles; the others have one less."""
        return -(-self.pixels // self.tiles)

    @cached_attribute
    def whole_tiles(self) -> int:
        """Tiles of so many rows."""
        return self.pixels - self.tiles * (self.rows - 1)

    @cached_attribute
    def passes(self) -> int:
        """Over the channels."""
        blocks = -(-self.problem.C // (self.lanes * self.side))  # of a part
        filters = self.products * self.lanes * self.vectors * vector_bytes()  # bytes, of one of these
        return -(-blocks // max(1, int(PASS * cache_sizes()[1]) // filters))

    @cached_attribute
    def depth(self) -> int:
        """Blocks of channels of a part in a pass."""
        return -(-self.problem.C // (self.lanes * self.side * self.passes))

    @cached_attribute
    def section(self) -> int:
        """Blocks of channels of a part; zeros beyond C."""
        return self.passes * self.depth

    @cached_attribute
    def pass_bytes(self) -> int:
        """Of the filters of a pass over a panel."""
        return self.products * self.depth * self.lanes * self.vectors * vector_bytes()

    @cached_attribute
    def operand_bytes(self) -> int:
        """From one operand of the pixels to the next: some lines more, to lie in other sets of a cache."""
        return (self.section * self.pixels + 9) * vector_bytes()

    @property
    def tile_bytes(self) -> int:
        return self.rows * self.vectors * vector_bytes()

    @property
    def holds_sums(self) -> bool:
        """Whether the sums of a panel are kept for all tiles of a block: to be added to by the next pass, or
        to be stored in long rows of pixels."""
        return self.passes > 1 or self.problem.y_layout == "channels_first"

    @property
    def sums_bytes(self) -> int:
        """From the sums of one part of y to those of the next."""
        return self.pixels * self.vectors * vector_bytes() if self.holds_sums else self.tile_bytes

    @property
    def turned_bytes(self) -> int:
        """Of a block of channels of all pixels, vectors of channels; 0 where x has these as neighbours."""
        if self.problem.layout != "channels_first" and self.problem.is_plain_product:
            return 0
        return (-(-self.image // self.blocks) + self.lanes) * vector_bytes()

    @cached_attribute
    def scratch_fields(self) -> dict[str, int]:
        """Where each table and array begins in the scratch of a task, and its size."""
        squares = self.side**2
        sizes = {
            "sources_at": self.side * 3 * 8, "starts_at": self.side * 8,
            "places_at": strassen_scheme.place_count(self.side) * 8,
            "turned_at": self.side * self.turned_bytes, "packed_at": self.products * self.operand_bytes,
            "sums_at": squares * self.sums_bytes, "partial_at": squares * self.tile_bytes,
            "way_at": 2 * self.tile_bytes,
        }  # fmt: skip
        found, at = {}, 0
        for name, size in sizes.items():
            found[name] = at
            at += whole_lines(size)
        return found | {"scratch_stride": at}

    @property
    def scratch_bytes(self) -> int:
        """Per task."""
        return self.scratch_fields["scratch_stride"]


@cache
def _cycles() -> dict[str, float]:
    """Those of `CYCLES` for this machine; of narrower vectors, of which as many come from the caches in a
    cycle as on Zen 4, the first."""
    waiting = max(0.0, packed_blocking.loss_to_lines() - LEAST_WAIT) / (1 - LEAST_WAIT)
    return {name: least + waiting * (most - least) for name, (least, most) in CYCLES.items()}


def takes_stride(problem: ConvProblem) -> bool:
    """Whether the channels of a pixel are neighbours in x, and its pixels lie in a plane."""
    return problem.layout != "channels_first" and bool(problem.as_3d.spatial_out[0] == 1)


def most_rows(vectors: int) -> int:
    """Of a tile of so many vectors of filters."""
    return min(MOST_ROWS, BLOCKED_TILES[vector_bytes()][vectors])


def vectors_of_tiles() -> tuple[int, ...]:
    """Those that `tile_vectors` may tell on this machine."""
    return (1,) if profiles.units_are_narrow() else (1, 2)


def tile_vectors(problem: ConvProblem) -> int:
    """Vectors of filters of a tile."""
    return 1 if profiles.units_are_narrow() or problem.gemm_n <= simd.lanes(problem.itemsize) else 2


@cached_by_threads(256)
def strassen_cut(problem: ConvProblem, side: int) -> tuple[float, StrassenCut]:
    """The cycles of the busiest thread, and the cut that takes the fewest."""
    threads = plan_threads()
    tried = [(strassen_cycles(cut, threads), cut) for cut in strassen_cuts(problem, side)]
    return min(tried, key=lambda found: found[0])


def strassen_cuts(problem: ConvProblem, side: int) -> list[StrassenCut]:
    """Cuts in which threads share the pixels, or the filters, in blocks that fit L2 or are half as large."""
    p, threads = row_view(problem), plan_threads()
    vectors = tile_vectors(p)
    whole = StrassenCut(p, side, vectors, 1, 1)
    most = max(1, whole.image // (LEAST_ROWS * side))  # blocks
    fewest = min(most, math.ceil(whole.products * whole.operand_bytes / (ROOM * cache_sizes()[1])))
    tried = set()
    for blocks in {fewest, min(most, 2 * fewest)}:
        even = blocks if p.N % threads == 0 else -(-blocks // threads) * threads
        tried.add((min(even, whole.image), 1))
        if whole.panels >= threads > 1:
            tried.add((blocks, threads))
    return [StrassenCut(p, side, vectors, *cut) for cut in sorted(tried)]


def strassen_cut_like(problem: ConvProblem, known: StrassenCut) -> StrassenCut | None:
    """The cut of a problem in about the blocks of one for other sizes of its maps, with the same filters;
    None where it has much more work or less, or much smaller blocks."""
    p, threads = row_view(problem), plan_threads()
    pixels = math.prod(p.spatial_out)
    grown = p.gemm_m / known.problem.gemm_m
    if not 1 / ALIKE <= grown <= ALIKE or known.parts not in (1, threads):
        return None
    blocks = -(-pixels * known.blocks // known.image)
    if known.parts == 1 and p.N % threads:
        blocks = -(-blocks // threads) * threads
    if blocks > max(known.blocks, pixels // (LEAST_ROWS * known.side)):
        return None
    cut = StrassenCut(p, known.side, known.vectors, blocks, known.parts)
    cut.__dict__.update({name: getattr(known, name) for name in OF_LAYER})
    return cut


def strassen_cycles(cut: StrassenCut, threads: int) -> float:
    """Of the busiest thread."""
    items = -(-cut.problem.N * cut.blocks * cut.parts // threads)
    cycles = _cycles()
    return items * sum(cycles[name] * count for name, count in item_work(cut).items())


def item_work(cut: StrassenCut) -> dict[str, float]:
    """What is done for a part of the panels of a block: how often, by the names of `CYCLES`."""
    p, panels = cut.problem, -(-cut.panels // cut.parts)
    passes = panels * cut.passes
    rows = cut.pixels * cut.vectors
    operands = cut.products * cut.operand_bytes
    stored = panels * cut.side**2 * rows  # vectors
    x_bytes = p.N * p.C * cut.image * p.itemsize
    far = x_bytes + p.y_bytes > FAR * cache_sizes()[2]
    return {
        "product": passes * cut.products * cut.depth * cut.lanes * rows,
        "step": passes * cut.products * cut.tiles,
        "moved": passes * moves(cut.side) * rows,
        "packed": (cut.side**2 + 2 * cut.products) * cut.section * cut.pixels,
        "stored": stored,
        "turned": stored if p.y_layout == "channels_first" else 0,
        "strided": 0 if p.is_plain_product else cut.side**2 * cut.section * cut.pixels,
        "far": x_bytes / (p.N * cut.blocks) if far else 0,
        "filter": passes * cut.pass_bytes,
        "far filter": passes * cut.pass_bytes if _filters_are_far(cut) else 0,
        "spilled": panels * max(0, operands + 2 * cut.pass_bytes - cache_sizes()[1]),
    }


def _filters_are_far(cut: StrassenCut) -> bool:
    """Whether each block reads the filters from memory anew."""
    return cut.panels * cut.passes * cut.pass_bytes > FAR * cache_sizes()[2]


@cache
def moves(side: int) -> int:
    """Tiles that the steps of a tile read and write."""
    table = strassen_scheme.steps_of_parts(side)
    alone = table["operand"] == SUM_ALONE
    used = [np.count_nonzero(table[name]) for name in table.dtype.names or () if name != "operand"]
    return int(sum(used) + 2 * np.count_nonzero(alone))


def least_cycles(problem: ConvProblem, side: int) -> float:
    """A lower bound of the cycles of the best cut: all pixels in full tiles, and all from the caches."""
    p, lanes, cycles = problem, simd.lanes(problem.itemsize), _cycles()
    products = strassen_scheme.product_count(side)
    pixels: float = p.N * math.prod(p.spatial_out) / (side * plan_threads())  # of a part
    blocks, panels = -(-p.C // (lanes * side)), -(-p.K // (lanes * side))  # of channels, of single vectors
    return pixels * (
        cycles["product"] * panels * products * blocks * lanes
        + cycles["step"] * panels * products / (MOST_ROWS * tile_vectors(p))
        + (cycles["moved"] * moves(side) + cycles["stored"] * side**2) * panels
        + cycles["packed"] * (side**2 + 2 * products) * blocks
    )
