"""How rows of outputs are cut into strips of vectors, and what of a kernel meets them: the tables of `bands`.

Outputs are computed in whole vectors. The last strip of a row begins where it ends with the row, over outputs
that were computed before; only rows shorter than a vector are stored in part. The bits of an output do not
depend on its strip, as all strips of a row sum in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from convalgos.cpu.dwconv.shifted_rows import before, behind, loaded_vectors
from convalgos.cpu.dwconv.tap_passes import PASS_ROWS

MANY_ROWS = 64  # of taps, from which on more of them are more passes of the largest size


class Strips(NamedTuple):
    """Of the outputs range(first, end): first outputs of strips of one kind.

    For `shifted_rows`, of two vectors side by side those on the left miss only the first part that is loaded,
    and those on the right any; of others the first vector misses its first part, and the second its last
    ones.
    """

    plain: range  # of two vectors that lie in the row of x
    left: list[int]  # of two of which the first reaches over the left end,
    right: list[int]  # or the second over the right one
    double: list[tuple[int, int]]  # of two that may reach over both, the second so far behind the first
    single: list[tuple[int, int]]  # of one, of which so many columns are stored


@dataclass(frozen=True)
class Columns:
    """A row of x and its row of outputs. What an output reads is its place times `stride` and some offsets
    behind, less the padding."""

    size: int  # of x
    pad: int
    reach: int  # from the first tap to the last
    stride: int
    outputs: int
    lanes: int
    shifted: bool = False  # whether each vector of x is loaded once, see `shifted_rows`
    lines: bool = (
        False  # whether two vectors are a line, of which some outputs may be stored, see `row_lines`
    )
    border: bool = False  # whether something else than zeros lies beyond the ends

    @property
    def safe(self) -> tuple[int, int]:
        """Outputs of which a vector may begin, or end: all that it loads lies in the row."""
        first = min(self.outputs, -(-max(0, self.pad) // self.stride))
        loads_behind = self.size + self.pad - self.reach - (self.stride - 1)
        return first, max(first, min(self.outputs, loads_behind // self.stride))

    @property
    def inner(self) -> tuple[int, int]:
        """The same, with whole vectors on both sides; empty where there is no vector between them."""
        first, end = self.safe
        first = -(-first // self.lanes) * self.lanes
        end = self.outputs + (end - self.outputs) // self.lanes * self.lanes
        return (first, end) if end - first >= self.lanes else (self.outputs, self.outputs)

    def strips(self, first: int, end: int) -> Strips:
        n, lanes = end - first, self.lanes
        double: list[tuple[int, int]] = []
        single: list[tuple[int, int]] = []
        plain: list[int] = []
        left: list[int] = []
        right: list[int] = []
        starts: list[tuple[int, int]]  # of two vectors: the first output, and from there to the second
        if n < lanes:
            starts, single = [], [(first, n)] if n else []
        elif n < 2 * lanes:
            second = lanes if self.lines else n - lanes
            starts, single = ([], [(first, lanes)]) if n == lanes else ([(first, second)], [])
        else:
            starts = [(q, lanes) for q in range(first, end - 2 * lanes + 1, 2 * lanes)]
            rest = n % (2 * lanes)
            if rest > lanes:
                starts.append((end - 2 * lanes, lanes))
            elif rest:
                single.append((end - lanes, lanes))
        low, high = self.safe
        for q, second in starts:
            if (
                second == lanes
                and (self._shifted_inside(q, 0) if self.shifted else low <= q and q + 2 * lanes <= high)
                and (not plain or q == plain[-1] + 2 * lanes)
            ):
                plain.append(q)
            elif self.shifted:
                if second == lanes and self._shifted_inside(q, 1):
                    left.append(q)
                elif second == lanes and (not self.border or self._shifted_but_last(q)):
                    right.append(q)
                elif second != lanes and self._shifted_middle(q, second):
                    double.append((q, second))
                else:
                    single += [(q, lanes), (q + second, lanes)]
            elif second == lanes and self.stride == 1 and low <= q + lanes and q + 2 * lanes <= high:
                left.append(q)
            elif second == lanes and self.stride == 1 and low <= q and q + lanes <= high:
                right.append(q)
            elif self._middle_is_safe(q, second):
                double.append((q, second))
            else:
                single += [(q, lanes), (q + second, lanes)]
        return Strips(
            range(plain[0], plain[-1] + 1, 2 * lanes) if plain else range(0), left, right, double, single
        )

    def _middle_is_safe(self, q: int, second: int) -> bool:
        """Whether of two vectors with a stride only the first part and the last reach over ends of the
        row."""
        if self.stride == 1:
            return True
        # all of the first vector but its first part, and of the second but its last
        begin = min(q * self.stride + self.lanes, (q + second) * self.stride) - self.pad
        ends = (q * self.stride + 2 * self.lanes, (q + second) * self.stride + self.lanes)
        return begin >= 0 and max(ends) + self.reach - self.pad <= self.size

    def mask_bytes(self, taps: int) -> int:
        """Of the tables of all strips that reach over an end of the row, at most."""
        low, high = self.safe
        strips = -(-(self.outputs - high + low) // self.lanes) + 3
        return 8 * taps * self.stride * strips

    def _shifted_inside(self, q: int, parts: int) -> bool:
        """Whether all that two vectors of `shifted_rows` load lies in the row, but for the first parts."""
        size = self.reach + 1
        begin = q * self.stride - self.pad
        ahead = before(size, self.stride)
        starts = begin + ahead + (parts - (ahead > 0)) * self.lanes if parts else begin
        ends = begin + ahead + 2 * self.lanes * self.stride + behind(size, self.stride)
        return starts >= 0 and ends <= self.size

    def _shifted_middle(self, q: int, second: int) -> bool:
        """Whether of two vectors that are loaded apart only the first part and the last ones, see `bands`,
        reach over ends of the row."""
        ahead, over = before(self.reach + 1, self.stride), behind(self.reach + 1, self.stride)
        a, b = q * self.stride - self.pad, (q + second) * self.stride - self.pad
        first = a + ahead + (0 if ahead else self.lanes) >= 0
        first = first and a + ahead + self.stride * self.lanes + over <= self.size
        return first and b >= 0 and b + ahead + (self.stride - 1) * self.lanes <= self.size

    def _shifted_but_last(self, q: int) -> bool:
        """Whether all that two vectors of `shifted_rows` load lies in the row, but for the last whole vector
        and what is read behind it."""
        begin = q * self.stride - self.pad
        ahead = before(self.reach + 1, self.stride)
        return begin >= 0 and begin + ahead + (2 * self.stride - 1) * self.lanes <= self.size

    def places(self, q: int, second: int | None, offsets: np.ndarray) -> np.ndarray:
        """(taps, parts) where in the padded row begins what is loaded with masks."""
        if second is None:
            begin = [q * self.stride + part * self.lanes for part in range(self.stride)]
        else:
            begin = [q * self.stride, (q + second) * self.stride + (self.stride - 1) * self.lanes]
        return np.asarray(np.add.outer(offsets, np.array(begin)))

    def masks(self, q: int, second: int | None, offsets: np.ndarray) -> np.ndarray:
        """(taps, parts) which lanes of what is loaded with masks lie in the row, as bits."""
        return self._inside(self.places(q, second, offsets))

    def part_places(self, q: int, second: int | None) -> np.ndarray:
        """`places` of `shifted_rows`: (starts, parts) of vectors side by side, or of each for itself."""
        size = self.reach + 1
        ahead = before(size, self.stride)
        count = loaded_vectors(2 if second == self.lanes else 1, size, self.stride)
        n = np.arange(count) * self.lanes + (ahead - self.lanes if ahead else 0)
        begin = [q] if second in (None, self.lanes) else [q, q + (second or 0)]
        return np.asarray(np.add.outer(np.array(begin) * self.stride, n))

    def part_masks(self, q: int, second: int | None) -> np.ndarray:
        """`masks` of `shifted_rows`, of lanes that some output meets."""
        size, places = self.reach + 1, self.part_places(q, second)
        ahead, over = before(size, self.stride), behind(size, self.stride)
        read = np.full(places.shape[1], (1 << self.lanes) - 1, np.int64)  # lanes that some output meets
        if ahead:
            read[0] -= (1 << self.lanes - ahead) - 1
        if over:
            read[-1] = (1 << over) - 1
        return (self._inside(places) & read).ravel()

    def _inside(self, places: np.ndarray) -> np.ndarray:
        """Which lanes of vectors that begin there lie in the row, as bits."""
        before = self.pad - places  # lanes before the row
        low, high = (np.minimum(np.maximum(n, 0), self.lanes) for n in (before, before + self.size))
        return np.asarray((np.int64(1) << high) - (np.int64(1) << low))


def pass_sizes(rows: int, step: int) -> list[int]:
    """Rows of taps that are summed at a time, from the largest on: few passes, and even ones.

    Of many rows most passes are of the largest size, however many there are.
    """
    largest = PASS_ROWS[step][0]
    more = max(0, rows - MANY_ROWS) // largest
    return [largest] * more + _sizes_of_few(rows - more * largest, step)


@lru_cache(3 * (MANY_ROWS + 8))
def _sizes_of_few(rows: int, step: int) -> list[int]:
    best = [(0, 0, -rows)]  # of so many rows: passes, the largest of them, and less the smallest
    last = [0]  # and one of them
    for total in range(1, rows + 1):
        ways = []
        for size in (s for s in PASS_ROWS[step] if s <= total):
            count, largest, smallest = best[total - size]
            ways.append(((count + 1, max(largest, size), max(smallest, -size)), size))
        chosen, size = min(ways)
        best.append(chosen)
        last.append(size)
    found = []
    while rows:
        found.append(last[rows])
        rows -= last[rows]
    return sorted(found, reverse=True)


def pass_table(parts: Sequence[tuple[int, int, int, int]], step: int, in_pairs: bool) -> np.ndarray:
    """The table of `filter_strips`, of parts of a kernel: (first row, rows, first column, columns).

    in_pairs: whether columns 2i and 2i + 1 are summed together.
    """
    found: dict[int, list[tuple[int, int, int, int]]] = {size: [] for size in PASS_ROWS[step]}
    for first, rows, column, columns in parts:
        row, pairs = first, columns // 2 if in_pairs else 0
        for size in pass_sizes(rows, step) if columns else ():
            found[size].append((row, column, pairs, columns - 2 * pairs))
            row += size
    entries = [entry for of_size in found.values() for entry in of_size]
    return np.array([*map(len, found.values()), *(n for entry in entries for n in entry)], np.int64)
