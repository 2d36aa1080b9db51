"""Signals so short that to sort them into a problem takes longer than to convolve them.

They go straight to NumPy's loop of dot products, or through three transforms of SciPy's FFT: no problem, no
plan, nothing kept. All functions return None for what is not theirs to answer, which `convalgos.signal` then
sorts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from convalgos.signal.joint_transforms import Joint, joint_of_arrays
from convalgos.signal.modes import larger, products_summed, wanted_of
from convalgos.signal.new_sizes import is_nearly_as_long, is_new_with_such_taps
from convalgos.signal.small_calls import BYTES_OF_PRODUCTS, is_tiny_line
from convalgos.signal.small_images import convolved_small
from convalgos.signal.whole_transforms import ONE_THREAD, transformed_whole
from convalgos.signal.window_sums import few_along

# Up to here nothing else is faster; Sapphire Rapids, one thread.
LONGEST = 2048  # elements of two 1-D arrays together,
PRODUCTS = 1 << 20  # and of one times those of the other,
OTHER_PRODUCTS = 1 << 17  # where they are integers or complex, or may be transformed,
LONG_PRODUCTS = 1 << 15  # or where they are longer,
ALIKE_DIRECT, DIRECT_PRODUCTS = 3, 1 << 20  # lines of complex numbers that are not transformed; Zen 5
COMPLEX_BYTES = 5 << 20  # bytes of the products of lines one of which is complex, which BLAS sums; Zen 5
TAPS = 10  # elements of the smaller one of two arrays of several axes
DOTS = 8  # outputs that are no more than dot products
# Elements of a result of real numbers that is transformed whole, and of a complex one of one, two, three axes
REAL_ELEMENTS, COMPLEX_ELEMENTS = 1 << 12, (1 << 12, 1 << 16, 1 << 15)  # Zen 5, lines and real numbers
# Elements of the result, from which on the larger one is less than so many times as long; Zen 5
UNLIKE_ELEMENTS, UNLIKE = 1 << 15, 32
# The same from so many on, where one is less than so many times as long as the other, along each of several
# axes: blocks save little; Zen 5
ALIKE, ALIKE_ELEMENTS = 2, 3 << 17
# And up to so many of images whose plans would sum, one less than so many times as large; Zen 5
ALIKE_IMAGES, OF_IMAGES = 3 << 12, 3
ALIKE_COMPLEX, ALIKE_COMPLEX_IMAGES = 5, 9  # so many times, of complex arrays, and along two axes
MANY_AXES = 1 << 24  # elements of more axes than plans convolve, up to which no blocks are faster; Zen 5
# Elements where one array is complex and the other is real, of one, two, three axes,
FEW_OF_BOTH = 1 << 11, 3 << 11, 3 << 10
FEW_OF_LINES, SHORT_LINES = 1 << 13, 64  # and of lines of such, or of one of both together; Zen 5
LINE_OF_COMPLEX = 0, 1 << 8, 1 << 9  # elements of a line of such with one filter, one or both complex; Zen 5
# Elements of the result of one line, and of more, with one filter that is about as long; the same
ALIKE_LINE, ALIKE_LINES = (0, 1 << 10, 5 << 9), (0, 1 << 10, 3 << 11)
COMPLEX_LINES = 1 << 17  # and of those that are complex, with a complex filter more than half as long; Zen 5
FEW_ARRAYS, LARGE = 3, 1 << 14  # of taps, by which so many elements at most are multiplied row by row; Zen 5
GROUPS, PRODUCTS_OF_GROUPS = 16, 1 << 18  # small convolutions that are computed one after the other

NUMBERS = frozenset("bhilqBHILQfdFD")  # dtypes that are computed as they are
SINGLE = frozenset("fF")


def summed(in1: Any, in2: Any, mode: str, direct: bool = False) -> np.ndarray | None:
    """`scipy.signal.convolve` by sums of products, in the dtype that the inputs promote to.

    Args:
        direct: whether transforms are no choice.
    """
    arrays = _arrays(in1, in2)
    if arrays is None or mode not in ("full", "same", "valid"):
        return None
    return _summed(*arrays, mode, direct)


def correlated(in1: Any, in2: Any, mode: str, direct: bool = False) -> np.ndarray | None:
    """`scipy.signal.correlate` by sums of products, as `summed` has it."""
    arrays = _arrays(in1, in2)
    if arrays is None or mode not in ("full", "same", "valid"):
        return None
    x, w = arrays
    w = w[(slice(None, None, -1),) * w.ndim]
    return _summed(x, w.conj() if w.dtype.kind == "c" else w, mode, direct)


def new_of_one_length(x: np.ndarray, w: np.ndarray, mode: str) -> np.ndarray | None:
    """`scipy.signal.fftconvolve` of two signals of about one length, while such sizes do not come often."""
    if x.ndim != 1 or x.dtype is not w.dtype or x.dtype.char not in "fd" or mode not in ("full", "same"):
        return None
    if w.ndim != 1 or x.size * w.size * x.itemsize <= BYTES_OF_PRODUCTS:
        return None
    n, taps = sorted((x.size, w.size), reverse=True)
    if not is_nearly_as_long(taps, n) or not is_new_with_such_taps(n, taps, x.dtype.char):
        return None
    return transformed_whole(x, w, [0], [wanted_of(mode, x.size, w.size)])


def transformed(
    in1: Any, in2: Any, mode: str, axes: set[int] | None = None, keep: Callable[[Joint], Any] | None = None,
    sums: bool = False,
) -> np.ndarray | None:  # fmt: skip
    """`scipy.signal.fftconvolve`: summed, where that is fastest and all is finite.

    Args:
        keep: called with the joint transforms that arrays of these shapes and types go by, if they do.
        sums: whether plans might sum.
    """
    arrays = _arrays(in1, in2, 32)
    if arrays is None or mode not in ("full", "same", "valid"):
        return None
    x, w = arrays
    single = x.dtype.char in SINGLE and w.dtype.char in SINGLE
    x, w = (_floating(a, single) for a in arrays)
    complexes = (x.dtype.kind == "c") + (w.dtype.kind == "c")
    pairs = list(zip(x.shape, w.shape, strict=True))
    # along axes of length 1 a convolution is a product
    along = [i for i, pair in enumerate(pairs) if (axes is None or i in axes) and 1 not in pair]
    others = [pair for i, pair in enumerate(pairs) if i not in along]
    if not along or any(n != k and 1 not in (n, k) for n, k in others):
        return None
    y, groups = None, [i for i, pair in enumerate(pairs) if i not in along and 1 not in pair]
    if not groups:
        y = convolved_small(x, w, mode, False)
        if y is None and len(along) == 1 and x.ndim > 1 and all(k == 1 for _, k in others):
            y = few_along(x, w, along[0], mode)
    else:
        y = _by_groups(x, w, mode, groups, along)
    if y is None and not others and x.size * w.size <= OTHER_PRODUCTS:
        y = _summed(x, w, mode)
    if y is not None and np.isfinite(y).all():
        return y  # transforms spread what is not finite
    inside = [pairs[i] for i in along]
    if mode == "valid" and larger(*zip(*inside, strict=True)) is None:
        return None
    full = [n + k - 1 for n, k in inside]
    elements = math.prod(full) * math.prod(max(pair) for pair in others)
    alike = sums and not complexes and _are_alike_images(inside, elements)
    if not alike and not _is_whole(inside, others, elements, complexes):
        return None
    crops = [_crop(mode, *pair) for pair in inside]
    wanted = [(crop.start, crop.stop - crop.start) for crop in crops]
    spread = y is not None  # as what has been summed is not finite
    y = transformed_whole(x, w, along, wanted, 1 if elements <= ONE_THREAD else -1)
    if mode != "same" or all(n >= k for n, k in others):
        joint = None if spread or keep is None else joint_of_arrays(x, w, along, wanted)
        if keep is not None and joint is not None:
            keep(joint)
        return y
    centred = [slice(None) if i in along else _centred(mode, *pair) for i, pair in enumerate(pairs)]
    return np.ascontiguousarray(y[tuple(centred)])


def are_alike(pairs: Iterable[tuple[int, int]], times: int = ALIKE) -> bool:
    """Whether one size is less than some times the other, in all pairs."""
    return all(max(pair) < times * min(pair) for pair in pairs)


# --- inside ----------------------------------------------------------------------------------


def _is_whole(
    inside: list[tuple[int, int]], others: list[tuple[int, int]], elements: int, complexes: int
) -> bool:
    """Whether no plan is faster than transforms of whole arrays.

    Args:
        inside: sizes of both arrays along the axes that are convolved.
        others: those along other axes.
        elements: of the full convolution.
        complexes: how many of both arrays are complex; plans transform one of real numbers once.
    """
    axes, lines = min(len(inside) + len(others), 3) - 1, len(inside) == 1
    if lines and complexes and _have_one_filter(inside[0], others):
        most = ALIKE_LINE if elements == sum(inside[0]) - 1 else ALIKE_LINES
        alike = elements <= most[complexes] and are_alike(inside, ALIKE_COMPLEX)
        alike |= complexes == 2 and elements <= COMPLEX_LINES and are_alike(inside)
        return alike or sum(inside[0]) <= LINE_OF_COMPLEX[complexes]
    if len(inside) > 3:
        return elements <= MANY_AXES or are_alike(inside, ALIKE_COMPLEX_IMAGES)
    if elements <= (REAL_ELEMENTS, FEW_OF_BOTH[axes], COMPLEX_ELEMENTS[axes])[complexes]:
        return elements <= UNLIKE_ELEMENTS or are_alike(inside, UNLIKE)
    if complexes == 2:
        times = ALIKE_COMPLEX_IMAGES if len(inside) == 2 else ALIKE_COMPLEX
        return bool(others or not lines) and are_alike(inside, times)
    if complexes == 1 and lines and others:
        short = sum(inside[0]) <= SHORT_LINES and are_alike(inside, ALIKE_COMPLEX)
        return short or elements <= FEW_OF_LINES
    return not lines and elements >= ALIKE_ELEMENTS and are_alike(inside)


def _are_alike_images(inside: list[tuple[int, int]], elements: int) -> bool:
    """Whether small images are about as large, which plans would sum in more time than transforms take."""
    return len(inside) == 2 and elements <= ALIKE_IMAGES and are_alike(inside, OF_IMAGES)


def _have_one_filter(sizes: tuple[int, int], others: list[tuple[int, int]]) -> bool:
    """Whether one array is a single line, and the other one has lines no shorter."""
    n, k = sizes
    return all((of_w if k <= n else of_x) == 1 for of_x, of_w in others)


def _arrays(in1: Any, in2: Any, axes: int = 3) -> tuple[np.ndarray, np.ndarray] | None:
    """Both inputs, where they are plain arrays or lists of numbers, of some axes at most and not empty."""
    if type(in1) in (list, tuple):
        in1 = np.asarray(in1)
    if type(in2) in (list, tuple):
        in2 = np.asarray(in2)
    if type(in1) is not np.ndarray or type(in2) is not np.ndarray:
        return None
    if in1.dtype.char not in NUMBERS or in2.dtype.char not in NUMBERS:
        return None
    return (in1, in2) if in1.size and in2.size and 0 < in1.ndim == in2.ndim <= axes else None


def _summed(x: np.ndarray, w: np.ndarray, mode: str, direct: bool = False) -> np.ndarray | None:
    """The convolution by sums, where nothing is faster."""
    if x.ndim > 1:
        return _by_taps(x, w, mode)
    if mode == "valid" and abs(x.size - w.size) < DOTS and np.result_type(x, w).kind in "fc":
        return np.convolve(x, w, "valid")
    if products_summed(x.shape, w.shape, mode) > _most_products(x, w, direct):
        return None
    if mode != "same" or x.size >= w.size:
        y: np.ndarray = np.convolve(x, w, mode)  # type: ignore[call-overload] # one of its modes
        return y
    return np.convolve(x, w)[_crop(mode, x.size, w.size)].copy()


def _most_products(x: np.ndarray, w: np.ndarray, direct: bool) -> int:
    """Up to which nothing is faster than NumPy's sums of two lines; transforms may be no choice."""
    kinds = x.dtype.kind + w.dtype.kind
    if direct and kinds == "cc" and are_alike([(x.size, w.size)], ALIKE_DIRECT):
        return DIRECT_PRODUCTS
    if "c" in kinds and kinds != "cc":
        return COMPLEX_BYTES // np.result_type(x, w).itemsize
    if x.size + w.size > LONGEST and not is_tiny_line(x, w):
        return LONG_PRODUCTS
    return PRODUCTS if kinds == "ff" else OTHER_PRODUCTS


