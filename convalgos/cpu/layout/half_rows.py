"""Rows of 16-bit maps, widened to float32 where they are copied.

What `strided_rows.copy_rows` is to maps of float32. FORM tells bfloat16 from float16, see `halves`.
"""

from __future__ import annotations

from convalgos.cpu.layout.strided_rows import split_maps
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.halves import HalfMaps
from convalgos.cpu.vectors.simd import Value, Vec


@simd.emitter
def widen_strided_rows(
    v: Vec, FORM: int, STRIDE: int, KEPT: int, x: Value, x_row: Value, rows: Value, before: Value,
    inside: Value, target: Value, target_row: Value, count: Value, step: Value,
) -> None:  # fmt: skip
    """`split_rows` of x in 16 bits."""
    m = HalfMaps(v, FORM)
    split_maps(v, m, (STRIDE, KEPT), x, x_row, rows, (before, inside), target, target_row, count, step)


@jit.specialise
def copy_half_rows(FORM: int, LANES: int, STRIDE: int, KEPT: int) -> jit.Kernel:
    """`copy_rows` from 16 bits."""

    def copy_half_rows(
        x: int, x_row: int, rows: int, before: int, inside: int, target: int, target_row: int, phase: int,
        stride: int, kept: int,
    ) -> None:  # fmt: skip
        widen_strided_rows(
            4, LANES, FORM, STRIDE, KEPT, x, x_row, rows, before, inside, target, target_row, phase, phase
        )

    return copy_half_rows
