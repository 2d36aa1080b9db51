"""Memory that nobody has written holds NaN: what an answer takes from it is seen in the answer.

Workspaces, scratch, prepared filters and results are allocated without being set, by `np.empty` and
`memory.aligned_empty`, which may also give what an earlier array left. Within `poisoned()` every byte of such
memory is 0xFF, which is NaN in every floating-point type and -1 in tables. What a plan sets once and relies
on later (zeros of a border, tables, records) is made by other calls or written at once, and is left alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from convalgos.core import allocator
from convalgos.core.plan import Plan


def spoil(array: np.ndarray) -> np.ndarray:
    """Set every byte of a fresh array of numbers."""
    if array.size and not array.dtype.hasobject:
        array.reshape(-1, order="A").view(np.uint8).fill(0xFF)
    return array


@contextmanager
def poisoned() -> Iterator[None]:
    """Within it, fresh memory is full of NaN, and so is what is used again."""
    empty, empty_like, found = np.empty, np.empty_like, allocator._found
    np.empty = lambda *args, **kwargs: spoil(empty(*args, **kwargs))  # type: ignore[assignment]
    np.empty_like = lambda *args, **kwargs: spoil(empty_like(*args, **kwargs))  # type: ignore[assignment]
    allocator._found = lambda nbytes: spoil(found(nbytes))
    try:
        yield
    finally:
        np.empty, np.empty_like, allocator._found = empty, empty_like, found


def forget_workspaces(plan: Plan) -> None:
    """The next run makes one, of fresh memory."""
    plan._free.clear()
