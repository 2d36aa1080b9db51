"""The output step of kernels: y = activation(y + residual), of each run of y as soon as it is stored.

Kernels add the bias themselves, and ReLU where there is no residual. Everything else is a compiled function
for each type of elements and activation, whose address stands in the field `finish` of a record: a driver
calls `finish_run` behind each run of elements that it has stored, which then lie in the first cache.
`array_pass` does the same to a whole array, for plans whose kernels do not.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from convalgos.core import epilogue
from convalgos.core.epilogue import Activation
from convalgos.core.errors import missing
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.activations import NONE, activate
from convalgos.cpu.vectors.simd import Value, Vec, call

CODES = (NONE, *(kind.code for kind in epilogue.KINDS.values()))  # of activations


@jit.helper
def finish_run(a, y: int, count: int) -> None:  # type: ignore[no-untyped-def]  # a record of any driver
    """The output step on so many elements from the address y on, if there is one beside bias and ReLU.

    They are stored, lie next to each other, and are read again here: not to be stored around the caches.
    """
    if a.finish:
        added = y + a.residual if a.residual else 0
        call(a.finish, (y, added, y, count, a.finish_numbers))


@jit.helper
def finish_panel(a, y: int, pixels: int, filters: int, y_k: int, y_pixel: int) -> None:  # type: ignore[no-untyped-def]
    """`finish_run` of so many neighbouring pixels of some filters, from the address y on, in any layout."""
    if a.finish:
        if y_pixel == 1:
            for k in range(filters):
                finish_run(a, y + k * y_k * a.size, pixels)
        elif y_k > 1:  # blocks of y_pixel filters
            for k in range(0, filters, y_pixel):
                finish_run(a, y + k * y_k * a.size, pixels * y_pixel)
        elif y_pixel == filters:  # all filters of a pixel: they are one run, as calls for few take long
            finish_run(a, y, pixels * filters)
        else:
            for i in range(pixels):
                finish_run(a, y + i * y_pixel * a.size, filters)


@jit.specialise
def finish_elements(SIZE: int, LANES: int, KIND: int) -> jit.Kernel:
    """target[i] = activation(source[i] + added[i]); added 0: nothing is added.

    The three may be the same, and must otherwise be apart. numbers: address of the activation's two.
    """

    def finish_elements(source: int, added: int, target: int, count: int, numbers: int) -> None:
        if added:
            write_finished(SIZE, LANES, KIND, 1, source, added, target, count, numbers)
        else:
            write_finished(SIZE, LANES, KIND, 0, source, added, target, count, numbers)

    return finish_elements


@simd.emitter
def write_finished(
    v: Vec, KIND: int, ADDED: int, source: Value, added: Value, target: Value, count: Value, numbers: Value
) -> None:
    a, b = (v.broadcast(v.pointer(numbers), i) for i in (0, 1))
    read, more, to = v.pointer(source), v.pointer(added), v.pointer(target)
    whole = v.idiv(count, v.lanes)
    with v.loop(whole) as i:
        at = v.imul(i, v.lanes)
        value = v.load(read, at)
        if ADDED:
            value = v.fadd(value, v.load(more, at))
        v.store(activate(v, KIND, value, a, b), to, at)
    done = v.imul(whole, v.lanes)
    with v.unless_negative(v.isub(v.isub(count, done), 1)):
        mask = v.mask(v.isub(count, done))
        value = v.load_masked(read, done, mask)
        if ADDED:
            value = v.fadd(value, v.load_masked(more, done, mask))
        v.store_masked(activate(v, KIND, value, a, b), to, done, mask)


@lru_cache(16)
def compiled_for(dtype: np.dtype) -> bool:
    """Whether there are functions for elements of a type here."""
    return dtype in (np.float32, np.float64) and missing("llvmlite") is None


def finish_address(dtype: np.dtype, activation: Activation | None) -> int:
    """The function of an activation, for the field `finish`."""
    kind = NONE if activation is None else epilogue.KINDS[activation.name].code
    return finish_elements(dtype.itemsize, simd.lanes(dtype.itemsize), kind)


@lru_cache(64)
def activation_numbers(dtype: np.dtype, activation: Activation | None) -> np.ndarray:
    """The two numbers of an activation, as its function reads them; its address is for `finish_numbers`."""
    given = activation or Activation("")
    numbers = np.array([given.a, given.b], dtype)
    numbers.flags.writeable = False  # runs share them
    return numbers
