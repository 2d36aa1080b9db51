"""A core for each thread while a layer is timed.

After a product by a BLAS, whose threads spin, the system may leave two of our threads on one core for a tenth
of a second and more, while another one idles. All that is timed then takes twice as long, and the next layer
does not.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def a_core_each() -> Iterator[None]:
    """Within it the calling thread has the first core, and the others of this process share out the rest.

    Threads of a library begin one after the other: those of each library get different cores. Nothing
    happens where the system has no such call, or there is one core.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < 2:
        yield
        return
    caller = threading.get_native_id()
    others = sorted(thread for thread in _threads() if thread != caller)
    _keep(caller, cores[:1])
    for turn, thread in enumerate(others):
        _keep(thread, [cores[1 + turn % (len(cores) - 1)]])
    try:
        yield
    finally:
        for thread in _threads():
            _keep(thread, cores)


def _threads() -> list[int]:
    """Of this process, as the system numbers them."""
    return [int(task.name) for task in Path("/proc/self/task").iterdir()]


def _keep(thread: int, cores: list[int]) -> None:
    with suppress(ProcessLookupError):  # it has ended meanwhile
        os.sched_setaffinity(thread, cores)
