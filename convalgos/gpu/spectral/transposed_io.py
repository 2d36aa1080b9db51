"""Channels last for kernels that read and write channels first: x and y are transposed before and after.

Both go through memory once more, which `transpose_seconds` tells the selector. Arrays of one channel need no
transpose.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.problem import ConvProblem
from convalgos.gpu.compile.module import Build
from convalgos.gpu.device import GpuMachine
from convalgos.gpu.device.tables import aligned
from convalgos.gpu.launch.grid import ceil_div
from convalgos.gpu.launch.plan import GpuPlan

TILE, THREADS = 32, 256  # of a block, as in transpose.cu
WORDS = {2: "unsigned short", 4: "unsigned"}  # by bytes of an element


def transpose_builds() -> list[Build]:
    return [Build.of("transpose.cu", word_t=word) for word in WORDS.values()]


class Swap(NamedTuple):
    """An array that is transposed, image by image: (channels, pixels), or back."""

    images: int
    channels: int
    pixels: int
    nbytes: int

    @property
    def blocks(self) -> int:
        return self.images * ceil_div(self.channels, TILE) * ceil_div(self.pixels, TILE)


def swaps(problem: ConvProblem) -> tuple[Swap | None, Swap | None]:
    """Of x and of y, or None where the array is in planes as it is."""
    p = problem
    x = Swap(p.N, p.C, math.prod(p.spatial), p.x_bytes)
    y = Swap(p.N, p.K, math.prod(p.spatial_out), p.y_bytes)
    last = p.layout == "channels_last"
    return x if last and p.C > 1 else None, y if last and p.K > 1 else None


def transpose_blocks(problem: ConvProblem) -> int:
    """The most that one of the kernels launches."""
    return max((swap.blocks for swap in swaps(problem) if swap), default=0)


def transposed_bytes(problem: ConvProblem) -> int:
    return sum(aligned(swap.nbytes) for swap in swaps(problem) if swap)


def transpose_seconds(problem: ConvProblem, machine: GpuMachine) -> float:
    return sum(machine.stream(2 * swap.nbytes) + machine.launch for swap in swaps(problem) if swap)


class Planes:
    """x as planes in the first bytes of a workspace, and y as planes behind it, while kernels run."""

    def __init__(self, plan: GpuPlan):
        self._x, self._y = swaps(plan.problem)
        self._y_at = aligned(self._x.nbytes) if self._x else 0
        self.bytes = transposed_bytes(plan.problem)
        build = Build.of("transpose.cu", word_t=WORDS[plan.problem.itemsize])
        self._into = plan.launch(build, "transpose", (self._x.blocks,), THREADS) if self._x else None
        self._out = plan.launch(build, "transpose", (self._y.blocks,), THREADS) if self._y else None

    def begin(self, x: Any, y: Any, workspace: Any) -> tuple[Any, Any]:
        """x and y to compute with: (N, C, *spatial), (N, K, *spatial_out)."""
        planes = x
        if self._x and self._into:
            planes = workspace[: self._x.nbytes]
            self._into(x, planes, np.int32(self._x.pixels), np.int32(self._x.channels))
        return planes, workspace[self._y_at : self.bytes] if self._y else y

    def end(self, planes: Any, y: Any) -> None:
        """y from the planes that `begin` gave."""
        if self._y and self._out:
            self._out(planes, y, np.int32(self._y.channels), np.int32(self._y.pixels))
