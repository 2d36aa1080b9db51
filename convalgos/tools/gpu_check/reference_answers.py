"""Data of a problem and its float64 answer, on the host: whole for small problems, else at sampled places.

Kernels fail mostly at borders, so many places lie there. The rest of a large result is compared on the GPU
with that of the first algorithm that was right at all places; where two results differ, the host computes
which one is wrong.
"""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np

from convalgos.core.plan import numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.core.random_numbers import repeating_normal
from convalgos.select.measure.accuracy import ExactAnswer, Extent

EXTENT = Extent(flops=2e8, taps=1 << 16, places=256)  # up to which y is computed whole; places of others
BORDER = 0.25  # share of their coordinates that are the first, and that are the last of a dimension
LONG_PERIOD = 1_000_003  # of the random numbers in large arrays: a prime, so that no size is a multiple of it


class Truth:
    """The arrays that a run reads, a bias, and what the result must be; its elements are of order 1."""

    def __init__(self, problem: ConvProblem):
        self.problem = problem
        rng = np.random.default_rng(crc32(str(problem).encode()))
        dtype, scale = numpy_dtype(problem.dtype), 1 / math.sqrt(max(1, problem.reduction))
        first, second, _ = problem.array_shapes
        self.first = repeating_normal(first, rng, dtype, period=LONG_PERIOD)
        self.second = repeating_normal(second, rng, dtype, scale, LONG_PERIOD)
        self.bias = repeating_normal((problem.bias_size,), rng, dtype, period=LONG_PERIOD)
        read = problem.logical(0, self.first), problem.logical(1, self.second)
        self._exact = ExactAnswer(problem, *read, EXTENT, rng, BORDER)
        self.y, self.places = self._exact.y, self._exact.places
        # Never less than what elements are like: a few may all be small by chance.
        self.scale = max(1.0, float(np.abs(self.y).max(initial=0)))

    def finished(self) -> np.ndarray:
        """The result with the bias added, and ReLU, in the form of `y`."""
        bias = self.bias.astype(np.float64)
        if self.places is None:
            bias = bias.reshape(-1, *(1,) * self.problem.ndim)
        else:
            bias = bias[self.places[:, 1]]
        return np.maximum(self.y + bias, 0)

    def at(self, place: tuple[int, ...]) -> float:
        """A single element of the result, logical."""
        return self._exact.at(place)


def ahead(problems: Iterable[ConvProblem]) -> Generator[Truth, None, None]:
    """The truths of problems, in their order, computed on all cores a few problems ahead."""
    cores = os.cpu_count() or 1
    left = iter(problems)
    pool = ThreadPoolExecutor(cores)
    try:
        waiting = [pool.submit(Truth, p) for p in islice(left, cores)]
        while waiting:
            truth = waiting.pop(0).result()
            waiting += [pool.submit(Truth, p) for p in islice(left, 1)]
            yield truth
    finally:  # nobody waits for those that are not asked for
        pool.shutdown(wait=False, cancel_futures=True)


# --- answers of the device -----------------------------------------------------------------------


class Answer(NamedTuple):
    """A whole result, logical, in float64: who computed it, and how well."""

    by: str
    bound: float
    y: np.ndarray


@dataclass(frozen=True)
class Answers:
    """Results of large problems, which the device computed and the host looked at, in a folder."""

    folder: Path

    def keep(self, problem: ConvProblem, answer: Answer) -> None:
        """For other processes."""
        path = self._path(problem)
        with path.with_suffix(".part").open("wb") as file:
            np.savez(file, by=answer.by, bound=answer.bound, y=answer.y)
        path.with_suffix(".part").replace(path)

    def known(self, problem: ConvProblem) -> Answer | None:
        try:
            with np.load(self._path(problem)) as found:
                return Answer(str(found["by"]), float(found["bound"]), found["y"])
        except FileNotFoundError:
            return None

    def _path(self, problem: ConvProblem) -> Path:
        return self.folder / f"{crc32(str(problem).encode()):08x}.npz"
