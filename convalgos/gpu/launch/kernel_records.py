"""Records that kernels take by value, as common.cuh declares them: sizes of a problem, divisors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from convalgos.core.problem import ConvProblem

# The argument that kernels call `Conv` (common.cuh); sizes of the 3-D view, strides in elements.
CONV = np.dtype(
    [
        ("x_image", np.int64),
        ("y_image", np.int64),
        ("x_channel", np.int32),
        ("y_channel", np.int32),
        ("x_pixel", np.int32),
        ("y_pixel", np.int32),
        ("images", np.int32),
        ("channels", np.int32),
        ("filters", np.int32),
        ("groups", np.int32),
        ("size", np.int32, 3),
        ("kernel", np.int32, 3),
        ("out", np.int32, 3),
        ("stride", np.int32, 3),
        ("dilation", np.int32, 3),
        ("pad", np.int32, 3),
        ("relu", np.int32),
        ("spare", np.int32),
        ("residual", np.int64),
    ]
)

POINTERS = ("offset", "multiplier", "pads", "patterns", "borders")  # addresses of arrays, or 0

# `QuantizedConv` of integers.cuh: a `Conv` without a residual, then what is known with the filter.
QUANTIZED_CONV = np.dtype(
    [
        *((name, CONV[name]) for name in CONV.names or () if name != "residual"),
        *((name, np.int64) for name in POINTERS),
        *((name, np.float32) for name in ("before", "low", "high")),
        ("after", np.int32),
        *((name, np.uint32) for name in ("filler", "flip")),
        *((name, np.int32) for name in ("output", "unused")),
    ]
)

# The `Divisor` of common.cuh.
DIVISOR = np.dtype([(name, np.uint32) for name in ("by", "factor", "shift")])


def divisor(by: int) -> tuple[int, int, int]:
    """A number from 1 to 2**31 as kernels divide by it: n // by = 2n * factor >> 32 + shift for n < 2**31.

    Source: Granlund and Montgomery 1994, "Division by invariant integers using multiplication".
    """
    shift = (by - 1).bit_length()
    return by, -(-(1 << (31 + shift)) // by), shift


@cache
def _empty_fields(dtype: np.dtype[Any]) -> dict[str, tuple[int, int, int] | int]:
    """What each field of a record holds where nothing is told: (0, 0, 0) of those of the type DIVISOR."""
    return {name: (0, 0, 0) if dtype[name] == DIVISOR else 0 for name in dtype.names or ()}


def record_of(dtype: np.dtype[Any], values: Mapping[str, Any]) -> np.ndarray:
    """(1,) A record for kernels. Of fields of the type DIVISOR, values are the numbers to divide by."""
    empty = _empty_fields(dtype)
    told = {name: divisor(v) if empty[name] == (0, 0, 0) else v for name, v in values.items()}
    return np.array([tuple((empty | told).values())], dtype)


def conv_record(problem: ConvProblem, relu: bool, residual: int = 0) -> np.ndarray:
    """(1,) The sizes of a problem as kernels read them, by value; with the address of a residual."""
    return _filled(np.zeros(1, CONV), problem, relu=relu, residual=residual)


def quantized_record(problem: ConvProblem, **values: Any) -> np.ndarray:
    """(1,) The sizes of a problem of integers with the fields that `QUANTIZED_CONV` has besides."""
    return _filled(np.zeros(1, QUANTIZED_CONV), problem, **values)


def _filled(record: np.ndarray, problem: ConvProblem, **more: Any) -> np.ndarray:
    p = problem.as_3d
    last = p.layout == "channels_last"
    pixels, outputs = math.prod(p.spatial), math.prod(p.spatial_out)
    values = {
        "x_image": p.C * pixels,
        "y_image": p.K * outputs,
        "x_channel": 1 if last else pixels,
        "y_channel": 1 if last else outputs,
        "x_pixel": p.C if last else 1,
        "y_pixel": p.K if last else 1,
        "images": p.N,
        "channels": p.C,
        "filters": p.K,
        "groups": p.groups,
        "size": p.spatial,
        "kernel": p.kernel,
        "out": p.spatial_out,
        "stride": p.stride,
        "dilation": p.dilation,
        "pad": [low for low, _ in p.padding],
        **more,
    }
    for name, value in values.items():  # not by `record_of`: a call that adds a residual waits for it
        record[name] = value
    return record
