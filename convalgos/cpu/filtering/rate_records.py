"""What compiled calls that resample small signals are told: rates, tables, and where taps and scratch lie."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from convalgos.cpu.filtering.small_records import filled_record
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
    end_in_zeros: whether nothing but zeros lies beyond the ends.
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
    end_in_zeros: bool
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
    def lie_as_they_are_read(self) -> bool:
        """Whether windows of samples can be read where they are, if samples are neighbours in memory."""
        return self.neighbours and self.end_in_zeros

    @property
    def phases(self) -> int:
        """Of outputs, as far as there are any."""
        return min(self.up, self.outputs)

    @property
    def phase_taps(self) -> np.ndarray:
        """(phases, taps of one): which tap meets which sample of a window, from the last one on; or -1."""
        return phase_taps(self.taps, self.up, self.down, self.phases, len(self.ends[0]))

    @property
    def window_taps(self) -> np.ndarray:
        """The same from the first one on, of all phases: (phases * taps of one,)."""
        return self.phase_taps[:, ::-1].reshape(-1)


def rate_record(
    rates: Rates, tables: dict[str, np.ndarray], places: np.ndarray, memory: np.ndarray,
    mixes: tuple[np.ndarray, np.ndarray] | None, **values: int,
) -> tuple[list[np.ndarray], np.ndarray, int]:  # fmt: skip
    """(what the record points to but scratch, the record, its address) of tables, and of taps that are read.

    Args:
        memory: the scratch.
    """
    kept = {name: np.ascontiguousarray(table, np.int64) for name, table in tables.items()}
    if mixes is not None:
        kept |= {"mixed": mixes[0].astype(np.int64), "weights": mixes[1]}
    kept |= {"places": np.ascontiguousarray(places), "taps": np.zeros(len(places) + 1, rates.dtype)}
    x_plane, x_line, x_step = rates.x_steps
    y_plane, y_line, y_step = rates.y_steps
    planes, lines = rates.counts
    values = {
        "size": rates.dtype.itemsize, "part": rates.part, "tap_rows": 1, "tap_columns": len(places),
        "n": rates.n, "used": len(kept["begins"]), "low": len(rates.ends[0]), "high": len(rates.ends[1]),
        "element": rates.element, "parts": 1, "up": rates.up, "down": rates.down, "planes": planes,
        "lines": lines, "x_plane": x_plane, "x_line": x_line, "x_step": x_step, "y_plane": y_plane,
        "y_line": y_line, "y_step": y_step,
    } | values  # fmt: skip
    record, address = filled_record(RATE_FIELDS, values | kept | {"padded": memory})
    return list(kept.values()), record, address


class RateRecord:
    """What all calls of some shapes and a type share."""

    kept: list[np.ndarray]  # what the record points to but scratch
    record: np.ndarray
    address: int

    @property
    def nbytes(self) -> int:
        """What is kept of these alone."""
        return sum([array.nbytes for array in self.kept if array.base is None])


@lru_cache(256)
def phase_taps(taps: tuple[int, int], up: int, down: int, phases: int, reach: int) -> np.ndarray:
    """(phases, reach + 1): the tap that meets each sample of a window, from the last one on; -1 for none."""
    at = (np.arange(phases) * down % up)[:, None] + np.arange(reach + 1) * up
    places = np.where(at < taps[0], at * taps[1], -1)
    places.setflags(write=False)
    return places
