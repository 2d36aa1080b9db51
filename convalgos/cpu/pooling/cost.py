"""What pooling takes on the CPU: as long as its vectors are reduced, or its maps moved.

Constants of a Xeon (Granite Rapids), float32, found on 574 random maps of 20 KB to 32 MB; on 574 others the
predictions lie a sixth off in blocks, a fifth in channels_last and a third in channels_first, as means of
logarithms. Vectors are loaded and reduced at the pace of products of vectors, two in a cycle of that machine;
shuffles, and what begins and ends, go by the clock. On Zen 4 the mean is a tenth off, on 72 maps each. Slices
that are reduced first have constants of their own.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from convalgos.core.layouts import BLOCKS
from convalgos.core.machine import Machine
from convalgos.core.pool_problem import PoolProblem
from convalgos.cpu.pooling.planar_forms import SLICES, PlanarForm, planar_form
from convalgos.cpu.pooling.runs import Computed
from convalgos.cpu.runtime.threads import BYTES, SMALL


class _Cycles(NamedTuple):
    """Of a core."""

    output: float  # for a vector of outputs,
    step: float  # for one that is reduced,
    row: float  # and for a row of outputs of a vector of channels


WINDOWS = {  # by layout
    "channels_first": _Cycles(20.0, 2.6, 17.0),
    "channels_last": _Cycles(9.0, 1.3, 42.0),
    "blocked": _Cycles(2.0, 1.0, 75.0),
}
WHOLE = {  # the same of windows that cover a whole map
    "channels_first": _Cycles(60.0, 2.2, 60.0),
    "channels_last": _Cycles(3.0, 1.6, 92.0),
    "blocked": _Cycles(20.0, 1.5, 40.0),
}
# Where slices are reduced first, with channels first: a vector that is reduced over slices or rows, one that
# is reduced along its row (twice that of strides), one of outputs, and a row of these. Found on 205 random
# maps (Zen 4, two threads); on 159 others predictions lie a seventh off
REDUCED, ALONG, OUTPUTS, ROW = 1.7, 3.0, 11.6, 13.4
MAXIMUM = 1.5  # times the steps of a mean
FEW_TAPS = 4  # of a row, up to which windows in blocks are reduced tap by tap, and not their rows first
CALL = 1e-6  # seconds to run a kernel by one thread


def pooling_seconds(problem: PoolProblem, machine: Machine) -> float:
    """Predicted time to pool, on all threads.

    Example:
        >>> from convalgos.core.profiles import nominal
        >>> pooling_seconds(PoolProblem.of((1, 64, 112, 112), 3, stride=2, padding=1), nominal(2)) < 1e-3
        True
    """
    n, channels = problem.x_shape[:2]
    layout = "blocked" if problem.layout in BLOCKS else problem.layout
    size = max(4, problem.itemsize) if problem.itemsize > 1 else 1  # of what is computed
    nbytes = sum(math.prod(shape) for shape in problem.array_shapes) * problem.itemsize
    if layout == "channels_first" and len(problem.kernel) == 3:
        form = planar_form(problem, Computed(problem).kinds)
        if form.order == SLICES:
            return _shared(n * channels * _slices_first(form, size, machine), nbytes, machine)
    vectors = n * -(-channels * size // machine.vector_bytes)
    outputs = math.prod(problem.y_shape[2:])
    taps, columns, step = math.prod(problem.kernel), problem.kernel[-1], problem.stride[-1]
    whole = all(w.is_whole for w in problem.windows)
    if not whole and (layout != "blocked" or columns >= FEW_TAPS):  # rows first, then columns of one row
        taps = taps // columns * min(columns, step) + columns
    cycles = (WHOLE if whole else WINDOWS)[layout]
    steps = taps * (MAXIMUM if problem.reduction == "max" else 1.0)
    rows = outputs // problem.y_shape[-1] if outputs else 0
    shuffled = layout == "channels_first"  # in each step, too
    pace = machine.cycles if shuffled else machine.paced_cycles
    work = (
        outputs * cycles.step * steps / pace + (outputs * cycles.output + rows * cycles.row) / machine.cycles
    )
    return _shared(vectors * work, nbytes, machine)


def _slices_first(form: PlanarForm, size: int, machine: Machine) -> float:
    """Seconds of a plane, on all threads, whose windows are reduced over slices, then rows, then columns."""
    _, depth, height, width = form
    lanes = machine.vector_bytes // size
    rows = len(depth.first) * len(height.first)
    outputs = rows * -(-len(width.first) // lanes)
    reduced = int(depth.taps.sum()) * -(-height.size * width.size // lanes)
    reduced += len(depth.first) * int(height.taps.sum()) * -(-width.size // lanes)
    along = outputs * width.kernel * (1 if width.stride == 1 else 2)
    written = ALONG * along + OUTPUTS * outputs + ROW * rows
    return REDUCED * reduced / machine.paced_cycles + written / machine.cycles


def _shared(work: float, nbytes: int, machine: Machine) -> float:
    """Seconds of work that all threads share where so many bytes are worth it."""
    taken = max(work, machine.stream_near(nbytes))
    if nbytes / BYTES > SMALL:
        return machine.launch / 2 + taken
    return CALL + machine.threads * taken  # by the calling thread alone
