"""The records of the convolutions of a separable block, as the kernels of blocked layouts read them."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.allocator import aligned_zeros
from convalgos.core.epilogue import RELU, Activation
from convalgos.cpu.dwconv.block_activations import BlockKernel, kind_of_block
from convalgos.cpu.dwconv.channel_kernels import filter_block
from convalgos.cpu.dwconv.channel_records import CHANNEL_KERNEL_FIELDS
from convalgos.cpu.dwconv.channel_tables import band_tables, column_table
from convalgos.cpu.gemm.blocked_plan import BLOCKED_ARGUMENTS
from convalgos.cpu.gemm.blocked_tiles import tile_kernels
from convalgos.cpu.gemm.row_tiles import NONE, ROW_TILE, along_row
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.finish import activation_numbers, finish_address
from convalgos.cpu.runtime.records import by_name, copy_of_record, empty_record
from convalgos.cpu.separable.band_cut import BandCut, PanelCut
from convalgos.cpu.separable.band_kernels import BAND_TILES
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.activations import CLIP
from convalgos.cpu.vectors.halves import SAME

FLOAT = np.dtype(np.float32)
LIMITS = np.array([-np.inf, np.inf, 0, np.inf], FLOAT)  # of none, and of ReLU


class BiasedActivation(NamedTuple):
    """What follows the sums of a convolution."""

    bias: np.ndarray | None = None  # (K,)
    activation: Activation | None = None


class KernelRecord:
    """A record of int64 fields, zero but for those that are given, and the arrays that they point to."""

    def __init__(self, fields: np.dtype, kept: tuple[Any, ...] = (), **values: int):
        self._record, self._kept = empty_record(fields), kept
        self._set_fields()
        self.set(**values)

    def _set_fields(self) -> None:
        self._fields, self.address = by_name(self._record), jit.data_address()(self._record)

    def copy(self, *kept: Any) -> KernelRecord:
        """Another record of the same values, which keeps these, too."""
        made = KernelRecord.__new__(KernelRecord)
        made._record, made._kept = copy_of_record(self._record), (*self._kept, *kept)
        made._set_fields()
        return made

    def set(self, *kept: Any, **values: int) -> None:
        """Set fields by name."""
        self._kept += kept
        for name, value in values.items():
            setattr(self._fields, name, value)


@cache
def no_part() -> KernelRecord:
    """That of a part of a block that is not there."""
    return KernelRecord(BLOCKED_ARGUMENTS)


class RunOutput(NamedTuple):
    """The filter of a convolution, and what follows its sums, as fields of a record."""

    values: dict[str, int]
    limits: int  # address of the two that sums are kept within
    kept: tuple[Any, ...]  # what the fields point to


class BandRecords:
    """Tables of a cut, which all runs share, and the records of its convolutions."""

    def __init__(self, cut: BandCut):
        self._cut, self._lanes = cut, simd.lanes(FLOAT.itemsize)
        self._tables: list[np.ndarray] = []
        self._records: dict[str, KernelRecord] = {}  # of each part of the block
        self.tiles = np.zeros(cut.bands, BAND_TILES)  # the table `band_tiles`
        self._add_depthwise()
        p, lanes = cut.block.depthwise, self._lanes
        rows_in, rows_out = zip(*cut.row_bands, strict=True)
        for name, part, rows, wide, x_block, y_block in (
            ("expansion", cut.expansion, rows_in, p.spatial[1], None, cut.hidden_pixels * lanes),
            ("projection", cut.projection, rows_out, p.spatial_out[1], cut.middle_pixels * lanes, None),
        ):
            if part is not None:
                pixels = [count * wide for count in rows]
                self._add_product(name, part, pixels, x_block, y_block)

    def of(
        self, part: str, w: np.ndarray, output: BiasedActivation, found: dict[str, RunOutput]
    ) -> KernelRecord:
        """The record of a run of a part of the block, but for its arrays.

        Args:
            found: what the sizes of the maps do not change, of each part, by runs of the same filters and
                outputs; what is not there yet is added.
        """
        if (run := found.get(part)) is None:
            run = found[part] = self._output_of(part, w, output)
        record = self._records[part].copy(self, run)
        record.set(**run.values)
        if part != "depthwise":
            record.set(limits=run.limits)
        elif (kind := kind_of_block(self._depthwise_kernel, output.activation)) != CLIP:
            kernel = filter_block(*self._depthwise_kernel, kind)
            record.set(filter_block=kernel, finish=0, bounds=run.values["finish_numbers"])
        else:
            record.set(bounds=run.limits)
        return record

    def _output_of(self, part: str, w: np.ndarray, output: BiasedActivation) -> RunOutput:
        filters, lanes, address = getattr(self._cut.block, part).K, self._lanes, jit.data_address()
        bias = aligned_zeros((-(-filters // lanes) + 1) * lanes, FLOAT)  # with a vector of zeros behind
        if output.bias is not None:
            bias[:filters] = output.bias
        numbers = activation_numbers(FLOAT, output.activation)
        limits, finish = _output_step(output.activation, numbers)
        values = {
            "w": address(w), "bias": address(bias), "finish_numbers": address(numbers), "finish": finish,
        }  # fmt: skip
        return RunOutput(values, address(limits), (bias, numbers, limits, w))

    def _table(self, table: np.ndarray) -> int:
        """The address of a table, which is kept."""
        self._tables.append(table)
        return jit.data_address()(table)

    @property
    def _depthwise_kernel(self) -> BlockKernel:
        c = self._cut.depthwise
        return FLOAT.itemsize, self._lanes, SAME, 1, 1, 1, c.pixels, *c.code, 0

    def _add_depthwise(self) -> None:
        cut, c, lanes = self._cut, self._cut.depthwise, self._lanes
        p = c.problem
        row, row_out = p.spatial[2] * lanes, p.spatial_out[2] * lanes
        w_row = p.kernel[2] * lanes
        columns, self._of_columns = column_table(c, lanes, lanes)
        bands, runs, _ = band_tables(c, (0, row), (0, row_out), (0, w_row))
        x_block = cut.hidden_pixels * lanes if cut.expansion else p.spatial[1] * row
        y_block = cut.middle_pixels * lanes if cut.projection else p.spatial_out[1] * row_out
        values = {
            "size": 4, "bands": self._table(bands), "runs": self._table(runs),
            "columns": self._table(columns), "column_count": len(columns), "from_pixel": lanes,
            "from_next": p.stride[1] * row, "from_vector": x_block, "to_pixel": lanes, "to_next": row_out,
            "to_vector": y_block, "row_step": p.dilation[1] * row, "w_row": w_row,
            "w_block": p.kernel[1] * w_row, "taps": p.kernel[2], "stride": p.stride[2],
            "dilation": p.dilation[2], "filter_block": filter_block(*self._depthwise_kernel, CLIP),
        }  # fmt: skip
        self._records["depthwise"] = KernelRecord(CHANNEL_KERNEL_FIELDS, (), **values)

    def _add_product(
        self, name: str, part: PanelCut, pixels: list[int], x_block: int | None, y_block: int | None
    ) -> None:
        """A pointwise convolution of so many pixels of each band.

        Args:
            x_block, y_block: elements from a block of channels to the next; None in x and y themselves.
        """
        p, lanes = part.problem, self._lanes
        whole = p.spatial[0] * p.spatial[1] * lanes
        offsets = np.arange(part.entries + 1) * (whole if x_block is None else x_block)
        tables, kinds = _tiles_of(tuple(sorted({*pixels})), part.rows, lanes)
        addresses = {count: self._table(table) for count, table in tables.items()}
        self.tiles[name] = [addresses[count] for count in pixels]
        kernels, last = tile_kernels(p.K, part.panels, FLOAT.itemsize, [(1, n, lanes) for n in kinds])
        values = {
            "unlimited": jit.data_address()(LIMITS), "size": 4, "lanes": lanes, "vectors": part.vectors,
            "panels": part.panels,
            "kernels": self._table(kernels), "last_kernels": self._table(last), "narrow": len(kinds),
            "entries": part.entries, "inner": lanes, "whole": p.C // lanes, "rest": p.C % lanes,
            "chunk": part.chunk, "offsets": self._table(offsets),
            "y_block": whole if y_block is None else y_block,
        }  # fmt: skip
        self._records[name] = KernelRecord(BLOCKED_ARGUMENTS, (), **values)


@lru_cache(512)  # layers of one map size share them
def _tiles_of(counts: tuple[int, ...], most: int, lanes: int) -> tuple[dict[int, np.ndarray], list[int]]:
    """(the `ROW_TILE` of rows of so many pixels, pixels of the tiles that kernels are for).

    Args:
        most: pixels of a tile.
    """
    ends = {count: along_row(count, most) if count else np.zeros(1, int) for count in counts}  # (tiles + 1,)
    kinds = sorted({n for end in ends.values() for n in (end[1:] - end[:-1]).tolist()})
    tables = {}
    for count, end in ends.items():
        table = np.full((len(end), 4), NONE, np.int64)
        length = end[1:] - end[:-1]  # (tiles,)
        table[:-1, 0] = table[:-1, 1] = end[:-1] * lanes
        table[:-1, 2], table[:-1, 3] = length, np.searchsorted(kinds, length)
        tables[count] = table.view(ROW_TILE)[:, 0]
    return tables, kinds


def _output_step(activation: Activation | None, numbers: np.ndarray) -> tuple[np.ndarray, int]:
    """(the two limits that the kernels keep sums within, what else there is to do, if anything)."""
    if activation is None or activation == RELU:
        return LIMITS[0 if activation is None else 2 :], 0
    if activation.name == "clip":
        return numbers, 0
    return LIMITS, finish_address(FLOAT, activation)
