"""A run whose arrays never move, as in a network: everything about them is checked and set once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.errors import Unsupported, read_only

ALIGNMENT = 64  # bytes of a cache line, on which scratch starts


class Launch(NamedTuple):
    """A kernel on all tasks, as `cpu/runtime/jit.launch_all` runs it; kernel, record: addresses.

    Negative `tasks` are as many of a short launch, in which only threads that are awake have part.
    """

    kernel: int
    record: int
    tasks: int
    alone: bool = False  # all tasks by the calling thread, as others would take longer to come


class AddressWord(NamedTuple):
    """A word that kernels read as the address of an array, or of a part that begins so many bytes on."""

    word: int  # its address
    offset: int


def address_words(array: np.ndarray, words: Iterable[int]) -> tuple[AddressWord, ...]:
    """Those of an array whose parts words hold the addresses of."""
    begin = array.ctypes.data
    return tuple(AddressWord(word, ctypes.c_int64.from_address(word).value - begin) for word in words)


class BoundRun(NamedTuple):
    """Computes y by `run()`, or by its `launches` in order, without Python; one thread at a time.

    It keeps its arrays alive. `launches` is None where there is more to a run than kernels. `x_places` and
    `y_places` are all places that say where x and y lie: whoever writes there where others lie has the
    launches run on these. They are empty where an array must stay. So are `w_places`, of the filter as the
    caller has it, unless kernels read it as it is. `settings` is what its plan, and those of the same layer
    on maps of other sizes, bind further runs by; None where they bind these as the first one. `check` raises
    what kernels have noted: whoever runs the launches calls it behind them.
    """

    call: Callable[[], Any]
    launches: tuple[Launch, ...] | None = None
    kept: tuple[Any, ...] = ()  # what must live as long
    x_places: tuple[AddressWord, ...] = ()
    y_places: tuple[AddressWord, ...] = ()
    w_places: tuple[AddressWord, ...] = ()
    settings: Any = None
    check: Callable[[], None] | None = None

    def run(self) -> None:
        self.call()


def check_bound(
    name: str, array: Any, shape: tuple[int, ...], dtype: np.dtype, strided: bool, written: bool = False,
    rows_apart: bool = False,
) -> None:  # fmt: skip
    """Raise where a bound run cannot take an array: it must lie in order, but for larger steps along N.

    Args:
        strided: whether the run takes such steps, of whole elements.
        rows_apart: whether it takes them along all but the last dimension, forwards, or none where it reads.

    Raises:
        ValueError: wrong shape, or read-only. TypeError: wrong dtype. Unsupported: it lies otherwise.
    """
    if type(array) is not np.ndarray or array.dtype != dtype:
        found = f"dtype {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
        raise TypeError(f"{name} has {found}, but the run takes an array of {dtype}")
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}, but the run takes {shape}")
    if written and not array.flags.writeable:
        raise read_only(name)
    if not array.flags.aligned or not dtype.isnative:
        raise Unsupported(f"{name} must be aligned and of this machine's byte order")
    if array.flags.c_contiguous:
        return
    if rows_apart and has_whole_rows(array) and not (written and 0 in array.strides):
        return
    if not array[0].flags.c_contiguous or array.strides[0] < array[0].nbytes:
        raise Unsupported(f"{name} has strides {array.strides}, but only images may lie apart")
    if not strided or array.strides[0] % dtype.itemsize:
        raise Unsupported(f"{name} has images that lie apart, which this plan does not take")


def has_whole_rows(array: np.ndarray) -> bool:
    """Whether elements of a row lie next to each other, and rows anywhere from the first on."""
    *apart, last = array.strides
    size = array.itemsize
    return last == size and all(step >= 0 and step % size == 0 for step in apart) and array.flags.aligned


def rows_lie_apart(array: np.ndarray) -> bool:
    """Whether an image does not lie in one piece, as in a part of a larger map."""
    return not (array.flags.c_contiguous or array[0].flags.c_contiguous)


def share_elements(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays share an element: slices of the channels of one array do not."""
    return np.may_share_memory(a, b) and np.shares_memory(a, b)


def image_step(array: np.ndarray) -> int:
    """Elements from one image to the next."""
    if len(array) > 1:
        return array.strides[0] // array.itemsize
    return array.size


def checked_scratch(scratch: np.ndarray | None, needed: int) -> np.ndarray | None:
    """Scratch that was given, or None.

    Raises:
        ValueError: it is too small, not uint8, or does not start on a cache line. TypeError: it is no array.
    """
    if scratch is None:
        return None
    if not isinstance(scratch, np.ndarray):
        raise TypeError(f"scratch={type(scratch).__name__} must be None or an array of uint8")
    if scratch.dtype != np.uint8 or not scratch.flags.c_contiguous or scratch.nbytes < needed:
        found = f"{scratch.nbytes} bytes of {scratch.dtype}"
        raise ValueError(f"scratch has {found}; it must have {needed} of uint8, next to each other")
    if needed and scratch.ctypes.data % ALIGNMENT:
        raise ValueError(f"scratch must start at a multiple of {ALIGNMENT} bytes")
    return scratch
