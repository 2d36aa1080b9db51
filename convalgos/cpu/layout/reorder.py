"""Maps from one layout into another: channels first, channels last, and blocks of channels.

Of an image that is a matrix of pixels by channels turned over, or runs of channels moved. A few channels are
split and joined by shuffles of whole vectors; of more, squares of lanes x lanes are transposed in registers.
All is moved once, by all threads, and nothing is computed: the bits are the same for any number of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import numpy as np

from convalgos.core.bound_run import AddressWord, BoundRun, Launch, check_bound, image_step
from convalgos.core.layouts import BLOCKS, PLAIN, array_shape, channels_together
from convalgos.core.machine import Machine
from convalgos.core.problem import Shape
from convalgos.cpu.layout.reorder_kernels import (
    REORDER_FIELDS,
    reorder_blocks,
    reorder_few,
    reorder_pixels,
    reorder_rows,
)
from convalgos.cpu.runtime import jit, threads
from convalgos.cpu.runtime.rebinding import RUN_FIELDS, X_AT, Y_AT
from convalgos.cpu.runtime.records import by_name, copy_of_fields, copy_of_record, record_of_words
from convalgos.cpu.vectors import simd

FEW = 4  # channels, up to which vectors are split and joined
# Pixels that a thread moves at a time: between rows and blocks; between pixels of other blocks; and between
# rows and pixels of all channels as many as take so many bytes.
ROWS_TO_BLOCKS, PIXELS_TO_PIXELS, ROWS_TO_PIXELS, LEAST_CHUNK = 512, 32, 64 << 10, 64
SHARE = 1 << 16  # bytes of x that are worth a thread, of which another core holds a part in any case; Xeon
SIZES = (1, 2, 4, 8)  # bytes of an element
LONGEST, SHORTEST = 64, 16  # a vector: elements at most, and bytes at least
BYTES = 16  # elements of a vector of bytes: squares of more are long in compiling

# Of a Xeon (Granite Rapids) on reorders of 50 shapes: median 1.0 of the time, half of them within 0.8 to
# 1.2. On Zen 4 median 1.0, too: squares, mostly loads and stores of whole vectors, have the pace of products.
REORDER_CALL = 2e-6  # seconds of Python around a reorder
VECTOR = 2.5  # cycles of a core to load or store a vector of few channels, and to fill it from another one,
SQUARE = 100.0  # to turn a square of lanes x lanes, whose lines lie far apart,
MOVED = 90.0  # and to move one as it is
# Times as long where pixels lie pages apart and begin within a line, each of which is then written, or read,
# in two parts long after each other: 6 maps of 6,623 to 18,385 channels, Zen 5.
FAR, PARTED = 4096, 2.5


def is_same(shape: Shape, source: str, target: str) -> bool:
    """Whether an array of a logical (N, C, *spatial) shape is the same memory in both layouts.

    Example:
        >>> is_same((1, 32, 1, 1), "blocked16", "channels_first")
        True
    """
    channels, pixels = shape[1], math.prod(shape[2:])
    if source == target:
        return True
    if any(channels % BLOCKS.get(layout, 1) for layout in (source, target)):
        return False
    return pixels == 1 or channels_together(source, channels) == channels_together(target, channels)


def reorder_seconds(shape: Shape, itemsize: int, source: str, target: str, machine: Machine) -> float:
    """Predicted time to reorder an array of a logical (N, C, *spatial) shape, on all threads.

    That of the kernel; Python takes `REORDER_CALL` more where it calls each by itself.
    """
    if is_same(shape, source, target):
        return 0.0
    images, channels, *sizes = shape
    vectors, lanes = -(-math.prod(sizes) * itemsize // machine.vector_bytes), machine.vector_bytes // itemsize
    if {source, target} == {*PLAIN} and channels <= FEW:
        moved = VECTOR * channels * (channels + 1) * images * vectors / machine.cycles
    else:
        square = SQUARE if "channels_first" in (source, target) else MOVED
        moved = square * images * vectors * -(-channels // lanes) / machine.paced_cycles
        pixel = channels * itemsize
        if "channels_last" in (source, target) and pixel > FAR and pixel % machine.vector_bytes:
            moved *= PARTED
    read = math.prod(shape) * itemsize
    nbytes = read + math.prod(array_shape(target, shape)) * itemsize
    others = read * (machine.threads - 1) / machine.threads  # what other threads wrote, which L3 hands over
    return machine.launch + max(moved, machine.stream_near(nbytes)) + machine.stream(others)


def tasks_worth(nbytes: int) -> int:
    """Threads that so many bytes are worth."""
    return max(1, min(threads.plan_threads(), nbytes // SHARE))


class Reorder:
    """y = x in another layout, for one call at a time. Lanes of y beyond C become 0.

    Args:
        shape: logical, (N, C, *spatial).
        itemsize: bytes of an element, 1, 2, 4 or 8.
        source, target: layouts of x and of y.

    Example:
        >>> x, y = np.arange(24.0).reshape(2, 3, 4), np.empty((2, 4, 3))
        >>> Reorder(x.shape, x.itemsize, "channels_first", "channels_last")(x, y)
        >>> bool((y == x.swapaxes(1, 2)).all())
        True
    """

    strided_batch = by_address = True
    scratch_bytes = 0

    def __init__(self, shape: Shape, itemsize: int, source: str, target: str):
        images, channels, *sizes = shape
        self._itemsize, self._layouts = itemsize, (source, target)
        self._channels, self._pixels = channels, math.prod(sizes)
        self._shapes = array_shape(source, shape), array_shape(target, shape)
        pixels, blocks = self._pixels, [BLOCKS[name] for name in (source, target) if name in BLOCKS]
        lanes = min(simd.lanes(itemsize), *blocks, LONGEST if itemsize > 1 else BYTES)
        if itemsize not in SIZES or lanes * itemsize < SHORTEST:
            raise ValueError(f"elements of {itemsize} bytes are not moved from {source} to {target}")
        widths = [channels_together(layout, channels) for layout in (source, target)]
        x_length, y_length = (
            -(-channels // size) * size for size in (BLOCKS.get(source, 1), BLOCKS.get(target, 1))
        )
        self._steps = x_length * pixels, y_length * pixels
        vectors = -(-y_length // lanes)
        overlaps = not blocks and channels >= lanes  # the last vector of plain layouts
        if 1 not in widths:
            chunk = PIXELS_TO_PIXELS
        elif blocks:
            chunk = ROWS_TO_BLOCKS
        else:
            chunk = max(1, ROWS_TO_PIXELS // max(1, channels * itemsize * LEAST_CHUNK)) * LEAST_CHUNK
        self._tasks = tasks_worth(math.prod(shape) * itemsize)
        values = (
            images, channels, pixels, *widths, *self._steps, y_length, vectors,
            channels - lanes if overlaps else (vectors - 1) * lanes, chunk, self._tasks,
        )  # fmt: skip
        self._record = record_of_words(REORDER_FIELDS, (0,) * len(RUN_FIELDS.split()) + values)
        self._arguments, self._address = by_name(self._record), self._record.ctypes.data
        if not blocks and 1 < channels <= FEW:
            self._kernel = reorder_few(itemsize, lanes, channels, target == "channels_last")
        elif 1 in widths:
            self._kernel = (reorder_rows if widths[0] == 1 else reorder_pixels)(itemsize, lanes)
        else:
            self._kernel = reorder_blocks(itemsize, lanes)

    def on_map(self, shape: Shape) -> Self:
        """The same for maps of this logical shape."""
        if shape[1] != self._channels or not self._pixels:
            return type(self)(shape, self._itemsize, *self._layouts)
        made: Self = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        source, target = self._layouts
        made._shapes = array_shape(source, shape), array_shape(target, shape)
        pixels, before = math.prod(shape[2:]), self._pixels
        made._pixels, made._tasks = pixels, tasks_worth(math.prod(shape) * self._itemsize)
        made._record = copy_of_record(self._record)
        made._arguments = fields = by_name(made._record)
        made._address = jit.data_address()(made._record)
        fields.images, fields.pixels, fields.tasks = shape[0], pixels, made._tasks
        x_n, y_n = self._steps  # elements of an image
        fields.x_n, fields.y_n = made._steps = x_n // before * pixels, y_n // before * pixels
        return made

    def bind(self, x: np.ndarray, y: np.ndarray, scratch: np.ndarray | None = None) -> BoundRun:
        """A run on these very arrays, whose images may lie apart; see `Plan.bind`. No scratch is needed.

        Raises:
            ValueError, TypeError, Unsupported: an array is not as the run takes it.
        """
        for name, array, shape in (("x", x, self._shapes[0]), ("y", y, self._shapes[1])):
            check_bound(name, array, shape, x.dtype, strided=True, written=name == "y")
        if x.itemsize != self._itemsize:
            raise TypeError(f"x has elements of {x.itemsize} bytes, but the run takes {self._itemsize}")
        return self._on(x.ctypes.data, y.ctypes.data, image_step(x), image_step(y), x, y)

    def bound_at(self, x: Sequence[int], y: int) -> BoundRun:
        """See `BoundStep.bound_at`."""
        return self._on(x[0], y, *self._steps)

    def _on(self, x: int, y: int, x_n: int, y_n: int, *kept: np.ndarray) -> BoundRun:
        words, record, begin = copy_of_fields(self._record)
        record.x, record.y, record.x_n, record.y_n = x, y, x_n, y_n
        launch = Launch(self._kernel, begin, self._tasks, self._tasks == 1)
        of_x, of_y = (AddressWord(begin + X_AT, 0),), (AddressWord(begin + Y_AT, 0),)
        return jit.bound_run((launch,), words, *kept, x_places=of_x, y_places=of_y)

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        """x, y: C-contiguous, of the shapes that the layouts have (`layouts.array_shape`)."""
        self._arguments.x, self._arguments.y = x.ctypes.data, y.ctypes.data
        jit.launch(self._kernel, self._address, self._tasks)
