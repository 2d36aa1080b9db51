"""Steps from one array to another that compiled code makes in one go: kernels, conversions, and copies.

What fills a small array takes a microsecond, and each step of Python between two kernels half of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.allocator import ALIGNMENT
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.array_calls import DATA, word_at
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.runtime.record_launch import RecordLaunch, run_launched
from convalgos.cpu.vectors.simd import call, carray, external, pointer

LAUNCH, CONVERT, GATHER, SCATTER = range(4)
X, Y = -1, -2  # places of arrays; others are numbers of buffers between them, and then their bytes
STRIDES = DATA + 24  # bytes from an array of Python to the address of its (ndim,) strides
# What is launched, converts or is the bytes of an element; from where and to where, and how many elements.
# Of a copy, the address of (ndim, 3) axes, their sizes and elements between neighbours in C order; the last
# is the longest.
STEP = fields("kind what source target elements ndim axes")
RUN = fields("steps count room made y_name y_place")  # see `ArrayRun`

_allocate = external("PyMem_RawMalloc", 1)
_free = external("PyMem_RawFree", 1, returns=False)


class ArrayStep(NamedTuple):
    """One step; `kept` is what holds the addresses that it has."""

    kind: int
    what: int
    source: int
    target: int
    elements: int = 0
    kept: Any = None


@jit.helper
def copy_elements_apart(target: int, apart: int, source: int, step: int, count: int, size: int) -> None:
    """Elements of so many bytes, with steps between them."""
    if size == 8:
        for i in range(count):
            word = carray(pointer(source + i * step), 1, np.int64)[0]
            carray(pointer(target + i * apart), 1, np.int64)[0] = word
    elif size == 4:
        for i in range(count):
            half = carray(pointer(source + i * step), 1, np.int32)[0]
            carray(pointer(target + i * apart), 1, np.int32)[0] = half
    else:
        for i in range(count):
            for j in range(size):
                byte = carray(pointer(source + i * step + j), 1, np.int8)[0]
                carray(pointer(target + i * apart + j), 1, np.int8)[0] = byte


@jit.helper
def copy_across_steps(s: Any, array: int, laid: int) -> None:
    """Elements of an array of Python to memory in C order, or from there."""
    strides, axes, ndim, size = word_at(array + STRIDES), s.axes, s.ndim, s.what
    gathers, last = s.kind == GATHER, axes + (ndim - 1) * 24
    inner, apart, packed = word_at(last + 8), word_at(strides + 8 * word_at(last)), word_at(last + 16) * size
    for row in range(s.elements // inner):
        left, one, other = row, word_at(array + DATA), laid
        for k in range(ndim - 1):
            axis = axes + (ndim - 2 - k) * 24
            n = word_at(axis + 8)
            at = left % n
            left = left // n
            one += at * word_at(strides + 8 * word_at(axis))
            other += at * word_at(axis + 16) * size
        if gathers:
            copy_elements_apart(other, packed, one, apart, inner, size)
        else:
            copy_elements_apart(one, apart, other, packed, inner, size)


@jit.helper
def address_at(place: int, x: int, y: int, memory: int) -> int:
    """The address of what lies at a place."""
    if place == X:
        return word_at(x + DATA)
    if place == Y:
        return word_at(y + DATA)
    return memory + place


@jit.helper
def run_array_steps(steps: int, count: int, room: int, x: int, y: int) -> bool:
    """Whether there was memory for it. x, y: arrays of Python, whose callers hold them."""
    given = _allocate(room + ALIGNMENT)
    if given == 0:
        return False
    memory = given + -given % ALIGNMENT
    done = True
    for i in range(count):
        s = carray(pointer(steps + i * STEP.itemsize), 1, STEP)[0]
        source, target = address_at(s.source, x, y, memory), address_at(s.target, x, y, memory)
        if s.kind == LAUNCH:
            done = done and run_launched(s.what, source, target, 0, 0, 0, 1)
        elif s.kind == CONVERT:
            call(s.what, (source, target, s.elements))
        elif s.kind == GATHER:
            copy_across_steps(s, x, target)
        else:
            copy_across_steps(s, y, source)
    _free(given)
    return done


def array_steps_of(write: Any) -> list[ArrayStep] | None:
    """Those that fill an array as `write` does; None where it does more."""
    if isinstance(write, RecordLaunch):
        return None if write.is_long else [ArrayStep(LAUNCH, write.address, X, Y, kept=write)]
    found: list[ArrayStep] | None = getattr(write, "array_steps", None)
    return found


def chained(parts: Sequence[list[ArrayStep] | None]) -> list[ArrayStep] | None:
    """Steps one after the other, each from where the one before it went; None where a part is."""
    found, source, buffers = list[ArrayStep](), X, 0
    for i, part in enumerate(parts):
        if part is None:
            return None
        target = Y
        if i < len(parts) - 1:
            target, buffers = buffers, buffers + 1
        moved = {X: source, Y: target} | {p: p + buffers for s in part for p in s[2:4] if p >= 0}
        found += [s._replace(source=moved[s.source], target=moved[s.target]) for s in part]
        source, buffers = target, max(buffers, *(p + 1 for p in moved.values()))
    return found


class ArrayRun:
    """The record of `RUN`: what fills an array, and which one: that of an argument, or a new one.

    Args:
        steps: between arrays of `shape`.
        dtype: of the array that is filled.
        sizes: bytes of an element of x, and of y, where these are copied; else 0.
        place: that of y among arguments, its name, or None for a new array.
    """

    def __init__(
        self, steps: list[ArrayStep], shape: tuple[int, ...], dtype: np.dtype, sizes: tuple[int, int],
        place: int | str | None,
    ):  # fmt: skip
        count = int(np.prod(shape))
        axes = _axes_of(shape)
        copies = [
            [ArrayStep(kind, n, X, Y, count, axes)] for kind, n in zip((GATHER, SCATTER), sizes, strict=True)
        ]
        before, behind = (copy if n else [] for copy, n in zip(copies, sizes, strict=True))
        parts = [part for part in (before, steps, behind) if part]
        self.steps = chained(parts) or []
        buffers = 1 + max(p for s in self.steps for p in s[2:4])
        self.each = -(-count * 8 // ALIGNMENT) * ALIGNMENT + 2 * ALIGNMENT  # no element has more than 8 bytes
        self.room = max(buffers, 0) * self.each
        ends = len(shape), axes.ctypes.data
        rows = [
            (s.kind, s.what, *(p if p < 0 else p * self.each for p in s[2:4]), s.elements, *ends)
            for s in self.steps
        ]
        self._table = np.array(rows, STEP)
        made = (shape, dtype)
        name = place if isinstance(place, str) else 0
        number = place if isinstance(place, int) else -1
        values = self._table.ctypes.data, len(rows), self.room, id(made), id(name) if name else 0, number
        self._kept = self.steps, axes, made, place
        self._record = np.array([values], RUN)
        self.address = self._record.ctypes.data


def _axes_of(shape: tuple[int, ...]) -> np.ndarray:
    """(ndim, 3): each axis, its size, and elements between neighbours in C order; the longest is the last."""
    ordered = sorted(range(len(shape)), key=lambda axis: shape[axis])
    return np.array([(axis, shape[axis], np.prod(shape[axis + 1 :], dtype=int)) for axis in ordered])
