"""Boxes of tiles whose products are of float32 that are split into three terms, on matrix tiles."""

from __future__ import annotations

from typing import ClassVar

from convalgos.core.allocator import whole_lines
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import Machine
from convalgos.cpu.gemm.channel_scales import scale_bytes
from convalgos.cpu.gemm.digit_terms import HEAD
from convalgos.cpu.gemm.split_cut import ALONE, TILE_BASE, TILE_ROW
from convalgos.cpu.gemm.split_forms import BRAIN_FLOATS, DIGITS, SplitForm
from convalgos.cpu.gemm.split_terms import CHANNELS, TERMS, TILE_BYTES
from convalgos.cpu.tiled.cost import MEMORY, BoxSchedule, overlapped
from convalgos.cpu.vectors import matrix_tiles

ROW_BYTES = 64  # of an entry
LEAST_PANELS = 4  # whose products hide that rows of the next point are split
# Calibrated on a Xeon (AMX, L2 of 2 MiB).
TARGETS = (16, 24, 32, 48, 64, 96, 128, 192)  # tiles of a box of one thread that are tried
# Tiles computed in the time that the filters of a box take to come from L3: see `cost`.
WAIT, READ = 3.0, 16.0
CALLED = 150.0  # cycles to begin and to end the sums of 2 x 2 tiles
FINE, MORE = 4, 2  # outputs of a tile up to which six products of digits do, and more of them for larger ones
WAITING = 1.1  # times the products, as they wait for loads
SPLIT, HIDDEN = 18.0, 0.5  # cycles to split two vectors of a row; times that between products
PARTLY = 4.0  # times as long where channels do not fill entries: masks, and nothing hides it
OVERLAP = 3  # the norm of products and filters: loads of tiles wait for those that are fetched
CROSSING = 3.0  # times that of other boxes is what tiles take from one core's cache to another's


class SplitBoxSchedule(BoxSchedule):
    """V and M of float32; U in entries of channels, of which each float32 has TERMS terms."""

    form: ClassVar[SplitForm] = BRAIN_FLOATS
    waiting: ClassVar[float] = WAITING
    split: ClassVar[float] = SPLIT
    called: ClassVar[float] = CALLED
    partly: ClassVar[float] = PARTLY
    targets = TARGETS

    @cached_attribute
    def vectors(self) -> int:
        return min(matrix_tiles.ACROSS, self.filter_blocks)

    def narrow_panels(self) -> None:
        """Panels are as wide as the tiles of sums in any case."""

    @cached_attribute
    def entries(self) -> int:
        """Of a point: each phase has its own."""
        return self.phases * -(-self.problem.w_shape[1] // self.form.channels)

    @cached_attribute
    def point_bytes(self) -> int:
        """Of all panels: for each filter TERMS rows of an entry, and its unit; and spreads."""
        spreads = ROW_BYTES * self.panels if self.form.scaled else 0
        return self.panels * self.panel * (self.entries * TERMS * ROW_BYTES + 4 * self.form.scaled) + spreads

    @cached_attribute
    def u_bytes(self) -> int:
        """And the scales of its channels."""
        scales = scale_bytes(self.problem.w_shape[1]) if self.form.scaled else 0
        return self.points * self.point_bytes + scales

    @property
    def products(self) -> int:
        """Of terms, for one of float32: of digits two more where transforms let errors grow much."""
        large = max(self.rows.outputs, self.columns.outputs) > FINE
        return self.form.products + (MORE if self.form.scaled and large else 0)

    @property
    def spare_rows(self) -> int:
        """Of the last matrix tile: all of a box are equal."""
        return matrix_tiles.ROWS

    @property
    def own_bytes(self) -> int:
        """Where no pixels are, a table of the entries and the split rows of two points; for digits those of
        one, their units, and sums of 2 x 2 tiles."""
        rows = self.box[0] * self.box[1] * self.tiles + self.spare_rows
        split = TERMS * self.entries * rows * ROW_BYTES
        beside = HEAD + whole_lines(4 * rows) + 4 * self.form.sums * TILE_BYTES if self.form.scaled else split
        return int(max(super().own_bytes, whole_lines(8 * self.entries) + split + beside))

    def peak(self, machine: Machine) -> float:
        return self.form.peak(machine) / self.products

    def product_speed(self, pace: float) -> float:
        return 1.0

    @cached_attribute
    def box_rows(self) -> int:
        return self.box[0] * self.box[1] * self.tiles

    @cached_attribute
    def box_cycles(self) -> tuple[float, float]:
        """Of the busiest thread, for whole matrix tiles of a box at a point by a panel: (as if each took one
        cycle, pairs of tiles)."""
        count = -(-self.box_rows // matrix_tiles.ROWS)
        rows = -(-self.box_rows // count)
        whole = (count + ALONE * (count % matrix_tiles.ACROSS)) * (TILE_BASE + TILE_ROW * rows)
        return whole, -(-count // matrix_tiles.ACROSS)

    @property
    def effort(self) -> float:
        filled = self.box_cycles[0] * matrix_tiles.ROWS / self.box_rows
        computed = self.busy_tiles * self.slowdown * filled + WAIT * self.rounds
        return max(computed, READ * self.rounds) + MEMORY * self.fetches

    def product_seconds(self, machine: Machine) -> float:
        rate, product = self.form.product_cycles(machine)
        tiles, begun = self.box_cycles
        products = self.products * self.entries * self.vectors
        panel = tiles * products * product * self.waiting + self.called * begun
        whole = self.problem.w_shape[1] % self.form.channels == 0
        hidden = whole and not self.form.scaled and self.panels >= LEAST_PANELS
        split = self.entries * self.form.channels / CHANNELS * self.split * (HIDDEN if hidden else 1.0)
        split *= 1.0 if whole else self.partly
        filled = self.busy_tiles / (self.rounds * self.box_rows)
        cycles = filled * self.rounds * self.points * (self.panels * panel + self.box_rows * split)
        return overlapped(cycles * self.slowdown / rate, self.filter_seconds(machine), OVERLAP)

    @property
    def crossing_bytes(self) -> float:
        return CROSSING * super().crossing_bytes


class DigitBoxSchedule(SplitBoxSchedule):
    """The terms are digits."""

    form = DIGITS
    laid = DIGITS.laid
    waiting = 1.3
    split = 24.0
    called = 200.0
    partly = 1.5
