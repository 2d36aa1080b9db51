"""Small signals up- and downsampled by a filter, in one call of compiled code (see `small_windows`).

Of `up` phases of the result, each is the sum of samples times every up-th coefficient: none is multiplied by
the zeros that upsampling puts in. A line of samples is laid in scratch as `down` lines, each of every
down-th sample, so that vectors of one phase lie next to each other; its sums are stored `up` apart.

Source: Vaidyanathan 1990, "Multirate digital filters, filter banks, polyphase networks, and applications".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np

from convalgos.cpu.filtering.rate_records import RATE_FIELDS, RateRecord, Rates, rate_record
from convalgos.cpu.filtering.sample_mixes import SAMPLES, mix_samples
from convalgos.cpu.filtering.small_elements import (
    HEAD,
    copy_element,
    count_reference,
    integer_of,
    is_aligned,
    step_of_columns,
    taps_are_finite,
    word_of,
)
from convalgos.cpu.filtering.small_records import scratch
from convalgos.cpu.runtime import array_calls, jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import (
    Value,
    Vec,
    call,
    carray,
    copy_bytes,
    pointer,
    zero_bytes,
)

AT_ONCE = 4  # vectors of a phase that are summed at a time


@jit.helper
def lay_beyond(a: Any, i: int, x: int, x_step: int) -> None:
    """One of the samples beyond the ends."""
    sample, target = word_of(a.sources + i * 8), a.padded + word_of(a.targets + i * 8)
    if a.weights != 0:
        at = i * SAMPLES * 8
        for number in range(0, a.element, a.part):
            mix_samples(a.part, target + number, x + number, x_step, a.mixed + at, a.weights + at)
    elif sample >= 0:
        copy_element(target, x + sample * x_step, a.element)
    else:
        zero_bytes(target, a.element)


@jit.helper
def lay_line(a: Any, x: int, x_step: int) -> None:
    """The samples that phases read, as lines of every down-th, with what lies beyond the ends."""
    for line in range(a.used):
        begin = word_of(a.begins + line * 8)
        place = begin + a.low
        target = a.padded + (place % a.down * a.pitch + place // a.down) * a.element
        count, step = (a.n - begin + a.down - 1) // a.down, a.down * x_step
        source = x + begin * x_step
        if step == a.element:
            copy_bytes(target, source, count * a.element)
        elif a.element == 4:
            for i in range(count):
                copy_element(target + i * 4, source + i * step, 4)
        else:
            for i in range(count):
                copy_element(target + i * a.element, source + i * step, a.element)
    for i in range(a.low + a.high):
        lay_beyond(a, i, x, x_step)


@jit.helper
def lay_windows(a: Any, x: int, begin: int, stop: int) -> None:
    """The samples that some windows read, each in its place."""
    laid = 0  # samples before here are
    for i in range(begin, stop):
        first = word_of(a.windows + i * 24)
        end = first + word_of(a.windows + i * 24 + 16)
        for j in range(max(laid, first), end):
            if j < a.low:
                lay_beyond(a, j, x, a.x_step)
            elif j < a.low + a.n:
                copy_element(a.padded + j * a.element, x + (j - a.low) * a.x_step, a.element)
            else:
                lay_beyond(a, j - a.n, x, a.x_step)
        laid = end


@jit.helper
def sum_laid(a: Any, begin: int, stop: int, y: int) -> None:
    """Outputs [begin, stop) of a line that is laid in scratch."""
    if begin < stop:
        windows, target = a.windows + begin * 24, y + begin * a.y_step
        call(a.kernel, (a.padded, 0, 1, windows, a.taps, stop - begin, target, 0, a.y_step))


@jit.helper
def run_windows_apart(a: Any, x: int, y: int) -> None:
    """Windows are read where they are, of all lines at once, or laid in scratch, line after line."""
    if a.first < a.last:
        tables = a.windows + a.first * 24, a.taps, a.last - a.first
        inside = y + a.first * a.y_step
        call(a.kernel, (x - a.low * a.element, a.x_line, a.lines, *tables, inside, a.y_line, a.y_step))
        if a.first == 0 and a.last == a.outputs:
            return
    for line in range(a.lines):
        source, target = x + line * a.x_line, y + line * a.y_line
        if a.read != 0:
            lay_windows(a, source, 0, a.first)
            sum_laid(a, 0, a.first, target)
            lay_windows(a, source, a.last, a.outputs)
            sum_laid(a, a.last, a.outputs, target)
        else:
            lay_line(a, source, a.x_step)
            sum_laid(a, 0, a.outputs, target)


@jit.helper
def gather_lines(a: Any, x: int, first: int, numbers: int) -> int:
    """Where x would begin if the samples of some lines, which are read, lay as they now lie in scratch."""
    if a.count == 0:  # they lie side by side
        return x
    lines, at = numbers * a.part // a.element, x + first * a.part // a.element * a.x_line
    for i in range(a.count):
        sample = word_of(a.gathered + i * 8)
        source, target = at + sample * a.step, a.rows + sample * a.pitch
        if a.element == 4:
            for line in range(lines):
                copy_element(target + line * 4, source + line * a.x_line, 4)
        elif a.element == 8:
            for line in range(lines):
                copy_element(target + line * 8, source + line * a.x_line, 8)
        else:
            for line in range(lines):
                copy_element(target + line * 16, source + line * a.x_line, 16)
    return int(a.rows - first * a.part)


@jit.helper
def run_columns(a: Any, record: int, x: int, y: int) -> None:
    """Some vectors of lines at a time; the last ones begin where they end with the lines.

    Lines that lie apart are brought side by side in scratch.
    """
    numbers = a.lines * (a.element // a.part)
    wide = a.at_once * AT_ONCE
    whole = numbers // wide * wide
    for first in range(0, whole, wide):
        call(a.kernel, (record, gather_lines(a, x, first, wide), y, first))
    for i in range(whole, numbers, a.at_once):
        first = min(i, numbers - a.at_once)
        call(a.rest, (record, gather_lines(a, x, first, a.at_once), y, first))


@jit.helper
def run_phases(a: Any, x: int, y: int) -> None:
    y_step = a.phases * a.y_step
    for i in range(a.lines * a.parts):
        line, part = i // a.parts, i % a.parts
        lay_line(a, x + line * a.x_line + part * a.size, a.x_step)
        for phase in range(a.phases):
            first, turns = phase * a.of_phase, word_of(a.turns + phase * 8)
            offsets, taps = a.offsets + first * 8, a.taps + first * a.size
            call(a.kernel, (a.padded, offsets, taps, a.of_phase, turns, a.sums))
            target = y + line * a.y_line + part * a.size + phase * a.y_step
            if y_step == a.size:
                copy_bytes(target, a.sums, turns * a.size)
            elif a.size == 4:
                for j in range(turns):
                    copy_element(target + j * y_step, a.sums + j * 4, 4)
            else:
                for j in range(turns):
                    copy_element(target + j * y_step, a.sums + j * a.size, a.size)


@jit.helper
def run_rates(record: int, x: int, w: int, w_step: int, y: int) -> bool:
    """Whether it did; not with taps that are infinite or no numbers."""
    a = carray(pointer(record), 1, RATE_FIELDS)[0]
    for i in range(a.tap_columns):
        place = word_of(a.places + i * 8)
        if place >= 0:
            copy_element(a.taps + i * a.size, w + place * w_step, a.size)
    if not taps_are_finite(a):
        return False
    for plane in range(a.planes):
        source, target = x + plane * a.x_plane, y + plane * a.y_plane
        if a.at_once != 0:  # see `column_rates`
            run_columns(a, record, source, target)
        elif a.outputs != 0:  # see `decimated_sums`
            run_windows_apart(a, source, target)
        else:
            run_phases(a, source, target)
    return True


def _filter_rates(this: int, given: int, count: int) -> int:
    """What Python calls as f(record, x, w, y) of arrays that lie as the record has it.

    The result is y, or None where x or w is not aligned, or w not finite.
    """
    x, w, y = word_of(given + 8), word_of(given + 16), word_of(given + 24)
    result = this  # it is None
    if is_aligned(x) and is_aligned(w) and run_rates(
        integer_of(word_of(given), 0), word_of(x + HEAD), word_of(w + HEAD), step_of_columns(w),
        word_of(y + HEAD),
    ):  # fmt: skip
        result = y
    count_reference(result)
    return result


@simd.emitter
def sum_samples(
    v: Vec, PAIR: int, padded: Value, offsets: Value, weights: Value, taps: Value, turns: Value, y: Value
) -> None:
    """y (turns,) and the rest of a vector: each tap times what lies from its offset on; complex are pairs."""
    source, weight_at, to = (v.pointer(address) for address in (padded, weights, y))
    width = v.imul(turns, PAIR)

    def block(begin: Value, vectors: int) -> None:
        sums = [v.register(v.zero()) for _ in range(vectors)]
        with v.loop(taps) as t:
            start = v.iadd(begin, v.imul(v.table64(offsets, t), PAIR))
            tap = v.imul(t, PAIR)
            weight = v.broadcast(weight_at, tap)
            if PAIR == 2:
                signs = simd.ir.Constant(v.type, [-1.0, 1.0] * (v.lanes // 2))
                crossed = v.fmul(v.broadcast(weight_at, v.iadd(tap, 1)), signs)
            for k, total in enumerate(sums):
                value = v.load(source, v.iadd(start, k * v.lanes))
                total.set(v.fma(value, weight, total.value))
                if PAIR == 2:
                    swapped = v.shuffle(value, value, [lane ^ 1 for lane in range(v.lanes)])
                    total.set(v.fma(swapped, crossed, total.value))
        for k, total in enumerate(sums):
            v.store(total.value, to, v.iadd(begin, k * v.lanes))

    step = AT_ONCE * v.lanes
    whole = v.idiv(width, step)
    with v.loop(whole) as i:
        block(v.imul(i, step), AT_ONCE)
    done = v.imul(whole, step)
    with v.loop(v.idiv(v.iadd(v.isub(width, done), v.lanes - 1), v.lanes)) as i:
        block(v.iadd(done, v.imul(i, v.lanes)), 1)


@jit.specialise
def small_rates(PAIR: int, SIZE: int, LANES: int) -> jit.Kernel:
    def small_rates(padded: int, offsets: int, weights: int, taps: int, turns: int, y: int) -> None:
        sum_samples(SIZE, LANES, PAIR, padded, offsets, weights, taps, turns, y)

    return small_rates


# --- for Python ------------------------------------------------------------------------------


@cache
def filter_rates() -> Callable[..., Any] | None:
    """f(address of a `SmallRates` or its like, x, w, y); None where it cannot be had."""
    return jit.from_python(b"filter_rates", _filter_rates, jit.FASTCALL) if array_calls.array_call() else None


class SmallRates(RateRecord):
    """What all calls of some shapes and a type share."""

    def __init__(self, rates: Rates):
        r = rates
        size, low = r.dtype.itemsize, len(r.ends[0])
        lanes = simd.vector_bytes() // r.part
        phases, of_phase = r.phases, low + 1  # taps, of which SciPy lacks some: 0 spreads what is not finite
        high = len(r.ends[1])
        pitch = -(-(low + r.n + high) // r.down) + AT_ONCE * lanes
        lines, ahead, used = _phase_reads(r.up, r.down, phases, low)
        turns = [-(-(r.outputs - phase) // r.up) for phase in range(phases)]
        beyond = np.arange(low + high)
        beyond[low:] += r.n
        at, line = np.divmod(beyond, r.down)
        memory = scratch((r.down * pitch + turns[0] + AT_ONCE * lanes) * size)
        self.kept, self.record, self.address = rate_record(
            r,
            {
                "targets": (line * pitch + at) * size, "offsets": lines * pitch + ahead,
                "turns": np.array(turns), "begins": used[used < r.n], "sources": np.concatenate(r.ends),
            },
            r.phase_taps.reshape(-1),
            memory,
            r.mixes,
            kernel=small_rates(r.numbers, r.part, lanes), pitch=pitch, phases=phases, element=size,
            sums=jit.data_address()(memory) + r.down * pitch * size, of_phase=of_phase, parts=r.parts,
        )  # fmt: skip


# --- inside ----------------------------------------------------------------------------------


@lru_cache(256)
def _phase_reads(up: int, down: int, phases: int, low: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the samples that phases read for their first outputs, from the last one on, (phases, low + 1):

    the lines of every down-th sample that they lie in, and how far behind its begin; and all such lines.
    """
    read = low + (np.arange(phases) * down // up)[:, None] - np.arange(low + 1)
    used = np.flatnonzero(np.bincount((read.reshape(-1) - low) % down))
    return read % down, read // down, used
