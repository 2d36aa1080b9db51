"""Functions of whole arrays, of any types, as steps of a network: `core/array_functions` has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.array_functions import ARRAY_FUNCTIONS
from convalgos.core.array_operands import Operand
from convalgos.network.graph import NetworkGraph, Shapes, Step

MOST = 64  # elements of a value that may hold sizes


@dataclass(frozen=True, eq=False)
class ArrayFunction(Step):
    """function(*operands, **options); what it gives of sizes alone is known when the network is planned."""

    function: str = "same"
    dtype: str = "float32"  # of the output
    constants: tuple[np.ndarray | None, ...] = ()  # operands; None stands for the next of the inputs
    options: tuple[tuple[str, Any], ...] = ()
    planned: bool = False  # nothing but planning reads what it gives
    opens: bool = False  # only a run knows the shape of what it gives

    def output_shape(self, shapes: Shapes) -> Shape:
        return self._shape([Operand(shapes[name]) for name in self.inputs])

    def add_shapes(self, shapes: dict[str, Shape], sizes: dict[str, np.ndarray]) -> None:
        read = [Operand(shapes[name], sizes.get(name)) for name in self.inputs]
        shape = shapes[self.output] = self._shape(read)
        known = ARRAY_FUNCTIONS[self.function].of_shapes or all(o.value is not None for o in read)
        if known and math.prod(shape) <= MOST:
            sizes[self.output] = self.computed(shape, [_array(operand) for operand in read])

    def operands(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs, and the constants where these stand between them."""
        rest = iter(inputs)
        own = [next(rest) if array is None else array for array in self.constants]
        return [*own, *rest]

    def compute(self, inputs: Sequence[np.ndarray], y: np.ndarray) -> None:
        """Write y."""
        with np.errstate(all="ignore"):
            ARRAY_FUNCTIONS[self.function].compute(y, *self.operands(inputs), **dict(self.options))

    def computed(self, shape: Shape, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """y, a new array."""
        y = np.empty(shape, self.dtype)
        self.compute(inputs, y)
        return y

    def opened(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """y, a new array of the shape that follows from what the inputs hold."""
        return self.computed(self._shape([Operand(x.shape, x) for x in inputs]), inputs)

    def is_read(self, name: str) -> bool:
        """Whether a run reads the elements of an input."""
        if self.opens:
            return True
        planned = ARRAY_FUNCTIONS[self.function].planned
        read = [o for i, o in enumerate(self.operands(self.inputs)) if i not in planned]
        return not self.planned and any(isinstance(o, str) and o == name for o in read)

    def _shape(self, inputs: Sequence[Operand]) -> Shape:
        given = self.operands(inputs)
        operands = [Operand(a.shape, a) if isinstance(a, np.ndarray) else a for a in given]
        return tuple(ARRAY_FUNCTIONS[self.function].shape(*operands, **dict(self.options)))


def without_unread(graph: NetworkGraph) -> NetworkGraph:
    """The graph in which sizes that planning alone reads are not computed in runs."""
    readers = graph.readers()
    made: dict[Step, Step] = {}
    for step in reversed(graph.steps):
        own = readers[step.output]
        unread = step.output not in graph.outputs and bool(own)
        for reader in own if isinstance(step, ArrayFunction) else ():
            now = made[reader]
            unread = unread and isinstance(now, ArrayFunction) and not now.is_read(step.output)
        is_function = isinstance(step, ArrayFunction) and unread
        made[step] = replace(step, planned=True) if is_function else step  # type: ignore[call-arg]
    return replace(graph, steps=tuple(made[step] for step in graph.steps))


def _array(operand: Operand) -> np.ndarray:
    """The value of an operand; one without elements of a known shape where only that counts."""
    return np.broadcast_to(np.int8(0), operand.shape) if operand.value is None else operand.value
