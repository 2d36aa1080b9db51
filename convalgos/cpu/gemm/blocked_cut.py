"""How a layer is cut whose maps lie in blocks of channels: tiles of neighbours, blocks of these, parts of the
filters.

The inputs of a block of outputs stay in L2 while the panels of filters pass. Threads share the outputs, and
each of them reads all filters; or they share the filters, and each of them reads all inputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.layouts import BLOCKS
from convalgos.core.machine import Machine, cache_sizes, vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.core.problem_views import in_a_row
from convalgos.cpu.gemm import dealt_panels, packed_blocking
from convalgos.cpu.gemm.blocking import Blocks
from convalgos.cpu.gemm.offset_tables import tables_of_offsets
from convalgos.cpu.gemm.reached_tiles import (
    REACHED_FIELDS,
    passes_over_taps,
    reached_cycles,
    reached_taps,
    rows_of_block,
    tile_ends,
)
from convalgos.cpu.gemm.row_tiles import RowTile, runs_of, tile_table
from convalgos.cpu.layout.strides import map_strides
from convalgos.cpu.runtime.plan import CALL
from convalgos.cpu.runtime.threads import cached_by_threads, plan_threads
from convalgos.cpu.vectors import simd

# Rows of a tile by its vectors of filters: what the registers hold beside a vector of each and an input.
BLOCKED_TILES = {64: {1: 14, 2: 14, 3: 9, 4: 6}, 32: {1: 12, 2: 6, 3: 4}, 16: {1: 6, 2: 4}}
MOST_STRIDE = 4  # of tiles along a row
PASS = 0.5  # of the first cache, for the filters of a pass over a panel: they stay there for all tiles
ROOM = 0.4  # of L2, for the inputs of a block
# Cycles of a thread, two products of vectors in each; Xeon (Granite Rapids), layers of convbench.
SUMS, LOADS, TAP = 0.88, 1.1, 0.68  # times the products of a tap of a tile, or its loads, and beside them,
TILE, OUTPUT = 22.0, 0.8  # for a tile to begin and end, and for each of its vectors of y,
INPUT, COPIED = 0.02, 0.115  # for a byte of inputs, and where it is copied,
FILTER, STORED = 0.042, 0.05  # a byte of filters to come from beyond L2, and of y to leave it


@dataclass(frozen=True)
class BlockedCut(dealt_panels.DealtPanels, Blocks):
    """How the output is cut."""

    panels: int
    rows: int  # of a tile, at most
    parts: int  # of the filters
    by_tap: bool  # taps are outermost, not channels, and those that read padding alone are passed over

    @property
    def scratch_bytes(self) -> int:
        """Per task: the input of a block, where it is copied."""
        return whole_lines(self.input_elements * self.problem.itemsize)

    @property
    def inner(self) -> int:
        """Neighbouring inputs of an entry: the channels of a block, or the taps of a row of the kernel."""
        return self.unit if self.unit > 1 else self.problem.kernel[2]

    @property
    def entries(self) -> int:
        """Blocks of channels for each tap of the kernel, or channels for each row of it."""
        p = self.problem
        return -(-p.w_shape[1] // self.unit) * math.prod(p.kernel) // (1 if self.unit > 1 else self.inner)

    @property
    def whole(self) -> int:
        """Entries that are not cut short by the end of the channels."""
        if self.unit == 1:
            return self.entries
        return self.problem.w_shape[1] // self.unit * math.prod(self.problem.kernel)

    @cached_attribute
    def most_outputs(self) -> int:
        """`outputs_of_block`, on maps of any size."""
        return outputs_of_block(self.problem, self.rows)

    @property
    def step(self) -> int:
        """Elements between the inputs of neighbours."""
        return self.strides[4] * self.problem.stride[2]

    @property
    def chunk(self) -> int:
        """Entries of a pass over a panel: equal passes."""
        entry = self.inner * self.panel * self.problem.itemsize  # bytes
        most = max(1, int(PASS * cache_sizes()[0]) // entry)
        return -(-self.entries // -(-self.entries // most))

    def entry_offsets(self) -> np.ndarray:
        """(entries + 1,) input offsets: channels outermost, then the kernel, or the other way round; the last
        is only asked for."""
        p, channel = self.problem, self.strides[1]
        if self.unit > 1 and p.is_pointwise:
            places = np.arange(self.entries + 1) * (self.unit * channel)
            places[-1] = 0
            return places
        *taps, row = [(r, s * e) for r, s, e in zip(p.kernel, self.strides[2:], p.dilation, strict=True)]
        taps.append(row if self.unit > 1 else (1, 1))  # neighbours of a row are an entry of such maps
        blocks = (-(-p.w_shape[1] // self.unit), self.unit * channel), (1, 1)
        counts, steps = zip(*((*taps, *blocks) if self.by_tap else (*blocks, *taps)), strict=True)
        found: np.ndarray = tables_of_offsets(counts, counts, steps, self.entries + 1)[0]
        found[-1] = 0
        return found

    def tile_table(self) -> tuple[np.ndarray, tuple[RowTile, ...]]:
        """`row_tiles.tile_table` of a block."""
        p = self.problem
        ends = tile_ends(p, self.rows) if self.by_tap else ()
        short = p.N % self.images > 0
        return tile_table(self.block, p.spatial_out, self.rows, *self.tile_steps, short, ends)

    @property
    def tile_steps(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Elements of x and of y from one output to the next, along each dimension."""
        p, steps = self.problem, self.steps
        _, _, d, h, w = self.strides
        _, _, *of_y = map_strides(p.y_layout, p.K, p.spatial_out)
        return (d * steps[0], h * steps[1], w * p.stride[2]), (of_y[0], of_y[1], of_y[2])

    def reached_fields(self) -> dict[str, int | np.ndarray]:
        """What `reached_tiles.pass_of_tile` finds in a record."""
        p = self.problem
        *_, h, w = map_strides(p.y_layout, p.K, p.spatial_out)
        found: dict[str, int | np.ndarray] = dict.fromkeys(REACHED_FIELDS.split(), 0)
        if self.by_tap:
            found |= {"tap_entries": p.w_shape[1] // self.unit, "taps_w": p.kernel[2]}
            found |= {"row_taps": reached_taps(p, 1), "column_taps": reached_taps(p, 2)}
            found |= {"tile_row": h, "tile_column": w}
        return found

    @property
    def steps(self) -> tuple[int, int]:
        """Slices and rows of what is read from one output to the next."""
        p = self.problem
        return (
            1 if self.copied and p.kernel[0] == 1 else p.stride[0],
            1 if self.copied and p.kernel[1] == 1 else p.stride[1],
        )


def row_view(problem: ConvProblem) -> ConvProblem:
    """The 3-D view; the pixels of a pointwise problem without stride or padding are one long row."""
    if problem.is_plain_product:
        view: ConvProblem = in_a_row(problem, (1, 1, math.prod(problem.spatial)))
        return view
    return problem.as_3d


def tile_cycles(rows: float, vectors: float, taps: float) -> float:
    """Of a tile."""
    products = rows * vectors
    tap = SUMS * max(products, LOADS * (rows + vectors)) / 2 + TAP
    return taps * tap + TILE + OUTPUT * products


def lies_in_blocks(problem: ConvProblem) -> bool:
    """Whether y lies in blocks of channels, and x does so, too, or has rows for those of a kernel."""
    p = problem
    if p.y_layout not in BLOCKS or p.is_empty:
        return False
    rows = p.layout == "channels_first" and p.kernel[-1] > 1 and p.dilation[-1] == 1
    return (rows or p.layout == p.y_layout) and p.stride[-1] <= MOST_STRIDE


@cached_by_threads(256)
def blocked_cut(problem: ConvProblem) -> tuple[float, BlockedCut]:
    """The cycles of the busiest thread, and the cut that takes the fewest."""
    return min(tried_cuts(problem), key=lambda found: found[0])


def cut_like(problem: ConvProblem, known: BlockedCut) -> BlockedCut:
    """The cut of a problem in the tiles, panels and parts of one for other sizes of its maps."""
    return _cut(row_view(problem), known.panels, known.rows, known.parts)


def _cut(p: ConvProblem, panels: int, rows: int, parts: int) -> BlockedCut:
    """In tiles of so many rows, for panels and parts of the filters. p: `row_view`."""
    threads = plan_threads() if parts == 1 else 1
    if passes_over_taps(p):
        panel = -(-p.gemm_n // panels)
        block = (p.spatial_out[0], rows_of_block(p, panel, threads), p.spatial_out[2])
        return BlockedCut(p, 1, block, False, panels, rows, parts, True)
    copied = any(pad != (0, 0) for pad in p.padding)  # the input of a block, with its border
    images, block = cut_outputs(p, rows, threads)
    return BlockedCut(p, images, block, copied, panels, rows, parts, False)


def tried_cuts(problem: ConvProblem) -> list[tuple[float, BlockedCut]]:
    """Cuts in tiles of all shapes, whose outputs or filters the threads share, and the cycles of each."""
    p, threads = row_view(problem), plan_threads()
    needed = -(-p.gemm_n // simd.lanes(p.itemsize))
    found = []
    for vectors, rows in BLOCKED_TILES[vector_bytes()].items():
        count = -(-needed // vectors)
        if -(-needed // count) != vectors:
            continue  # the same panels as of narrower tiles
        for parts in {1, min(threads, needed)}:
            cut = _cut(p, dealt_panels.panels_of_parts(needed, count, parts), rows, parts)
            found.append((cut_cycles(cut, threads), cut))
    return found


def outputs_of_block(p: ConvProblem, rows: int) -> int:
    """Outputs whose inputs take their share of L2, or at least those of a tile of so many rows."""
    pixel = p.w_shape[1] * p.itemsize * math.prod(min(s, r) for s, r in zip(p.stride, p.kernel, strict=True))
    return max(rows, int(ROOM * cache_sizes()[1]) // pixel)


def cut_outputs(p: ConvProblem, rows: int, threads: int) -> tuple[int, tuple[int, int, int]]:
    """Images and outputs of a block, whose inputs stay in L2, and of which there are some for each thread.

    Args:
        rows: of a tile.
    """
    o, h, w = p.spatial_out
    pixels = outputs_of_block(p, rows)
    if images := images_of_block(p.N, o * h * w, pixels, threads):
        return images, (o, h, w)
    shares = shares_of_image(p.N * p.groups, threads)
    if h == 1 or w > pixels:
        return 1, (1, 1, columns_of_block(w, rows, pixels, shares))
    blocks = max(-(-h // max(1, pixels // w)), shares)
    blocks = min(h, -(-blocks // shares) * shares)
    return 1, (1, -(-h // blocks), w)


def images_of_block(images: int, outputs: int, most: int, threads: int) -> int:
    """Whole images of a block of at most so many outputs; 0 where it is a part of one."""
    if outputs > most // 2 or images == 1:
        return 0
    blocks = -(-images // min(images, most // outputs))
    return -(-images // min(images, -(-blocks // threads) * threads))


def shares_of_image(maps: int, threads: int) -> int:
    """Threads that take parts of the same image."""
    return threads if maps % threads and maps < 4 * threads else 1


def columns_of_block(columns: int, rows: int, most: int, shares: int) -> int:
    """Outputs of a block of a row, in whole tiles of at most so many rows."""
    blocks = -(-max(shares, -(-columns // most)) // shares) * shares
    tiles = -(-columns // rows)
    return min(columns, -(-tiles // blocks) * -(-columns // tiles))


def blocked_seconds(problem: ConvProblem, machine: Machine) -> float:
    """Predicted time of a run."""
    cycles = blocked_cut(problem)[0]
    return CALL + machine.launch + packed_blocking.seconds(cycles, problem, machine)


def cut_cycles(cut: BlockedCut, threads: int) -> float:
    """Of the busiest thread."""
    p = cut.problem
    images, slices, rows, columns = cut.images, *cut.block
    high = runs_of(columns, rows, cut.rows)
    tiles = -(-columns // cut.rows)
    widths = dealt_panels.summed_widths(p.gemm_n, cut.panels, p.itemsize)
    if cut.by_tap:
        ends = tile_ends(p, cut.rows)
        row = sum(n * reached_cycles(p, ends, tile_cycles, vectors) for n, vectors in widths)
        sums = slices * rows * row
    else:
        row = sum(n * tile_cycles(high * columns / tiles, vectors, p.gemm_k) for n, vectors in widths)
        sums = images * slices * rows / high * tiles * row
    blocks = math.prod(cut.blocks)
    full = min(1.0, p.gemm_m / (blocks * cut.pixels))  # the last blocks are short
    inputs = cut.images * p.w_shape[1] * math.prod(cut.spans) * p.itemsize
    items = -(-blocks * p.groups * cut.parts // threads)  # of a thread
    filters = p.w_bytes / cut.parts / min(p.groups, threads)
    outputs = max(0, p.y_bytes - threads * cache_sizes()[1]) / threads
    item = sums * full / cut.parts + inputs * (INPUT + COPIED * cut.copied)
    return items * item + filters * FILTER + outputs * STORED
