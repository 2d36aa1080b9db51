"""What compiled calls that resample small signals are told: rates, tables, and where taps and scratch lie."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.allocator import aligned_zeros
from convalgos.cpu.runtime.plan import fields

RATE_FIELDS = fields(
    "kernel padded pitch taps size tap_rows tap_columns places offsets phases of_phase turns sums planes "
    "lines parts n low reach high up down used begins sources targets x_plane x_line x_step y_plane "
    "y_line y_step element part mixed weights outputs windows read first last at_once rest gathered rows "
    "count step"
)


class Rates(NamedTuple):
    """What a signal is filtered with, and which of its samples and of its results.

    dtype: of the filter and of sums; samples may be complex, of two `parts`, beside a real one.
    counts: of planes and of lines, which are the signals.
    n: samples of each.
    x_steps: bytes between planes, between lines, and between samples.
    taps: how many, and how far apart in the filter.
    up, down: without a common factor.
    outputs: of each line.
    y_steps: bytes between planes, lines and outputs of the result.
    ends: which sample lies at each of the places before the first one, and behind the last; -1 for 0.
    mixes: or the sums of which samples, times what, lie there, (places, SAMPLES) twice; those times 0 last.
    """

    dtype: np.dtype
    parts: int
    counts: tuple[int, int]
    n: int
    x_steps: tuple[int, int, int]
    taps: tuple[int, int]
    up: int
    down: int
    outputs: int
    y_steps: tuple[int, int, int]
    ends: tuple[np.ndarray, np.ndarray]
    mixes: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def numbers(self) -> int:
        """Of a tap."""
        return 2 if self.dtype.kind == "c" else 1

    @property
    def part(self) -> int:
        """Bytes of a number."""
        return self.dtype.itemsize // self.numbers

    @property
    def element(self) -> int:
        """Bytes of a sample."""
        return self.dtype.itemsize * self.parts

    @property
    def neighbours(self) -> bool:
        """Whether the samples of a signal lie side by side."""
        return self.x_steps[2] == self.element

    @property
    def end_in_zeros(self) -> bool:
        """Whether nothing but zeros lies beyond the ends."""
        return self.mixes is None and all((end < 0).all() for end in self.ends)

    @property
    def lie_as_they_are_read(self) -> bool:
        """Whether windows of samples can be read where they are, if samples are neighbours in memory."""
        return self.neighbours and self.end_in_zeros

    @property
    def window_taps(self) -> list[int]:
        """Which tap meets which sample of a window, for the outputs of each phase; -1 for none."""
        reach, places = len(self.ends[0]), []
        for phase in range(min(self.up, self.outputs)):
            first = phase * self.down % self.up
            at = range(first + reach * self.up, first - 1, -self.up)
            places.extend([tap * self.taps[1] if tap < self.taps[0] else -1 for tap in at])
        return places


def rate_record(
    rates: Rates, tables: dict[str, Any], places: list[int], memory: np.ndarray,
    mixes: tuple[np.ndarray, np.ndarray] | None, **values: int,
) -> tuple[list[np.ndarray], np.ndarray, int]:  # fmt: skip
    """(what the record points to, the record, its address) of tables, and of the taps that are read."""
    kept = {name: np.array(table, np.int64) for name, table in (tables | {"places": places}).items()}
    if mixes is not None:
        kept |= {"mixed": mixes[0].astype(np.int64), "weights": mixes[1]}
    kept |= {"taps": np.zeros(len(places) + 1, rates.dtype), "padded": memory}
    names = ["planes", "lines", "x_plane", "x_line", "x_step", "y_plane", "y_line", "y_step"]
    values = {
        "size": rates.dtype.itemsize, "part": rates.part, "tap_rows": 1, "tap_columns": len(places),
        "n": rates.n, "used": len(kept["begins"]), "low": len(rates.ends[0]), "high": len(rates.ends[1]),
        "element": rates.element, "parts": 1, "up": rates.up, "down": rates.down,
        **dict(zip(names, (*rates.counts, *rates.x_steps, *rates.y_steps), strict=True)),
    } | values  # fmt: skip
    record = np.zeros(1, RATE_FIELDS)
    for name, value in (values | {name: a.ctypes.data for name, a in kept.items()}).items():
        record[name] = value
    return list(kept.values()), record, record.ctypes.data


def scratch(nbytes: int) -> np.ndarray:
    """So many bytes at least, which all calls share, as none runs beside another."""
    return _power(max(12, (nbytes - 1).bit_length()))


@cache
def _power(bits: int) -> np.ndarray:
    return aligned_zeros(1 << bits, np.dtype(np.uint8))
