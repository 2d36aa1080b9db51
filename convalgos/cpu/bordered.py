"""How the maps of a depthwise layer are cut and given their border, for the gradient of its filter."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from convalgos.cpu import simd
from convalgos.machine import cache_sizes
from convalgos.problem import ConvProblem

TILE = 9  # taps at a time: as many pointers and sums as there are registers
# Estimates for Zen 5 with AVX-512: cycles of a thread
TAP_CYCLES = 0.6  # for a vector of dy and a tap, where vectors are channels,
CROSSING_CYCLES = 1.0  # and where they are pixels: most loads cross cache lines
PIXEL_CYCLES = 1.5  # for a vector of x that is put into its plane,
ROW_CYCLES = 20  # for each row of that, and of dy,
SQUARE_CYCLES = 40  # and for a square of pixels and channels that is turned
GATHERED = 0.5  # of L2 that maps turned to vectors of channels may fill
IN_L1 = 0.5  # of L1 that the planes of a block may fill


@dataclass(frozen=True)
class Bordered:
    """Blocks of outputs, and the planes of x under them. Sizes are per dimension of the 3-D view.

    A plane holds one phase of the strides, with zeros outside of the map; its elements are single, or vectors
    of channels.
    """

    problem: ConvProblem
    block: tuple[int, int, int]
    by_channel: bool  # vectors are channels, not neighbours in a row

    @property
    def is_gathered(self) -> bool:
        """Whether maps are brought into the order of channels first."""
        return self.by_channel and self.problem.layout == "channels_first"

    @property
    def gathered(self) -> tuple[int, int]:
        """Pixels of x and of dy, as they are gathered: with room for a square."""
        p = self.problem
        more = simd.lanes(p.itemsize)
        return math.prod(p.spatial) + more, math.prod(p.spatial_out) + more

    @property
    def blocks(self) -> tuple[int, ...]:
        return tuple(-(-n // b) for n, b in zip(self.problem.spatial_out, self.block, strict=True))

    @property
    def reach(self) -> tuple[int, ...]:
        """Elements of a phase from the first tap to the last."""
        p = self.problem
        return tuple((r - 1) * d // s for r, d, s in zip(p.kernel, p.dilation, p.stride, strict=True))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Of a plane: slices, rows, and places from one row to the next."""
        slices, rows, places = (b + r for b, r in zip(self.block, self.reach, strict=True))
        return slices, rows, places if self.by_channel else self._whole(places)

    @property
    def lanes(self) -> int:
        """Elements in a place."""
        return simd.lanes(self.problem.itemsize) if self.by_channel else 1

    @property
    def plane(self) -> int:
        """Elements."""
        return math.prod(self.sizes) * self.lanes

    @property
    def planes(self) -> int:
        """Elements of the planes of all phases, with those behind that the last vector of a row may read."""
        return math.prod(self.problem.stride) * self.plane + self._whole(self.reach[2] + 1)

    @property
    def sums(self) -> int:
        """Elements: a vector for each tap, of which whole squares are turned."""
        p = self.problem
        return self._whole(p.gemm_n * math.prod(p.kernel)) * simd.lanes(p.itemsize)

    @property
    def tap_tiles(self) -> int:
        return -(-math.prod(self.problem.kernel) // TILE)

    @property
    def task_bytes(self) -> int:
        p = self.problem
        dense = sum(self.gathered) * simd.lanes(p.itemsize) if self.is_gathered else 0
        return -(-(self.planes + self.sums + dense) * p.itemsize // 64) * 64

    @property
    def units(self) -> int:
        """Pieces that are dealt to threads: input channels, or vectors of them."""
        return -(-self.problem.C // self.lanes)

    @property
    def cycles(self) -> float:
        """Of all threads together, were all data in the caches."""
        p, lanes, taps = self.problem, simd.lanes(self.problem.itemsize), math.prod(self.problem.kernel)
        slices, rows, pitch = self.sizes
        vectors = p.spatial_out[2] if self.by_channel else -(-p.spatial_out[2] // lanes)  # of a row of dy
        sums = math.prod(p.spatial_out[:2]) * (vectors * taps * self.tap_cycles + ROW_CYCLES * self.tap_tiles)
        copied = slices * rows * p.stride[0] * p.stride[1]
        copies = copied * (pitch * self.lanes / lanes * p.stride[2] * PIXEL_CYCLES + ROW_CYCLES)
        squares = sum(self.gathered) / lanes if self.is_gathered else 0
        plane = p.gemm_n * sums + math.prod(self.blocks) * copies + squares * SQUARE_CYCLES
        return self.units * p.N * plane

    @property
    def tap_cycles(self) -> float:
        return TAP_CYCLES if self.by_channel else CROSSING_CYCLES

    def offsets(self) -> np.ndarray:
        """(taps,) elements from an output's place to the input under a tap, in all phases' planes."""
        p, (_, rows, pitch) = self.problem, self.sizes
        places = [np.arange(r) * d for r, d in zip(p.kernel, p.dilation, strict=True)]
        (pd, d), (ph, h), (pw, w) = ((a % s, a // s) for a, s in zip(places, p.stride, strict=True))
        phase = (pd[:, None, None] * p.stride[1] + ph[:, None]) * p.stride[2] + pw
        inside = ((d[:, None, None] * rows + h[:, None]) * pitch + w) * self.lanes
        return (phase * self.plane + inside).ravel().astype(np.int64)

    def _whole(self, count: int) -> int:
        """Rounded up to whole vectors."""
        lanes = simd.lanes(self.problem.itemsize)
        return -(-count // lanes) * lanes


@lru_cache(256)
def bordered(problem: ConvProblem) -> Bordered:
    """Vectors of pixels, or of channels where that is faster: channels last, and where maps are small."""
    p = problem.as_3d
    channels = _in_blocks(p, True)
    if p.layout == "channels_last":
        return channels
    pixels = _in_blocks(p, False)
    fits = channels.task_bytes <= GATHERED * cache_sizes()[1] and p.gemm_n == 1
    return channels if fits and channels.cycles < pixels.cycles else pixels


def _in_blocks(p: ConvProblem, by_channel: bool) -> Bordered:
    """The largest blocks whose planes fit, halved from the slowest dimension on."""
    room = IN_L1 * cache_sizes()[0]
    block = list(p.spatial_out)

    def cut() -> Bordered:
        return Bordered(p, (block[0], block[1], block[2]), by_channel)

    for axis in range(3):
        while block[axis] > 1 and cut().planes * p.itemsize > room:
            block[axis] = -(-block[axis] // 2)
    return cut()
