"""Exponentials of rows less their largest, and the sums of these, as softmax and attention have them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from convalgos.cpu.elementwise.matrix_rows import Load, Store, each_vector_of_row
from convalgos.cpu.elementwise.pixel_vectors import LOWEST, in_all_lanes
from convalgos.cpu.vectors.activations import exponential_of_less
from convalgos.cpu.vectors.simd import Value, Vec


def exponentials_of_rows(
    v: Vec, sources: Sequence[Value], places: Sequence[Value], count: Value, step: Value | None = None
) -> tuple[list[Value], list[Value]]:
    """The largest of each row, and the sum of exp(x - that), both in all lanes.

    Args:
        sources: where rows begin that go side by side, as the sums of one would wait for each other.
        places: where the exponentials are written; none for nowhere.
        count: elements of a row. step: as of `each_vector_of_row`.
    """
    most, total = ([v.register(v.const(start)) for _ in sources] for start in (LOWEST, 0.0))

    def compare(load: Load, _: Store) -> None:
        for row, register in zip(sources, most, strict=True):
            register.set(v.fmax(load(row), register.value))

    def sum_up(load: Load, store: Store) -> None:
        values = [v.fsub(load(row), least) for row, least in zip(sources, largest, strict=True)]
        for i, (value, register) in enumerate(zip(values, total, strict=True)):
            made = exponential_of_less(v, value)
            register.set(v.fadd(register.value, made))
            if places:
                store(places[i], made)

    each_vector_of_row(v, count, compare, -math.inf, step)
    largest = [in_all_lanes(v, register.value, v.fmax) for register in most]
    each_vector_of_row(v, count, sum_up, -math.inf, step)
    return largest, [in_all_lanes(v, register.value, v.fadd) for register in total]
