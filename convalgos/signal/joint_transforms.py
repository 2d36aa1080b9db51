"""Convolutions of small arrays by two transforms: one of all lines of both arrays, and one back.

To call SciPy's FFT takes as long as to transform some hundred numbers; so one call does the work of two, and
how it goes is found once for two shapes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import scipy  # whose parts are imported when they are used

from convalgos.core.arguments import Shape
from convalgos.core.machine import vector_bytes
from convalgos.signal.finite_values import has_finite_norm
from convalgos.signal.modes import least_lengths
from convalgos.signal.size_cache import UNKNOWN, SizeCache

# Elements that are transformed, of both, where they are of one kind and where one is complex; beyond, zeros
# cost more than calls; Zen 5
MOST, MOST_MIXED = 3 << 13, 3 << 12
# Bytes of products of complex numbers for each element of the full convolution, and elements of a line up to
# which its transforms need no plan; Zen 5
BYTES_OF_COMPLEX, LINE_OF_COMPLEX = 5 << 9, 5 << 9
KEPT, KEPT_SHAPES = 1 << 22, 4096  # bytes of what is kept for calls, and shapes that came last

_known = SizeCache(KEPT)  # of `convolve`: a `Joint`, by what `call_key` tells


class Joint(NamedTuple):
    """How arrays of two shapes are transformed together. Axes that are not convolved come first."""

    dtype: np.dtype
    shape: Shape  # of both: (lines of x and of w, *lengths)
    order: Shape | None  # of the axes, where they have another one
    of_x: tuple[Shape, tuple[slice, ...]]  # x as lines, and where these go
    of_w: tuple[Shape, tuple[slice, ...]]
    x_lines: Shape  # sizes along the axes that are not convolved, and those that are transformed
    w_lines: Shape
    inside: tuple[slice, ...]  # what is wanted of the result
    back: Shape | None  # the order of its axes as they were

    def convolved(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Elements of the full convolution; what is not finite is spread to all of them."""
        both = np.zeros(self.shape, self.dtype)
        for a, (lines, place) in ((x, self.of_x), (w, self.of_w)):
            both[place] = (a if self.order is None else a.transpose(self.order)).reshape(lines)
        y = self._transformed(both)[self.inside]
        return y.copy() if self.back is None else np.ascontiguousarray(y.transpose(self.back))

    def _transformed(self, both: np.ndarray) -> np.ndarray:
        fft, real, lengths = scipy.fft, self.dtype.kind == "f", self.shape[1:]
        if len(lengths) == 1:
            spectra = (fft.rfft if real else fft.fft)(both, overwrite_x=True)
        else:
            axes = tuple(range(1, both.ndim))
            spectra = (fft.rfftn if real else fft.fftn)(both, axes=axes, overwrite_x=True)
        count, inner = math.prod(self.x_lines), spectra.shape[1:]
        of_x = spectra[:count].reshape(self.x_lines + inner)
        of_w = spectra[count:].reshape(self.w_lines + inner)
        product = of_x * of_w  # lines of one may meet each of the other
        if len(lengths) == 1:
            y: np.ndarray = (fft.irfft if real else fft.ifft)(product, lengths[0], overwrite_x=True)
            return y
        axes = tuple(range(product.ndim - len(lengths), product.ndim))
        y = (fft.irfftn if real else fft.ifftn)(product, lengths, axes, overwrite_x=True)
        return y


def joint_of_arrays(
    x: np.ndarray, w: np.ndarray, along: Sequence[int], wanted: Sequence[tuple[int, int]]
) -> Joint | None:
    """`joint_of` two arrays."""
    return joint_of(x.shape, w.shape, x.dtype.char + w.dtype.char, tuple(along), tuple(wanted))


@lru_cache(KEPT_SHAPES)
def joint_of(
    x_shape: Shape, w_shape: Shape, types: str, along: Shape, wanted: tuple[tuple[int, int], ...]
) -> Joint | None:
    """That of two arrays of one precision, by the characters of their types; None where it is slower.

    Args:
        wanted: (first, count) of the full convolution along each axis of `along`; the others broadcast.
    """
    dtype = np.result_type(*types)
    lengths = [
        scipy.fft.next_fast_len(n, dtype.kind == "f") for n in least_lengths(x_shape, w_shape, along, wanted)
    ]
    others = tuple(i for i in range(len(x_shape)) if i not in along)
    x_lines, w_lines = (tuple(shape[i] for i in others) for shape in (x_shape, w_shape))
    counts = math.prod(x_lines), math.prod(w_lines)
    shape = (sum(counts), *lengths)
    mixed = len({char.isupper() for char in types}) > 1
    if math.prod(shape) > (MOST_MIXED if mixed else MOST):
        return None
    places = []
    for first, count, sizes in ((0, counts[0], x_shape), (counts[0], counts[1], w_shape)):
        inside = tuple(sizes[i] for i in along)
        places.append(((count, *inside), (slice(first, first + count), *map(slice, inside))))
    order = others + along
    in_order = order == tuple(range(len(order)))
    return Joint(
        dtype=dtype,
        shape=shape,
        order=None if in_order else order,
        of_x=places[0],
        of_w=places[1],
        x_lines=x_lines,
        w_lines=w_lines,
        inside=(slice(None),) * len(others) + tuple(slice(first, first + n) for first, n in wanted),
        back=None if in_order else tuple(np.argsort(order).tolist()),
    )


def call_key(x: np.ndarray, w: np.ndarray, mode: str) -> Any:
    """What tells how two arrays are convolved along all axes; arrays of either byte order go one way."""
    return x.shape, w.shape, x.dtype.char, w.dtype.char, mode


def keep_joint(key: Any, joint: Joint) -> None:
    """Let `known_convolution` go this way from now on."""
    _known.keep(key, joint)


def known_convolution(in1: Any, in2: Any, mode: str, correlates: bool) -> np.ndarray | None:
    """What `convolve` or `correlate` has found to go by joint transforms, of what is finite; else None."""
    if type(in1) is not np.ndarray or type(in2) is not np.ndarray or type(mode) is not str:
        return None
    joint = _known[call_key(in1, in2, mode)]
    if joint is UNKNOWN or not (has_finite_norm(in1) and has_finite_norm(in2)):
        return None
    if correlates:
        in2 = np.conj(np.flip(in2)) if in2.dtype.kind == "c" else np.flip(in2)
    y: np.ndarray = joint.convolved(in1, in2)
    return y


def are_slow_sums(
    pairs: list[tuple[int, int]], wanted: list[tuple[int, int]], itemsize: int, is_line: bool
) -> bool:
    """Whether products of complex numbers take longer than transforms; lines of them are whole vectors."""
    *rows, last = (count for _, count in wanted)
    lanes = vector_bytes() // itemsize
    products = math.prod(rows) * -(-last // lanes) * lanes * math.prod(k for _, k in pairs)
    full = math.prod(n + k - 1 for n, k in pairs)
    return products * itemsize > BYTES_OF_COMPLEX * full and (full <= LINE_OF_COMPLEX or not is_line)
