"""A problem in planes for the FFT, and in which order they are worked on.

A plane is one block of one channel in one phase of the stride: what an FFT transforms. `FftBlocking` says
which planes there are. `ChunkSchedule` says in which chunks they are worked on, so that they stay in the
caches, the workspace stays bounded and all threads have work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

from convalgos.core.boundaries import ZERO
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import cache_sizes, vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime import jit
from convalgos.cpu.spectral import kernels
from convalgos.cpu.spectral.lengths import fast_length, is_no_slower, spectrum_size
from convalgos.cpu.vectors import simd

PRODUCT_TILES = {64: (4, 2), 32: (2, 2), 16: (2, 1)}  # vector bytes -> filters x blocks in registers
WORKSPACE = 64 << 20  # bytes, where not even one block of one group takes more
REUSES = 8  # blocks that share one reading of a large filter's spectrum


@dataclass(frozen=True)
class BlockedAxis:
    """One dimension of the map, in blocks that are circular correlations of `length`.

    In phase a the map is x_a[j] = x[j * stride + a - low], with its border outside, and the filter has the
    taps that fall on j * stride + a. Block b yields the outputs from b * step on, and reads x_a from there
    on.
    """

    size: int
    out: int
    stride: int
    low: int
    phases: tuple[int, ...]
    taps: int  # of a phase, zeros of the dilation included
    length: int  # of the FFT
    step: int  # outputs of a block

    @property
    def blocks(self) -> int:
        return -(-self.out // self.step)


def blocked_axis(problem: ConvProblem, dimension: int, length: int | None) -> BlockedAxis:
    """A spatial dimension in blocks of an FFT length, or as one block."""
    size, out, stride = (v[dimension] for v in (problem.spatial, problem.spatial_out, problem.stride))
    kernel, dilation, low = (
        problem.kernel[dimension],
        problem.dilation[dimension],
        problem.padding[dimension][0],
    )
    phases = tuple(sorted({t * dilation % stride for t in range(min(kernel, stride))}))
    taps = (kernel - 1) * dilation // stride + 1
    step = out
    if length is None:
        # The window of the last outputs may run over the end into the start of the block, where the zeros
        # of the low padding lie before the first input: full padding costs size + taps - 1, not more.
        needed = out + taps - 1
        first = end = 0
        if problem.boundary[dimension] == ZERO:
            first = min(max(0, -((a - low) // stride)) for a in phases)
            end = min(needed, max((size - 1 + low - a) // stride + 1 for a in phases))
        length = fast_length(max(end, needed - first, out, taps))
        # What goes round is what a block does by itself, where both go round alike.
        period = size // stride
        goes_round = problem.boundary[dimension] == "wrap" and size % stride == 0
        if goes_round and period >= max(out, taps) and is_no_slower(period, length):
            length = period
    elif length - taps + 1 < out:
        step = length - taps + 1
    return BlockedAxis(size, out, stride, low, phases, taps, length, step)


@dataclass(frozen=True)
class FftBlocking:
    """A problem in blocks of FFTs. A plane is a block of one channel."""

    problem: ConvProblem  # the 3-D view
    axes: tuple[BlockedAxis, BlockedAxis, BlockedAxis]
    parts: int = 2  # vectors for each complex vector of the filter: `products.multiply_spectra`

    @cached_attribute
    def lengths(self) -> tuple[int, ...]:
        return tuple(a.length for a in self.axes)

    @cached_attribute
    def vectors(self) -> int:
        """Vectors of frequencies of a plane, each with its real and imaginary parts."""
        return -(-spectrum_size(self.lengths) // simd.lanes(self.problem.itemsize))

    @cached_attribute
    def plane(self) -> int:
        """Elements from one plane to the next: an odd number of cache lines, against set conflicts."""
        lines = -(-self.vectors * 2 * vector_bytes() // 64)
        return (lines + 1 - lines % 2) * 64 // self.problem.itemsize

    @property
    def plane_bytes(self) -> int:
        return self.plane * self.problem.itemsize

    @cached_attribute
    def phases(self) -> tuple[tuple[int, ...], ...]:
        return tuple(product(*(a.phases for a in self.axes)))

    @property
    def channels(self) -> int:
        """Planes that are summed for an output: the channels of a group in every phase."""
        return self.problem.w_shape[1] * len(self.phases)

    @cached_attribute
    def blocks(self) -> int:
        """Of a channel, over the batch."""
        return self.problem.N * math.prod(a.blocks for a in self.axes)

    @property
    def is_whole(self) -> bool:
        return all(a.blocks == 1 for a in self.axes)

    @cached_attribute
    def tile(self) -> tuple[int, int]:
        """Filters and blocks of a product in registers; few filters where their planes would leave L2."""
        filters, blocks = PRODUCT_TILES[vector_bytes()]
        needed = 1 << (self.problem.gemm_n - 1).bit_length()
        fitting = 1 << max(1, cache_sizes()[1] // self.plane_bytes).bit_length() - 1
        return min(filters, needed, fitting), min(blocks, self.blocks)

    @cached_attribute
    def panels(self) -> int:
        """Of the filters of a group, as many in each as the tile takes."""
        return -(-self.problem.gemm_n // self.tile[0])

    @cached_attribute
    def filter_bytes(self) -> int:
        rows = self.problem.groups * self.panels * self.tile[0] * self.channels
        return rows * self.vectors * self.parts * vector_bytes()


@dataclass(frozen=True)
class ChunkSchedule:
    """In which order planes are worked on: chunk after chunk, each of some groups and some blocks.

    The inputs of a chunk are transformed first, then its filters are applied and the sums transformed back.
    """

    alone: bool  # every task has chunks to itself; otherwise all tasks work on the same one
    groups: int  # of a chunk
    blocks: int  # of a chunk
    run: int  # channels read, and at most written, together: a vector of them in channels_last, else 1
    panels: int  # of filters that are written together
    part: int  # blocks that a run of filters is applied to
    vectors: int  # of frequencies that it is applied to at a time, so that the filters stay in L2
    chunks: int
    tasks: int  # threads, fewer where their scratch would take too much
    spectra_bytes: int  # of the inputs of a chunk
    lane_bytes: int  # scratch of a task beside them

    @property
    def task_bytes(self) -> int:
        """Scratch of a task that works alone."""
        return self.spectra_bytes + self.lane_bytes + kernels.argument_bytes()

    @property
    def workspace_bytes(self) -> int:
        if self.alone:
            return self.tasks * self.task_bytes
        return self.spectra_bytes + self.tasks * self.lane_bytes


def chunk_schedule(cut: FftBlocking) -> ChunkSchedule:
    """Chunks for each task alone, as large as a cache holds; where there are few of them, shared ones."""
    threads = jit.thread_count()
    alone = _schedule(cut, True, threads)
    return alone if alone.chunks >= 4 * threads else _schedule(cut, False, threads)


def _schedule(cut: FftBlocking, alone: bool, threads: int) -> ChunkSchedule:
    p, l2 = cut.problem, cache_sizes()[1]
    filters, pair = cut.tile
    sharing = 1 if alone else threads
    run = simd.lanes(p.itemsize) if p.layout == "channels_last" else 1
    together = min(p.groups, -(-run // p.w_shape[1]))  # groups that fill a run of channels
    unit = together * cut.channels * cut.plane_bytes  # of one block
    room = sharing * l2 // 2
    if cut.filter_bytes > l2:  # then several blocks should share a reading of the filters
        room = max(room, min(WORKSPACE * sharing // threads // 2, REUSES * unit))
    blocks = _evenly(cut.blocks, room // unit)
    groups = min(p.groups, together * _evenly(-(-p.groups // together), room // (blocks * unit)))
    panels = max(1, run // filters)
    runs = -(-groups * cut.panels // panels)
    part = min(blocks, REUSES if runs >= 4 * sharing else pair)
    spectra_bytes = groups * blocks * cut.channels * cut.plane_bytes
    lane_bytes = panels * filters * part * cut.plane_bytes + kernels.strip_bytes(p.itemsize)
    fitting = (
        WORKSPACE // (spectra_bytes + lane_bytes) if alone else (WORKSPACE - spectra_bytes) // lane_bytes
    )
    return ChunkSchedule(
        alone=alone,
        groups=groups,
        blocks=blocks,
        run=run,
        panels=panels,
        part=part,
        vectors=max(1, min(cut.vectors, l2 // 4 // (filters * cut.channels * 2 * vector_bytes()))),
        chunks=-(-p.groups // groups) * -(-cut.blocks // blocks),
        tasks=max(1, min(threads, fitting)),
        spectra_bytes=spectra_bytes,
        lane_bytes=lane_bytes,
    )


def _evenly(count: int, most: int) -> int:
    """Size of equal parts of `count`, at most `most` and at least 1."""
    return -(-count // -(-count // max(1, most)))
