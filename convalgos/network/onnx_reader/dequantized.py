"""Constants that a model holds as integers and dequantises: filters and biases of quantised models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convalgos.network.quantized_filters import QuantizedConstant, root_of

KINDS = ("int8", "uint8", "int32")  # of integers
DOMAINS = ("", "ai.onnx", "com.microsoft")
Constants = Callable[[str], np.ndarray | None]  # the array of a constant of the model


class DequantizedConstants:
    """Values of DequantizeLinear of constants, computed when they are asked for.

    It is told of the constants of its model each time: with a reference back both would stay in memory.
    """

    def __init__(self) -> None:
        self.protos: dict[str, Any] = {}  # node of each value
        self.made: dict[int, QuantizedConstant] = {}  # by the ids of arrays, which the model keeps

    def take(self, node: Any, is_constant: Callable[[str], bool], constant: Constants) -> bool:
        """Whether a node dequantises a constant, and its value is one from now on."""
        if node.op_type != "DequantizeLinear" or node.domain not in DOMAINS:
            return False
        if not all(map(is_constant, node.input)) or any(
            a.name == "block_size" and a.i for a in node.attribute
        ):
            return False
        integers, scale = map(constant, node.input[:2])
        if integers is None or scale is None or scale.dtype != np.float32 or integers.dtype.name not in KINDS:
            return False
        self.protos[node.output[0]] = node
        return True

    def array(self, name: str, constant: Constants) -> np.ndarray:
        """The float32 numbers of a value that was taken."""
        node = self.protos[name]
        integers, scale, *zero = (constant(given) for given in node.input if given)
        assert integers is not None and scale is not None
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        of_axis = [1] * integers.ndim
        if scale.size > 1:
            of_axis[axis] = -1
        numbers = integers.astype(np.int32)
        if zero and zero[0] is not None:
            numbers = numbers - zero[0].astype(np.int32).reshape(of_axis if zero[0].size > 1 else (1,))
        found: np.ndarray = numbers.astype(np.float32) * scale.reshape(of_axis if scale.size > 1 else (1,))
        found = found.reshape(integers.shape)
        self.made[id(root_of(found))] = QuantizedConstant(integers, scale)
        return found
