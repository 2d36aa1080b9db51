"""How an output is cut for sparse filters, and where the input of a block lies in scratch.

A block is some rows of one image. Its input lies as [channel][tap slice][tap column][phase][row][pitch]: for
each column of the kernel there is a copy of its own, shifted by that column and with its stride taken out. So
the pixels of a tap, over all rows of the block, are one run that begins on a cache line where the pitch is a
whole number of vectors: vectors that cross lines would take twice as long, and a sparse filter does little
else than to load them. The channels are taken in chunks whose input stays in the first cache.

Source: the copies by column are those of Cho and Brand, "MEC: memory-efficient convolution for deep neural
network" (2017, arXiv:1706.06873).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import cache_sizes, vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.core.problem_views import in_a_row
from convalgos.cpu.runtime.threads import THREAD_UNITS, cached_by_threads, plan_threads
from convalgos.cpu.vectors import simd

# Vectors of pixels of the micro-kernel beside the filters of a tile, which share positions.
MOST_VECTORS = {
    64: {1: 16, 2: 10, 4: 6, 8: 3},
    32: {1: 12, 2: 4, 4: 2, 8: 1},
    16: {1: 12, 2: 4, 4: 2, 8: 1},
}
SIZES = (1, 2, 3, 4, 6, 8, 10, 12, 16)  # of tiles, in vectors: each has a kernel of its own

CHUNK = 0.85  # of the first cache, for the input of a chunk of channels
SUMS = 0.5  # of the second cache, for the sums of a block


def list_kernels() -> list[tuple[int, int]]:
    """(filters, vectors of pixels) of all micro-kernels."""
    of = MOST_VECTORS[vector_bytes()].items()
    return [(sharing, vectors) for sharing, most in of for vectors in SIZES if vectors <= most]


@dataclass(frozen=True)
class SparseBlocking:
    """How the output is cut. Sizes are per dimension of the 3-D view."""

    problem: ConvProblem  # the 3-D view
    sharing: int  # filters of a tile: they share the positions of their non-zero weights
    block: tuple[int, int]  # rows and columns of outputs of a block
    pitch: int  # elements from row to row of a block
    shifted: bool  # whether each column of the kernel has a copy of its own
    parts: int  # into which the filters of a group are cut

    @cached_attribute
    def lanes(self) -> int:
        return simd.lanes(self.problem.itemsize)

    @cached_attribute
    def blocks(self) -> tuple[int, int, int]:
        """Number of them along (O, P, Q); those of a slice of outputs hold no other."""
        o, p, q = self.problem.spatial_out
        return o, -(-p // self.block[0]), -(-q // self.block[1])

    @cached_attribute
    def tiles(self) -> int:
        """Of the filters of a group."""
        return -(-self.problem.gemm_n // self.sharing)

    # --- pixels ------------------------------------------------------------------------------

    @cached_attribute
    def vectors(self) -> int:
        """Of pixels of the micro-kernel."""
        most = MOST_VECTORS[vector_bytes()][self.sharing]
        needed = -(-self.block[0] * self.pitch // self.lanes)
        least = -(-needed // -(-needed // most))
        return min(size for size in SIZES if size >= least)

    @cached_attribute
    def runs(self) -> int:
        """Tiles of pixels of a block."""
        return -(-self.block[0] * self.pitch // (self.vectors * self.lanes))

    @cached_attribute
    def sums_row(self) -> int:
        """Elements of the sums of a filter."""
        return self.runs * self.vectors * self.lanes

    # --- input in scratch --------------------------------------------------------------------

    @cached_attribute
    def phases(self) -> tuple[int, ...]:
        """Of the rows of the input that some tap reads."""
        p = self.problem
        return tuple(sorted({r * p.dilation[1] % p.stride[1] for r in range(p.kernel[1])}))

    @cached_attribute
    def rows(self) -> int:
        """Input rows of a phase."""
        p = self.problem
        return self.block[0] + (p.kernel_extent[1] - 1) // p.stride[1]

    @cached_attribute
    def plane(self) -> int:
        """Elements of a phase: whole cache lines."""
        line = 64 // self.problem.itemsize
        return -(-self.rows * self.pitch // line) * line

    @property
    def copies(self) -> int:
        """Of a row of the input."""
        return self.problem.kernel[2] if self.shifted else 1

    @cached_attribute
    def channel(self) -> int:
        """Elements of a channel."""
        return self.problem.kernel[0] * self.copies * len(self.phases) * self.plane

    @cached_attribute
    def chunk(self) -> int:
        """Channels whose input stays in the first cache."""
        channels = self.problem.w_shape[1]
        room = int(CHUNK * cache_sizes()[0]) // self.problem.itemsize
        chunks = -(-channels // max(1, room // self.channel))
        return -(-channels // chunks)

    @cached_attribute
    def chunks(self) -> int:
        return -(-self.problem.w_shape[1] // self.chunk)

    @cached_attribute
    def input_elements(self) -> int:
        """Of scratch; the last tile of pixels reads a little beyond."""
        return self.chunk * self.channel + self.sums_row

    @cached_attribute
    def scratch_bytes(self) -> int:
        """Per task: the input of a chunk, and the sums of a part of the filters."""
        tiles = -(-self.tiles // self.parts)
        elements = self.input_elements + tiles * self.sharing * self.sums_row
        return whole_lines(elements * self.problem.itemsize)

    def offsets(self) -> np.ndarray:
        """(channels of a chunk, taps) offsets of the input of a tap, in elements."""
        p = self.problem
        row = np.arange(p.kernel[1]) * p.dilation[1]
        phase = np.searchsorted(self.phases, row % p.stride[1])
        rows = phase * self.plane + row // p.stride[1] * self.pitch  # (R,)
        copy = len(self.phases) * self.plane
        columns = np.arange(p.kernel[2]) * (copy if self.shifted else p.dilation[2])  # (S,)
        slices = np.arange(p.kernel[0]) * self.copies * copy  # (T,)
        taps = slices[:, None, None] + rows[:, None] + columns  # (T, R, S)
        channels = np.arange(self.chunk) * self.channel
        return (channels[:, None] + taps.ravel()).astype(np.int32)


@cached_by_threads(1024)
def sparse_blocking(problem: ConvProblem, sharing: int, shifted: bool, parts: int) -> SparseBlocking:
    """The cut of a problem whose rows are taken in so many parts.

    Args:
        sharing: filters that share the positions of their non-zero weights: 1, 2, 4 or 8.
        shifted: whether each column of the kernel has a copy of its own.
    """
    p = flat_rows(problem)
    lanes, threads = simd.lanes(p.itemsize), plan_threads()
    most = max(MOST_VECTORS[vector_bytes()].values()) * lanes
    _, height, width = p.spatial_out
    columns = width if parts == 1 else -(-width // parts // lanes) * lanes
    pitch = _pitch(p, columns, lanes) if shifted else columns + p.kernel_extent[2] - 1
    rows = max(1, min(height, most // pitch))
    rows = -(-height // -(-height // rows))
    cut = SparseBlocking(p, sharing, (rows, columns), pitch, shifted, 1)
    blocks = p.N * p.groups * math.prod(cut.blocks)
    of_filters = -(-cut.tiles * sharing * cut.sums_row * p.itemsize // int(SUMS * cache_sizes()[1]))
    listed = p.density * math.prod(p.w_shape) * (p.itemsize + 4)
    if (blocks % threads and blocks < THREAD_UNITS * threads) or listed > SUMS * cache_sizes()[1]:
        of_filters = max(of_filters, threads)
    return SparseBlocking(p, sharing, (rows, columns), pitch, shifted, min(of_filters, cut.tiles))


def flat_rows(problem: ConvProblem) -> ConvProblem:
    """The 3-D view; the pixels of a plain product are one long row."""
    flat = (1, 1, math.prod(problem.spatial))
    view: ConvProblem = in_a_row(problem, flat) if problem.is_plain_product else problem.as_3d
    return view


def row_parts(problem: ConvProblem) -> list[int]:
    """Into how many parts rows may be cut: long ones so that a block holds several rows, too."""
    lanes = simd.lanes(problem.itemsize)
    most = max(MOST_VECTORS[vector_bytes()].values()) * lanes
    width = flat_rows(problem).spatial_out[2]
    return sorted({-(-width // most), *(-(-width // n) for n in (8 * lanes, 4 * lanes, 2 * lanes))})


def _pitch(p: ConvProblem, columns: int, lanes: int) -> int:
    """Elements from row to row: where these are few, rows join within vectors, some of which cross lines."""

    def loads(pitch: int) -> float:
        """Lines that are loaded for an output, on average over the rows of the kernel."""
        starts = [r * p.dilation[1] // p.stride[1] * pitch % lanes for r in range(p.kernel[1])]
        return pitch * (1 + sum(s > 0 for s in starts) / len(starts))

    steps = [lanes >> i for i in range(lanes.bit_length())]
    return min((-(-columns // step) * step for step in steps), key=loads)
