"""The driver that finds where the largest, or least, elements of rows lie."""

from __future__ import annotations

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors.simd import carray, pointer

SIZE, PLACE = 4, 8  # bytes of a float32, and of a place
LEAST, MOST = -(1 << 31), (1 << 63) - 1  # of integers of 32 bits, and of 64
LOW = (1 << 32) - 1  # the bits of a place

# x is (rows, size), places (rows, count); sign is 1 for the least, -1 for the largest
TOP_FIELDS = fields("x places rows size count sign tasks")


@jit.specialise
def top_share() -> jit.Kernel:
    """The rows of a task: each element and its place as one integer, of which the least stay in order."""

    def top_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, TOP_FIELDS)[0]
        for row in range(a.rows * task // a.tasks, a.rows * (task + 1) // a.tasks):
            x = carray(pointer(a.x + row * a.size * SIZE), a.size, np.int32)
            best = carray(pointer(a.places + row * a.count * PLACE), a.count, np.int64)
            for i in range(a.count):
                best[i] = MOST
            bound = MOST
            for i in range(a.size):
                bits = x[i]
                if bits < 0:  # -x: the bits of x, negative; as an integer of this order
                    bits = LEAST - bits
                key = bits * a.sign * (LOW + 1) + i
                if key < bound:
                    j = a.count - 1
                    while j > 0:
                        if best[j - 1] < key:
                            break
                        best[j] = best[j - 1]
                        j = j - 1
                    best[j] = key
                    bound = best[a.count - 1]
            for i in range(a.count):
                best[i] = best[i] & LOW

    return top_share
