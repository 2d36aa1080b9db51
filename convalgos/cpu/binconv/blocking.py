"""Where the words of a binary convolution lie, and which vectors of outputs there are.

Outputs of a slice are taken in vectors along its rows. For each vector tables tell where its first word lies,
where its outputs go, how many these are, and which taps of theirs meet padding: padding of 0 is computed as
if it were +1, and what that adds is taken off again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.binconv.packing import LEAST_PIXELS, WORD
from convalgos.cpu.runtime.threads import THREAD_UNITS, plan_threads

# (lanes, vectors of pixels) of a tile, by bytes of a vector; it has as many filters as lanes.
TILES = {64: (8, 3), 32: (4, 2), 16: (4, 1)}
SLAB = 1024  # pixels that are packed together, and outputs of a chunk, in tiles


@dataclass(frozen=True)
class BinaryBlocking:
    problem: ConvProblem  # the 3-D view

    @property
    def lanes(self) -> int:
        return TILES[vector_bytes()][0]

    @property
    def vectors(self) -> int:
        """Of a tile."""
        return TILES[vector_bytes()][1]

    @cached_attribute
    def words(self) -> int:
        """Of a pixel of a group."""
        return -(-self.problem.w_shape[1] // WORD)

    @cached_attribute
    def tiles(self) -> int:
        """Of the filters of a group."""
        return -(-self.problem.gemm_n // self.lanes)

    @cached_attribute
    def taps(self) -> int:
        """Words of a filter."""
        return self.words * math.prod(self.problem.kernel)

    # --- maps of words -----------------------------------------------------------------------

    @cached_attribute
    def padded(self) -> tuple[int, ...]:
        """(D, H, W) with padding."""
        p = self.problem
        return tuple(size + low + high for size, (low, high) in zip(p.spatial, p.padding, strict=True))

    @cached_attribute
    def phase(self) -> int:
        """Words of a phase of a row."""
        return -(-self.padded[2] // self.problem.stride[2])

    @cached_attribute
    def row(self) -> int:
        return self.phase * self.problem.stride[2]

    @cached_attribute
    def plane(self) -> int:
        """Of a word of a pixel."""
        return self.padded[0] * self.padded[1] * self.row

    @property
    def map_shape(self) -> tuple[int, int, int, int]:
        """(N, groups, words, plane)."""
        return self.problem.N, self.problem.groups, self.words, self.plane

    @cached_attribute
    def map_words(self) -> int:
        """Of all images; the last vectors read a little beyond."""
        return math.prod(self.map_shape) + self.lanes

    @cached_attribute
    def slabs(self) -> int:
        """Parts of the rows of a map that are packed one by one."""
        rows, width = math.prod(self.problem.spatial[:2]), self.problem.spatial[2]
        return max(1, rows // -(-SLAB // width))

    @cached_attribute
    def pixels(self) -> int:
        """That kernels pack together: no more than a slab holds. Of channels in planes."""
        rows, width = math.prod(self.problem.spatial[:2]), self.problem.spatial[2]
        fewest = rows // self.slabs * width
        return min(vector_bytes(), 1 << (max(1, fewest).bit_length() - 1))

    @property
    def packs_planes(self) -> bool:
        return self.pixels >= LEAST_PIXELS

    @cached_attribute
    def temp_bytes(self) -> int:
        """Words of a slab, per task."""
        rows, width = math.prod(self.problem.spatial[:2]), self.problem.spatial[2]
        return whole_lines(-(-rows // self.slabs) * width * 8)

    # --- outputs -----------------------------------------------------------------------------

    @cached_attribute
    def chunks(self) -> int:
        """Parts of the vectors of a slice."""
        p, threads = self.problem, plan_threads()
        vectors = p.spatial_out[1] * -(-p.spatial_out[2] // self.lanes)
        tiles = -(-vectors // self.vectors)
        chunks = -(-vectors * self.lanes // SLAB)
        if p.N * p.groups * p.spatial_out[0] * self.tiles * chunks < THREAD_UNITS * threads:
            chunks = threads
        return min(chunks, tiles)

    def offsets(self) -> np.ndarray:
        """(taps,) int64 offsets of the words of a window, those of a pixel outermost."""
        p = self.problem
        column = np.arange(p.kernel[2]) * p.dilation[2]
        column = column % p.stride[2] * self.phase + column // p.stride[2]
        row = np.arange(p.kernel[1]) * p.dilation[1] * self.row
        slice_ = np.arange(p.kernel[0]) * p.dilation[0] * self.padded[1] * self.row
        window = slice_[:, None, None] + row[:, None] + column
        return np.asarray((np.arange(self.words) * self.plane)[:, None] + window.ravel(), np.int64).ravel()

    def vector_tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(starts, places, counts, patterns) of the vectors of a slice, with spare ones behind them, and the
        (slices,) number of the first pattern of each slice; int64 all."""
        p, lanes = self.problem, self.lanes
        _, height, width = p.spatial_out
        rows, columns = (i.ravel() for i in np.meshgrid(range(height), range(0, width, lanes), indexing="ij"))
        _, of_rows, of_columns = self._along()
        starts = rows * p.stride[1] * self.row + columns
        patterns = of_rows[1][rows] * len(of_columns[0]) + of_columns[1][columns // lanes]
        tables = [starts, rows * width + columns, np.minimum(lanes, width - columns), patterns]
        spare = np.zeros(self.vectors, np.int64)
        slices = self._along()[0][1] * len(of_rows[0]) * len(of_columns[0])
        starts, places, counts, patterns = (np.concatenate([t, spare]).astype(np.int64) for t in tables)
        return starts, places, counts, patterns, slices.astype(np.int64)

    def outside(self) -> np.ndarray:
        """(patterns, lanes, kernel elements): whether an element of an output's window is padding."""
        slices, rows, columns = (of[0] for of in self._along())
        found = slices[:, None, None, None, :, None, None] | rows[None, :, None, None, None, :, None]
        found = found | columns[None, None, :, :, None, None, :]  # (., ., ., lanes, T, R, S)
        each: np.ndarray = found.reshape(-1, self.lanes, math.prod(self.problem.kernel))
        return each

    @cached_attribute
    def patterns(self) -> int:
        return math.prod(len(of[0]) for of in self._along())

    def _along(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of slices, rows and vectors of a row: the kinds there are of meeting padding, and which each is."""
        p = self.problem
        inside = []
        for size, out, r, s, d, (low, _) in zip(
            p.spatial, p.spatial_out, p.kernel, p.stride, p.dilation, p.padding, strict=True
        ):
            at = np.arange(out)[:, None] * s + np.arange(r) * d - low
            inside.append((at < 0) | (at >= size))  # (outputs, taps)
        vectors = -(-p.spatial_out[2] // self.lanes)
        columns = np.zeros((vectors * self.lanes, p.kernel[2]), bool)
        columns[: p.spatial_out[2]] = inside[2]
        inside[2] = columns.reshape(vectors, self.lanes, -1)
        return [_kinds(of) for of in inside]


def _kinds(each: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    kinds, which = np.unique(each, axis=0, return_inverse=True)
    return kinds, which.ravel()


@lru_cache(256)
def binary_blocking(problem: ConvProblem) -> BinaryBlocking:
    return BinaryBlocking(problem.as_3d)
