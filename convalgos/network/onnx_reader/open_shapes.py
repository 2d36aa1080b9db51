"""Shapes of what a region writes, as they follow from those of its inputs for all sizes that are open.

Two calls show which sizes are open: those that differ. Where an inference finds each size of the outputs to
be one of them or a number, and that is so in both calls, it is so in the next ones, for which nothing is
inferred: that takes a third of a millisecond, and one of ONNX Runtime's runs on ones a whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.network.graph import Sizes
from convalgos.network.onnx_reader.messages import Dim

Pattern = tuple[tuple[Dim, ...], ...]  # of shapes; open sizes have names
LEAST = 2  # of an open size: those of 1 are broadcast, and squeezed
PATTERNS = 8  # that are remembered, or tried in vain


class OpenShapes:
    """What is known of a region.

    Args:
        infer: the shapes of the outputs from those of the inputs; None where they cannot be told.
    """

    def __init__(self, infer: Callable[[Sequence[Sequence[Dim]]], Sequence[Sequence[Dim]] | None]):
        self._infer = infer
        self._known: dict[Pattern, Pattern | None] = {}  # of inputs -> of outputs
        self._first: tuple[Pattern, Pattern] | None = None  # those of a call

    def of(self, inputs: Sequence[Sizes]) -> list[Shape] | None:
        """The shapes of the outputs; None where they do not follow from earlier calls."""
        for pattern, outputs in tuple(self._known.items()):
            if outputs is not None and (sizes := _sizes_in(pattern, inputs)) is not None:
                return [_filled(dims, sizes) for dims in outputs]
        return None

    def learn(self, inputs: Sequence[Sizes], outputs: Sequence[Sizes]) -> None:
        """What a call had."""
        if len(self._known) >= PATTERNS or any(isinstance(x, np.ndarray) for x in (*inputs, *outputs)):
            return
        call, first = (tuple(map(tuple, inputs)), tuple(map(tuple, outputs))), self._first
        pattern = None if first is None else _opened(first[0], call[0])
        if first is None or pattern is None:
            self._first = call
        elif pattern not in self._known:
            self._known[pattern] = self._inferred(pattern, (first, call))

    def _inferred(self, pattern: Pattern, calls: Sequence[tuple[Pattern, Pattern]]) -> Pattern | None:
        """The shapes of the outputs, if they are those of the calls."""
        found = self._infer(pattern)
        if found is None:
            return None
        names = {n for dims in pattern for n in dims if isinstance(n, str)}
        if not all(isinstance(n, int) or n in names for dims in found for n in dims):
            return None
        for inputs, outputs in calls:
            sizes = _sizes_in(pattern, inputs)
            if sizes is None or tuple(_filled(dims, sizes) for dims in found) != outputs:
                return None
        return tuple(map(tuple, found))


def _opened(known: Pattern, other: Pattern) -> Pattern | None:
    """Sizes of shapes, with a name for each that differs from that in other ones; those that change alike
    share theirs. None where they cannot be open alone."""
    pairs = [list(zip(a, b, strict=False)) for a, b in zip(known, other, strict=True)]
    few = any(m != n and m in range(LEAST) for of_input in pairs for m, n in of_input)
    if few or [*map(len, known)] != [*map(len, other)]:
        return None
    return tuple(tuple([n if m == n else f"open {m} {n}" for m, n in of_input]) for of_input in pairs)


def _sizes_in(pattern: Pattern, inputs: Sequence[Any]) -> dict[str, int] | None:
    """The sizes that names stand for; None where shapes are not of a pattern."""
    found: dict[str, int] = {}
    for dims, shape in zip(pattern, inputs, strict=True):
        if isinstance(shape, np.ndarray) or len(dims) != len(shape):
            return None
        for name, n in zip(dims, shape, strict=True):
            if name != n and (not isinstance(name, str) or n < LEAST or found.setdefault(name, n) != n):
                return None
    return found


def _filled(dims: Sequence[Dim], sizes: Mapping[str, int]) -> Shape:
    return tuple([sizes[n] if isinstance(n, str) else n for n in dims])  # type: ignore[misc]
