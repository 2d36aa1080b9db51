"""Tiles of 16-bit integers to points, by whatever transform of a line: exact, or in fixed point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from convalgos.core.cook_toom import transform_lines
from convalgos.cpu.vectors.integers import Integers
from convalgos.cpu.vectors.simd import Value


def integer_points(
    s: Integers, dims: int, size: int, line: Callable[[Sequence[Any]], Sequence[Any]], source: Value,
    row_step: Value, column_step: Value, target: Value, point_step: Value,
) -> None:  # fmt: skip
    """Emit: pixels at source + i * row_step + j * column_step to points, `point_step` apart.

    Args:
        line: emits the points of a row or a column of `size` pixels.
    """
    read, to = s.pointer(source), s.pointer(target)

    def load(i: int, j: int) -> Any:
        return s.load(read, s.iadd(s.imul(row_step, i), s.imul(column_step, j)))

    for i, row in enumerate(transform_lines(dims, load, size, line)):
        for j, value in enumerate(row):
            s.store(value, to, s.imul(point_step, i * size + j))
