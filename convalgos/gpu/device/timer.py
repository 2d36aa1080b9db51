"""The event timer of a GPU: CUDA events around work that queues up behind a kernel that waits.

A stream that waits for the host would be timed with the host's pauses between two launches in it. So a first
kernel holds the stream until all is queued; where the host took longer, the work is timed again behind a
longer wait. This serves libraries, too, whose calls cannot be captured in a graph.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from convalgos.gpu.compile.module import Build

WAIT = Build.of("wait.cu")  # its kernel `wait_cycles` runs on one thread
HOLD, LONGEST_HOLD = 2e-4, 0.05  # seconds that the stream is held at first, and at most


def elapsed(cuda: Any, wait: Callable[[float], object], work: Callable[[], object]) -> float:
    """Seconds that a GPU takes for what `work` puts on the current stream. Waits for it.

    Args:
        cuda: CuPy's module of that name.
        wait: holds the current stream for so many seconds.
        work: is called again where the host was too slow to queue all of it meanwhile.
    """
    stream = cuda.get_current_stream()
    before, first, last = cuda.Event(), cuda.Event(), cuda.Event()
    hold = HOLD
    while True:
        stream.synchronize()
        start = time.perf_counter()
        before.record(stream)
        wait(hold)
        first.record(stream)
        work()
        last.record(stream)
        queueing = time.perf_counter() - start
        last.synchronize()
        held = cuda.get_elapsed_time(before, first) * 1e-3  # of milliseconds
        if queueing < held or hold >= LONGEST_HOLD:
            return float(cuda.get_elapsed_time(first, last)) * 1e-3
        hold = min(LONGEST_HOLD, 2 * queueing)
