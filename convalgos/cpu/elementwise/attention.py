"""Attention of float32 arrays as one step, fixed to their shapes: run, or bound to arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from convalgos.core.allocator import aligned_empty, whole_lines
from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, check_bound
from convalgos.core.machine import Machine, vector_bytes
from convalgos.core.moves import Move, broadcast_together, moved_shape, shape_after, unmoved
from convalgos.cpu.elementwise.attention_kernels import ATTEND_FIELDS, OPERANDS, attend_share
from convalgos.cpu.elementwise.bound_steps import FLOAT, BoundStep, bound, launched
from convalgos.cpu.elementwise.head_operands import evenly, is_even, row_step, rows_in_order, unit_offsets
from convalgos.cpu.elementwise.matrix_rows import VECTORS
from convalgos.cpu.elementwise.rearranging import RearrangementPlan
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.microkernel import REGISTER_TILES

# Of the peak, that the products reach with what stands between them; Sapphire Rapids, 12 heads of 197 rows.
EFFICIENCY = 0.5
SHARE_ULPS = 16  # by which the shares of a row may be off where its scores are exact


def attention_seconds(units: int, rows: int, depth: int, keys: int, width: int, machine: Machine) -> float:
    """Predicted time of so many heads, on all threads.

    Example:
        >>> from convalgos.core.profiles import nominal
        >>> 1e-5 < attention_seconds(12, 197, 64, 197, 64, nominal(2)) < 1e-2
        True
    """
    flops = 2 * units * rows * keys * (depth + width)
    return machine.launch + flops / (EFFICIENCY * machine.peak("float32"))


class AttentionPlan(BoundStep):
    """y = softmax(scale q k + biases) v, over the last dimension; leading ones are broadcast.

    A row of which a score is NaN or infinite, or all are -inf, is NaN; others of -inf have no share.

    Each operand is what moves make of the array that is given: heads are read where they lie in it, and y
    is written so. Where elements would not lie evenly, it is copied first.

    Args:
        shapes: of the arrays that q, k, v and the biases are in.
        moves: of q (..., rows, depth), of k (..., depth, keys), of v (..., keys, width), and of
            y (..., rows, width).
        views: for each bias, the shape that the scores (..., rows, keys) are seen in when it is added.
        constants: biases that are known; None for those that are given. All have `keys` columns.

    Source: Vaswani et al. 2017, arXiv:1706.03762.

    Example:
        >>> q, v = np.zeros((1, 2, 3), "f4"), np.arange(8, dtype="f4").reshape(1, 4, 2)
        >>> k = np.zeros((1, 3, 4), "f4")
        >>> plan = AttentionPlan((q.shape, k.shape, v.shape), ((), (), (), ()))
        >>> plan.run((q, k, v), y := np.empty((1, 2, 2), "f4"))
        >>> y[0].tolist()
        [[3.0, 4.0], [3.0, 4.0]]
    """

    by_address = True

    def __init__(
        self,
        shapes: Sequence[Shape],
        moves: Sequence[Sequence[Move]],
        scale: float = 1.0,
        views: Sequence[Shape] = (),
        constants: Sequence[np.ndarray | None] | None = None,
    ):
        self._shapes, self._moves, self._views = tuple(shapes), tuple(moves), tuple(views)
        q, k, v = (shape_after(shape, tuple(own)) for shape, own in zip(shapes[:3], moves[:3], strict=True))
        if min(map(len, (q, k, v))) < 2 or q[-1] != k[-2] or k[-1] != v[-2]:
            raise ValueError(f"q {q}, k {k} and v {v} do not go together")
        self._lead = broadcast_together(q[:-2], k[:-2], v[:-2])
        self._rows, self._depth, self._keys, self._width = *q[-2:], *v[-2:]
        self._inner = (*self._lead, self._rows, self._width)
        self.y_shape = shape_after(self._inner, tuple(moves[3]))
        self._constants = (None,) * len(views) if constants is None else tuple(constants)
        given = iter(shapes[3:])
        for i, array in enumerate(self._constants):
            shape = next(given) if array is None else array.shape
            if shape[-1:] != (self._keys,):
                raise ValueError(f"bias {i} of shape {shape} does not have {self._keys} columns")
        self._numbers = np.array([scale], FLOAT)
        lanes = simd.lanes(FLOAT.itemsize)
        self._tile = REGISTER_TILES[vector_bytes()][VECTORS]
        panel = VECTORS * lanes
        deep = -(-self._depth // lanes) * lanes
        wide, across = (-(-n // panel) * panel for n in (self._keys, self._width))
        sizes = {
            "key": deep * wide, "value": self._keys * across, "query": self._tile * self._depth,
            "score": self._tile * wide, "out": self._tile * across,
        }  # fmt: skip
        self._parts = {f"{k}_bytes": whole_lines(n * FLOAT.itemsize) for k, n in sizes.items()}
        self._task_bytes = sum(self._parts.values()) + whole_lines(self._tile * lanes * FLOAT.itemsize)

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        *inputs, y = arrays
        for i, (x, shape) in enumerate(zip(inputs, self._shapes, strict=True)):
            check_bound(f"input {i}", x, shape, FLOAT, strided=False)
        check_bound("y", y, self.y_shape, FLOAT, strided=False, written=True)
        runs: list[BoundRun] = []
        q, k, v = (
            evenly(x, own, runs, turned=i == 1)
            for i, (x, own) in enumerate(zip(inputs[:3], self._moves[:3], strict=True))
        )
        more = iter(inputs[3:])
        known = [next(more) if x is None else np.ascontiguousarray(x, FLOAT) for x in self._constants]
        biases = [self._bias(x, view, runs) for x, view in zip(known, self._views, strict=True)]
        out = unmoved(y, self._inner, self._moves[3])
        behind = None
        if out is None or not is_even(out):
            out = aligned_empty(math.prod(self._inner), FLOAT).reshape(self._inner)
            behind = RearrangementPlan(self._inner, self._moves[3]).bind(out, y)
        runs.append(self._attending(q, k, v, out, biases))
        if behind is not None:
            runs.append(behind)
        launches = [launch for run in runs for launch in run.launches or ()]
        return bound(launches, runs, *arrays, self)

    def bound_at(self, x: Sequence[int], y: int) -> BoundRun | None:
        if self._views:
            return None
        laid = _laid_operands(self._shapes, tuple(map(tuple, self._moves)), self._lead, self._inner)
        if laid is None:
            return None
        table, rows, begins = laid
        q, k, v, out = map(int.__add__, begins, (*x[:3], y))
        return self._launched({"q": q, "k": k, "v": v, "y": out} | rows, table)

    def _attending(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, y: np.ndarray, biases: Sequence[np.ndarray]
    ) -> BoundRun:
        """The run on operands whose rows lie evenly."""
        named = dict(zip(OPERANDS, (q, k, v, y, *biases), strict=False))
        values = {name: array.ctypes.data for name, array in named.items()}
        table = _unit_table(tuple(named.values()), self._lead)
        return self._launched(values | _row_steps(named), table, q, k, v, y, *biases)

    def _launched(self, where: dict[str, int], table: np.ndarray, *kept: np.ndarray) -> BoundRun:
        """The run on operands that lie there; table: (units, operands), where in them each unit begins."""
        units, blocks = len(table), -(-self._rows // self._tile)
        scratch = aligned_empty(jit.thread_count() * self._task_bytes, np.uint8)
        address = jit.data_address()
        values = where | self._parts | {
            "offsets": address(table), "numbers": address(self._numbers), "units": units,
            "blocks": blocks if self._width else 0, "rows": self._rows, "keys": self._keys,
            "depth": self._depth, "width": self._width, "scratch": address(scratch),
            "task_bytes": self._task_bytes,
        }  # fmt: skip
        kernel = attend_share(FLOAT.itemsize, simd.lanes(FLOAT.itemsize), self._tile)
        work = units * self._rows * self._keys
        return launched(kernel, ATTEND_FIELDS, values, work, table, scratch, self, *kept)

    def _bias(self, x: np.ndarray, view: Shape, runs: list[BoundRun]) -> np.ndarray:
        """What is added to the scores, broadcast over them; its rows lie evenly."""
        scores = (*self._lead, self._rows, self._keys)
        seen = np.broadcast_to(x, moved_shape(scores, [("view", view)]) if view else scores)
        return evenly(seen, (), runs)


def _unit_table(operands: Sequence[np.ndarray], lead: Shape) -> np.ndarray:
    """(units, len(OPERANDS)) where each unit begins in each operand, in elements."""
    table = np.zeros((math.prod(lead), len(OPERANDS)), np.int64)
    for i, array in enumerate(operands):
        table[:, i] = unit_offsets(array, lead)
    return table


def _row_steps(named: dict[str, np.ndarray]) -> dict[str, int]:
    """The fields that say how the rows of operands lie."""
    k = named["k"]
    turned = int(not rows_in_order(k))
    steps = {f"{name}_row": row_step(array, -2) for name, array in named.items()}
    return steps | {"k_row": row_step(k, -1 if turned else -2), "k_turned": turned}


@lru_cache(64)  # a network attends many times in the same sizes
def _laid_operands(
    shapes: tuple[Shape, ...], moves: tuple[tuple[Move, ...], ...], lead: Shape, inner: Shape
) -> tuple[np.ndarray, dict[str, int], list[int]] | None:
    """(table of units, fields of rows, bytes before each operand) of q, k, v and y that lie evenly in
    contiguous arrays; None where one has to be copied."""
    arrays = [np.empty(shape, FLOAT) for shape in (*shapes[:3], moved_shape(inner, moves[3]))]  # untouched
    copies: list[BoundRun] = []
    seen: list[Any] = [
        evenly(x, own, copies, turned=i == 1)
        for i, (x, own) in enumerate(zip(arrays[:3], moves[:3], strict=True))
    ]
    seen.append(unmoved(arrays[3], inner, moves[3]))
    if copies or seen[3] is None or not is_even(seen[3]):
        return None
    address = jit.data_address()
    begins = [address(own) - address(x) for own, x in zip(seen, arrays, strict=True)]
    return _unit_table(seen, lead), _row_steps(dict(zip(OPERANDS, seen, strict=False))), begins
