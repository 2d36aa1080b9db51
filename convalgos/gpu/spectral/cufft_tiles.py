"""Tiles whose transforms cuFFT computes: all of a problem at once, or tiles that overlap by the kernel."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from convalgos.core.problem import ConvProblem
from convalgos.gpu.launch.grid import ceil_div

Three = tuple[int, ...]  # along the last three dimensions


class CufftTiling(NamedTuple):
    """Tiles of the three-dimensional view."""

    tiles: Three  # of an image
    length: Three  # of a tile
    step: Three  # positions that it computes

    @property
    def per_image(self) -> int:
        return math.prod(self.tiles)

    @property
    def reals(self) -> int:
        return math.prod(self.length)

    @property
    def frequencies(self) -> int:
        return self.reals // self.length[2] * (self.length[2] // 2 + 1)

    @property
    def transformed(self) -> Three:
        """The lengths from the first that is more than a point on."""
        return self.length[next((i for i, n in enumerate(self.length) if n > 1), 2) :]


@lru_cache(1024)
def cufft_length(n: int) -> int:
    """The least length of at least n without prime factors over 7, and even where it is not 1."""
    while n > 1:
        rest = n
        for prime in (2, 3, 5, 7):
            while rest % prime == 0:
                rest //= prime
        if rest == 1 and n % 2 == 0:
            return n
        n += 1
    return 1


def positions(problem: ConvProblem) -> Three:
    """Positions of stride 1 from the first to the last output."""
    p = problem.as_3d
    return tuple((o - 1) * s + 1 for o, s in zip(p.spatial_out, p.stride, strict=True))


def whole_tiling(problem: ConvProblem) -> CufftTiling:
    """One tile."""
    needed = positions(problem)
    lengths = [n + e - 1 for n, e in zip(needed, problem.as_3d.kernel_extent, strict=True)]
    return CufftTiling((1, 1, 1), tuple(map(cufft_length, lengths)), needed)


def overlapping_tiling(problem: ConvProblem, factor: int) -> CufftTiling:
    """Tiles of about `factor` times the kernel's reach in each dimension that is longer."""
    tiles, lengths, steps = [], [], []
    for n, e in zip(positions(problem), problem.as_3d.kernel_extent, strict=True):
        length = 1 << (factor * e - 1).bit_length()
        if n == 1 or length >= n + e - 1:
            length = cufft_length(n + e - 1)
        steps.append(min(n, length - e + 1))
        lengths.append(length)
        tiles.append(ceil_div(n, steps[-1]))
    return CufftTiling(tuple(tiles), tuple(lengths), tuple(steps))
