"""A kernel launched on a copy of its record, with addresses of two or three arrays and of a fresh scratch.

All of that is compiled: a filter of a small image takes a few microseconds, and Python's copies took two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from convalgos.core.allocator import ALIGNMENT, LARGE, aligned_empty
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors.simd import call, carray, copy_bytes, external, pointer

# The record and how many words it has, which of them are the addresses of x, y, scratch and the third array,
# bytes of scratch that is not given, and what is launched.
LAUNCHED = fields("record words x_at y_at scratch_at third_at room kernel tasks launch")

_integer = external("PyNumber_AsSsize_t", 2)
_release = external("PyEval_SaveThread", 0)
_resume = external("PyEval_RestoreThread", 1, returns=False)
_count = external("Py_IncRef", 1, returns=False)
_allocate = external("PyMem_RawMalloc", 1)
_free = external("PyMem_RawFree", 1, returns=False)
_no_memory = external("PyErr_NoMemory", 0)


@jit.helper
def run_launched(at: int, x: int, y: int, scratch: int, third: int, pool: int, threads: int) -> bool:
    """Whether there was memory for it. at: the address of `LAUNCHED`; others as `_launch_record` has them."""
    a = carray(pointer(at), 1, LAUNCHED)[0]
    nbytes = a.words * 8
    memory = _allocate(nbytes + (a.room if scratch == 0 else 0))
    if memory == 0:
        return False
    copy_bytes(memory, a.record, nbytes)
    if scratch == 0:
        scratch = memory + nbytes
    words = carray(pointer(memory), a.words, np.int64)
    words[a.x_at], words[a.y_at] = x, y
    if third != 0:
        words[a.third_at] = third
    words[a.scratch_at] = scratch + -scratch % ALIGNMENT
    state = _release()
    call(a.launch, (pool, a.kernel, memory, a.tasks, threads))
    _resume(state)
    _free(memory)
    return True


def _launch_record(this: int, given: int, count: int) -> int:
    """What Python calls as f(a, x, y, scratch, third, pool, threads), all integers; a: address of `LAUNCHED`.

    scratch: 0 where it is to be found; third: 0 where the record keeps its own. The interpreter's lock is
    released meanwhile.
    """
    objects = carray(pointer(given), 7, np.intp)
    x, y, scratch = _integer(objects[1], 0), _integer(objects[2], 0), _integer(objects[3], 0)
    third, pool, threads = _integer(objects[4], 0), _integer(objects[5], 0), _integer(objects[6], 0)
    result = this  # it is None
    if run_launched(_integer(objects[0], 0), x, y, scratch, third, pool, threads):
        _count(result)
    else:
        result = _no_memory()
    return int(result)


@functools.cache
def launch_record() -> Callable[..., Any]:
    return jit.from_python(b"launch_record", _launch_record, jit.FASTCALL)


@functools.lru_cache(256)
def _places(names: tuple[str, ...] | None, two: tuple[str, str], third: str) -> tuple[int, ...]:
    """The words of a record that are the addresses of x, y, scratch and the third array."""
    return tuple(map((names or ()).index, (*two, "scratch", third or two[0])))


class RecordLaunch:
    """Many threads may call it at once.

    Args:
        kernel: takes (address of its record, task).
        record: (fields,) int64.
        names: of these; the `two` and "scratch" are set by each call.
        kept: what the record points to, which lives as long as this.
        third: the name of an address that each call may bring in the place of the record's.
        two: the names of those that each call brings.
    """

    def __init__(
        self, kernel: int, record: np.ndarray, names: tuple[str, ...] | None, scratch_bytes: int, tasks: int,
        kept: Sequence[Any], third: str = "", two: tuple[str, str] = ("x", "y"),
    ):  # fmt: skip
        self._room, self._shared = scratch_bytes + ALIGNMENT, tasks > 1
        record, address = record.reshape(-1), jit.data_address()
        places = _places(names, two, third)
        values = (address(record), len(record), *places, self._room, kernel, tasks, jit.launch_address())
        self._launched = np.array(values)  # (fields of LAUNCHED,) int64
        self.address, self._address, self._run = address(self._launched), address, launch_record()
        self.is_long = self._shared or self._room >= LARGE
        self._kept = record, kept

    def __call__(self, x: np.ndarray, y: np.ndarray, third: np.ndarray | None = None) -> None:
        pool, threads = jit.pool_of_launch(True) if self._shared else (0, 1)
        address = self._address
        brought = 0 if third is None else address(third)
        if self._room < LARGE:
            self._run(self.address, address(x), address(y), 0, brought, pool, threads)
        else:
            scratch = aligned_empty(self._room, np.uint8)
            self._run(self.address, address(x), address(y), address(scratch), brought, pool, threads)
