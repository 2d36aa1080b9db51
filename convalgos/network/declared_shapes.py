"""Shapes of inputs as models declare them, with words for sizes that are open."""

from __future__ import annotations

from collections.abc import Sequence

from convalgos.core.arguments import Shape, shown


def shape_of_batch(name: str, declared: Sequence[int | str], batch: int) -> Shape:
    """The declared shape of an input with this batch.

    Raises:
        ValueError: it leaves more open, or declares another batch.
    """
    rest = tuple(n for n in declared[1:] if isinstance(n, int))
    if not declared or len(rest) < len(declared) - 1 or batch < 0:
        raise ValueError(
            f"shapes={batch}: give the shape of {name!r}, which is declared as {shown(declared)}"
        )
    if isinstance(declared[0], int) and declared[0] != batch:
        raise ValueError(f"shapes={batch}: {name!r} is declared with a batch of {declared[0]}")
    return (batch, *rest)
