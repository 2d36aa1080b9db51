"""The filters of a gradient's phases: rotated, with channels and filters swapped, on all threads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.backward.polyphase import Phase
from convalgos.core.machine import LINE, Machine
from convalgos.core.problem import ConvProblem, Shape
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.runtime.recorded_packing import launch_packing
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import carray, copy_bytes, pointer
from convalgos.cpu.vectors.transpose import load_whole_square

# w (groups, filters, channels, elements), at the element of its first kernel that is first in memory; filters
# and channels lie `..._stride` elements apart. `elements_to` (count,) as `KERNEL_ELEMENT`. Where all elements
# of a kernel lie side by side and go to one filter, `run` is 1, or -1 if the last one is first there; else 0.
ROTATION_ARGUMENTS = fields(
    "w groups filters channels filter_stride channel_stride elements run made elements_to count tasks"
)
# An element of the kernel by its place in memory, and its place in the filter of a phase (groups, channels,
# filters, taps), which is `target` bytes behind the first.
KERNEL_ELEMENT = fields("element target taps place")


# Xeon (Sapphire Rapids)
ROTATION_CALL = 1e-5  # seconds to rotate any filter,
SQUARE = 350  # cycles of a vector of channels by a filter whose taps fill few lanes,
ALONE = 50  # of a tap of it that is packed by itself,
ELEMENT = 5  # and of an element that is copied before


class Rotation(NamedTuple):
    """How some filters are made of one; kept, as it takes longer to tell than small filters to make."""

    table: np.ndarray  # `KERNEL_ELEMENT`, in the order in which w is read
    lowest: int  # elements from the first one of a kernel to that which is first in memory
    run: int  # as in `ROTATION_ARGUMENTS`
    parts: tuple[tuple[int, Shape], ...]  # of each filter its first element, and its shape
    size: int  # elements of all


def rotated_filters(phases: Sequence[Phase], w: np.ndarray, groups: int) -> list[np.ndarray]:
    """(C, K/groups, *taps) `Phase.filter` of each phase, from w (K, C/groups, *kernel) of any strides.

    New arrays. The phases share no elements of the kernel, and w is read once for all of them.
    """
    if not phases:  # all of dx is zero: what taps reach is padding
        return []
    if w.itemsize < 4:  # the kernel moves elements of 4 and 8 bytes
        return [phase.filter(w, groups).copy() for phase in phases]
    known = _rotation(tuple(phase.taps for phase in phases), w.shape, w.strides, groups, w.itemsize)
    made = _rotated(known, w, groups)
    return [made[first : first + math.prod(shape)].reshape(shape) for first, shape in known.parts]


def rotated_together(phases: Sequence[Phase], w: np.ndarray) -> np.ndarray:
    """(phases * C, K, *taps) of phases that have as many taps, in one array, from w (K, C, *kernel)."""
    known = _rotation(tuple(phase.taps for phase in phases), w.shape, w.strides, 1, w.itemsize, 1)
    channels, *rest = known.parts[0][1]
    return _rotated(known, w, 1).reshape(len(phases) * channels, *rest)


def _rotated(known: Rotation, w: np.ndarray, groups: int) -> np.ndarray:
    """All that is made of w, one after the other."""
    filters, channels, *kernel = w.shape
    made = aligned_empty(known.size, w.dtype)
    address, table = jit.data_address(), known.table
    tasks = jit.thread_count() if w.size > 1 << 14 else 1
    begin, steps = address(w) + known.lowest * w.itemsize, [stride // w.itemsize for stride in w.strides[:2]]
    sizes = (groups, filters // groups, channels, *steps, math.prod(kernel), known.run)
    record = np.array([(begin, *sizes, address(made), address(table), len(table), tasks)], ROTATION_ARGUMENTS)
    launch_packing(rotate_filters(w.itemsize, simd.lanes(w.itemsize)), record, tasks, w, made, table)
    return made


def rotation_seconds(problem: ConvProblem, phases: int, machine: Machine, filled: bool = False) -> float:
    """Predicted time to rotate the filter of a backward_data problem, beside that to pack it as it is.

    Args:
        filled: its phases are copied into one filter, beside zeros.
    """
    p, lanes = problem, simd.lanes(problem.itemsize)
    taps = math.prod(p.kernel)
    if not phases:  # no output meets a tap
        return 0.0
    if p.groups > 1 or filled:
        return ROTATION_CALL + ELEMENT * (1 + filled) * math.prod(p.w_shape) / machine.cycles
    vectors, of_phase = -(-p.C // lanes) * p.K, taps / phases
    cycles = min(ALONE * of_phase, SQUARE * max(0.0, 1 - of_phase / lanes)) if taps > 1 else 0.0
    return ROTATION_CALL + vectors * phases * cycles / machine.cycles


@lru_cache(256)
def _rotation(
    taps: tuple[Any, ...], w_shape: Shape, strides: Shape, groups: int, itemsize: int, begins: int = LINE
) -> Rotation:
    """taps: those of each phase; begins: bytes of which the place of each filter is a multiple."""
    filters, channels, *kernel = w_shape
    along = [np.arange(n) * (stride // itemsize) for n, stride in zip(kernel, strides[2:], strict=True)]
    elements = reduce(np.add.outer, along)  # (*kernel), where they lie
    lowest = int(elements.min())
    tables, parts, size = [], [], 0
    for of_phase in taps:
        chosen = np.flip(elements[tuple(slice(first, None, step) for first, step in of_phase)])  # (*taps)
        shape = (groups * channels, filters // groups, *chosen.shape)
        table = np.empty(chosen.size, KERNEL_ELEMENT)
        table["element"], table["place"] = chosen.ravel() - lowest, np.arange(chosen.size)
        table["target"], table["taps"] = size * itemsize, chosen.size
        tables.append(table)
        parts.append((size, shape))
        size += -(-math.prod(shape) * itemsize // begins) * begins // itemsize
    to = np.concatenate(tables)
    to = to[np.argsort(to["element"])]
    run, there = 0, np.arange(math.prod(kernel))
    if len(taps) == 1 and np.array_equal(to["element"], there):
        run = int(np.array_equal(to["place"], there)) - int(np.array_equal(to["place"], there[::-1]))
        run = run or int(there.size == 1)
    return Rotation(to, lowest, run, tuple(parts), size)


@simd.emitter
def reverse_run(v: simd.Vec, source: Any, target: Any, count: Any) -> None:
    """target[count - 1 - i] = source[i] for i < count; count is at least 1."""
    from_, end = v.pointer(source), v.at(v.pointer(target), count)
    backwards = list(reversed(range(v.lanes)))
    with v.loop(v.idiv(v.iadd(count, v.lanes - 1), v.lanes)) as i:
        done = v.imul(i, v.lanes)
        left = v.isub(count, done)
        row = v.load_masked(from_, done, v.mask(left))
        to = v.isub(0, v.iadd(done, v.lanes))
        v.store_masked(v.shuffle(row, row, backwards), end, to, v.window(v.isub(v.lanes, left), v.lanes))


@jit.specialise
def rotate_filters(SIZE: int, LANES: int) -> Callable[..., None]:
    """target[group, channel, filter, place] = w[group, filter, channel, element], for elements of the kernel.

    In squares of LANES channels and filters, of which both arrays have few cache lines.
    """

    def rotate_filters(args: int, task: int) -> None:
        a = carray(pointer(args), 1, ROTATION_ARGUMENTS)[0]
        table = carray(pointer(a.elements_to), a.count, KERNEL_ELEMENT)
        blocks = (a.channels + LANES - 1) // LANES
        total = a.groups * blocks
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            group, c0 = item // blocks, item % blocks * LANES
            channels = min(LANES, a.channels - c0)
            for k0 in range(0, a.filters, LANES):
                filters = min(LANES, a.filters - k0)
                source = a.w + ((group * a.filters + k0) * a.filter_stride + c0 * a.channel_stride) * SIZE
                first = (group * a.channels + c0) * a.filters + k0
                if a.elements == 1 and channels == filters == LANES and a.channel_stride == 1:
                    target = a.made + table[0].target + first * SIZE
                    load_whole_square(SIZE, LANES, source, a.filter_stride, target, a.filters)
                    continue
                for c in range(channels):
                    of_channel, at = source + c * a.channel_stride * SIZE, first + c * a.filters
                    if a.elements == 1 and a.filter_stride == 1:
                        copy_bytes(a.made + table[0].target + at * SIZE, of_channel, filters * SIZE)
                        continue
                    if a.run == 0:
                        for i in range(a.count):
                            to = table[i]
                            from_ = of_channel + to.element * SIZE
                            target = a.made + to.target + (at * to.taps + to.place) * SIZE
                            from_step, target_step = a.filter_stride * SIZE, to.taps * SIZE
                            for _ in range(filters):
                                copy_bytes(target, from_, SIZE)
                                from_ += from_step
                                target += target_step
                        continue
                    for k in range(filters):
                        from_ = of_channel + k * a.filter_stride * SIZE
                        target = a.made + table[0].target + (at + k) * a.elements * SIZE
                        if a.run < 0:
                            reverse_run(SIZE, LANES, from_, target, a.elements)
                        else:
                            copy_bytes(target, from_, a.elements * SIZE)

    return rotate_filters
