"""How a layer is cut whose float32 are split for matrix tiles: blocks of outputs, or parts of the filters.

The input of a block is split into scratch that stays in L2, behind its border, so that the inputs of a tile
of outputs are rows at equal distances, also from one row of the map to the next: tiles run over all positions
of the split rows, of which those behind the end of a row of outputs are computed in vain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.layouts import BLOCKS
from convalgos.core.machine import Machine, cache_sizes, vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm.blocked_cut import row_view
from convalgos.cpu.gemm.digit_terms import HEAD
from convalgos.cpu.gemm.split_forms import BRAIN_FLOATS, LANES, SplitForm
from convalgos.cpu.gemm.split_terms import CHANNELS, TERMS, TILE_BYTES
from convalgos.cpu.runtime.filter_reads import beyond_l3_seconds
from convalgos.cpu.runtime.plan import CALL
from convalgos.cpu.runtime.threads import cached_by_threads, plan_threads

ROWS, ACROSS = 16, 2  # pixels of a matrix tile, and tiles of pixels and of filters at once
PAIR = ROWS * ACROSS
WIDTH = 64  # bytes of a row of a tile
# Entries of a pass over a panel: 96 KiB of filters, that all tiles of a block meet from L2; of digits 24 KiB,
# as products go through them once for each sum
CHUNK, DIGIT_CHUNK = 16, 4
# Shares of L2, for the split input of a block, where the filter takes more than that, and where it does not
ROOM, NEAR = 0.4, 0.12
TRIED = 12  # numbers of blocks
# Cycles of a thread in which float32 has its peak; Xeon (Sapphire Rapids), 616 layers of one to eight images
TILE_BASE, TILE_ROW = 0.64, 0.0225  # of the products of a tile: over those of 16 rows, and of each row
ALONE = 0.9  # more for a tile without a second one, whose sums wait for each other
AHEAD = 0.42  # times the cycles of splitting, between the products of another block
BEGUN = 7e-6  # seconds: small layers of networks take longer than they do one after the other
FILTER_LINE = 2.4  # of a line of the filter that comes from beyond L2 beside the products
# Of the time in which x and y are moved, which the products do not hide; 40 layers of channels_last, forward
# and gradients of the input, half of them of few channels on large maps
SHOWN_MOVES = 0.6


def why_not_split(problem: ConvProblem, form: SplitForm = BRAIN_FLOATS) -> str | None:
    """Why products cannot be of split float32, or None."""
    if reason := form.engine.missing():
        return reason
    if problem.dtype != "float32":
        return f"splits float32 only; x is {problem.dtype}"
    if vector_bytes() != 64:
        return "takes vectors of 64 bytes only"
    p = problem.as_3d
    if p.spatial[0] > 1 or p.kernel[0] > 1 or p.padding[0] != (0, 0):
        return "takes one and two spatial dimensions only"
    return None


def split_roundings(products: float) -> float:
    """Products of a sum of float32 whose error is that of so many split ones on matrix tiles.

    A tile sums the even and the odd ones of its CHANNELS from zero, and adds both to the sum of the tiles
    before: k products err by (CHANNELS / 4 * k + (k / CHANNELS)^2 * CHANNELS / 2)^(1/2), and by
    (k^2 / 2)^(1/2) one after the other.
    """
    return min(products, CHANNELS / 2 + products / CHANNELS)


@dataclass(frozen=True)
class SplitCut:
    """Sizes are of the 2-D view."""

    problem: ConvProblem  # the 3-D view, of one slice
    images: int  # of a block: more than one where it holds whole ones
    rows: int  # of outputs of a block,
    columns: int  # and of one of them
    parts: int  # of the filters, which threads share
    form: SplitForm = BRAIN_FLOATS

    @property
    def kernel(self) -> tuple[int, int]:
        _, high, wide = self.problem.kernel
        return high, wide

    @cached_attribute
    def steps(self) -> tuple[int, int]:
        """Rows and pixels of x from one that is split to the next: those that no tap reads are left out."""
        (high, wide), (_, step_h, step_w) = self.kernel, self.problem.stride
        return step_h if high == 1 else 1, step_w if wide == 1 else 1

    @cached_attribute
    def strides(self) -> tuple[int, int]:
        """Split rows and pixels from one output to the next."""
        _, step_h, step_w = self.problem.stride
        return step_h // self.steps[0], step_w // self.steps[1]

    @cached_attribute
    def phase_rows(self) -> int:
        """Split rows of an image of each phase of the stride: those of outputs below each other follow on."""
        reach = (self.rows - 1) * self.strides[0] + self.problem.kernel_extent[1]
        return -(-reach // self.strides[0])

    @cached_attribute
    def pitch(self) -> int:
        """Pixels of a split row: whole strides."""
        reach = (self.columns - 1) * self.strides[1] + self.problem.kernel_extent[2]
        return -(-reach // self.strides[1]) * self.strides[1]

    @cached_attribute
    def positions(self) -> int:
        """From one row of outputs to the next."""
        return self.pitch // self.strides[1]

    @cached_attribute
    def outputs(self) -> int:
        """Positions of a block, from its first output to its last one."""
        behind = (self.images - 1) * self.phase_rows + self.rows - 1
        return behind * self.positions + self.columns

    @cached_attribute
    def tile(self) -> int:
        """Positions of a tile: even tiles."""
        return -(-self.outputs // -(-self.outputs // ROWS))

    @cached_attribute
    def blocks(self) -> tuple[int, int, int]:
        """Along images, rows and columns."""
        _, rows, columns = self.problem.spatial_out
        return -(-self.problem.N // self.images), -(-rows // self.rows), -(-columns // self.columns)

    @cached_attribute
    def channel_blocks(self) -> int:
        return -(-self.problem.C // self.form.channels)

    @cached_attribute
    def vectors(self) -> int:
        """Of filters."""
        return -(-self.problem.K // LANES)

    @cached_attribute
    def panels(self) -> int:
        return -(-self.vectors // ACROSS)

    @cached_attribute
    def entries(self) -> int:
        return self.channel_blocks * math.prod(self.kernel)

    @cached_attribute
    def plane_bytes(self) -> int:
        """Of a term of a block of channels."""
        return self.strides[0] * self.images * self.phase_rows * self.pitch * WIDTH

    @cached_attribute
    def term_bytes(self) -> int:
        """Of a term of all channels; behind it lies what the last tile may read."""
        return self.channel_blocks * self.plane_bytes + ROWS * self.strides[1] * WIDTH

    @cached_attribute
    def splits_ahead(self) -> bool:
        """Whether the input of a block is split beside the products of the one before: where it is a run of
        pixels, in whole vectors of channels."""
        p = self.problem
        in_vectors = not self.form.scaled and p.layout in BLOCKS and p.C % CHANNELS == 0
        row = p.is_plain_product and self.images == self.rows == 1 and math.prod(self.blocks) > 1
        return in_vectors and row and self.panels >= 2 * self.parts

    @cached_attribute
    def input_bytes(self) -> int:
        """Of the split input of a block."""
        return int(whole_lines(TERMS * self.term_bytes))

    @cached_attribute
    def streamed(self) -> bool:
        """Whether a block is one tile of digits: the filter is read from its first byte to its last one."""
        return self.form.scaled and self.outputs <= ROWS

    @cached_attribute
    def passes(self) -> int:
        """Entries of a pass over a panel."""
        if self.streamed:
            return self.entries
        return DIGIT_CHUNK if self.form.scaled else CHUNK

    @cached_attribute
    def sums_bytes(self) -> int:
        """Of the tiles of a block by a panel; where one pass does it, of those that are summed at once."""
        tiles = ACROSS if self.entries <= self.passes else -(-self.outputs // self.tile) + 1
        return self.form.sums * tiles * ACROSS * TILE_BYTES

    @property
    def units_bytes(self) -> int:
        """Of the units of the split pixels of a block, or of its positions."""
        pixels = self.strides[0] * self.images * self.phase_rows * self.pitch
        return int(whole_lines(4 * (max(pixels, self.outputs) + ROWS)) + HEAD) if self.form.scaled else 0

    def scratch_fields(self) -> dict[str, int]:
        """Where things begin in the scratch of a task, and its size."""
        ahead = self.input_bytes if self.splits_ahead else 0
        units = self.input_bytes + ahead
        sums = units + self.units_bytes
        return {
            "ahead_bytes": ahead, "units_at": units, "sums_at": sums,
            "scratch_stride": sums + self.sums_bytes, "group_bytes": self.sums_bytes // self.form.sums,
        }  # fmt: skip

    @cached_attribute
    def scratch_bytes(self) -> int:
        """Of a task."""
        return self.scratch_fields()["scratch_stride"]

    def entry_offsets(self) -> np.ndarray:
        """(entries,) bytes from the first term of a position to what each entry reads."""
        (high, wide), (_, step_h, step_w) = self.kernel, self.problem.dilation
        reach, row = np.arange(high) * step_h, self.pitch * WIDTH
        rows = (reach % self.strides[0] * self.images * self.phase_rows + reach // self.strides[0]) * row
        columns = np.arange(wide) * step_w * WIDTH
        channels = np.arange(self.channel_blocks) * self.plane_bytes
        offsets: np.ndarray = (channels[:, None, None] + rows[:, None] + columns).ravel().astype(np.int64)
        return offsets


@cached_by_threads(256)
def split_cut(problem: ConvProblem, form: SplitForm = BRAIN_FLOATS) -> SplitCut:
    """The cut of the fewest cycles of the busiest thread."""
    p, threads = row_view(problem), plan_threads()
    parts = {1, min(threads, -(-p.K // (ACROSS * LANES)))}
    return min((cut for n in parts for cut in _cuts(p, n, form)), key=lambda cut: split_cycles(cut, threads))


def split_cut_like(problem: ConvProblem, known: SplitCut) -> SplitCut | None:
    """The cut with as many parts of the filters as one for other sizes of the maps, in blocks about as large;
    None where these do not stay in L2."""
    p, threads = row_view(problem), plan_threads()
    cuts = list(_cuts(p, known.parts, known.form, known))
    found = min(cuts, key=lambda cut: split_cycles(cut, threads)) if len(cuts) > 1 else cuts[0]
    return found if found.scratch_bytes <= cache_sizes()[1] else None


def _cuts(p: ConvProblem, parts: int, form: SplitForm, near: SplitCut | None = None) -> Iterator[SplitCut]:
    """Blocks whose split input has room in L2.

    Args:
        near: a cut for other sizes of the maps, which tells about how many blocks there are.
    """
    _, rows, columns = p.spatial_out
    whole = SplitCut(p, 1, rows, columns, parts, form)
    room = cache_sizes()[1] * (ROOM if form.filter_bytes(p) / parts > ROOM * cache_sizes()[1] else NEAR)
    most = TERMS * whole.term_bytes / room  # pieces of an image
    shares = plan_threads() if parts == 1 else 1
    if most <= 1:
        yield SplitCut(p, min(int(1 / most), -(-p.N // shares)), rows, columns, parts, form)
    least = max(2, math.ceil(most))
    units = max(rows, -(-columns // PAIR))
    tried = range(min(least, units), min(units, least + TRIED) + 1)
    for count in tried if near is None else _counts_near(near, rows * columns, tried, shares):
        if rows > 1:
            yield SplitCut(p, 1, -(-rows // count), columns, parts, form)
        else:
            yield SplitCut(p, 1, 1, min(columns, -(-columns // (count * PAIR)) * PAIR), parts, form)


def _counts_near(near: SplitCut, pixels: int, tried: Sequence[int], threads: int) -> set[int]:
    """Of the numbers of blocks that are tried those of a known cut: as many, and blocks as large."""
    known = near.blocks[1] * near.blocks[2]
    count = round(known * pixels / math.prod(near.problem.spatial_out))
    found = {known, count - 1, count, count + 1, count // threads * threads, -(-count // threads) * threads}
    return {min(max(n, tried[0]), tried[-1]) for n in found}


def split_cycles(cut: SplitCut, threads: int, product: float = 16.0) -> float:
    """Of the busiest thread.

    Args:
        product: of the products of two matrix tiles.
    """
    p = cut.problem
    tiles = -(-cut.outputs // cut.tile)
    paired = tiles + ALONE * (tiles % ACROSS)
    form, nbytes = cut.form, cut.form.filter_bytes(p)
    products = products_of_tile(cut) * product * form.waiting * (TILE_BASE + TILE_ROW * cut.tile)
    read = (
        cut.plane_bytes
        / WIDTH
        * cut.channel_blocks
        * (form.channels / CHANNELS)
        * form.split
        * (AHEAD if cut.splits_ahead else 1.0)
    )
    written = form.output * tiles * cut.tile * cut.vectors
    blocks = math.prod(cut.blocks)
    item = read + (paired * products + written) / cut.parts
    full = p.gemm_m / (blocks * cut.images * cut.rows * cut.columns)
    items = max(-(-blocks * cut.parts // threads) * full, blocks * cut.parts * full / threads)
    filters = nbytes / cut.parts / 64 * FILTER_LINE
    stays = nbytes <= cut.parts * ROOM * cache_sizes()[1]
    far = filters * (1 if stays else max(1, blocks * cut.parts / threads))
    return items * item + far


def products_of_tile(cut: SplitCut) -> int:
    """Products of matrix tiles for a tile of pixels."""
    return cut.form.products * cut.entries * cut.vectors


def least_split_seconds(problem: ConvProblem, machine: Machine, form: SplitForm = BRAIN_FLOATS) -> float:
    """A lower bound of `split_seconds`: all products of terms at the peak of the tiles."""
    return CALL + machine.launch + BEGUN + form.products * problem.flops / form.peak(machine)


def split_seconds(problem: ConvProblem, machine: Machine, form: SplitForm = BRAIN_FLOATS) -> float:
    """Predicted time of a run."""
    rate, product = form.product_cycles(machine)
    cycles = split_cycles(split_cut(problem, form), machine.threads, product)
    far = beyond_l3_seconds(form.filter_bytes(problem.as_3d), machine)
    written = 2 * problem.y_bytes  # a store reads its line first
    moved = SHOWN_MOVES * machine.stream(problem.x_bytes + written, problem.x_bytes + problem.y_bytes)
    return CALL + machine.launch + BEGUN + cycles / rate + far + moved
