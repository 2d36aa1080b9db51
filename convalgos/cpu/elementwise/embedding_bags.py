"""Sums, means and maxima of the rows of a table that places tell, as of the embeddings of words."""

from __future__ import annotations

import math

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, check_bound
from convalgos.core.errors import Unsupported
from convalgos.cpu.elementwise.bound_steps import FLOAT, BoundStep, launched, threads_worth
from convalgos.cpu.elementwise.gathering import PLACES, checked_run, places_read
from convalgos.cpu.elementwise.summing_kernels import SUM_FIELDS, UNROLLED, sum_share
from convalgos.cpu.vectors import simd


class EmbeddingBagPlan(BoundStep):
    """y = of the rows of a table at places: their sum, mean or maximum along one dimension of the places.

    Places count from the end where they are negative. The rows are read where they lie, each once.

    Args:
        table: (rows, width) float32.
        places_shape: the last inputs of a run are such places and, where it is `weighted`, weights of their
            shape, which rows are multiplied by.
        axis: of the places.
        of: "sum", "mean" or "max".
        y_shape: of y, which has the width behind the places' shape without that axis, or with 1 there.
        pad: the place whose rows are left out of a sum.
        least: a sum is divided by that of the weights, or by the number of rows, which are taken for so much
            where they are less.

    Raises:
        Unsupported: there are no elements.

    Example:
        >>> table, places = np.arange(6, dtype="f4").reshape(3, 2), np.array([[2, -2]])
        >>> EmbeddingBagPlan(table, (1, 2), 1, "mean", (1, 2)).run((places,), y := np.empty((1, 2), "f4"))
        >>> y.tolist()
        [[3.0, 4.0]]
    """

    told = True

    def __init__(
        self, table: np.ndarray, places_shape: Shape, axis: int, of: str, y_shape: Shape,
        pad: int | None = None, least: float | None = None,
    ):  # fmt: skip
        count, (size, width) = places_shape[axis], table.shape
        behind = math.prod(places_shape[axis + 1 :])
        if 0 in (*places_shape, *table.shape) or table.dtype != FLOAT or not table.flags.c_contiguous:
            raise Unsupported(f"rows of {table.shape} at places of {places_shape}, or they lie otherwise")
        bags = math.prod(places_shape) // count
        self._table, self._places_shape, self._y_shape = table, places_shape, y_shape
        self._scale = np.array([1 / count if of == "mean" else 1, 0 if least is None else least], FLOAT)
        self._read = bags * count * width  # elements
        parts = -(-threads_worth(self._read) // bags)
        lanes = simd.lanes(FLOAT.itemsize) * UNROLLED
        self._count = count
        self._values = {
            "rows": bags, "count": count, "inner": width, "chunk": -(-width // parts // lanes) * lanes,
            "largest": int(of == "max"), "size": size, "pad": -1 if pad is None else pad,
            "averaged": int(least is not None), "behind": behind,
        }  # fmt: skip

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        places, *weights, y = arrays
        check_bound("y", y, self._y_shape, FLOAT, strided=False, written=True)
        for given in weights:
            check_bound("weights", given, self._places_shape, FLOAT, strided=False)
        read, wrong = places_read(places, self._places_shape), np.zeros(1, PLACES)
        room = np.empty(threads_worth(self._read) * self._count, PLACES)  # of the tasks that are launched
        named = {"x": self._table, "places": read, "y": y, "wrong": wrong, "room": room, "scale": self._scale}
        named |= dict(zip(("weights",), weights, strict=False))
        values = self._values | {name: array.ctypes.data for name, array in named.items()}
        values["wide"] = int(read.dtype == PLACES)
        kernel = sum_share(FLOAT.itemsize, simd.lanes(FLOAT.itemsize))
        inner = launched(kernel, SUM_FIELDS, values, self._read, *named.values(), told=("places", "y"))
        return checked_run(inner, places, read, wrong)
