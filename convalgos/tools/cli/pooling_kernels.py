"""The kernels of pooling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from convalgos.core.pool_problem import DTYPES
from convalgos.cpu.pooling import (
    blocks,
    carried_gradients,
    drivers,
    maxima,
    phase_maxima,
    placed_gradients,
    scattered_gradients,
    separable_gradients,
    slice_maxima,
    tile_gradients,
)
from convalgos.cpu.pooling.elements import FORMS, MAX, MEAN
from convalgos.cpu.pooling.reductions import split_stride
from convalgos.cpu.pooling.scattered_gradients import PLACED
from convalgos.cpu.vectors import simd

WINDOWS = (1, 2), (1, 3), (2, 2), (3, 3), (0, 0)  # rows and columns whose gradients are listed; 0: of any
STRIDES = 1, 2, 3  # of windows with channels first; 0: of any
ITEM_BYTES = {"float64": 8, "int8": 1, "uint8": 1}  # that are computed in; of all others 4


def pooling_kernels(dtypes: Sequence[str]) -> Iterator[tuple[Callable[..., object], tuple[int, ...]]]:
    """(factory, what it is given) of all that is pooled; bfloat16 and int8 stand for types of their size."""
    wanted = {
        *dtypes,
        *(("float16",) if "bfloat16" in dtypes else ()),
        *(("uint8",) if "int8" in dtypes else ()),
    }
    for dtype in (name for name in DTYPES["max"] if name in wanted):
        size = ITEM_BYTES.get(dtype, 4)
        kinds = size, simd.lanes(size), FORMS[dtype]
        strides = sorted({split_stride(stride, kinds[1]) for stride in STRIDES} | {0})
        for reduction in (MAX, MEAN) if dtype in DTYPES["mean"] else (MAX,):
            yield drivers.pool_channels_last, (*kinds, reduction)
            yield drivers.pool_planes, (*kinds, reduction)
            for shares in (False, True) if reduction == MAX else (False,):
                lanes = min(simd.lanes(size), simd.lanes(4))
                yield blocks.pool_blocks, (size, lanes, FORMS[dtype], reduction, shares)
            if FORMS[dtype] == FORMS["float32"]:
                yield drivers.pool_in_pixels, (*kinds, reduction)
            for stride in strides:
                yield drivers.pool_channels_first, (*kinds, reduction, stride)
                yield drivers.pool_slices, (*kinds, reduction, stride)
        yield maxima.maxima_channels_last, kinds
        for stride in strides:
            yield maxima.maxima_channels_first, (*kinds, stride)
        if FORMS[dtype] == FORMS["float32"]:
            yield slice_maxima.slice_maxima, kinds[:2]
        for reduction in (MAX, MEAN) if dtype in DTYPES["mean"] else ():  # of floating-point numbers
            yield separable_gradients.separable_gradient, (*kinds, reduction)
            for planes, tiles, window in product((False, True), (False, True), WINDOWS):
                yield scattered_gradients.scatter_gradient, (*kinds, reduction, planes, tiles, *window)
        for each in range(2) if dtype in DTYPES["mean"] else ():
            yield placed_gradients.add_gradient_at_places, (*kinds, each)
        for stride in STRIDES if dtype in DTYPES["mean"] else ():
            yield phase_maxima.phase_maxima, (*kinds, stride)
        if FORMS[dtype] == FORMS["float32"]:
            for planes in (False, True):
                yield carried_gradients.carried_gradient, (*kinds[:2], planes)
                yield tile_gradients.tile_gradient, (*kinds[:2], 1 + planes, 2)
            for tiles, window in product((False, True), WINDOWS):
                yield scattered_gradients.scatter_gradient, (*kinds, PLACED, False, tiles, *window)
