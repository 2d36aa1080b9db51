"""What was measured: of one candidate on one problem, and all that is known at one time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median
from typing import Any, NamedTuple

from convalgos.core.interference import LEAST
from convalgos.core.problem import ConvProblem

LEAST_NOISE, MOST_NOISE = 0.01, 0.05  # medians this close are the same, or are not, whatever their spread
NEAR_BATCH = 2.0  # a batch within this factor,
NEAR_SIZE = 1.25  # and sizes of the map within this one, are near enough to scale what was measured


@dataclass(frozen=True)
class Measured:
    """What is known of one candidate on one problem: its samples, or how it failed."""

    samples_s: tuple[float, ...] = ()  # seconds of single calls
    workspace_bytes: int = 0
    error: float | None = None  # relative to max|y| of the float64 answer; None where it is not known
    prepare_s: float | None = None  # seconds to prepare the filter
    failure: str | None = None  # what it raised, or how wrong it was; then there are no samples
    when: str = field(default_factory=lambda: now())  # UTC, ISO 8601
    version: str = ""  # of convalgos
    adapted: bool = False  # by calls of a program (effort="adapt"): what was measured apart outranks it

    @property
    def moment(self) -> datetime:
        return datetime.fromisoformat(self.when)

    @property
    def evidence(self) -> tuple[bool, datetime, str]:
        """Of two that tell of the same, the greater is believed."""
        return not self.adapted, self.moment, self.version

    @property
    def median_s(self) -> float:
        return median(self.samples_s)

    @property
    def spread(self) -> float:
        """(third quartile - first quartile) / median."""
        return relative_spread(self.samples_s)

    @property
    def noise(self) -> float:
        """Standard error of the median, relative, of samples that are about normal; the most of too few."""
        return (
            MOST_NOISE if len(self.samples_s) < LEAST else 0.93 * self.spread / math.sqrt(len(self.samples_s))
        )

    def ties(self, other: Measured) -> bool:
        """Whether this time cannot be told from another one. Of adapted ones few samples would say so."""
        if self.adapted or other.adapted:
            return False
        noise = math.hypot(self.noise, other.noise)
        low, high = sorted((self.median_s, other.median_s))
        return high <= low * (1 + min(MOST_NOISE, max(LEAST_NOISE, noise)))


class Family(NamedTuple):
    """All of a problem but its batch and the size of its map."""

    C: int
    w_shape: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    mode: str
    layout: str
    y_layout: str
    dtype: str
    direction: str
    compute_dtype: str | None
    w_dtype: str
    y_dtype: str
    scales: str
    density: float
    pattern: str
    boundary: tuple[str, ...]
    fill_value: float

    def problem(self, batch: int, sizes: tuple[int, ...]) -> ConvProblem:
        """The problem of a shape; ValueError where the kernel does not fit it."""
        return ConvProblem(
            (batch, self.C, *sizes), self.w_shape, self.stride, self.padding, self.dilation, self.groups,
            mode=self.mode, layout=self.layout, y_layout=self.y_layout, dtype=self.dtype,
            direction=self.direction, compute_dtype=self.compute_dtype, w_dtype=self.w_dtype,
            y_dtype=self.y_dtype, scales=self.scales, density=self.density, pattern=self.pattern,
            boundary=self.boundary, fill_value=self.fill_value,
        )  # fmt: skip


Entry = dict[str, Measured]  # id -> what is known
Entries = dict[str, Entry]  # text of a problem -> its candidates


def quartiles(samples: tuple[float, ...]) -> tuple[float, float]:
    """The first and the third, interpolated between the samples beside them."""
    ordered = sorted(samples)

    def quartile(number: int) -> float:
        whole, quarters = divmod(number * (len(ordered) - 1), 4)
        above = ordered[min(whole + 1, len(ordered) - 1)]
        return ordered[whole] + quarters / 4 * (above - ordered[whole])

    return quartile(1), quartile(3)


def relative_spread(samples: tuple[float, ...]) -> float:
    """(third quartile - first quartile) / median."""
    low, high = quartiles(samples)
    return (high - low) / median(samples)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def family(p: ConvProblem) -> Family:
    """The layer that a problem is a shape of."""
    return Family(
        p.C, p.w_shape, p.stride, p.padding, p.dilation, p.groups, p.mode, p.layout, p.y_layout, p.dtype,
        p.direction, p.compute_dtype, p.w_dtype, p.y_dtype, p.scales, p.density, p.pattern,
        p.boundary, p.fill_value,
    )  # fmt: skip


def distance(a: ConvProblem, b: ConvProblem) -> float | None:
    """How far apart two problems of a family are, or None if too far for one to tell of the other."""
    if a.is_empty or b.is_empty:
        return None
    batch = abs(math.log(a.N / b.N))
    sizes = [abs(math.log(i / j)) for i, j in zip(a.spatial, b.spatial, strict=True)]
    if batch > math.log(NEAR_BATCH) + 1e-9 or max(sizes) > math.log(NEAR_SIZE) + 1e-9:
        return None
    return batch / math.log(NEAR_BATCH) + sum(sizes) / math.log(NEAR_SIZE)


@dataclass(frozen=True)
class Known:
    """What is known at one time. Nothing in it changes: who asks while others record goes on with its own."""

    seen: Any = None  # path, time, size and inode of the file that was read,
    text: str = ""  # and what was in it
    entries: Entries = field(default_factory=dict)
    changes: int = 0  # of the entries, since this process began
    placed: dict[str, tuple[Family, ConvProblem]] = field(default_factory=dict)  # of the texts of the entries
    families: dict[Family, list[ConvProblem]] = field(default_factory=dict)

    def lookup(self, problem: ConvProblem) -> Entry:
        """What is known of a problem: empty where nothing is."""
        if not self.families or family(problem) not in self.families:  # found sooner than a problem's text
            return {}
        return self.entries.get(str(problem), {})

    def near(self, problem: ConvProblem) -> tuple[ConvProblem, Entry] | None:
        """The most similar known problem, different in batch and size of the map only, and what is known."""
        close = [
            (far, str(other), other)
            for other in (self.families.get(family(problem), ()) if self.families else ())
            if (far := distance(problem, other)) is not None
        ]
        if not close:
            return None
        _, text, other = min(close)
        return other, self.entries[text]

    def followed_by(self, text: str, entries: Entries, seen: Any) -> Known:
        """What is known once a file was read or written."""
        placed: dict[str, tuple[Family, ConvProblem]] = {}
        families: dict[Family, list[ConvProblem]] = {}
        for name in entries:
            if (place := self.placed.get(name)) is None:
                problem = ConvProblem.parse(name)
                place = family(problem), problem
            placed[name] = place
            families.setdefault(place[0], []).append(place[1])
        return Known(seen, text, entries, self.changes + 1, placed, families)
