"""What compiled calls that resample small signals are told: rates, tables, and where taps and scratch lie."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.allocator import aligned_zeros
from convalgos.cpu.runtime.plan import fields

RATE_FIELDS = fields(
    "kernel padded pitch taps size tap_rows tap_columns places offsets phases of_phase turns sums lines "
    "parts n low high down used begins sources targets y_line y_step part mixed weights outputs windows read"
)


class Rates(NamedTuple):
    """What a signal is filtered with, and which of its samples and of its results.

    dtype: of the filter and of sums; samples may be complex, of two `parts`, beside a real one.
    lines, n: of the signals, whose samples are `neighbours` or not.
    taps: how many, and how far apart in the filter.
    up, down: without a common factor.
    outputs: of each line.
    steps: bytes between lines of the result, and between its outputs.
    ends: which sample lies at each of the places before the first one, and behind the last; -1 for 0.
    mixes: or the sums of which samples, times what, lie there, (places, SAMPLES) twice.
    """

    dtype: np.dtype
    parts: int
    lines: int
    n: int
    neighbours: bool
    taps: tuple[int, int]
    up: int
    down: int
    outputs: int
    steps: tuple[int, int]
    ends: tuple[np.ndarray, np.ndarray]
    mixes: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def numbers(self) -> int:
        """Of an element."""
        return 2 if self.dtype.kind == "c" else 1

    @property
    def end_in_zeros(self) -> bool:
        """Whether nothing but zeros lies beyond the ends."""
        return self.mixes is None and all((end < 0).all() for end in self.ends)

    @property
    def lie_as_they_are_read(self) -> bool:
        """Whether windows of samples can be read where they are, if samples are neighbours in memory."""
        return self.neighbours and self.parts == 1 and self.end_in_zeros


def rate_record(
    rates: Rates, tables: dict[str, Any], places: list[int], memory: np.ndarray, **values: int
) -> tuple[list[np.ndarray], np.ndarray, int]:
    """(what the record points to, the record, its address) of tables, and of the taps that are read."""
    size = rates.dtype.itemsize
    kept = {name: np.array(table, np.int64) for name, table in (tables | {"places": places}).items()}
    if rates.mixes is not None:
        kept |= {"mixed": rates.mixes[0].astype(np.int64), "weights": rates.mixes[1].astype(np.float64)}
    kept |= {"taps": np.zeros(len(places) + 1, rates.dtype), "padded": memory}
    values |= {
        "size": size, "part": size // rates.numbers, "tap_rows": 1, "tap_columns": len(places),
        "lines": rates.lines, "parts": rates.parts, "n": rates.n, "used": len(kept["begins"]),
        "y_line": rates.steps[0], "y_step": rates.steps[1],
    }  # fmt: skip
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
