"""Plans of functions of elements of any types up to 64 bits, by one kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import numpy as np

from convalgos.core.bound_run import AddressWord, BoundRun, check_bound
from convalgos.cpu.elementwise.bound_steps import BoundStep, launched, threads_worth
from convalgos.cpu.elementwise.broadcasting import broadcast_steps
from convalgos.cpu.vectors import simd
from convalgos.network.array_functions import ArrayFunction
from convalgos.network.graph import Shapes
from convalgos.network.run_parts import nothing
from convalgos.network.typed_kernels import (
    BUFFER,
    CODES,
    KINDS,
    MOST,
    OPERAND_FIELDS,
    TYPED_FIELDS,
    WORD,
    typed_share,
)

FLOAT, TRUTH = np.dtype(np.float32), np.dtype(np.bool_)
DIMENSIONS = 4  # once those that lie as one are
FEW = 1 << 13  # elements of at most 4 bytes, of which NumPy compares more in a third of the time; Xeon
NAMES = {"expand": "same", "sum_of": "add"}  # of codes, where they differ from those of functions


class TypedPlan(BoundStep):
    """y = function(operands), elements that are broadcast together; each operand an input or constant."""

    told = True

    def __init__(self, step: ArrayFunction, code: str, kinds: Sequence[np.dtype], shapes: Shapes):
        self._step, self._kinds = step, kinds
        self._y_shape, self._dtype = shapes[step.output], np.dtype(step.dtype)
        given = step.operands(step.inputs)[: len(kinds)]
        self._shapes = [o.shape if isinstance(o, np.ndarray) else shapes[o] for o in given]
        self._constants = [
            np.require(o, requirements=["C", "A"]) if isinstance(o, np.ndarray) else None for o in given
        ]
        self._steps = [broadcast_steps(self._y_shape, shape) for shape in self._shapes]
        self._values = {
            "operands": len(kinds), "code": CODES[code], "size": self._dtype.itemsize,
            "room": BUFFER * MOST, "count": math.prod(self._y_shape),
        }  # fmt: skip

    @property
    def is_known(self) -> bool:
        """Whether operands are broadcast along as many dimensions as kernels know."""
        return max(map(len, self._steps)) <= DIMENSIONS

    def run(self, inputs: Sequence[np.ndarray], y: np.ndarray) -> None:
        """Write y, arrays of any strides."""
        self._step.compute(inputs, y)

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        *inputs, y = arrays
        check_bound("y", y, self._y_shape, self._dtype, strided=False, written=True)
        given = self._step.operands(inputs)[: len(self._kinds)]
        operands = [o if own is None else own for o, own in zip(given, self._constants, strict=True)]
        count = self._values["count"]
        table = np.zeros(MOST, OPERAND_FIELDS)
        begin, x_places = table.ctypes.data, []
        for i, (x, kind) in enumerate(zip(operands, self._kinds, strict=True)):
            check_bound("x", x, self._shapes[i], kind, strided=False)
            signed = int(kind.itemsize == WORD or kind.kind == "i")
            steps = [(1, 0)] * (DIMENSIONS - len(self._steps[i])) + self._steps[i]
            table[i] = (
                x.ctypes.data,
                KINDS.index((kind.itemsize, signed)),
                *chain(*zip(*steps, strict=True)),
            )
            if self._constants[i] is None and x is inputs[0]:
                x_places.append(AddressWord(begin + i * OPERAND_FIELDS.itemsize, 0))
        if not count:
            return BoundRun(nothing, ())
        scratch = np.empty(threads_worth(count) * BUFFER * MOST, np.uint8)
        values = {"y": y.ctypes.data, "table": begin, "scratch": scratch.ctypes.data}
        run = launched(
            typed_share(simd.lanes(WORD)), TYPED_FIELDS, self._values | values, count,
            *operands, y, table, scratch, told=("", "y"),
        )  # fmt: skip
        return run._replace(x_places=tuple(x_places))


def run_that_copies_bytes(x: np.ndarray, y: np.ndarray) -> BoundRun:
    """A run that copies x to y, both uint8 of one shape."""
    step = ArrayFunction("copy", ("x",), "y", "same", x.dtype.name)
    return TypedPlan(step, "same", [x.dtype], {"x": x.shape, "y": y.shape}).bind(x, y)


def typed_plan(step: ArrayFunction, shapes: Shapes, dtype: str) -> BoundStep | None:
    """Kernels of a function of elements; None where NumPy computes it.

    Args:
        dtype: of its first input.
    """
    kinds = _kinds(step, np.dtype(dtype))
    code = None if kinds is None else _code(step, kinds[0])
    if kinds is None or code is None or not all(map(_is_known, (*kinds, np.dtype(step.dtype)))):
        return None
    constants = step.operands(step.inputs)[: len(kinds)]
    pairs = zip(constants, kinds, strict=True)
    if any(isinstance(o, np.ndarray) and o.dtype != kind for o, kind in pairs):
        return None
    if step.function in BY_BYTES and kinds[0].itemsize < WORD and math.prod(shapes[step.output]) > FEW:
        return None
    plan = TypedPlan(step, code, kinds, shapes)
    return plan if plan.is_known else None


def _kinds(step: ArrayFunction, first: np.dtype) -> list[np.dtype] | None:
    """The types of the operands that are read; None of other functions, or of other numbers of them."""
    operands = step.operands(step.inputs)
    if step.function == "where":
        return [TRUTH, np.dtype(step.dtype), np.dtype(step.dtype)]
    if step.function in ("expand", "cast"):
        return [first]
    name = NAMES.get(step.function, step.function)
    known = name in CODES or f"{name} floats" in CODES
    return [first] * len(operands) if known and len(operands) == ARITY.get(name, 2) else None


def _code(step: ArrayFunction, kind: np.dtype) -> str | None:
    """What computes a function of elements of a type; None where nothing does."""
    y = np.dtype(step.dtype)
    if step.function == "cast":
        return _code_of_cast(kind, y)
    name = NAMES.get(step.function, step.function)
    if kind == FLOAT and name not in ("same", "where"):
        name += " floats"
    return name if name in CODES else None


def _code_of_cast(x: np.dtype, y: np.dtype) -> str | None:
    if x == y:
        return "same"
    if y == TRUTH:
        return "is_any floats" if x == FLOAT else "is_any"
    if x == FLOAT:
        if y == np.uint32:
            return None  # what a processor makes of negative ones is no rule
        return "whole of 64 bits" if y.itemsize == WORD else "whole of 32 bits"
    return "float of whole" if y == FLOAT else "same"


def _is_known(dtype: np.dtype) -> bool:
    """Whether kernels know elements of a type: all whole numbers but unsigned ones of 64 bits."""
    whole = dtype.kind in "biu" and (dtype.kind == "i" or dtype.itemsize < WORD)
    return whole or dtype == FLOAT


BY_BYTES = frozenset((
    "equal", "less", "greater", "less_equal", "greater_equal", "logical_and", "logical_or", "logical_xor",
    "logical_not", "isnan", "isinf",
))  # fmt: skip
ARITY = {  # 2 of others
    **dict.fromkeys(("logical_not", "negative", "absolute", "sign", "isnan", "isinf"), 1), "clip": 3,
}  # fmt: skip
