"""The driver that copies runs of elements from the places that a table has."""

from __future__ import annotations

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors.simd import carray, copy_bytes, pointer

REARRANGE_FIELDS = fields("x y places runs run tasks")  # places: of each run, in elements


@jit.specialise
def rearrange_share() -> jit.Kernel:
    """The runs of a task. Elements have four bytes."""

    def rearrange_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, REARRANGE_FIELDS)[0]
        places = carray(pointer(a.places), a.runs, np.int64)
        first, end = a.runs * task // a.tasks, a.runs * (task + 1) // a.tasks
        if a.run == 1:
            x, y = carray(pointer(a.x), 1, np.int32), carray(pointer(a.y), a.runs, np.int32)
            for i in range(first, end):
                y[i] = x[places[i]]
        else:
            nbytes = a.run * 4
            for i in range(first, end):
                copy_bytes(a.y + i * nbytes, a.x + places[i] * 4, nbytes)

    return rearrange_share