def _by_taps(x: np.ndarray, w: np.ndarray, mode: str) -> np.ndarray | None:
    """The same of several axes: the larger array, times each element of the other, is added in its place."""
    if max(x.size, w.size) > LONGEST or min(x.size, w.size) > TAPS:
        return None
    if mode == "valid" and larger(x.shape, w.shape) is None:
        return None
    dtype = np.result_type(x, w)
    image, kernel = (a.astype(dtype, copy=False) for a in ((x, w) if x.size >= w.size else (w, x)))
    if not np.isfinite(kernel).all():
        return None  # in SciPy it spreads from the zeros around the image
    full = np.zeros([n + k - 1 for n, k in zip(x.shape, w.shape, strict=True)], dtype)
    with np.errstate(all="ignore"):
        for tap in np.ndindex(kernel.shape):
            window = full[tuple(slice(t, t + n) for t, n in zip(tap, image.shape, strict=True))]
            window += image * kernel[tap]
    if mode == "full":
        return full
    return full[tuple(_crop(mode, n, k) for n, k in zip(x.shape, w.shape, strict=True))].copy()


def _by_groups(
    x: np.ndarray, w: np.ndarray, mode: str, groups: Sequence[int], along: Sequence[int]
) -> np.ndarray | None:
    """Small convolutions along some axes, of all elements of others that both arrays have."""
    count = math.prod(x.shape[i] for i in groups)
    if len(groups) > 1 or count > GROUPS or x.size * w.size > PRODUCTS_OF_GROUPS * count:
        return _by_products(x, w, mode, along)
    parts = []
    for image, kernel in zip(x.swapaxes(0, groups[0]), w.swapaxes(0, groups[0]), strict=True):
        part = convolved_small(image, kernel, mode, False)
        if part is None:
            return _by_products(x, w, mode, along)
        parts.append(part)
    return np.ascontiguousarray(np.array(parts).swapaxes(0, groups[0]))


