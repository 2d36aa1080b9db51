"""What our operators share as nodes of a model: errors that name the node, and a chosen algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from onnx.reference.op_run import OpRun

from convalgos.core.problem import ConvProblem


class NodeOp(OpRun):
    """An operator of ONNX's own domain with one output. Subclasses implement `_serve`."""

    op_domain = ""
    choose: ClassVar[Callable[[ConvProblem], str]]  # the algorithm of a problem; see `operators.ops`

    def _run(self, *inputs: Any, **attributes: Any) -> tuple[np.ndarray]:
        """ValueError names the node where its inputs or attributes are not valid."""
        try:
            return (self._serve(inputs, attributes),)
        except ValueError as error:
            name = self.onnx_node.name or ", ".join(self.onnx_node.output)
            raise ValueError(f"{self.onnx_node.op_type} node {name!r}: {error}") from None

    def _serve(self, inputs: tuple[Any, ...], attributes: dict[str, Any]) -> np.ndarray:
        """The output, of inputs and attributes as the model has them; ValueError where they are not valid."""
        raise NotImplementedError


def inputs_of(inputs: tuple[Any, ...], least: int, most: int, told: str) -> tuple[Any, ...]:
    """The inputs of a node, and None for each of those that may be absent and are.

    Args:
        least: how many must be there.
        told: what they are, for the error.
    """
    if not least <= len(inputs) <= most or any(array is None for array in inputs[:least]):
        raise ValueError(f"it must have {told}")
    return (*inputs, *(None,) * (most - len(inputs)))


def check_dimensions(x: np.ndarray, w: np.ndarray) -> None:
    """ValueError unless an input and its filter are of 1, 2 or 3 spatial dimensions."""
    if x.ndim != w.ndim or not 3 <= x.ndim <= 5:
        raise ValueError(f"input {x.shape} and filter {w.shape} must have 3, 4 or 5 dimensions")
