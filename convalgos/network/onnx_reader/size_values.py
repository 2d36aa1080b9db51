"""Values of an ONNX model that hold sizes: each is a number, the name of an open one, or not known."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from convalgos.network.onnx_reader.messages import Dim
from convalgos.network.onnx_reader.types import INT64

MOST = 64  # elements of a value that holds sizes
ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Mod": operator.mod,
    "Div": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),  # towards zero
}
Sizes = np.ndarray  # of objects


def are_known(sizes: Sizes) -> bool:
    """Whether all of them are numbers."""
    return all(isinstance(n, int) for n in sizes.reshape(-1))


def held_sizes(
    op: str, inputs: Sequence[str], attributes: Mapping[str, Any], known: Mapping[str, Sizes],
    dims: Callable[[str], Sequence[Dim] | None], kinds: Sequence[int] = (INT64,),
) -> Sizes | None:  # fmt: skip
    """The sizes that a node gives; None where it gives none.

    Args:
        known: sizes that values hold.
        dims: tells the sizes of a value itself.
        kinds: types of values that hold sizes.
    """
    if op == "Shape":
        of_value = dims(inputs[0])
        whole = None if of_value is None else _sizes(of_value)
        return None if whole is None else whole[slice(attributes.get("start"), attributes.get("end"))]
    given = [known[name] for name in inputs if name in known]
    if not given or len(given) < len(inputs):
        return None
    x, *others = given
    if op in ARITHMETIC and not attributes.get("fmod", 0):
        return _elementwise(ARITHMETIC[op], x, others[0])
    if op == "Cast":
        return x if attributes["to"] in kinds else None
    if op == "Slice" and x.ndim == 1:
        return _sliced(x, others or [np.asarray(attributes[name], object) for name in ("starts", "ends")])
    if op == "Gather" and not attributes.get("axis", 0) and are_known(others[0]):
        return np.asarray(x[others[0].astype(np.int64)], object)
    if op == "Unsqueeze" and x.ndim == 0:
        axes = others[0] if others else np.asarray(attributes["axes"])
        return x.reshape((1,) * axes.size)
    if op == "Reshape" and x.size == 1 and others[0].size < 2:
        return x.reshape((1,) * others[0].size)
    if op == "Squeeze" and x.shape == (1,):
        return x.reshape(())
    if op == "Concat" and all(value.ndim == 1 for value in given):
        return np.concatenate(given)
    return None


def _sliced(x: Sizes, ends: Sequence[Sizes]) -> Sizes | None:
    """A part of some sizes, by its begin and end, and perhaps the axis and a step."""
    if not all(n.size == 1 and are_known(n) for n in ends):
        return None
    begin, end, *more = (int(n.reshape(-1)[0]) for n in ends)
    return x[begin : end : more[1] if len(more) > 1 else 1]


def _sizes(values: Sequence[Dim]) -> Sizes:
    made: Sizes = np.empty(len(values), object)
    made[:] = values
    return made


def _elementwise(of: Callable[[int, int], int], x: Sizes, y: Sizes) -> Sizes | None:
    """Unknown where a part is."""
    made: Sizes = np.empty(np.broadcast_shapes(x.shape, y.shape), object)
    a: list[Dim] = np.broadcast_to(x, made.shape).reshape(-1).tolist()
    b: list[Dim] = np.broadcast_to(y, made.shape).reshape(-1).tolist()
    if of in (ARITHMETIC["Div"], ARITHMETIC["Mod"]) and 0 in b:
        return None
    made.reshape(-1)[:] = [
        of(m, n) if isinstance(m, int) and isinstance(n, int) else None for m, n in zip(a, b, strict=True)
    ]
    return made