def _by_products(x: np.ndarray, w: np.ndarray, mode: str, along: Sequence[int]) -> np.ndarray | None:
    """Few taps, each of which is an array, times the other array, are added in their places."""
    pairs = list(zip(x.shape, w.shape, strict=True))
    taps_of_w, taps_of_x = (math.prod(a.shape[i] for i in along) for a in (w, x))
    if max(x.size, w.size) > LARGE or min(taps_of_w, taps_of_x) > FEW_ARRAYS or x.ndim - 1 in along:
        return None
    if mode == "valid" and larger(*zip(*(pairs[i] for i in along), strict=True)) is None:
        return None
    image, kernel = (x, w) if taps_of_w <= taps_of_x else (w, x)
    sizes = [n + k - 1 if i in along else max(n, k) for i, (n, k) in enumerate(pairs)]
    full = np.zeros(sizes, np.result_type(x, w))
    with np.errstate(all="ignore"):
        for tap in np.ndindex(*(kernel.shape[i] for i in along)):
            window, own = [slice(None)] * x.ndim, [slice(None)] * x.ndim
            for i, t in zip(along, tap, strict=True):
                window[i], own[i] = slice(t, t + image.shape[i]), slice(t, t + 1)
            full[tuple(window)] += image * kernel[tuple(own)]
    cropped = [(_crop if i in along else _centred)(mode, *pair) for i, pair in enumerate(pairs)]
    return np.ascontiguousarray(full[tuple(cropped)])


def _floating(array: np.ndarray, single: bool) -> np.ndarray:
    """In single or in double precision, real or complex as it was."""
    kinds = (np.complex64, np.float32) if single else (np.complex128, np.float64)
    return array.astype(kinds[array.dtype.kind != "c"], copy=False)


def _centred(mode: str, n: int, k: int) -> slice:
    """The same of an axis of products; SciPy centres on the first array here, too."""
    first = (max(n, k) - n) // 2 if mode == "same" else 0
    return slice(first, first + n) if mode == "same" else slice(None)


def _crop(mode: str, n: int, k: int) -> slice:
    """What a mode takes out of the full convolution, along one axis."""
    if mode == "full":
        return slice(0, n + k - 1)
    count = n if mode == "same" else abs(n - k) + 1
    first = (n + k - 1 - count) // 2
    return slice(first, first + count)
