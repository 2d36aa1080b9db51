"""Everything of a product of words that does not depend on the data: tables, kernels, the filter's form."""

from __future__ import annotations

import numpy as np

from convalgos.core.allocator import aligned_zeros
from convalgos.cpu.gemm import word_outputs, word_rows, word_tiles
from convalgos.cpu.gemm.word_blocking import WordBlocking, element_form
from convalgos.cpu.gemm.word_driver import WORD_ARGUMENTS, sum_word_blocks
from convalgos.cpu.gemm.word_packing import packed_word_filters
from convalgos.cpu.layout.strides import map_strides
from convalgos.cpu.runtime.packs import packs_words
from convalgos.cpu.runtime.rebinding import RUN_FIELDS
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.vectors import matrix_tiles

PARTS = "row_at", "sums_at", "tiles_at", "windows_at", "scratch_stride"  # of `WordBlocking.scratch`


class WordProduct:
    """The driver's record and its kernels; the arrays whose addresses stand in it are kept alive here."""

    def __init__(self, cut: WordBlocking, output: int):
        self.cut, self.output = cut, output
        self.tasks = plan_threads()
        self.lanes = cut.lanes
        shapes = word_tiles.tile_shapes(cut.tile, cut.words)
        self.configuration = matrix_tiles.configuration(shapes if cut.engine.matrix else [])
        self.offsets, self.zeros = cut.offsets, np.zeros(self.lanes, np.int32)
        self._added = 128 if element_form(cut) == word_rows.FLIPPED else 0
        self._stores: dict[tuple[bool, bool, bool], tuple[int, int]] = {}
        values = self._sizes() | self._places() | self._kernels()
        values |= dict.fromkeys(RUN_FIELDS.split(), 0)
        if different := values.keys() ^ set(WORD_ARGUMENTS.names or ()):
            raise ValueError(f"record and values differ in {sorted(different)}")
        self.record = np.array([tuple(values[n] for n in WORD_ARGUMENTS.names or ())], WORD_ARGUMENTS)
        self.driver = sum_word_blocks(int(cut.engine.matrix), self.lanes)

    # --- the record --------------------------------------------------------------------------

    def _sizes(self) -> dict[str, int]:
        cut, p = self.cut, self.cut.problem
        last = p.layout == "channels_last"
        size = p.itemsize
        x_strides = (s * size for s in map_strides(p.layout, p.C, p.spatial))
        plain = element_form(cut) in (word_rows.BYTES, word_rows.SHORTS)
        slice_, row, pixel = cut.strides
        values = {
            "n": p.N, "groups": p.groups, "channels": p.w_shape[1], "filters": p.gemm_n,
            "blocks_p": cut.blocks[0], "blocks_q": cut.blocks[1], "parts": cut.parts, "tasks": self.tasks,
            "in_place": int(cut.in_place), "flat": int(cut.flat), "tile": cut.tile, "together": cut.together,
            "dilation_d": p.dilation[0], "dilation_w": p.dilation[2],
            "taps_d": p.kernel[0], "taps_w": p.kernel[2], "reach_h": p.kernel_extent[1],
            "reach_w": p.kernel_extent[2], "row_slots": cut.row_slots,
            "row_step": 1 if p.kernel[1] > 1 else p.stride[1],
            "phases": cut.phases, "slots_of_phase": cut.slots_of_phase,
            "slice_bytes": slice_, "row_bytes": row, "pixel_bytes": pixel,
            "pixel_words": cut.pixel_words, "planes": int(cut.planes),
            "x_word": cut.word_bytes, "spill": int(cut.spills),
            "plain": int(last and plain and p.groups == 1 and p.C * size == 4 * cut.pixel_words),
            "last": int(last), "lanes": self.lanes,
        }  # fmt: skip
        values |= dict(zip("opq", p.spatial_out, strict=True))
        values |= dict(zip(("depth", "height", "width"), p.spatial, strict=True))
        values |= {f"x_{axis}": stride for axis, stride in zip("ncdhw", x_strides, strict=True)}
        for axis, stride, pad in zip("dhw", p.stride, p.padding, strict=True):
            values |= {f"stride_{axis}": stride, f"pad_{axis}": pad[0]}
        return values

    def _places(self) -> dict[str, int]:
        """In scratch, in the filter and in y."""
        cut, p = self.cut, self.cut.problem
        vector = 4 * self.lanes
        words, outputs = cut.words_of_filter, int(np.prod(p.spatial_out))
        size = word_outputs.WRITTEN[self.output]
        last = p.layout == "channels_last"
        return {
            **dict(zip(PARTS, cut.scratch, strict=True)), "batch": cut.batch, "zeros": self.zeros.ctypes.data,
            "offsets": self.offsets.ctypes.data, "chunks": len(self.offsets),
            "pieces": cut.pieces, "words": cut.words,
            "panel": cut.panel, "panels": cut.panels, "row_w": cut.vectors * vector,
            "last_row_w": cut.last_vectors * vector, "panel_w": words * cut.vectors * vector,
            "group_w": words * vector * self._vectors_of_group,
            "y_n": p.K * outputs * size, "y_k": (1 if last else outputs) * size,
            "y_pixel": (p.K if last else 1) * size,
        }  # fmt: skip

    @property
    def _vectors_of_group(self) -> int:
        return (self.cut.panels - 1) * self.cut.vectors + self.cut.last_vectors

    def _kernels(self) -> dict[str, int]:
        cut, lanes = self.cut, self.lanes
        last = cut.problem.layout == "channels_last"
        return {
            "zero_points": 0, "multiplier": 0, "step": 0, "pad": 0, "ones": 0, "one_tiles": 0, "one_tile": 0,
            **dict(zip(("store_panel", "store_last"), self.stores(False, False), strict=True)),
            "fill": word_rows.word_filler(lanes), "pick": word_rows.pixel_picker(lanes),
            "convert": word_rows.row_converter(element_form(cut), lanes, int(last)),
            "widen": word_rows.row_widener(element_form(cut), lanes) if cut.planes else 0,
            "panel_tiles": self.sums(cut.vectors, cut.together), "panel_tile": self.sums(cut.vectors, 1),
            "last_tiles": self.sums(cut.last_vectors, cut.together),
            "last_tile": self.sums(cut.last_vectors, 1),
            "configuration": self.configuration.ctypes.data,
        }  # fmt: skip

    def sums(self, vectors: int, tiles: int) -> int:
        """The kernel that sums tiles of pixels by vectors of filters."""
        cut = self.cut
        return word_tiles.sum_word_tile(
            cut.engine.kind, self.lanes, tiles if cut.engine.matrix else cut.tile, vectors
        )

    def store(self, vectors: int, zero: bool = False, shifted: bool = False, packed: bool = False) -> int:
        """The kernel that finishes sums into y.

        Args:
            zero: with zero points of filters.
            shifted: with y's zero point added before the limits.
            packed: of sums that `requantise.stays_in_words` tells of, whose filters have no zero points.
        """
        form = word_outputs.SHIFTED if shifted else self.output
        last = self.cut.problem.layout == "channels_last"
        if packed and last and form == word_outputs.REQUANTISED and packs_words():
            signed = self.cut.problem.y_dtype == "int8"
            form = word_outputs.PACKED_SIGNED if signed else word_outputs.PACKED_UNSIGNED
        return word_outputs.store_word_tile(form, int(zero), self.lanes, vectors, int(last))

    # --- the filter --------------------------------------------------------------------------

    def pack(self, w: np.ndarray) -> np.ndarray:
        """(groups, vectors or panels, words, filters of a panel, elements of a word) of (K, C/g, *kernel)."""
        cut, p = self.cut, self.cut.problem
        filled = self._vectors_of_group * self.lanes
        return packed_word_filters(w, p.groups, cut.panel, filled, cut.pixel_words)

    def ones(self, dtype: np.dtype) -> np.ndarray:
        """A vector of filters that sum up windows, as `pack` packs them."""
        cut, p = self.cut, self.cut.problem
        each = 4 // cut.engine.item_bytes
        taps = int(np.prod(p.kernel))
        pixel = np.zeros((taps, cut.pixel_words * each), dtype)
        pixel[:, : p.w_shape[1]] = 1
        words = pixel.reshape(-1, 1, each)
        found = aligned_zeros(words.size * self.lanes, dtype).reshape(len(words), self.lanes, each)
        found[...] = words
        return found

    # --- a run -------------------------------------------------------------------------------

    def stores(self, zero: bool, shifted: bool, packed: bool = False) -> tuple[int, int]:
        """Those of a panel and of the last one: found in little time."""
        if (found := self._stores.get((zero, shifted, packed))) is None:
            vectors = (self.cut.vectors, self.cut.last_vectors)
            first, last = (self.store(v, zero, shifted, packed) for v in vectors)
            found = self._stores[zero, shifted, packed] = first, last
        return found

    def padding(self, value: int) -> int:
        """A word of elements of padding, in the form that x is brought to."""
        value += self._added
        if self.cut.engine.item_bytes == 1:
            return (value & 0xFF) * 0x01010101
        return (value & 0xFFFF) * 0x00010001
