"""The driver that copies runs of elements from places that are computed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors.simd import carray, copy_bytes, pointer

WORD = 4  # bytes that a run of one element has, or more

# y is (d0, d1, d2, d3) runs of `nbytes`, one behind the other. The run i begins x0 * i0 + ... + x3 * i3 bytes
# behind x, and `step` bytes further for each of places[p0 * i0 + ... + p3 * i3], of which there are `size`.
# `wrong` holds 1 where one is none of these. Places have 64 bits where they are `wide`, else 32.
GATHER_FIELDS = fields("x places y wrong nbytes step size d0 d1 d2 d3 x0 x1 x2 x3 p0 p1 p2 p3 wide tasks")


class RunStart(NamedTuple):
    """Where a run begins."""

    x: int  # bytes behind the first one, at place 0
    place: int  # which of the places is its own


@jit.helper
def run_start(a: Any, run: int) -> RunStart:
    """The start of a run of a record that has the dimensions of `GATHER_FIELDS`."""
    i3 = run % a.d3
    i2 = run // a.d3 % a.d2
    i1 = run // (a.d3 * a.d2) % a.d1
    i0 = run // (a.d3 * a.d2 * a.d1)
    return RunStart(
        i0 * a.x0 + i1 * a.x1 + i2 * a.x2 + i3 * a.x3,
        i0 * a.p0 + i1 * a.p1 + i2 * a.p2 + i3 * a.p3,
    )


@jit.helper
def place_at(a: Any, which: int) -> int:
    """One of the places of a record, as it is written."""
    if a.wide:
        place = int(carray(pointer(a.places), which + 1, np.int64)[which])
    else:
        place = int(carray(pointer(a.places), which + 1, np.int32)[which])
    return place


@jit.helper
def element_of(a: Any, place: int) -> int:
    """The element that a place tells, -1 where it is none, which is noted."""
    if place < 0:
        place = place + a.size
    if place < 0 or place >= a.size:
        carray(pointer(a.wrong), 1, np.int64)[0] = 1
        place = -1
    return place


@jit.specialise
def gather_share() -> jit.Kernel:
    """The runs of a task."""

    def gather_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, GATHER_FIELDS)[0]
        runs = a.d0 * a.d1 * a.d2 * a.d3
        run, end = runs * task // a.tasks, runs * (task + 1) // a.tasks
        while run < end:
            start = run_start(a, run)
            count = min(a.d3 - run % a.d3, end - run)
            x = a.x + start.x
            y = a.y + run * a.nbytes
            for j in range(count):
                place = max(element_of(a, place_at(a, start.place + j * a.p3)), 0)
                begin = x + j * a.x3 + place * a.step
                if a.nbytes == WORD:
                    carray(pointer(y + j * WORD), 1, np.int32)[0] = carray(pointer(begin), 1, np.int32)[0]
                else:
                    copy_bytes(y + j * a.nbytes, begin, a.nbytes)
            run = run + count

    return gather_share
