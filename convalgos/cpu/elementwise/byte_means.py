"""The mean of each whole map of uint8, as an integer with a scale and zero point of its own."""

from __future__ import annotations

from typing import Any

from convalgos.cpu.elementwise.byte_kernels import ByteOperation
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.integers import bytes_of, words_of
from convalgos.cpu.vectors.lanes import load_lanes
from convalgos.cpu.vectors.simd import Value, Vec, carray, ir, pointer

# Maps of `pixels` elements, of channels that lie side by side where `last`; `begin`: what sums start from.
MEAN_FIELDS = fields("x y images channels pixels last begin numbers tasks")


@simd.emitter
def mean_of_plane(v: Vec, x: Value, pixels: Value, begin: Value, y: Value, numbers: Value) -> None:
    """One byte y of `pixels` bytes beside each other."""
    narrow, words = bytes_of(v), words_of(v)
    source, whole = v.pointer(x), v.idiv(pixels, v.lanes)
    total = _total(v, source, v.lanes, whole, None)
    done = v.imul(whole, v.lanes)
    rest = narrow.load_masked(source, done, narrow.mask(v.isub(pixels, done)))
    total = words.total(words.add(total, narrow.resized(rest, 4, False)))
    found = v.b.extract_element(_bytes(v, words.spread(v.iadd(total, begin)), numbers), ir.IntType(32)(0))
    v.b.store(found, v.pointer(y))  # alone: the bytes beside it may be those of another thread


@simd.emitter
def mean_of_channels(
    v: Vec, x: Value, pixels: Value, step: Value, channels: Value, begin: Value, y: Value, numbers: Value
) -> None:
    """Bytes y of so many channels, at most a vector; pixels of x lie `step` bytes apart."""
    narrow, words = bytes_of(v), words_of(v)
    source = v.pointer(x)
    total = _total(v, source, step, pixels, narrow.mask(channels))
    found = _bytes(v, words.add(total, words.spread(v.integer(begin))), numbers)
    narrow.store_masked(found, v.pointer(y), 0, narrow.mask(channels))


def _total(v: Vec, source: Any, step: Any, count: Any, mask: Any) -> Any:
    """Words: the sums of `count` vectors of bytes, `step` bytes apart."""
    narrow, words = bytes_of(v), words_of(v)
    total = words.register(words.zero())
    with v.loop(count) as n:
        at = v.imul(n, step)
        loaded = load_lanes(narrow, source, at, mask)
        total.set(words.add(total.value, narrow.resized(loaded, 4, False)))
    return total.value


def _bytes(v: Vec, sums: Any, numbers: Any) -> Any:
    """A vector of bytes: sums as means."""
    by = ByteOperation(v, numbers)
    return by.words.resized(by.finished(v.fmul(by.words.floats(sums), by.a_scale)), 1)


@jit.specialise
def mean_share(LANES: int) -> jit.Kernel:
    """Maps, or vectors of channels of them, dealt to the tasks."""

    def mean_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, MEAN_FIELDS)[0]
        vectors = (a.channels + LANES - 1) // LANES if a.last else a.channels
        for unit in range(a.images * vectors * task // a.tasks, a.images * vectors * (task + 1) // a.tasks):
            n, part = unit // vectors, unit % vectors
            if a.last:
                c = part * LANES
                x = a.x + n * a.pixels * a.channels + c
                count = min(LANES, a.channels - c)
                y = a.y + n * a.channels + c
                mean_of_channels(4, LANES, x, a.pixels, a.channels, count, a.begin, y, a.numbers)
            else:
                mean_of_plane(4, LANES, a.x + unit * a.pixels, a.pixels, a.begin, a.y + unit, a.numbers)

    return mean_share
