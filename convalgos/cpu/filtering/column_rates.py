"""Signals that lie side by side in memory, up- and downsampled by a filter: vectors hold a sample of several.

Columns of images are such signals; samples of short ones that lie apart are brought there. Of others nothing
is laid in scratch but what lies beyond their ends, and nothing is multiplied by the zeros that upsampling
puts in.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.cpu.filtering.rate_records import RATE_FIELDS, RateRecord, Rates, rate_record
from convalgos.cpu.filtering.sample_mixes import SAMPLES
from convalgos.cpu.filtering.small_elements import copy_element, word_of
from convalgos.cpu.filtering.small_rates import AT_ONCE
from convalgos.cpu.filtering.small_records import scratch
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer

SHORT = 1 << 10  # samples of lines that are brought side by side
# Seconds of a window of some vectors, of each tap of a vector, of an output that is stored away from others,
# of a vector beyond the ends, and of a sample that is brought beside others; Sapphire Rapids
WINDOW, TAP, STORE, BEYOND, GATHER = 6e-9, 0.35e-9, 0.7e-9, 2e-9, 1e-9


@simd.emitter
def sum_column_windows(
    v: Vec, CROSS: int, VECTORS: int, before: Value, x: Value, behind: Value, x_step: Value, step: Value,
    weights: Value, count_before: Value, count: Value, count_behind: Value, y: Value,
) -> None:  # fmt: skip
    """y (VECTORS * lanes,): taps times rows of samples before the first one, of x, and behind the last one.

    x_step, step: bytes between rows of x, and of those beyond the ends. CROSS: numbers are complex, in pairs.
    """
    weight_at, pair = v.pointer(weights), 1 + CROSS
    sums = [[v.register(v.zero()) for _ in range(VECTORS)] for _ in range(AT_ONCE // VECTORS)]

    def add(rows: Value, number: Value, by: Value, ahead: Value, totals: list[Any]) -> None:
        row = v.pointer(v.iadd(rows, v.imul(number, by)))
        tap = v.imul(v.iadd(ahead, number), pair)
        weight = v.broadcast(weight_at, tap)
        if CROSS:
            signs = simd.ir.Constant(v.type, [-1.0, 1.0] * (v.lanes // 2))
            crossed = v.fmul(v.broadcast(weight_at, v.iadd(tap, 1)), signs)
        for k, total in enumerate(totals):
            value = v.load(row, k * v.lanes)
            total.set(v.fma(value, weight, total.value))
            if CROSS:
                swapped = v.shuffle(value, value, [lane ^ 1 for lane in range(v.lanes)])
                total.set(v.fma(swapped, crossed, total.value))

    ahead = v.integer(0)
    runs = (before, step, count_before), (x, x_step, count), (behind, step, count_behind)
    for rows, by, taps in runs:
        whole = v.idiv(taps, len(sums))
        with v.loop(whole) as group:
            for k, totals in enumerate(sums):
                add(rows, v.iadd(v.imul(group, len(sums)), k), by, ahead, totals)
        if len(sums) > 1:
            done = v.imul(whole, len(sums))
            with v.loop(v.isub(taps, done)) as tap:
                add(rows, v.iadd(done, tap), by, ahead, sums[0])
        ahead = v.iadd(ahead, taps)
    to = v.pointer(y)
    for k in range(VECTORS):
        total = sums[0][k].value
        for others in sums[1:]:
            total = v.fadd(total, others[k].value)
        v.store(total, to, k * v.lanes)


@simd.emitter
def mix_columns(
    v: Vec, VECTORS: int, x: Value, x_step: Value, count: Value, places: Value, weights: Value, y: Value
) -> None:  # fmt: skip
    """y (VECTORS * lanes,): the sum of some rows of x, each times a number."""
    weight_at, to = v.pointer(weights), v.pointer(y)
    sums = [v.register(v.zero()) for _ in range(VECTORS)]
    with v.loop(count) as k:
        row = v.pointer(v.iadd(x, v.imul(v.table64(places, k), x_step)))
        weight = v.broadcast(weight_at, k)
        for i, total in enumerate(sums):
            total.set(v.fma(v.load(row, i * v.lanes), weight, total.value))
    for i, total in enumerate(sums):
        v.store(total.value, to, i * v.lanes)


@jit.specialise
def sum_lines_beside(WIDE: int, CROSS: int, SIZE: int, LANES: int, VECTORS: int) -> jit.Kernel:
    """The numbers of some vectors of lines, from a first one on; WIDE of them are a sample."""

    def sum_lines_beside(record: int, x: int, y: int, first: int) -> None:
        a = carray(pointer(record), 1, RATE_FIELDS)[0]
        columns, rows, width = x + first * SIZE, a.padded, VECTORS * LANES
        for i in range(a.used):
            at, numbers = word_of(a.begins + i * 8), word_of(a.sources + i * 8)
            table, by = a.mixed + at * SAMPLES * 8, a.weights + at * SAMPLES * SIZE
            mix_columns(
                SIZE, LANES, VECTORS, columns, a.x_step, numbers, table, by, rows + at * a.pitch
            )  # fmt: skip
        target = y + first // WIDE * a.y_line
        for output in range(a.outputs):
            start = output * a.down // a.up - a.reach  # of its window
            before = max(-start, 0)
            behind = min(max(start + a.of_phase - a.n, 0), a.of_phase)
            inside = a.of_phase - before - behind
            taps = a.taps + output % a.up * a.of_phase * a.size
            of_low = rows + (a.low + start) * a.pitch
            of_high = rows + (a.low + max(start - a.n, 0)) * a.pitch
            if a.used == 0:  # zeros lie there
                taps += before * a.size
                before, behind = 0, 0
            alongside = a.y_line == WIDE * SIZE
            to = target + output * a.y_step if alongside else a.sums
            sum_column_windows(
                SIZE, LANES, CROSS, VECTORS, of_low, columns + max(start, 0) * a.x_step, of_high, a.x_step,
                a.pitch, taps, before, inside, behind, to,
            )  # fmt: skip
            if not alongside:
                for line in range(width // WIDE):
                    copy_element(
                        target + line * a.y_line + output * a.y_step, to + line * WIDE * SIZE, WIDE * SIZE
                    )

    return sum_lines_beside


# --- for Python ------------------------------------------------------------------------------


class ColumnRates(RateRecord):
    """What all calls of some shapes and a type share, as `SmallRates`; lines lie side by side."""

    def __init__(self, rates: Rates):
        r, reach = rates, len(rates.ends[0])
        lanes, beyond = simd.vector_bytes() // r.part, [0, 0] if r.end_in_zeros else list(map(len, r.ends))
        used, mixed, weights = _beyond(r)
        row = AT_ONCE * simd.vector_bytes()
        side_by_side = r.x_steps[1] == r.element
        gathered = np.zeros(0, np.int64) if side_by_side else _read(r, mixed[used][weights[used] != 0])
        ahead = sum(beyond) + 1
        memory = scratch((ahead + (0 if side_by_side else r.n)) * row)
        address, kind = jit.data_address()(memory), (r.numbers * r.parts, r.numbers - 1, r.part, lanes)
        self.kept, self.record, self.address = rate_record(
            r,
            {"begins": used, "sources": np.count_nonzero(weights, 1)[used], "gathered": gathered},
            r.window_taps,
            memory,
            (mixed, weights),
            kernel=sum_lines_beside(*kind, AT_ONCE), rest=sum_lines_beside(*kind, 1), at_once=lanes,
            pitch=row, outputs=r.outputs, of_phase=reach + 1, reach=reach,
            sums=address + sum(beyond) * row, rows=address + ahead * row,
            count=len(gathered), step=r.x_steps[2], x_step=r.x_steps[2] if side_by_side else row,
        )  # fmt: skip


def are_columns(rates: Rates) -> bool:
    """Whether vectors may hold samples of several lines, which fill one, and lie side by side, or short."""
    side_by_side = rates.x_steps[1] == rates.element and not rates.neighbours
    fills = rates.counts[1] * rates.element >= simd.vector_bytes()
    return fills and (side_by_side or rates.n <= SHORT)


def seconds_of_columns(r: Rates) -> float:
    """For each line."""
    vectors = -(-r.counts[1] * r.element // simd.vector_bytes())
    windows = r.outputs * -(-vectors // AT_ONCE) * WINDOW
    products = r.outputs * vectors * (len(r.ends[0]) + 1) * r.numbers * TAP
    sides = 0 if r.end_in_zeros else sum(map(len, r.ends)) * vectors * BEYOND
    stores = 0 if r.y_steps[1] == r.element else r.outputs * STORE
    gathered = 0 if r.x_steps[1] == r.element else min(r.n, r.outputs * (len(r.ends[0]) + 1)) * GATHER
    return (windows + products + sides) / r.counts[1] + stores + gathered


# --- inside ----------------------------------------------------------------------------------


def _read(r: Rates, mixed: np.ndarray) -> np.ndarray:
    """The samples that windows, and sums of some beyond the ends, read."""
    start = np.arange(r.outputs, dtype=np.int64) * r.down // r.up - len(r.ends[0])
    changes = np.zeros(r.n + 1, np.int64)
    np.add.at(changes, start.clip(0, r.n), 1)
    np.add.at(changes, (start + len(r.ends[0]) + 1).clip(0, r.n), -1)
    read = changes.cumsum()[:-1] > 0
    read[mixed] = True
    return np.flatnonzero(read)


def _beyond(r: Rates) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the samples beyond the ends: those that windows read; and which samples each is the sum of, times
    what, (places, SAMPLES) twice, those times 0 last."""
    low, high = map(len, r.ends)
    number = np.dtype(f"f{r.part}")
    if r.end_in_zeros:
        return np.zeros(0, np.int64), np.zeros((0, SAMPLES), np.int64), np.zeros((0, SAMPLES), number)
    start = np.arange(r.outputs, dtype=np.int64) * r.down // r.up - low
    read = np.zeros(low + r.n + high + 1, np.int64)  # how many windows begin at a place, less those that end
    np.add.at(read, start + low, 1)
    np.add.at(read, (start + 2 * low + 1).clip(0, low + r.n + high), -1)
    read = read.cumsum()
    used = np.flatnonzero(np.concatenate([read[:low], read[low + r.n : -1]]))
    if r.mixes is None:
        mixed, weights = np.zeros((2, low + high, SAMPLES))
        mixed[:, 0], weights[:, 0] = np.concatenate(r.ends), 1
    else:
        mixed, weights = r.mixes
    return used, mixed.astype(np.int64), weights.astype(number)
