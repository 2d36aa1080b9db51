"""TMA descriptors (tensor maps): how the copy engine of compute capability 9.0 and later reads an input.

In im2col mode one instruction copies many pixels of an input in channels-last order: from a first pixel on,
in the order of the outputs, each moved by a tap of the filter, with zeros where there is no input. The map
holds what does not change from copy to copy; the driver encodes it for one address. Maps are kept, so that a
call with arrays seen before takes no more than a look into a table.

Source: CUDA driver API, cuTensorMapEncodeIm2col; PTX ISA, tensors and im2col mode. The driver counts the
corners of the box from the innermost dimension on, as it does all else (its manual names them the other way
round; NVIDIA's CUTLASS passes W, H, D).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from convalgos.core.problem import ConvProblem

DRIVER = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
TENSOR_MAP = np.dtype([("opaque", np.uint64, 16)])  # what kernels are given, by value
ALIGNMENT = 64  # bytes, of a record that the driver fills
STRIDE_BYTES = 16  # every distance in the input is a multiple of
MOST_BYTES = 1 << 40  # distances are less than
MOST_STEP = 8  # between neighbouring outputs, in pixels
CORNERS = {
    1: 1 << 15,
    2: 1 << 7,
    3: 1 << 4,
}  # by spatial dimensions: how far the box may reach beyond the input
TAPS = {1: 65535, 2: 255, 3: 31}  # and how far a tap may lie from the first one
CACHED_MAPS = 256  # maps of a plan
ANYWHERE = 1 << 20  # an address, of a map that is not used

# Of the driver's enumerations.
MAP_TYPES = {1: 0, 2: 1, 4: 11}  # by bytes: UINT8, UINT16, TFLOAT32
NO_INTERLEAVE, SWIZZLE_128_BYTES, PROMOTE_TO_256_BYTES, ZEROS_OUTSIDE = 0, 3, 3, 0


@dataclass(frozen=True)
class Im2colView:
    """An input as copies of pixels see it; whatever has a place per dimension starts with the innermost one.

    A copy holds `pixels` rows of `channels`, in 128 bytes each.
    """

    itemsize: int  # 4: float32, rounded to TF32 on the way; 2 and 1: any, as they are
    sizes: tuple[int, ...]  # channels, W, H, D, images
    lower: tuple[int, ...]  # W, H, D: where the first output's first tap lies,
    upper: tuple[int, ...]  # and the last one's, counted from the last input
    steps: tuple[int, ...]  # W, H, D: from output to output
    reach: tuple[int, ...]  # W, H, D: the last tap's distance from the first
    channels: int
    pixels: int

    @classmethod
    def of(cls, problem: ConvProblem, all_channels: int, channels: int, pixels: int) -> Im2colView:
        """The view of a problem's input with so many channels in memory."""
        inner = slice(None, None, -1)
        low = [low for low, _ in problem.padding]
        ends = zip(problem.spatial_out, problem.stride, low, problem.spatial, strict=True)
        return cls(
            problem.itemsize,
            (all_channels, *problem.spatial[inner], problem.N),
            tuple(-p for p in low[inner]),
            tuple((outputs - 1) * step - p - (size - 1) for outputs, step, p, size in ends)[inner],
            problem.stride[inner],
            tuple(extent - 1 for extent in problem.kernel_extent)[inner],
            channels,
            pixels,
        )

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one place to the next in each dimension but the innermost."""
        strides = [self.sizes[0] * self.itemsize]
        for size in self.sizes[1:-1]:
            strides.append(strides[-1] * size)
        return tuple(strides)

    def why_not(self) -> str | None:
        """Why the copy engine cannot read it, or None."""
        space = len(self.steps)
        if max(self.steps) > MOST_STEP:
            return f"copies pixels up to {MOST_STEP} apart, but the stride is {max(self.steps)}"
        box, furthest = CORNERS[space], max(self.reach)
        if not all(-box <= corner < box for corner in (*self.lower, *self.upper)):
            return (
                f"lets outputs begin up to {box} pixels outside or inside of the input's borders in {space} "
                f"dimensions, but they begin at {self.lower} and end at {self.upper} (innermost first)"
            )
        if furthest > TAPS[space]:
            return f"reaches taps {TAPS[space]} pixels apart in {space} dimensions, not {furthest}"
        if any(stride % STRIDE_BYTES or stride >= MOST_BYTES for stride in self.strides):
            return f"reads pixels of whole {STRIDE_BYTES} bytes, not of {self.strides[0]}"
        return None


def encode(view: Im2colView, address: int, driver: str | None = None) -> np.ndarray:
    """(1,) RECORD: the map of an input at this address of the current device, from a driver's library.

    Raises:
        RuntimeError: the driver refuses it.
    """
    memory = np.zeros(TENSOR_MAP.itemsize + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    record = memory[start : start + TENSOR_MAP.itemsize].view(TENSOR_MAP)
    rank, space = len(view.sizes), len(view.steps)
    status = _encoder(driver or DRIVER)(
        record.ctypes.data,
        MAP_TYPES[view.itemsize],
        rank,
        address,
        (ctypes.c_uint64 * rank)(*view.sizes),
        (ctypes.c_uint64 * (rank - 1))(*view.strides),
        (ctypes.c_int * space)(*view.lower),
        (ctypes.c_int * space)(*view.upper),
        view.channels,
        view.pixels,
        (ctypes.c_uint32 * rank)(1, *view.steps, 1),
        NO_INTERLEAVE,
        SWIZZLE_128_BYTES,
        PROMOTE_TO_256_BYTES,
        ZEROS_OUTSIDE,
    )
    if status:
        raise RuntimeError(f"cuTensorMapEncodeIm2col failed with status {status} for {view} at {address:#x}")
    return record


@cache
def _encoder(driver: str) -> Callable[..., int]:
    function: Any = ctypes.CDLL(driver).cuTensorMapEncodeIm2col
    pointer, number = ctypes.c_void_p, ctypes.c_uint32
    function.argtypes = (
        *(pointer, ctypes.c_int, number, pointer),  # map, type, rank, address
        *(pointer, pointer, pointer, pointer),  # sizes, strides, lower, upper
        *(number, number, pointer),  # channels, pixels, steps
        *(ctypes.c_int,) * 4,  # interleave, swizzle, promotion, fill
    )
    function.restype = ctypes.c_int
    encoder: Callable[..., int] = function
    return encoder


def takes_wide_box(driver: str | None = None) -> bool:
    """Whether the driver encodes maps whose box has more channels than the input, in all dimensions.

    False only where it encodes them with as many: one that encodes nothing says so when a plan runs.
    """
    kinds = [(channels, space, step) for space in CORNERS for step in (1, 2) for channels in (8, 16, 64)]
    try:
        return all(_is_encoded(*kind, driver) for kind in kinds) or not _is_encoded(64, 2, 1, driver)
    except OSError:  # there is no such library
        return True


def _is_encoded(channels: int, space: int, step: int, driver: str | None) -> bool:
    """A map of 64 channels of 16 bits over so many; nothing is read where it points to."""
    sizes = (channels, *(16,) * space, 2)
    view = Im2colView(2, sizes, (-1,) * space, (-1,) * space, (step,) * space, (2,) * space, 64, 64)
    try:
        encode(view, ANYWHERE, driver)
    except RuntimeError:
        return False
    return True


class TensorMapCache:
    """The maps of one view at the addresses that a plan is called with."""

    def __init__(self, make: Callable[[Im2colView, int], Any], view: Im2colView):
        self._make, self._view = make, view
        self._known: dict[int, Any] = {}

    def at(self, address: int) -> Any:
        """The map of an input at this address, as launches take it."""
        found = self._known.get(address)
        if found is None:
            if len(self._known) >= CACHED_MAPS:
                self._known.clear()
            found = self._known[address] = self._make(self._view, address)
        return found
