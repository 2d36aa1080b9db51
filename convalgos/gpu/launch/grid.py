"""A kernel with the geometry of its launch, and the limits that CUDA and the kernels' own counters set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from convalgos.gpu.compile.module import Build
from convalgos.gpu.device import GpuMachine

GRID_X = 2**31 - 1  # blocks along x that CUDA launches
GRID_YZ = 65535
COUNTED = 2**31  # kernels number threads, and elements of an image, below it
VECTOR_BYTES = 16  # of the widest loads: arrays that start elsewhere are copied
NO_BIAS = None  # launched as a null pointer


class GridLaunch(NamedTuple):
    """A kernel with its geometry, ready to be called with its arguments."""

    build: Build
    name: str
    grid: tuple[int, ...]
    block: int  # threads
    shared_bytes: int  # dynamic
    function: Callable[..., None]

    def __call__(self, *arguments: Any) -> None:
        self.function(self.grid, (self.block,), arguments, shared_mem=self.shared_bytes)


def ceil_div(n: int, d: int) -> int:
    """How many pieces of size d cover n."""
    return -(-n // d)


def waves(blocks: int, machine: GpuMachine) -> int:
    """Blocks that the busiest multiprocessor computes."""
    return ceil_div(blocks, machine.multiprocessors)
