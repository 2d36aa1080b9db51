"""Minima and maxima under a few marked elements of a window: each output is reduced over all of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.arguments import Shape
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.runtime.record_launch import RecordLaunch
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.sliding.plan import FORM_OF
from convalgos.cpu.sliding.reductions import reduce_down
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import carray, copy_bytes, pointer

SHARE = 1 << 18  # bytes of all that is reduced that are worth a thread; Xeon
UNITS = 4  # of work for each thread
# Bytes from the begin of x: `begins` of each line of y, and `offsets` of the taps from there.
MARKED_FIELDS = fields("x y scratch scratch_bytes tasks lines begins taps offsets count line")


@jit.specialise
def reduce_marked(SIZE: int, LANES: int, FORM: int, REDUCTION: int) -> jit.Kernel:
    """The lines of a task."""

    def reduce_marked(args: int, task: int) -> None:
        a = carray(pointer(args), 1, MARKED_FIELDS)[0]
        scratch = a.scratch + task * a.scratch_bytes
        addresses, line = carray(pointer(scratch), a.taps, np.int64), scratch + a.line
        begins = carray(pointer(a.begins), a.lines, np.int64)
        offsets = carray(pointer(a.offsets), a.taps, np.int64)
        for n in range(a.lines * task // a.tasks, a.lines * (task + 1) // a.tasks):
            begin = a.x + begins[n]
            for t in range(a.taps):
                addresses[t] = begin + offsets[t]
            reduce_down(SIZE, LANES, SIZE, FORM, REDUCTION, 0, scratch, 0, a.taps, line, a.count, 0)
            copy_bytes(a.y + n * a.count * SIZE, line, a.count * SIZE)

    return reduce_marked


class MarkedWindow:
    """y (shape) of x, which has the elements of all windows, by their marked ones. Many threads may call it.

    A call as f(x, y) fills y. Both are C-contiguous and apart from each other.

    Args:
        window: its sizes.
        marked: (taps, ndim): where marked elements lie in it; at least one.
        reduction: MINIMUM or MAXIMUM.
    """

    def __init__(
        self, shape: Shape, dtype: np.dtype, window: Shape, marked: np.ndarray[Any, Any], reduction: int
    ):
        whole = [n + taps - 1 for n, taps in zip(shape, window, strict=True)]
        steps = [dtype.itemsize]  # (ndim,) bytes
        for n in whole[:0:-1]:
            steps.insert(0, steps[0] * n)
        lines, size, lanes = math.prod(shape[:-1]), dtype.itemsize, simd.lanes(dtype.itemsize)
        begins = np.zeros(1, np.int64)  # (lines,) at last
        for n, step in zip(shape[:-1], steps[:-1], strict=True):
            begins = (begins[:, None] + np.arange(0, n * step, step)).reshape(-1)
        offsets = marked @ np.array(steps)  # (taps,)
        threads = plan_threads()
        shares = lines * shape[-1] * size * len(offsets) // SHARE
        tasks = min(lines, UNITS * threads) if threads > 1 and shares > 1 else 1
        line_at = whole_lines(8 * len(offsets))
        scratch_bytes = line_at + whole_lines((shape[-1] + 4 * lanes) * size)
        address = jit.data_address()
        values = (
            0, 0, 0, scratch_bytes, tasks, lines, address(begins), len(offsets), address(offsets), shape[-1],
            line_at,
        )  # fmt: skip
        kernel = reduce_marked(size, lanes, FORM_OF[dtype.kind], reduction)
        record, names = np.array(values, np.int64), MARKED_FIELDS.names
        self.run = RecordLaunch(kernel, record, names, tasks * scratch_bytes, tasks, (begins, offsets))
