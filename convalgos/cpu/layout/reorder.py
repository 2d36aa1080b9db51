"""Maps from one layout into the other: channels_last into channels_first, and back.

Of an image that is a matrix of pixels by channels turned over. A few channels are split and joined by
shuffles of whole vectors; of more, squares of lanes x lanes are transposed in registers. All is moved once,
by all threads, and nothing is computed: the bits are the same for any number of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from convalgos.core.machine import Machine
from convalgos.core.problem import Shape
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import arguments, by_name
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.vectors import simd, transpose
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer

FEW = 4  # channels, up to which vectors are split and joined
CHUNK = 1024  # pixels that a thread turns at a time

# Cycles of a thread; calibrated on Sapphire Rapids.
REORDER_CALL = 2e-6  # seconds of Python around a reorder
VECTOR = 2.5  # to load or store a vector of few channels, and to fill it from another one
SQUARE = 100  # lanes x lanes in registers, whose lines lie far apart

# x, y: images of `channels` x `pixels`, in one order and in the other
REORDER_FIELDS = arguments("images channels pixels tasks")


def is_same(shape: Shape) -> bool:
    """Whether an array of a logical (N, C, *spatial) shape is the same memory in both layouts."""
    return shape[1] == 1 or math.prod(shape[2:]) == 1


def reorder_seconds(shape: Shape, itemsize: int, machine: Machine) -> float:
    """Predicted time to reorder an array of a logical (N, C, *spatial) shape, on all threads."""
    if is_same(shape):
        return 0.0
    images, channels, *sizes = shape
    pixels, lanes = math.prod(sizes), machine.vector_bytes // itemsize
    if channels <= FEW:
        cycles = VECTOR * channels * (channels + 1) * images * -(-pixels // lanes)
    else:
        cycles = SQUARE * images * -(-pixels // lanes) * -(-channels // lanes)
    nbytes = math.prod(shape) * itemsize
    return REORDER_CALL + machine.launch + max(cycles / _clock(machine), machine.stream(2 * nbytes))


def _clock(machine: Machine) -> float:
    """Cycles a second of all threads: of the peak, each does two fused products of vectors."""
    return machine.peak_float32 / machine.vector_bytes  # lanes * 2 * 2 flops = vector_bytes


class Reorder:
    """y = x in the other layout, for one call at a time.

    Args:
        shape: logical, (N, C, *spatial).
        to_last: whether y is the channels_last one.

    Example:
        >>> x, y = np.arange(24.0).reshape(2, 3, 4), np.empty((2, 4, 3))
        >>> Reorder(x.shape, x.itemsize, True)(x, y)
        >>> bool((y == x.swapaxes(1, 2)).all())
        True
    """

    def __init__(self, shape: Shape, itemsize: int, to_last: bool):
        images, channels, *sizes = shape
        self._tasks = plan_threads()
        self._record = np.zeros(1, REORDER_FIELDS)
        values = (images, channels, math.prod(sizes), self._tasks)
        for name, value in zip(("images", "channels", "pixels", "tasks"), values, strict=True):
            self._record[name] = value
        self._arguments, self._address = by_name(self._record), self._record.ctypes.data
        few = channels if channels <= FEW else 0
        self._kernel = (reorder_to_last if to_last else reorder_to_first)(itemsize, simd.lanes(itemsize), few)

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        """x, y: C-contiguous, (N, C, *spatial) and (N, *spatial, C) or the other way round."""
        self._arguments.x, self._arguments.y = x.ctypes.data, y.ctypes.data
        jit.launch(self._kernel, self._address, self._tasks)


# --- kernels ---------------------------------------------------------------------------------


def _picked(v: Vec, vectors: Sequence[Value], places: Sequence[tuple[int, int]]) -> Value:
    """A vector of elements of several ones; places: (which vector, which lane) of each."""
    n = v.lanes
    order = [lane + which * n if which < 2 else 0 for which, lane in places]
    found = v.shuffle(vectors[0], vectors[1], order)
    for i in range(2, len(vectors)):
        here = enumerate(places)
        found = v.shuffle(found, vectors[i], [n + p if which == i else at for at, (which, p) in here])
    return found


@simd.emitter
def split_pixels(v: Vec, CHANNELS: int, x: Value, pixels: Value, y: Value, y_stride: Value) -> None:
    """y[c][j] = x[j][c], for c < CHANNELS, of which there are at least two, and j < pixels."""
    source, to = v.pointer(x), v.pointer(y)
    whole = v.idiv(pixels, v.lanes)
    with v.loop(whole) as i:
        at = v.imul(i, v.lanes)
        read = v.at(source, v.imul(at, CHANNELS))
        vectors = [v.load(read, k * v.lanes) for k in range(CHANNELS)]
        for c in range(CHANNELS):
            places = [divmod(lane * CHANNELS + c, v.lanes) for lane in range(v.lanes)]
            v.store(_picked(v, vectors, places), to, v.iadd(v.imul(y_stride, c), at))
    done = v.imul(whole, v.lanes)
    with v.loop(v.isub(pixels, done)) as i:
        at = v.iadd(done, i)
        for c in range(CHANNELS):
            element = v.b.load(v.at(source, v.iadd(v.imul(at, CHANNELS), c)), typ=v.element)
            v.b.store(element, v.at(to, v.iadd(v.imul(y_stride, c), at)))


@simd.emitter
def join_pixels(v: Vec, CHANNELS: int, x: Value, x_stride: Value, pixels: Value, y: Value) -> None:
    """y[j][c] = x[c][j], for c < CHANNELS, of which there are at least two, and j < pixels."""
    source, to = v.pointer(x), v.pointer(y)
    whole = v.idiv(pixels, v.lanes)
    with v.loop(whole) as i:
        at = v.imul(i, v.lanes)
        write = v.at(to, v.imul(at, CHANNELS))
        vectors = [v.load(source, v.iadd(v.imul(x_stride, c), at)) for c in range(CHANNELS)]
        for k in range(CHANNELS):
            elements = [divmod(k * v.lanes + lane, CHANNELS) for lane in range(v.lanes)]
            v.store(_picked(v, vectors, [(c, pixel) for pixel, c in elements]), write, k * v.lanes)
    done = v.imul(whole, v.lanes)
    with v.loop(v.isub(pixels, done)) as i:
        at = v.iadd(done, i)
        for c in range(CHANNELS):
            element = v.b.load(v.at(source, v.iadd(v.imul(x_stride, c), at)), typ=v.element)
            v.b.store(element, v.at(to, v.iadd(v.imul(at, CHANNELS), c)))


@simd.emitter
def turn_square(
    v: Vec, x: Value, x_stride: Value, rows: Value, columns: Value, y: Value, y_stride: Value
) -> None:
    """y[j][i] = x[i][j] for i < rows <= lanes, j < columns <= lanes; nothing else is read or written."""
    source, to = v.pointer(x), v.pointer(y)
    across, down = v.mask(columns), v.mask(rows)
    last_row, last_column = v.isub(rows, 1), v.isub(columns, 1)
    read = [v.load_masked(source, v.imul(v.imin(i, last_row), x_stride), across) for i in range(v.lanes)]
    turned = transpose.transpose(v, read)
    for j in reversed(range(v.lanes)):  # those beyond the last write to it first, and it writes last itself
        v.store_masked(turned[j], to, v.imul(v.imin(j, last_column), y_stride), down)


@jit.helper
def transpose_range(
    size: int, lanes: int, x: int, rows: int, columns: int, row0: int, row1: int, column0: int, column1: int,
    y: int,
) -> None:  # fmt: skip
    """y[j][i] = x[i][j] of a matrix of rows x columns, for rows and columns from the first up to the end."""
    for r in range(row0, row1, lanes):
        for c in range(column0, column1, lanes):
            if rows >= lanes and columns >= lanes:
                i, j = min(r, rows - lanes), min(c, columns - lanes)  # the last squares overlap others
                transpose.load_whole_square(
                    size, lanes, x + (i * columns + j) * size, columns, y + (j * rows + i) * size, rows
                )
            else:
                turn_square(
                    size, lanes, x + (r * columns + c) * size, columns, min(lanes, rows - r),
                    min(lanes, columns - c), y + (c * rows + r) * size, rows,
                )  # fmt: skip


@jit.helper
def reorder_chunk(a: Any, unit: int) -> tuple[int, int, int]:
    """(image, first pixel, end) of a unit of work."""
    chunks = (a.pixels + CHUNK - 1) // CHUNK
    start = unit % chunks * CHUNK
    return unit // chunks, start, min(a.pixels, start + CHUNK)


@jit.specialise
def reorder_to_first(SIZE: int, LANES: int, CHANNELS: int) -> jit.Kernel:
    """(N, pixels, channels) into (N, channels, pixels); CHANNELS: how many, where they are few, or 0."""

    def reorder_to_first(args: int, task: int) -> None:
        a = carray(pointer(args), 1, REORDER_FIELDS)[0]
        units = (a.pixels + CHUNK - 1) // CHUNK * a.images
        image = a.channels * a.pixels * SIZE
        for unit in range(units * task // a.tasks, units * (task + 1) // a.tasks):
            n, start, end = reorder_chunk(a, unit)
            x, y = a.x + n * image, a.y + n * image
            if CHANNELS:
                x, y = x + start * CHANNELS * SIZE, y + start * SIZE
                split_pixels(SIZE, LANES, CHANNELS, x, end - start, y, a.pixels)
            else:
                transpose_range(SIZE, LANES, x, a.pixels, a.channels, start, end, 0, a.channels, y)

    return reorder_to_first


@jit.specialise
def reorder_to_last(SIZE: int, LANES: int, CHANNELS: int) -> jit.Kernel:
    """(N, channels, pixels) into (N, pixels, channels)."""

    def reorder_to_last(args: int, task: int) -> None:
        a = carray(pointer(args), 1, REORDER_FIELDS)[0]
        units = (a.pixels + CHUNK - 1) // CHUNK * a.images
        image = a.channels * a.pixels * SIZE
        for unit in range(units * task // a.tasks, units * (task + 1) // a.tasks):
            n, start, end = reorder_chunk(a, unit)
            x, y = a.x + n * image, a.y + n * image
            if CHANNELS:
                x, y = x + start * SIZE, y + start * CHANNELS * SIZE
                join_pixels(SIZE, LANES, CHANNELS, x, a.pixels, end - start, y)
            else:
                transpose_range(SIZE, LANES, x, a.channels, a.pixels, 0, a.channels, start, end, y)

    return reorder_to_last
