"""Products of many float32 matrices as one step: run, or bound to arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from convalgos.core.allocator import aligned_empty, whole_lines
from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, check_bound
from convalgos.core.machine import Machine, vector_bytes
from convalgos.core.moves import Move, moved_shape, unmoved
from convalgos.cpu.elementwise.bound_steps import FLOAT, BoundStep, bound, launched
from convalgos.cpu.elementwise.head_operands import evenly, is_even, row_step, rows_in_order, unit_offsets
from convalgos.cpu.elementwise.matrix_rows import VECTORS
from convalgos.cpu.elementwise.product_kernels import PRODUCT_FIELDS, multiply_share
from convalgos.cpu.elementwise.rearranging import RearrangementPlan
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.microkernel import REGISTER_TILES

EFFICIENCY = 0.4  # of the peak, that the products reach; Sapphire Rapids, 4 heads of 24 x 784 x 24


def matmul_seconds(units: int, rows: int, depth: int, width: int, machine: Machine) -> float:
    """Predicted time of so many products, on all threads.

    Example:
        >>> from convalgos.core.profiles import nominal
        >>> 1e-6 < matmul_seconds(12, 197, 64, 197, nominal(2)) < 1e-2
        True
    """
    return machine.launch + 2 * units * rows * depth * width / (EFFICIENCY * machine.peak("float32"))


class MatmulPlan(BoundStep):
    """y = scale a b, of matrices in the last two dimensions; leading ones are broadcast.

    Each operand is what moves make of the array that is given: it is read where it lies, and y is written so.
    Where rows would not lie evenly, they are copied first.

    Args:
        shapes: of the arrays that a and b are in.
        moves: of a (..., rows, depth), of b (..., depth, width), and of y (..., rows, width).
        constant: the array that b is in, where it is known; it is then no input.

    Example:
        >>> a, b = np.ones((2, 1, 3), "f4"), np.arange(6, dtype="f4").reshape(2, 3)
        >>> plan = MatmulPlan((a.shape, b.shape), ((), (("transpose", (1, 0)),), ()), 2.0)
        >>> plan.run((a, b), y := np.empty((2, 1, 2), "f4"))
        >>> y[0].tolist()
        [[6.0, 24.0]]
    """

    def __init__(
        self, shapes: Sequence[Shape], moves: Sequence[Sequence[Move]], scale: float = 1.0,
        constant: np.ndarray | None = None,
    ):  # fmt: skip
        self._shapes, self._moves = tuple(shapes), tuple(moves)
        self._known = () if constant is None else (np.ascontiguousarray(constant, FLOAT),)
        a, b = (moved_shape(shape, own) for shape, own in zip(shapes, moves[:2], strict=True))
        if min(len(a), len(b)) < 2 or a[-1] != b[-2]:
            raise ValueError(f"a {a} and b {b} do not go together")
        self._lead = np.broadcast_shapes(a[:-2], b[:-2])
        self._rows, self._depth, self._width = *a[-2:], b[-1]
        self._inner = (*self._lead, self._rows, self._width)
        self.y_shape = moved_shape(self._inner, moves[2])
        lanes = simd.lanes(FLOAT.itemsize)
        self._tile = REGISTER_TILES[vector_bytes()][VECTORS]
        self._panel = VECTORS * lanes
        self._scales, self._one = np.full((self._tile, lanes), scale, FLOAT), np.ones(1, FLOAT)
        deep = -(-self._depth // lanes) * lanes
        sizes = {"panel": deep * self._panel, "row": self._tile * self._depth}
        self._parts = {f"{k}_bytes": whole_lines(n * FLOAT.itemsize) for k, n in sizes.items()}
        self._task_bytes = sum(self._parts.values()) + whole_lines(self._tile * self._panel * FLOAT.itemsize)

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        *given, y = arrays
        inputs = (*given, *self._known)
        for name, x, shape in zip("ab", inputs, self._shapes, strict=True):
            check_bound(name, x, shape, FLOAT, strided=False)
        check_bound("y", y, self.y_shape, FLOAT, strided=False, written=True)
        runs: list[BoundRun] = []
        a, b = (
            evenly(x, own, runs, turned=i == 1)
            for i, (x, own) in enumerate(zip(inputs, self._moves[:2], strict=True))
        )
        out = unmoved(y, self._inner, self._moves[2])
        behind = None
        if out is None or not is_even(out):
            out = aligned_empty(math.prod(self._inner), FLOAT).reshape(self._inner)
            behind = RearrangementPlan(self._inner, self._moves[2]).bind(out, y)
        runs.append(self._multiplying(a, b, out))
        if behind is not None:
            runs.append(behind)
        launches = [launch for run in runs for launch in run.launches or ()]
        return bound(launches, runs, *arrays, self)

    def _multiplying(self, a: np.ndarray, b: np.ndarray, y: np.ndarray) -> BoundRun:
        """The run on operands whose rows lie evenly."""
        units, turned = math.prod(self._lead), int(not rows_in_order(b))
        table = np.stack([unit_offsets(array, self._lead) for array in (a, b, y)], 1)  # (units, 3)
        scratch = aligned_empty(jit.thread_count() * self._task_bytes, np.uint8)
        values = self._parts | {
            "a": a.ctypes.data, "b": b.ctypes.data, "y": y.ctypes.data, "offsets": table.ctypes.data,
            "scales": self._scales.ctypes.data, "one": self._one.ctypes.data, "units": units,
            "blocks": -(-self._rows // self._tile), "panels": -(-self._width // self._panel),
            "rows": self._rows, "depth": self._depth, "width": self._width, "a_row": row_step(a, -2),
            "b_row": row_step(b, -1 if turned else -2), "b_turned": turned, "y_row": row_step(y, -2),
            "scratch": scratch.ctypes.data, "task_bytes": self._task_bytes,
        }  # fmt: skip
        kernel = multiply_share(FLOAT.itemsize, simd.lanes(FLOAT.itemsize), self._tile)
        work = units * self._rows * max(self._width, self._depth)
        return launched(kernel, PRODUCT_FIELDS, values, work, table, scratch, self, a, b, y)
