"""Rows of a table that places tell, combined: the bags of embeddings of a text."""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.array_operands import Operand, WholeArrays, counted_axis, without_axes

COMBINED: dict[str, Any] = {"sum": np.sum, "mean": np.mean, "max": np.max}


def _bag(
    y: np.ndarray, table: np.ndarray, places: np.ndarray, weights: np.ndarray | None = None, *, of: str,
    axis: int, keepdims: bool, pad: int | None, least: float | None,
) -> None:  # fmt: skip
    """Of the rows at places: their sum, mean or maximum along an axis of the places.

    Args:
        weights: of the shape of places, which the rows are multiplied by.
        pad: the place whose rows are left out of a sum.
        least: a sum is divided by that of the weights, or by the number of rows, which are taken for so much
            where they are less.
    """
    axis = counted_axis(axis, places.ndim)
    by = (places != pad).astype(table.dtype) if pad is not None else weights
    rows = table.take(places, 0)
    if by is not None:
        rows = rows * by[..., None]
    found = COMBINED[of](rows, axis, keepdims=keepdims)
    if least is not None and by is not None:
        found = found / np.maximum(by.sum(axis, keepdims=keepdims), table.dtype.type(least))[..., None]
    y[...] = found


def _bag_shape(
    table: Operand, places: Operand, *weights: Operand, axis: int, keepdims: bool, **options: object
) -> Shape:
    return (*without_axes(places.shape, [axis], keepdims), table.shape[1])


BAGS = {"embedding_bag": WholeArrays(_bag, _bag_shape)}
