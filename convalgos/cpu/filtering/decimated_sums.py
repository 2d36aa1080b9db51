"""Filtered signals of which few samples are kept: each is one dot product of samples side by side.

`small_rates` lays every down-th sample next to each other, so that vectors of outputs can be summed. Where
outputs are few, or far apart, this takes longer than all products: here vectors lie along the taps, and
samples are read where they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.cpu.filtering.rate_records import Rates, rate_record, scratch
from convalgos.cpu.filtering.small_rates import AT_ONCE
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec

MOST_LAID = 1 << 22  # bytes of a line that may be laid in scratch, though its neighbours can be read in place
# Seconds of a dot product, of each vector of it; of a sample that is laid in scratch, beside others or alone;
# of one beyond the ends; of the sums of a phase, of each vector of a tap, and of an output; Sapphire Rapids
DOT, DOT_VECTOR = 6e-9, 0.4e-9
BESIDE, ALONE, BEYOND = 0.1e-9, 1e-9, 2e-9
PHASE, TAP_VECTOR, OUTPUT = 12e-9, 0.4e-9, 1e-9


@simd.emitter
def sum_windows_apart(
    v: Vec, PAIR: int, x: Value, x_line: Value, lines: Value, windows: Value, weights: Value, outputs: Value,
    y: Value, y_line: Value, y_step: Value,
) -> None:  # fmt: skip
    """y (lines, outputs), y_line and y_step bytes apart: dot products of windows of samples and weights.

    windows: (outputs, 3) numbers of the first sample, of the first weight, and how many; complex are pairs.
    """
    weight_at = v.pointer(weights)
    evens, odds = ([lane // 2 * 2 + k for lane in range(v.lanes)] for k in (0, 1))
    with v.loop(lines) as line, v.loop(outputs) as output:
        source = v.pointer(v.iadd(x, v.imul(line, x_line)))
        sample, weight, count = (
            v.imul(v.table64(windows, v.iadd(v.imul(output, 3), k)), PAIR) for k in range(3)
        )
        sums = [v.register(v.zero()) for _ in range(AT_ONCE)]
        crosses = [v.register(v.zero()) for _ in range(AT_ONCE)] if PAIR == 2 else []

        def add(k: int, value: Value, taps: Value, sums: Any = sums, crosses: Any = crosses) -> None:
            if PAIR == 1:
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
        if PAIR == 2:
            signs = simd.ir.Constant(v.type, [-1.0, 1.0] * (v.lanes // 2))
            total = v.fma(_folded(v, [s.value for s in crosses]), signs, total)
        for width in [1 << i for i in range(v.lanes.bit_length() - 2, PAIR - 2, -1)]:
            turned = [(lane + width) % v.lanes for lane in range(v.lanes)]
            total = v.fadd(total, v.shuffle(total, total, turned))
        to = v.pointer(v.iadd(v.iadd(y, v.imul(line, y_line)), v.imul(output, y_step)))
        for k in range(PAIR):
            lane = v.b.extract_element(total, simd.ir.Constant(simd.ir.IntType(32), k))
            v.b.store(lane, v.at(to, k))


def _folded(v: Vec, values: list[Value]) -> Value:
    """Their sum, pair by pair."""
    while len(values) > 1:
        values = [v.fadd(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]


@jit.specialise
def sum_apart(PAIR: int, SIZE: int, LANES: int) -> jit.Kernel:
    def sum_apart(
        x: int, x_line: int, lines: int, windows: int, weights: int, outputs: int, y: int, y_line: int,
        y_step: int,
    ) -> None:  # fmt: skip
        sum_windows_apart(
            SIZE, LANES, PAIR, x, x_line, lines, windows, weights, outputs, y, y_line, y_step
        )  # fmt: skip

    return sum_apart


# --- for Python ------------------------------------------------------------------------------


class DecimatedSums:
    """What all calls of some shapes and a type share, as `SmallRates`.

    Where zeros lie beyond the ends, windows end there, and nothing is laid but lines whose samples are apart.
    """

    def __init__(self, rates: Rates):
        r, trimmed = rates, rates.end_in_zeros
        size, reach = r.dtype.itemsize, len(r.ends[0])
        low, high = (0 if trimmed else len(end) for end in r.ends)
        of_phase = reach + 1
        places: list[int] = []
        for phase in range(min(r.up, r.outputs)):
            first = phase * r.down % r.up
            at = range(first + reach * r.up, first - 1, -r.up)
            places.extend([tap * r.taps[1] if tap < r.taps[0] else -1 for tap in at])
        output = np.arange(r.outputs, dtype=np.int64)
        start = output * r.down // r.up - reach  # of its window
        begin, end = (np.clip(start + k, -low, r.n + high) for k in (0, of_phase))
        windows = np.stack([begin + low, output % r.up * of_phase + begin - start, end - begin], 1)
        beyond = np.concatenate([np.arange(low), np.arange(low + r.n, low + r.n + high)])
        laid = 0 if r.lie_as_they_are_read and r.n * size > MOST_LAID else low + r.n + high
        memory = scratch(laid * size)
        self.kept, self.record, self.address = rate_record(
            r,
            {
                "targets": beyond * size, "begins": [0], "windows": windows,
                "sources": [] if trimmed else np.concatenate(r.ends),
            },
            places,
            memory,
            kernel=sum_apart(r.numbers, size // r.numbers, simd.vector_bytes() * r.numbers // size),
            pitch=low + r.n + high, low=low, high=high, down=1, outputs=r.outputs,
            read=int(trimmed or r.outputs * of_phase < low + r.n + high),
        )  # fmt: skip


def are_few(rates: Rates) -> bool:
    """Whether dot products are faster than sums of whole phases."""
    return _seconds_of_dots(rates) < _seconds_of_phases(rates)


def _seconds_of_dots(r: Rates) -> float:
    taps, lanes = len(r.ends[0]) + 1, simd.vector_bytes() // r.dtype.itemsize
    dots = r.outputs * (DOT + -(-taps // lanes) * r.numbers * DOT_VECTOR)
    if r.lie_as_they_are_read:
        return dots
    read = r.outputs * taps  # samples, at most
    sides = 0 if r.end_in_zeros else sum(map(len, r.ends))
    if read < r.n + sides:
        return dots + read * BEYOND
    return dots + r.n * (BESIDE if _lie_side_by_side(r) else ALONE) + sides * BEYOND


def _seconds_of_phases(r: Rates) -> float:
    """Those of `small_rates`."""
    taps, lanes = len(r.ends[0]) + 1, simd.vector_bytes() // r.dtype.itemsize
    phases = min(r.up, r.outputs)
    part = min(1, phases * taps / r.down)  # of all samples that is read
    laid = r.n * part * (BESIDE if _lie_side_by_side(r) and r.down == 1 else ALONE)
    beyond = sum(map(len, r.ends)) * BEYOND
    vectors = phases * -(-r.outputs // (r.up * lanes)) * taps
    return laid + beyond + phases * PHASE + vectors * r.numbers * TAP_VECTOR + r.outputs * OUTPUT


def _lie_side_by_side(r: Rates) -> bool:
    return r.neighbours and r.parts == 1
