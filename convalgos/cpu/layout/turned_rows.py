"""Arrays of many short rows, turned over: as few long rows, which vectors go along.

A row of a few elements takes as long as one of some vectors, so a filter along such rows takes longer than
to copy the array with its last axes before all others, and back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.arguments import Shape
from convalgos.core.laid_arrays import as_laid, copy_into

Pass = Callable[[np.ndarray, np.ndarray], None]  # (x, y): fills y


def order_turned(shape: Shape, along: Sequence[int], short: int, many: int) -> tuple[int, ...]:
    """The axes of an array with those of short rows first; () where it is not to be turned over.

    It is where it has `many` rows of up to `short` elements, and is filtered `along` axes of which one lies
    in them.
    """
    ndim, few = len(shape), 0
    while few < ndim and math.prod(shape[ndim - few - 1 :]) <= short:
        few += 1
    if not few or math.prod(shape[: ndim - few]) < many or max(along) < ndim - few:
        return ()
    return *range(ndim - few, ndim), *range(ndim - few)


class TurnedRows:
    """A pass over an array of short rows: `run`, of the array turned over.

    Args:
        run: of arrays with their axes in an order.
        shape, order: of arrays before, and the order, as `order_turned` has it.
        reads_y: whether `run` reads what it fills.
    """

    def __init__(self, run: Pass, shape: Shape, order: Sequence[int], reads_y: bool = False):
        few = math.prod(shape[axis] for axis in range(order[0], len(shape)))
        self._run, self._few, self._reads_y = run, few, reads_y

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        columns = y.reshape(-1, self._few).T
        turned = as_laid(columns) if self._reads_y else aligned_empty(y.size, y.dtype).reshape(columns.shape)
        self._run(as_laid(x.reshape(-1, self._few).T), turned)
        copy_into(columns, turned)
