"""What a task has of its worker: threads for its kernels, and filters that were prepared in tasks before."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import numpy as np

from convalgos.core import allocator, setting, workspaces
from convalgos.core.forks import guarded
from convalgos.core.plan import Plan
from convalgos.core.prepared_filter import PreparedFilter
from convalgos.dask.recent_filters import LARGE, RecentFilters

THREADS = "CONVALGOS_NUM_THREADS"  # where it is set, the threads of all tasks of a process together
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # as <malloc.h> has them
KEPT_BYTES = 4 << 20
KEPT_SHARE = 1 / 16  # of the memory of a worker, for blocks that it will compute
FILTER_SHARE = 1 / 256  # of it for filters, whose prepared forms take up to ten times as much


def only(block: Any) -> Any:
    """The one array of a dimension that is summed, and that has one block: Dask hands it over in lists."""
    while isinstance(block, list):
        (block,) = block
    return block


@contextmanager
def threads_of_task(blocks: int) -> Iterator[None]:
    """Within it, kernels run on this task's share of the threads, so that tasks side by side do not crowd.

    That of a Dask worker is one thread for each task, unless CONVALGOS_NUM_THREADS says how many there are;
    of the threaded scheduler that of the cores; a computation of one task after the other has them all.

    Args:
        blocks: tasks of this kind; where there are fewer than tasks may run, each has more.
    """
    side_by_side, threads = _side_by_side(), setting.thread_count()
    if side_by_side is None:
        yield
        return
    tasks, cores = side_by_side
    with setting.threads_of_calls(max(1, (cores or threads) // max(1, min(tasks, blocks)))):
        yield


def _side_by_side() -> tuple[int, int | None] | None:
    """(tasks that run at a time in this process, its cores where they are not ours to count), or None."""
    if (worker := _worker()) is not None:
        _keep_small_buffers()
        _keep_blocks(worker.memory_manager.memory_limit)
        return worker.state.nthreads, None if os.environ.get(THREADS) else worker.state.nthreads
    if threading.current_thread() is not threading.main_thread():
        return _threads_of_pool(), None
    if multiprocessing.parent_process() is not None:  # one of many processes, each with a task
        return 1, None if os.environ.get(THREADS) else 1
    return None


@cache
def _keep_small_buffers() -> None:
    """Let the C library keep up to 4 MiB that was freed, where Dask has its workers give back 64 KiB at once.

    FFTW allocates some 300 KB in every transform: its page faults took longer than the transforms.
    """
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        return  # it adapts these thresholds by itself
    with suppress(AttributeError, OSError, TypeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES >> 1)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


@cache
def _keep_blocks(limit: int | None) -> None:
    """Let memory of blocks be used again, though they are large: a share of what a worker may take.

    Two workers convolve 8192 x 8192 by 31 x 31 in 198 ms where they took 216; Xeon (Sapphire Rapids). And
    keep no more in one that may take little: Dask pauses it for what it does not know of.
    """
    if limit:
        allocator.keep_up_to(int(KEPT_SHARE * limit))
        workspaces.limit_memory(limit)


def _threads_of_pool() -> int:
    """Those of the pool that this thread is one of, which names them alike."""
    pool = threading.current_thread().name.rpartition("_")[0]
    return sum(thread.name.rpartition("_")[0] == pool for thread in threading.enumerate())


def _worker() -> Any:
    """The Dask worker that runs this task, if one does."""
    module = sys.modules.get("distributed.worker")
    if module is None:
        return None
    try:
        return module.get_worker()
    except ValueError:
        return None


def prepared(plan: Plan, w: Any) -> PreparedFilter:
    """A filter in the form of a plan: made once, and kept as long as Dask keeps w, which nobody writes to.

    A Dask worker gets it anew in every call, and keeps it itself.
    """
    with _lock:
        if type(w) is np.ndarray and w.nbytes > LARGE and (worker := _worker()) is not None:
            w = _kept_by_worker(w, worker.memory_manager.memory_limit)
        at = id(w)
        kept = _filters.get(at)
        if kept is None or kept[0]() is not w:
            kept = _filters[at] = weakref.ref(w, lambda gone: _filters.pop(at, None)), {}
        if (found := kept[1].get(plan._key)) is None:
            with threads_of_task(1):  # as others wait for it
                found = kept[1][plan._key] = plan.prepare(w)
        return found


def _kept_by_worker(w: np.ndarray, limit: int | None) -> np.ndarray:
    """w, or the same of an earlier call."""
    if not w.flags.c_contiguous:
        return w
    if (found := _recent.find(w)) is not None:
        return found
    _recent.add(w, w, int(FILTER_SHARE * (limit or 0)))
    return w


_lock = guarded(threading.RLock())
_filters: dict[int, tuple[weakref.ref[Any], dict[Any, PreparedFilter]]] = {}  # by the id of the array
_recent: RecentFilters[np.ndarray] = RecentFilters()  # of a worker
