"""The kernels of sliding windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from convalgos.cpu.sliding.kernels import slide_windows
from convalgos.cpu.sliding.marked import reduce_marked
from convalgos.cpu.sliding.plan import FORM_OF, sliding_bytes
from convalgos.cpu.sliding.reductions import LINED, MAXIMUM, MEAN, MINIMUM, WEIGHTED
from convalgos.cpu.vectors import simd

KINDS = {"float32": ("f4",), "float64": ("f8",), "int8": ("u1", "i1", "u2", "i2", "i4", "u4", "i8", "u8")}
MARKED = "f4", "f8", "u1"  # of which images under footprints mostly are


def sliding_kernels(dtypes: Sequence[str]) -> Iterator[tuple[Callable[..., object], tuple[int, ...]]]:
    """(factory, what it is given) of minima, maxima, means and boxes; int8 stands for all integers."""
    for name in (kind for dtype in dtypes for kind in KINDS.get(dtype, ())):
        dtype = np.dtype(name)
        form = FORM_OF[dtype.kind]
        for reduction in (MINIMUM, MAXIMUM) if name in MARKED else ():
            yield reduce_marked, (dtype.itemsize, simd.lanes(dtype.itemsize), form, reduction)
        for reduction in (MINIMUM, MAXIMUM, MEAN, *((WEIGHTED, LINED) if dtype.kind == "f" else ())):
            sizes = {sliding_bytes(dtype, reduction, (taps, taps)) for taps in (3, 999)}
            for size in sorted(sizes):
                yield slide_windows, (size, simd.lanes(size), dtype.itemsize, form, reduction)
