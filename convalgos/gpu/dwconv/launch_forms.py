"""Launch configurations of depthwise kernels, and how long they take.

A form is a build with the geometry of its launch. Each algorithm lists the forms that serve a problem, with
the seconds that it predicts, and plans the fastest.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from convalgos.gpu.compile.module import Build
from convalgos.gpu.device.machine import GpuMachine
from convalgos.gpu.launch.grid import waves
from convalgos.gpu.launch.kernel_records import record_of

WARP = 32
DECODE = 60  # instructions of a thread for its place
RESERVED_SHARED = 1 << 10  # bytes that the system takes for each block
NUMBERED_BELOW = 2**30  # threads and planes are numbered below it, and what threads compute below its double
# Fitted to prototypes of the staged form on an H200, 7x7 to 31x31: instructions that a scheduler issues in a
# clock with many warps, and the share of a warp that the others cannot hide.
ISSUED = 0.85
WAITING = 0.6


class LaunchForm(NamedTuple):
    """How a problem is computed: the build, and the geometry of its launch."""

    build: Build
    kernel: str
    blocks: int
    threads: int  # of a block
    shared_bytes: int
    params: dict[str, int]  # what the kernel is told of it
    seconds: float

    def record(self, dtype: np.dtype[Any]) -> np.ndarray:
        """(1,) `params` as the kernel reads it, by value."""
        return record_of(dtype, self.params)


def macro(build: Build, name: str) -> int:
    """The number of a macro, 0 where the build has none of that name."""
    return int(dict(build.macros).get(name, 0))


def issue_seconds(
    blocks: int, threads: int, instructions: float, resident: int, machine: GpuMachine
) -> float:
    """Seconds in which the busiest multiprocessor issues the instructions of its blocks' threads.

    Its four schedulers issue an instruction a clock where warps take turns to wait; `resident` blocks of it
    run together.
    """

    def together(count: int) -> float:
        of_block = threads / WARP / 4
        warps = max(1.0, count * (math.ceil(of_block) if of_block > 1 else of_block))  # of a scheduler
        return (warps + WAITING) * instructions / ISSUED

    whole, rest = divmod(waves(blocks, machine), resident)
    return (whole * together(resident) + (together(rest) if rest else 0.0)) / machine.clock
