"""The records of the convolutions of a separable block, as the kernels of blocked layouts read them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from convalgos.cpu.dwconv.block_activations import BlockKernel
from convalgos.cpu.dwconv.block_layers import BlockLayer, layer_in_blocks, tables_in_blocks
from convalgos.cpu.dwconv.channel_kernels import filter_block
from convalgos.cpu.dwconv.channel_records import CHANNEL_BAND, ROW_RUN
from convalgos.cpu.gemm.blocked_plan import BLOCKED_ARGUMENTS
from convalgos.cpu.gemm.blocked_tiles import tile_kernels
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.records import (
    by_name,
    copy_of_record,
    empty_record,
    record_words,
)
from convalgos.cpu.separable.band_cut import BandCut
from convalgos.cpu.separable.band_kernels import BAND_TILES
from convalgos.cpu.separable.band_tiles import tiles_of_maps, tiles_of_rows
from convalgos.cpu.separable.block import BlockSizes
from convalgos.cpu.separable.panel_cut import PanelCut, PlanePanelCut
from convalgos.cpu.separable.run_outputs import BLOCK_RECORDS, FLOAT, LIMITS, place_of_field
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.activations import CLIP

BLOCKED_NAMES = frozenset(BLOCKED_ARGUMENTS.names or ())
HEIGHTS = 64  # of maps, whose words are kept


class LinearWords(NamedTuple):
    """The record of a block on maps of one height, and its tables behind it: words that grow with columns."""

    words: np.ndarray  # of no columns
    grown: np.ndarray  # the places of those that grow,
    begin: np.ndarray  # these words of no columns,
    of_x: np.ndarray  # what a column that the depthwise convolution reads adds,
    of_y: np.ndarray  # and one that it writes
    tables: tuple[int, ...]  # where tables begin, in bytes
    set_places: np.ndarray  # of words that are set otherwise: the addresses of these tables, ...


class BandRecords:
    """The record of a block but for its runs, which copy it, and the tables of a cut, which they share."""

    def __init__(self, cut: BandCut, mean: bool, known: BandRecords | None = None):
        """
        Args:
            mean: whether the means of the maps of y are computed, too.
            known: of the same block for other sizes of its maps.
        """
        self._is_like = known is not None
        self._layers, self._lanes = cut.layers, simd.lanes(FLOAT.itemsize)
        self.parts: tuple[str, ...] = cut.layers.parts if known is None else known.parts
        self.filtered: int = self.parts.index("depthwise") if known is None else known.filtered
        self._tables: list[np.ndarray] = []
        self._shared: list[Any] = []  # with records of other blocks
        self._of_heights: dict[Any, LinearWords] = {} if known is None else known._of_heights
        self._layer: BlockLayer | None = layer_in_blocks(cut.depthwise) if known is None else known._layer
        self.kernel: BlockKernel
        self.record: np.ndarray
        if known is None or not self._set_linear(cut, mean, known.record):
            self._set_all(cut, mean, known)

    def _set_all(self, cut: BandCut, mean: bool, known: BandRecords | None) -> None:
        """All fields, each by itself."""
        self.record = empty_record(BLOCK_RECORDS) if known is None else copy_of_record(known.record)
        fields = by_name(self.record)
        if known is None:
            self._set_layers(fields, cut)
        self._set_steps(fields, cut)
        fields.run.hidden_bytes = cut.hidden_bytes
        self._set_depthwise(fields.depthwise, cut)
        tiles = np.zeros(cut.bands, BAND_TILES)
        if isinstance(cut.expansion, PlanePanelCut):
            self._set_planes(fields.expansion, cut.expansion, cut, tiles["expansion"])
        elif cut.expansion is not None:
            self._set_product(fields.expansion, cut, tiles["expansion"], 0)
        if cut.projection is not None:
            self._set_product(fields.projection, cut, tiles["projection"], 1)
        fields.run.band_tiles = self._table(tiles)
        if mean:
            self._set_pixels(fields.run, cut)

    def _set_linear(self, cut: BandCut, mean: bool, known: np.ndarray) -> bool:
        """All fields of a map of some height: most of them grow evenly with its columns.

        Args:
            known: a record of the same block.

        Returns: whether it can be done so.
        """
        (rows, w), (_, w_out), layer = cut.sizes.read, cut.sizes.written, self._layer
        if layer is None or isinstance(cut.expansion, PlanePanelCut) or not layer.keeps_kernel(w, w_out):
            return False
        key = cut.sizes.images, rows, cut.bands
        linear = self._of_heights.get(key)
        if linear is None:
            if len(self._of_heights) >= HEIGHTS:
                self._of_heights.clear()
            linear = self._of_heights[key] = self._linear_words(cut, known, layer)
        words = linear.words.copy()
        words[linear.grown] = linear.begin + w * linear.of_x + w_out * linear.of_y
        address = jit.data_address()
        begin = address(words)
        self.kernel, columns = layer.columns(w, w_out)
        self._shared.append(columns)
        values = [begin + place for place in linear.tables]
        values += cut.hidden_bytes, address(columns), len(columns), filter_block(*self.kernel, CLIP)
        for part, last in ((cut.expansion, 0), (cut.projection, 1)):
            if part is not None:
                tiles, count, kernels = self._tiles_of(part, cut, last)
                values += kernels.wide, kernels.last, count, *tiles
        words[linear.set_places] = values
        self.record = np.ndarray(1, BLOCK_RECORDS, words)
        if mean:
            self._set_pixels(by_name(self.record).run, cut)
        return True

    def _linear_words(self, cut: BandCut, known: np.ndarray, layer: BlockLayer) -> LinearWords:
        """The words of a block on maps of the height of a cut, found where they have no columns, and one."""
        images, channels, h, _ = cut.sizes.x_shape
        h_out, bands = cut.sizes.written[0], cut.bands
        rows = layer.rows((1, h), (1, h_out), bands)
        parts = [part for part in self.parts if part != "depthwise"]
        tables = [(rows.bands * CHANNEL_BAND.itemsize, "depthwise", "bands")]
        tables.append((rows.runs * ROW_RUN.itemsize, "depthwise", "runs"))
        tables += [(8 * (getattr(cut, part).entries + 1), part, "offsets") for part in parts]
        tables.append((bands * BAND_TILES.itemsize, "run", "band_tiles"))
        made = []
        for w, w_out, of_rows in ((0, 0, 0), (1, 0, rows.of_x), (0, 1, rows.of_y)):
            sizes = BlockSizes((images, channels, h, w), (h, w), (h_out, w_out))
            narrow = replace(cut, sizes=sizes)
            record = copy_of_record(known)
            self._set_steps(by_name(record), narrow)
            offsets = [self._offsets(narrow, part == "projection") for part in parts]
            behind = np.zeros(2 * bands, np.int64)
            made.append(np.concatenate([record_words(record), rows.table + of_rows, *offsets, behind]))
        begins = list(accumulate((nbytes for nbytes, *_ in tables), initial=BLOCK_RECORDS.itemsize))
        named = [(part, name) for _, part, name in tables]
        named += (
            ("run", "hidden_bytes"),
            *[("depthwise", n) for n in ("columns", "column_count", "filter_block")],
        )
        places = [place_of_field(part, name) for part, name in named]
        for part in parts:
            places += [place_of_field(part, name) for name in ("kernels", "last_kernels", "narrow")]
            places += [begins[-2] // 8 + 2 * band + (part == "projection") for band in range(bands)]
        words, of_x, of_y = made[0], made[1] - made[0], made[2] - made[0]
        grown = np.flatnonzero((of_x != 0) | (of_y != 0))
        growing = words[grown], of_x[grown], of_y[grown]
        return LinearWords(words, grown, *growing, tuple(begins[:-1]), np.array(places, np.intp))

    def filter_block(self, kind: int) -> int:
        """The address of the depthwise kernel that applies an activation."""
        return filter_block(*self.kernel, kind)

    def _table(self, table: np.ndarray) -> int:
        """The address of a table, which is kept."""
        self._tables.append(table)
        return jit.data_address()(table)

    def _set_layers(self, fields: Any, cut: BandCut) -> None:
        """What the sizes of the maps do not change."""
        p, lanes, d = cut.layers.depthwise, self._lanes, fields.depthwise
        fields.run.vectors, fields.run.parts = cut.vectors, cut.parts
        d.size, d.from_pixel, d.to_pixel = FLOAT.itemsize, lanes, lanes
        d.w_row, d.w_block = p.kernel[1] * lanes, p.kernel[0] * p.kernel[1] * lanes
        d.taps, d.stride, d.dilation = p.kernel[1], p.stride[1], p.dilation[1]
        for of_part, part in ((fields.expansion, cut.expansion), (fields.projection, cut.projection)):
            if part is None:
                continue
            p = part.problem
            of_part.unlimited, of_part.size, of_part.lanes = jit.data_address()(LIMITS), FLOAT.itemsize, lanes
            of_part.vectors, of_part.panels, of_part.chunk = part.vectors, part.panels, part.chunk
            of_part.entries, of_part.inner = part.entries, lanes
            of_part.whole, of_part.rest = p.C // lanes, p.C % lanes

    def _set_pixels(self, run: Any, cut: BandCut) -> None:
        """The pixels of a map of y, of which means are wanted."""
        run.pixels = self._table(np.array([math.prod(cut.sizes.written)], FLOAT))

    def _set_steps(self, fields: Any, cut: BandCut) -> None:
        """What grows evenly with the columns of maps of one height, and what they do not change."""
        p, lanes, d, sizes = cut.layers.depthwise, self._lanes, fields.depthwise, cut.sizes
        (h, w), (h_out, w_out) = sizes.read, sizes.written
        fields.run.images, fields.run.band_count = sizes.images, cut.bands
        d.from_next, d.row_step = p.stride[0] * w * lanes, p.dilation[0] * w * lanes
        d.to_next = w_out * lanes
        d.from_vector = (cut.hidden_pixels if cut.expansion else h * w) * lanes
        d.to_vector = (cut.middle_pixels if cut.projection else h_out * w_out) * lanes
        fields.expansion.y_block, fields.projection.y_block = cut.hidden_pixels * lanes, h_out * w_out * lanes
        begin, end, x_shape = self.parts[0], self.parts[-1], sizes.x_shape
        planes = isinstance(cut.expansion, PlanePanelCut)
        channels = x_shape[1] if planes else -(-x_shape[1] // lanes) * lanes
        getattr(fields, begin).x_n = channels * x_shape[2] * x_shape[3]
        getattr(fields, end).y_n = -(-getattr(cut.layers, end).K // lanes) * lanes * h_out * w_out

    def _set_depthwise(self, d: Any, cut: BandCut) -> None:
        (h, w), (h_out, w_out) = cut.sizes.read, cut.sizes.written
        found = self._layer and self._layer.tables((1, h, w), (1, h_out, w_out), cut.bands)
        found = found or tables_in_blocks(cut.depthwise)
        self.kernel, self._of_tables = found.kernel, found.kept
        d.bands, d.runs = self._table(found.bands), self._table(found.runs)
        d.columns, d.column_count = self._table(found.columns), len(found.columns)
        d.filter_block = found.filter_block

    def _set_product(self, fields: Any, cut: BandCut, tiles: np.ndarray, last: int) -> None:
        """The pointwise convolution before or behind the depthwise one, and its tiles of each band."""
        part = cut.projection if last else cut.expansion
        assert part is not None
        tiles[:], fields.narrow, kernels = self._tiles_of(part, cut, last)
        fields.kernels, fields.last_kernels = kernels.wide, kernels.last
        fields.offsets = self._table(self._offsets(cut, last))

    def _offsets(self, cut: BandCut, last: int) -> np.ndarray:
        """Of the entries that a pointwise convolution reads."""
        part, read = (
            (cut.projection, cut.middle_pixels) if last else (cut.expansion, math.prod(cut.sizes.read))
        )
        assert part is not None
        return np.arange(part.entries + 1) * (read * self._lanes)

    def _tiles_of(self, part: PanelCut, cut: BandCut, last: int) -> tuple[list[int], int, TileKernels]:
        """(addresses of the tiles of a pointwise convolution in each band, of how many lengths, kernels)."""
        rows, width = (
            (cut.rows.written if last else cut.rows.read),
            (cut.sizes.written if last else cut.sizes.read)[1],
        )
        pixels = [count * width for count in rows]
        found = tiles_of_rows(tuple(sorted({*pixels})), part.rows, self._lanes)
        kernels = _kernels_of(part.problem.K, part.panels, found.lengths, self._lanes)
        self._shared += found, kernels
        return [found.addresses[count] for count in pixels], len(found.lengths), kernels

    def _set_planes(self, fields: Any, part: PlanePanelCut, cut: BandCut, tiles: np.ndarray) -> None:
        """The convolution of a map whose channels lie apart, and its tiles of each band."""
        rows, whole = cut.rows, part.of_rows(cut.rows.most)
        values = whole.size_fields() if self._is_like else whole.fields()
        values |= {
            "entries": (entries := whole.entries), "inner": whole.inner, "whole": entries, "rest": 0,
            "input_bytes": cut.input_bytes,
            "offsets": self._table(whole.entry_offsets()),
        }  # fmt: skip
        for name in BLOCKED_NAMES.intersection(values):
            setattr(fields, name, values[name])
        of_x, of_y = whole.tile_steps
        counts = tuple(sorted({*rows.read}))
        found = tiles_of_maps(counts, cut.sizes.read[1], part.rows, of_x[1:], of_y[1:])
        tiles[:] = [found.addresses[count] for count in rows.read]
        kernels = _kernels_of(part.problem.K, part.panels, found.lengths, whole.step)
        fields.kernels, fields.last_kernels = kernels.wide, kernels.last
        fields.narrow = len(found.lengths)
        self._shared += found, kernels


class TileKernels(NamedTuple):
    """Addresses of tables of kernels, and the tables."""

    wide: int
    last: int
    kept: tuple[np.ndarray, np.ndarray]


@lru_cache(512)  # networks meet few kinds of tiles
def _kernels_of(filters: int, panels: int, lengths: tuple[int, ...], step: int) -> TileKernels:
    """`tile_kernels` of tiles of so many pixels, whose inputs are so many elements apart."""
    tables = tile_kernels(filters, panels, FLOAT.itemsize, [(1, n, step) for n in lengths])
    wide, last = map(jit.data_address(), tables)
    return TileKernels(wide, last, tables)
