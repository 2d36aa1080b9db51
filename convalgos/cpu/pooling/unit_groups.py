"""Images or planes of a problem in groups, whose work in several steps stays in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from convalgos.core.pool_problem import PoolProblem
from convalgos.cpu.runtime import jit

GROUP_BYTES = 1 << 20  # of what lies between the steps, for each thread: a part of L2


class UnitGroups:
    """A problem's units, which are images, or with channels first planes, some of them at a time.

    Args:
        unit_bytes: of what lies between the steps.
    """

    def __init__(self, problem: PoolProblem, unit_bytes: int):
        n, channels, *spatial = problem.x_shape
        planar = problem.layout == "channels_first"
        self._units = n * channels if planar else n
        threads = jit.thread_count()
        most = max(1, GROUP_BYTES * threads // unit_bytes)
        if most > threads:
            most -= most % threads
        count = -(-self._units // most)
        self._ends = [self._units * i // count for i in range(count + 1)]
        sizes = {end - begin for begin, end in pairwise(self._ends)}
        shapes = {size: (*((1, size) if planar else (size, channels)), *spatial) for size in sizes}
        self.problems = {
            size: problem if shape == problem.x_shape else replace(problem, x_shape=shape)
            for size, shape in shapes.items()
        }

    def each(self, *arrays: np.ndarray) -> Iterator[tuple[int, tuple[np.ndarray, ...]]]:
        """(units, those of each of the arrays, `as_laid`) of each group."""
        by_unit = [array.reshape(self._units, -1) for array in arrays]
        for begin, end in zip(self._ends[:-1], self._ends[1:], strict=True):
            yield end - begin, tuple(array[begin:end] for array in by_unit)
