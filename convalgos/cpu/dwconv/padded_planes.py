"""How the maps of a depthwise layer are cut and given their border, for the gradient of its filter."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.machine import cache_sizes, cpu_count, vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import LINE

TAP_SUMS = {
    64: 28,
    32: 12,
    16: 12,
}  # taps at a time, for the bytes of a vector: as many as there are registers,
ADDRESSES = 11  # and their rows and columns, for which there are other registers
# Estimates for Zen 5 with AVX-512: cycles of a thread
TAP_CYCLES = 0.62  # for a vector of dy and a tap, where vectors are channels,
CROSSING_CYCLES = 1.0  # and where they are pixels: most loads cross cache lines
PIXEL_CYCLES = 2.4  # for a vector of x that is put into its plane,
ROW_CYCLES = 20  # for each row of that, and of dy under each tile of taps,
SQUARE_CYCLES = 85  # for a square of pixels and channels that is turned,
FAR_CYCLES = 0.5  # and for a line of x and dy where the planes, which are read side by side, exceed L1
IN_L2 = 0.25  # that the planes of a block may fill, and dy where it is turned
# Of units that take a block together the same, and what x, dy and the sums of all of them may fill; Xeon
# (Sapphire Rapids): 1/32 takes the same time, 1/4 up to 1.6 times as long
IN_L2_TOGETHER, ALL_IN_L2 = 1 / 16, 0.5


@dataclass(frozen=True)
class PaddedPlanes:
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
    def serves(self) -> bool:
        """Whether x and dy can be read so: neighbours side by side, or one dy for each x and whole rows."""
        p = self.problem
        if p.layout == "channels_last":
            return self.by_channel
        return not self.by_channel or (p.gemm_n == 1 and self.block[2] == p.spatial_out[2])

    @property
    def gathered(self) -> int:
        """Elements of dy of a block, as they are gathered: with room for a square."""
        lanes = simd.lanes(self.problem.itemsize)
        return (math.prod(self.block) + lanes) * lanes if self.is_gathered else 0

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
        if self.is_gathered:  # of whole rows, with columns that no tap reads
            p = self.problem
            places = max(places, (p.spatial[2] + p.padding[2][0] - 1) // p.stride[2] + 1)
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
        phases: int = math.prod(self.problem.stride)
        return phases * self.plane + self._whole(self.reach[2] + 1)

    @property
    def sums(self) -> int:
        """Elements: a vector for each tap, of which whole squares are turned."""
        p = self.problem
        return self._whole(p.gemm_n * math.prod(p.kernel)) * simd.lanes(p.itemsize)

    @property
    def fetch(self) -> tuple[int, int]:
        """Bytes of x and of dy of the next block that are asked into L2 for each row of a plane.

        From DRAM that is worth 1.4x at stride 1, and 2x at stride 2; rows of channels gain nothing.
        """
        p = self.problem
        if self.by_channel:
            return 0, 0
        columns = min(p.spatial[2], (self.block[2] + self.reach[2]) * p.stride[2])
        return columns * p.stride[1] * p.itemsize, self.block[2] * p.itemsize

    @property
    def tap_tiles(self) -> list[tuple[range, range]]:
        """Rows of taps, in all slices, and columns, that are summed at a time: few and even tiles."""
        *_, columns = self.problem.kernel
        rows, most = math.prod(self.problem.kernel[:2]), TAP_SUMS[vector_bytes()]
        fitting = [
            (-(-rows // r) * -(-columns // c), r * c, r, c)
            for c in range(1, min(columns, ADDRESSES - 1) + 1)
            for r in range(1, min(rows, most // c, ADDRESSES - c) + 1)
        ]
        *_, r, c = min(fitting)
        return list(product(_parts(rows, -(-rows // r)), _parts(columns, -(-columns // c))))

    @property
    def task_bytes(self) -> int:
        p = self.problem
        return whole_lines((self.planes + self.together * self.sums + self.gathered) * p.itemsize)

    @property
    def together(self) -> int:
        """Units that take a block one after the other, while it is in L2: of channels_last, whose lines lie
        side by side in x."""
        p = self.problem
        if p.layout != "channels_last":
            return 1
        of_block = math.prod(self.block) / math.prod(p.spatial_out) / (p.N * self.units)
        unit_bytes = (p.x_bytes + p.y_bytes) * of_block + self.sums * p.itemsize
        return max(1, min(self.units, int(ALL_IN_L2 * cache_sizes()[1] / unit_bytes)))

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
        sums = math.prod(p.spatial_out[:2]) * (
            vectors * taps * self.tap_cycles + ROW_CYCLES * len(self.tap_tiles)
        )
        copied = slices * rows * p.stride[0] * p.stride[1]  # rows of a block
        if self.is_gathered:
            copies = copied * (p.spatial[2] / lanes * SQUARE_CYCLES)
            sums += math.prod(p.spatial_out) / lanes * SQUARE_CYCLES
            if math.prod(p.spatial) * p.itemsize > cache_sizes()[0]:
                sums += (p.x_bytes + p.y_bytes) / LINE / (p.N * self.units) * FAR_CYCLES
        else:
            copies = copied * (pitch * self.lanes / lanes * p.stride[2] * PIXEL_CYCLES + ROW_CYCLES)
        plane: float = p.gemm_n * sums + math.prod(self.blocks) * copies
        return self.units * p.N * plane

    @property
    def tap_cycles(self) -> float:
        return TAP_CYCLES if self.by_channel else CROSSING_CYCLES

    def imbalance(self, threads: int) -> float:
        """How much longer it takes on a number of threads than with all of them busy to the end."""
        return -(-self.units // threads) * threads / self.units

    def offsets(self) -> tuple[np.ndarray, np.ndarray]:
        """Elements from an output's place to the input under a tap, in all phases' planes.

        The sum of one for each row of taps, in all slices, and one for each column.
        """
        p, (_, rows, pitch) = self.problem, self.sizes
        places = [np.arange(r) * d for r, d in zip(p.kernel, p.dilation, strict=True)]
        (pd, d), (ph, h), (pw, w) = ((a % s, a // s) for a, s in zip(places, p.stride, strict=True))
        phases = (pd[:, None] * p.stride[1] + ph) * p.stride[2]
        down = phases * self.plane + (d[:, None] * rows + h) * pitch * self.lanes
        return down.ravel().astype(np.int64), (pw * self.plane + w * self.lanes).astype(np.int64)

    def places(self) -> np.ndarray:
        """(rows, width) elements from where a slice begins to each of its pixels, in all phases' planes."""
        p, (_, rows, pitch), (_, down, across) = self.problem, self.sizes, self.problem.stride
        h, w = np.arange(rows * down)[:, None], np.arange(p.spatial[2]) + p.padding[2][0]
        inside = (h // down * pitch + w // across) * self.lanes
        phases: np.ndarray = (h % down * across + w % across) * self.plane
        return np.asarray(phases + inside, np.int64)

    def _whole(self, count: int) -> int:
        """Rounded up to whole vectors."""
        lanes = simd.lanes(self.problem.itemsize)
        return -(-count // lanes) * lanes


@lru_cache(256)
def padded_planes(problem: ConvProblem) -> PaddedPlanes:
    """Vectors of pixels, or of channels where that is faster on all cores: channels last, and on small maps.

    The sums are rounded in another order then, so that this does not look at the number of threads.
    """
    p = problem.as_3d
    channels = in_blocks(p, True)
    if p.layout == "channels_last":
        return channels
    pixels = in_blocks(p, False)
    of_channels, of_pixels = (cut.cycles * cut.imbalance(cpu_count()) for cut in (channels, pixels))
    return channels if channels.serves and of_channels < of_pixels else pixels


def in_blocks(p: ConvProblem, by_channel: bool) -> PaddedPlanes:
    """The largest blocks whose planes fit, halved from the slowest dimension on."""
    share = IN_L2_TOGETHER if p.layout == "channels_last" else IN_L2
    room = share * cache_sizes()[1]
    block = list(p.spatial_out)

    def cut() -> PaddedPlanes:
        return PaddedPlanes(p, (block[0], block[1], block[2]), by_channel)

    for axis in range(3):
        while block[axis] > 1 and (cut().planes + cut().gathered) * p.itemsize > room:
            block[axis] = -(-block[axis] // 2)
    return cut()


def _parts(count: int, parts: int) -> list[range]:
    """range(count) in parts of nearly one size."""
    return [range(count * i // parts, count * (i + 1) // parts) for i in range(parts)]
