"""Gradients of depthwise filters: how blocks share the pixels of a filter, and how long that takes.

A filter has few outputs and long sums. Its items (bands of rows, images) are shared by `parts` blocks, each
of which has sums of its own; where there are several, one more kernel adds them up (`split_k`).
"""

from __future__ import annotations

from convalgos.core.problem import ConvProblem
from convalgos.gpu.device import GpuMachine
from convalgos.gpu.dwconv.launch_forms import WARP, LaunchForm, issue_seconds
from convalgos.gpu.launch.grid import ceil_div, waves
from convalgos.gpu.launch.split_k import parts_bytes

ARRIVAL = 0.7e-6  # seconds until loads that were started together have arrived; estimate


def adders(parts: int) -> int:
    """Threads that share the parts of an element."""
    return 1 if parts < 16 else 8 if parts < 128 else 32


def halvings(most: int) -> list[int]:
    """Ways to cut something into pieces: whole, in halves, quarters, ... and one by one."""
    return [*(ceil_div(most, 1 << i) for i in range((most - 1).bit_length())), 1]


def parts_to_try(items: int, blocks: int, resident: int, machine: GpuMachine) -> list[int]:
    """How many blocks may share the items of a filter: one, as many as run together, and more."""
    fill = ceil_div(machine.multiprocessors * resident, blocks)
    return sorted({min(items, n) for n in (1, fill // 2, fill, 2 * fill, 4 * fill) if n})


def timed(
    p: ConvProblem,
    form: LaunchForm,
    arithmetic: float,
    arrivals: float,
    resident: int,
    again: float,
    machine: GpuMachine,
) -> LaunchForm:
    """The form with its seconds.

    arithmetic: instructions of a thread. arrivals: times that it waits for loads. again: how often x and dy
    are read from L2, beside the once that they come from memory.
    """
    count, read = form.params["parts"], p.x_bytes + p.y_bytes
    threads = ceil_div(form.threads, WARP) * WARP
    issued = issue_seconds(form.blocks, threads, arithmetic, resident, machine)
    waited = ceil_div(waves(form.blocks, machine), resident) * arrivals * ARRIVAL
    moved = machine.stream(read) + machine.stream(again * read) / 3
    # Four parts are on their way to an adder together.
    added = machine.launch + machine.stream(2 * parts_bytes(p, count)) + count / adders(count) / 4 * ARRIVAL
    return form._replace(seconds=max(issued, waited, moved) + (added if count > 1 else 0.0))
