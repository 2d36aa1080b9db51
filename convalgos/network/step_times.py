"""The time of each step of a network, taken in runs of the whole: caches hold what the step before left."""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from convalgos.network.context import Context
from convalgos.network.executor import Executor
from convalgos.network.memory import Memory

ROUNDS = 15  # of which each step has the median


def step_times(executor: Executor, rounds: int = ROUNDS) -> list[float]:
    """Seconds of each step of a plan on random inputs, its call from Python among them."""
    inputs = [executor.new_array(name) for name in executor.graph.inputs]
    for x in inputs:
        x[...] = np.random.default_rng(0).random(x.shape) if x.dtype.kind == "f" else 0
    context = Context(executor, Memory(executor.planned.arena_bytes))
    parts = list(map(context.part_of, range(len(executor.planned.steps))))
    samples: list[list[float]] = []
    for _ in range(rounds + 1):
        arrays = executor.arrays(inputs)
        samples.append([])
        for part in parts:
            begin = time.perf_counter()
            part(arrays)
            samples[-1].append(time.perf_counter() - begin)
    return [median(times) for times in zip(*samples[1:], strict=True)]
