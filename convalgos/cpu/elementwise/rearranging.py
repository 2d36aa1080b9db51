"""Arrays of float32 whose elements are moved: transposes, slices, rolls and views of views, as one copy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, check_bound
from convalgos.core.moves import Move, moved, moved_shape, of_whole_rows
from convalgos.cpu.elementwise.bound_steps import FLOAT, BoundStep, launched
from convalgos.cpu.elementwise.rearranging_kernels import REARRANGE_FIELDS, rearrange_share

LONGEST = 1 << 11  # elements of a run, so that threads share what is one


class RearrangementPlan(BoundStep):
    """y = x after moves, of which `core/moves` has the forms; y is apart from x.

    Runs of elements that stay together are copied as they are; a table has the place of each.

    Args:
        shape: of x.

    Example:
        >>> x = np.arange(6, dtype="f4").reshape(1, 3, 2)
        >>> plan = RearrangementPlan(x.shape, (("transpose", (1, 0, 2)), ("view", (3, 2))))
        >>> plan.run((x,), y := np.empty((3, 2), "f4"))
        >>> y.tolist()
        [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    """

    told = True

    def __init__(self, shape: Shape, moves: Sequence[Move]):
        by_rows = of_whole_rows(shape, moves) if shape and shape[-1] > 1 else None
        together = 1 if by_rows is None else shape[-1]
        of_rows = shape if by_rows is None else (*shape[:-1], 1)
        places = moved(np.arange(math.prod(of_rows)).reshape(of_rows), moves if by_rows is None else by_rows)
        self._x_shape, self._y_shape = shape, moved_shape(shape, moves)
        places = places.reshape(-1)  # of rows that stay together, or of elements
        begins = np.flatnonzero(np.diff(places, prepend=-2) != 1)  # of runs
        ends = [*begins[1:], places.size]
        run = int(np.gcd.reduce(np.subtract(ends, begins), initial=0))
        self._run = run * together
        while self._run > LONGEST and not self._run % 2:
            self._run //= 2
        # of each run of rows where it begins, and of the parts that it is cut into
        begins = places[:: max(1, run)] * together
        parts = np.arange(0, run * together, max(1, self._run))
        self._places = np.add.outer(begins, parts).reshape(-1).astype(np.int64)

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        x, y = arrays
        check_bound("x", x, self._x_shape, FLOAT, strided=False)
        check_bound("y", y, self._y_shape, FLOAT, strided=False, written=True)
        values = {
            "x": x.ctypes.data, "y": y.ctypes.data, "places": self._places.ctypes.data,
            "runs": len(self._places), "run": self._run,
        }  # fmt: skip
        return launched(rearrange_share(), REARRANGE_FIELDS, values, y.size, x, y, self, told=("x", "y"))
