"""Types of values of an ONNX model, and a node as the inference of them sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from convalgos.network.onnx_reader.messages import Dim

FLOAT, INT32, INT64, BOOL = 1, 6, 7, 9  # of TensorProto.DataType
Dims = Sequence[Dim]


class TensorType(NamedTuple):
    """What is known of a value: its TensorProto.DataType, and its sizes, if its rank is known."""

    kind: int
    dims: tuple[Dim, ...] | None


class NotInferred(Exception):
    """A node whose outputs are left to the inference of ONNX."""


@dataclass(frozen=True)
class TypedNode:
    """A node with the types of what it reads.

    Args:
        inputs: None where it leaves one out.
        constant: the array of an input by its place; None where it has none that is known.
        held: the sizes that an input holds by its place, some of which may be open; None where it holds none.
        outputs: how many it writes.
    """

    op: str
    opset: int
    inputs: Sequence[TensorType | None]
    attributes: Mapping[str, Any]
    constant: Callable[[int], np.ndarray | None]
    held: Callable[[int], np.ndarray | None]
    outputs: int

    def type(self, i: int) -> TensorType:
        """The type of an input that it has."""
        found = self.inputs[i] if i < len(self.inputs) else None
        if found is None:
            raise NotInferred
        return found

    def dims(self, i: int) -> tuple[Dim, ...]:
        """The sizes of an input, whose rank is known."""
        found = self.type(i).dims
        if found is None:
            raise NotInferred
        return found

    def has(self, i: int) -> bool:
        """Whether there is such an input."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def numbers(self, i: int) -> list[Any]:
        """An input that is a constant of whole or other numbers."""
        found = self.constant(i) if self.has(i) else None
        if found is None:
            raise NotInferred
        return found.reshape(-1).tolist()

    def sizes(self, i: int) -> list[Dim]:
        """An input that holds sizes, some of which may be open."""
        found = self.held(i) if self.has(i) else None
        if found is None:
            found = self.constant(i) if self.has(i) else None
        if found is None:  # which only a run knows, but for how many they are
            (count,) = self.dims(i)
            if not isinstance(count, int):
                raise NotInferred
            return [None] * count
        return found.reshape(-1).tolist()

    def numbers_of(self, name: str, i: int) -> list[int] | None:
        """Whole numbers that are an attribute, or in later opsets an input; None of neither."""
        if name in self.attributes:
            return list(self.attributes[name])
        return self.numbers(i) if self.has(i) else None

    def axis(self, rank: int, default: int) -> int:
        """Its axis, counted from the first."""
        return counted(self.attributes.get("axis", default), rank)


def counted(axis: int, rank: int) -> int:
    """An axis counted from the first."""
    if not -rank <= axis < rank:
        raise NotInferred
    return axis % rank if rank else 0


def dim_times(a: Dim, b: Dim) -> Dim:
    """A product of sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return b if a == 1 else a if b == 1 else None


def dims_product(dims: Dims) -> Dim:
    """The product of sizes; None where more than one is open."""
    found: Dim = 1
    for n in dims:
        found = dim_times(found, n)
    return found


def merged_dim(a: Dim, b: Dim) -> Dim:
    """What is known of a size from two values that have it.

    Raises:
        NotInferred: they differ.
    """
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise NotInferred
    if isinstance(a, int) or b is None:
        return a
    return b if isinstance(b, int) or a is None else a


def broadcast(shapes: Sequence[Dims]) -> tuple[Dim, ...]:
    """The sizes of values that are broadcast together.

    Raises:
        NotInferred: they do not go together.
    """
    rank = max(map(len, shapes))
    found: list[Dim] = []
    for i in range(rank):
        dims = [s[i - rank + len(s)] for s in shapes if i - rank + len(s) >= 0]
        numbers = {n for n in dims if isinstance(n, int) and n != 1}
        opened = [n for n in dims if not isinstance(n, int)]
        if len(numbers) > 1:
            raise NotInferred
        if numbers or not opened:
            found.append(*numbers or (1,))
        else:
            found.append(opened[0] if all(n == opened[0] for n in opened) else None)
    return tuple(found)
