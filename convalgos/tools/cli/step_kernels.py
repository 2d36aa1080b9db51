"""The kernels of steps of networks beside convolutions: of float32 maps, and of attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from convalgos.core.machine import vector_bytes
from convalgos.cpu.elementwise import (
    attention_kernels,
    extreme_kernels,
    function_kernels,
    gathering_kernels,
    lrn_kernels,
    matrix_rows,
    norm_kernels,
    product_kernels,
    rearranging_kernels,
    recurrent_kernels,
    resize_kernels,
    sampling_kernels,
    scattering_kernels,
    selection_kernels,
    softmax_kernels,
    summing_kernels,
    top_kernels,
)
from convalgos.cpu.elementwise import kernels as elementwise
from convalgos.cpu.elementwise.recurrent import ROWS
from convalgos.cpu.runtime import finish
from convalgos.cpu.vectors import microkernel, simd

Compiled = tuple[Callable[..., object], tuple[int, ...]]  # a factory of `jit.specialise` and what it is given
SIZE = 4  # bytes of an element


def step_kernels() -> Iterator[Compiled]:
    """All of them."""
    lanes = simd.lanes(SIZE)
    for share in (
        elementwise.combine_share, elementwise.space_share, elementwise.upsample_share,
        norm_kernels.normalise_share,
        norm_kernels.moments_share, norm_kernels.factors_share, lrn_kernels.lrn_share,
        resize_kernels.resize_share, extreme_kernels.extreme_share, summing_kernels.sum_share,
        scattering_kernels.scatter_share,
    ):  # fmt: skip
        yield share, (SIZE, lanes)
    yield from ((norm_kernels.apply_share, (SIZE, lanes, kind)) for kind in finish.CODES)
    yield from ((softmax_kernels.softmax_share, (SIZE, lanes, logs)) for logs in (0, 1))
    for code in range(len(function_kernels.FUNCTIONS)):
        yield function_kernels.function_share, (SIZE, lanes, code)
    yield selection_kernels.select_share, ()
    yield rearranging_kernels.rearrange_share, ()
    yield top_kernels.top_share, ()
    yield gathering_kernels.gather_share, ()
    yield sampling_kernels.sample_share, ()
    rows = microkernel.REGISTER_TILES[vector_bytes()][matrix_rows.VECTORS]
    yield attention_kernels.attend_share, (SIZE, lanes, rows)
    yield product_kernels.multiply_share, (SIZE, lanes, rows)
    for gates in (recurrent_kernels.LSTM, recurrent_kernels.GRU, recurrent_kernels.PLAIN):
        for images in range(ROWS[vector_bytes()].bit_length()):
            yield recurrent_kernels.recur_share, (SIZE, lanes, gates, 1 << images)
