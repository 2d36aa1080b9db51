"""Filtered signals of which few samples are kept: each is one dot product of samples side by side.

`small_rates` lays every down-th sample next to each other, so that vectors of outputs can be summed. Where
outputs are few, or far apart, this takes longer than all products: here vectors lie along the taps, and
samples are read where they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.cpu.filtering.rate_records import RateRecord, Rates, rate_record
from convalgos.cpu.filtering.small_rates import AT_ONCE
from convalgos.cpu.filtering.small_records import scratch
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec

MOST_LAID = 1 << 22  # bytes of a line that may be laid in scratch, though its neighbours can be read in place
BEGIN = np.zeros(1, np.int64)  # one line, from the first sample on
# Seconds of a dot product, of each vector of it; of a sample laid in scratch, beside others, alone, or
# of a cache line of its own; of one beyond the ends, or of each number that is mixed there; of the sums of a
# phase, of each vector of a tap, and of an output; Sapphire Rapids
DOT, DOT_VECTOR = 6e-9, 0.4e-9
BESIDE, ALONE, FAR, CACHE_LINE = 0.1e-9, 1e-9, 2e-9, 64
BEYOND, MIXED = 1.5e-9, 6e-9
PHASE, TAP_VECTOR, OUTPUT = 20e-9, 0.4e-9, 1e-9


@simd.emitter
def sum_windows_apart(
    v: Vec, WIDE: int, CROSS: int, x: Value, x_line: Value, lines: Value, windows: Value, weights: Value,
    outputs: Value, y: Value, y_line: Value, y_step: Value,
) -> None:  # fmt: skip
    """y (lines, outputs), y_line and y_step bytes apart: dot products of windows of samples and weights.

    windows: (outputs, 3) numbers of the first sample, of the first weight, and how many. Samples and weights
    of WIDE 2 are pairs: CROSS complex numbers, or each weight twice.
    """
    weight_at = v.pointer(weights)
    evens, odds = ([lane // 2 * 2 + k for lane in range(v.lanes)] for k in (0, 1))
    with v.loop(lines) as line, v.loop(outputs) as output:
        source = v.pointer(v.iadd(x, v.imul(line, x_line)))
        sample, weight, count = (
            v.imul(v.table64(windows, v.iadd(v.imul(output, 3), k)), WIDE) for k in range(3)
        )
        sums = [v.register(v.zero()) for _ in range(AT_ONCE)]
        crosses = [v.register(v.zero()) for _ in range(AT_ONCE)] if CROSS else []

        def add(k: int, value: Value, taps: Value, sums: Any = sums, crosses: Any = crosses) -> None:
            if not CROSS:
                sums[k].set(v.fma(value, taps, sums[k].value))
                return
            crossed = v.shuffle(value, value, [lane ^ 1 for lane in range(v.lanes)])
            sums[k].set(v.fma(value, v.shuffle(taps, taps, evens), sums[k].value))
            crosses[k].set(v.fma(crossed, v.shuffle(taps, taps, odds), crosses[k].value))

        whole = v.idiv(count, AT_ONCE * v.lanes)
        with v.loop(whole) as block:
            for k in range(AT_ONCE):
                at = v.imul(v.iadd(v.imul(block, AT_ONCE), k), v.lanes)
                add(k, v.load(source, v.iadd(sample, at)), v.load(weight_at, v.iadd(weight, at)))
        done = v.imul(whole, AT_ONCE * v.lanes)
        with v.loop(v.idiv(v.iadd(v.isub(count, done), v.lanes - 1), v.lanes)) as vector:
            at = v.iadd(done, v.imul(vector, v.lanes))
            mask = v.mask(v.isub(count, at))
            add(
                0,
                v.load_masked(source, v.iadd(sample, at), mask),
                v.load_masked(weight_at, v.iadd(weight, at), mask),
            )
        total = _folded(v, [s.value for s in sums])
        if CROSS:
            signs = simd.ir.Constant(v.type, [-1.0, 1.0] * (v.lanes // 2))
            total = v.fma(_folded(v, [s.value for s in crosses]), signs, total)
        for width in [1 << i for i in range(v.lanes.bit_length() - 2, WIDE - 2, -1)]:
            turned = [(lane + width) % v.lanes for lane in range(v.lanes)]
            total = v.fadd(total, v.shuffle(total, total, turned))
        to = v.pointer(v.iadd(v.iadd(y, v.imul(line, y_line)), v.imul(output, y_step)))
        for k in range(WIDE):
            lane = v.b.extract_element(total, simd.ir.Constant(simd.ir.IntType(32), k))
            v.b.store(lane, v.at(to, k))


def _folded(v: Vec, values: list[Value]) -> Value:
    """Their sum, pair by pair."""
    while len(values) > 1:
        values = [v.fadd(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]


@jit.specialise
def sum_apart(WIDE: int, CROSS: int, SIZE: int, LANES: int) -> jit.Kernel:
    def sum_apart(
        x: int, x_line: int, lines: int, windows: int, weights: int, outputs: int, y: int, y_line: int,
        y_step: int,
    ) -> None:  # fmt: skip
        sum_windows_apart(
            SIZE, LANES, WIDE, CROSS, x, x_line, lines, windows, weights, outputs, y, y_line, y_step
        )  # fmt: skip

    return sum_apart


# --- for Python ------------------------------------------------------------------------------


class DecimatedSums(RateRecord):
    """What all calls of some shapes and a type share, as `SmallRates`.

    Where zeros lie beyond the ends, windows end there. Samples that lie side by side are read where they are,
    but for windows that reach beyond the ends.
    """

    def __init__(self, rates: Rates):
        r, trimmed = rates, rates.end_in_zeros
        reach = len(r.ends[0])
        low, high = (0 if trimmed else len(end) for end in r.ends)
        of_phase = reach + 1
        output = np.arange(r.outputs, dtype=np.int64)
        start = output * r.down // r.up - reach  # of its window
        begin, end = (np.clip(start + k, -low, r.n + high) for k in (0, of_phase))
        windows = np.stack([begin + low, output % r.up * of_phase + begin - start, end - begin], 1)
        beyond = np.concatenate([np.arange(low), np.arange(low + r.n, low + r.n + high)])
        laid = 0 if r.lie_as_they_are_read and r.n * r.element > MOST_LAID else low + r.n + high
        memory = scratch(laid * r.element)
        within = (begin >= 0) & (end <= r.n) & r.neighbours
        first = int(within.argmax()) if within.any() else r.outputs
        last = first + int(within.sum())
        self.kept, self.record, self.address = rate_record(
            r,
            {
                "targets": beyond * r.element, "begins": BEGIN, "windows": windows,
                "sources": BEGIN[1:] if trimmed else np.concatenate(r.ends),
            },
            r.window_taps if r.parts == 1 else r.window_taps.repeat(r.parts),
            memory,
            r.mixes,
            kernel=sum_apart(r.numbers * r.parts, r.numbers - 1, r.part, simd.vector_bytes() // r.part),
            pitch=low + r.n + high, low=low, high=high, down=1, outputs=r.outputs, first=first, last=last,
            read=int(trimmed or first < last or r.outputs * of_phase < low + r.n + high),
        )  # fmt: skip


def seconds_of_dots(r: Rates) -> float:
    """For each line."""
    taps, lanes = len(r.ends[0]) + 1, simd.vector_bytes() // r.element
    dots = r.outputs * (DOT + -(-taps // lanes) * r.numbers * DOT_VECTOR)
    sides = 0 if r.end_in_zeros else sum(map(len, r.ends))
    if r.neighbours:
        at_ends = min(r.outputs, 2 * taps * r.up // r.down + 2)  # outputs
        return dots + min(at_ends * taps, sides + 2 * taps) * _beyond(r) * (sides > 0)
    read = r.outputs * taps  # samples, at most
    if read < r.n + sides:
        return dots + read * _beyond(r)
    return dots + r.n * _alone(r, 1) + sides * _beyond(r)


def seconds_of_phases(r: Rates) -> float:
    """Those of `small_rates`, for each line."""
    taps, lanes = len(r.ends[0]) + 1, simd.vector_bytes() // r.dtype.itemsize
    phases = min(r.up, r.outputs)
    part = min(1, phases * taps / r.down)  # of all samples that is read
    laid = r.n * part * (BESIDE if r.neighbours and r.parts == r.down == 1 else _alone(r, r.down))
    beyond = sum(map(len, r.ends)) * _beyond(r)
    vectors = phases * -(-r.outputs // (r.up * lanes)) * taps
    sums = phases * PHASE + vectors * r.numbers * TAP_VECTOR + r.outputs * OUTPUT
    return (laid + beyond + sums) * r.parts


# --- inside ----------------------------------------------------------------------------------


def _beyond(r: Rates) -> float:
    """Of a sample beyond the ends."""
    return BEYOND if r.mixes is None else MIXED * r.numbers


def _alone(r: Rates, apart: int) -> float:
    """Of a sample so many from the one before it."""
    return FAR if abs(r.x_steps[2]) * apart >= CACHE_LINE else ALONE
