"""Plans of `gpu.implicit_gemm.wgmma_*` on floats: the filter as stages hold it, x as copies read it.

A filter is the sum of `terms`, one after another in the steps of the sum; each goes through x anew. Of TF32
in three products x has a high and a low part, and the terms are the filter's high part for both, then its
low part. Of integers they are int8 whose sum is the filter less its zero points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.element_types import FLOAT8_DTYPES, HALF_DTYPES, INTEGERS
from convalgos.core.problem import ConvProblem
from convalgos.gpu.compile.module import ELEMENTS, INTEGER_ELEMENTS, Build
from convalgos.gpu.device import GpuMachine, current
from convalgos.gpu.device.tma import TensorMapCache
from convalgos.gpu.gemm.wgmma_forms import PLAIN, ROW_BYTES, WgmmaForm, WgmmaTile
from convalgos.gpu.gemm.wgmma_operands import (
    PACKED_PIXELS,
    PIECE_BYTES,
    copied_bytes,
    im2col_view,
    is_packed,
    packing_blocks,
    padded_channels,
    step_channels,
    x_parts,
    x_steps,
)
from convalgos.gpu.launch.grid import ceil_div, waves
from convalgos.gpu.launch.kernel_records import record_of
from convalgos.gpu.launch.plan import GpuPlan
from convalgos.gpu.launch.split_k import parts_bytes

THREADS, PACKERS = 384, 256  # of a block that multiplies, and of one that packs
SECOND = ("uint8", "float8_e5m2")  # of the two types of a factor that a build multiplies
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32}

# `Params` of implicit_gemm_wgmma.cu and `Packing` of wgmma_packing.cuh.
WGMMA_PARAMS = np.dtype(
    [
        (name, np.int32)
        for name in (
            *("channels_last", "dimensions", "filter_tiles", "band", "tiles"),
            *("splits", "channel_steps", "x_steps", "steps", "factors", "group_channels"),
        )
    ]
)
PACKING_PARAMS = np.dtype(
    [
        *((name, np.int32) for name in ("pixel_tiles", "channel_tiles", "padded", "parts")),
        ("size", np.int32, 3),
    ]
)


def sum_steps(problem: ConvProblem, terms: int) -> int:
    """Of the sum."""
    return terms * x_steps(problem) * math.prod(problem.kernel)


def wgmma_tiles(problem: ConvProblem, tile: WgmmaTile, cluster: int = 1) -> int:
    """Of all groups; in clusters, groups of tiles that so many blocks compute together."""
    pixel_tiles = ceil_div(ceil_div(problem.gemm_m, tile.pixels(problem)), cluster)
    return pixel_tiles * ceil_div(problem.gemm_n, tile.filters(problem)) * problem.groups


def band(problem: ConvProblem, tile: WgmmaTile, terms: int, machine: GpuMachine) -> int:
    """Tiles of filters that are computed side by side: all, or as many as stay in L2.

    Filters beyond that come from memory for each wave of tiles, or else x does for each band.
    """
    filter_tiles = ceil_div(problem.gemm_n, tile.filters(problem))
    w_bytes = problem.groups * filter_tiles * tile.filters(problem) * sum_steps(problem, terms) * ROW_BYTES
    bands = min(ceil_div(2 * w_bytes, machine.l2_bytes), filter_tiles)
    again = (waves(wgmma_tiles(problem, tile), machine) - 1) * w_bytes
    return ceil_div(filter_tiles, bands) if (bands - 1) * problem.x_bytes < again else filter_tiles


Macros = Mapping[str, str | int]


def element_macros(dtype: str, y_dtype: str) -> Macros:
    """What builds know of a problem's types: of 8-bit floats that of y."""
    if dtype in INTEGERS:
        return INTEGER_ELEMENTS
    return (
        {"element_t": ELEMENTS[y_dtype], "FLOAT8": 1}
        if dtype in FLOAT8_DTYPES
        else {"element_t": ELEMENTS[dtype]}
    )


def all_element_macros(dtypes: Sequence[str]) -> list[Macros]:
    """Those of all problems whose x is of these types."""
    if dtypes == FLOAT8_DTYPES:
        return [element_macros(dtypes[0], y_dtype) for y_dtype in ("float32", *HALF_DTYPES)]
    return [element_macros(dtype, dtype) for dtype in (dtypes[:1] if dtypes == INTEGERS else dtypes)]


def wgmma_build(elements: Macros, tile: WgmmaTile, form: WgmmaForm = PLAIN) -> Build:
    return Build.of(
        "implicit_gemm_wgmma.cu",
        **elements,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        STAGES=tile.stages,
        BLOCKS=tile.blocks,
        PINGPONG=int(form.pingpong),
        CLUSTER=form.cluster,
        BULK=int(form.bulk),
    )


class WgmmaPlan(GpuPlan):
    """Args:
    terms: of the filter, as they are known with the problem.
    copied: the problem whose x the copy of x is, where one may be made: itself, or with its padding in x.
    """

    def __init__(
        self, problem: ConvProblem, algorithm: Algorithm, form: WgmmaForm, tile: WgmmaTile, splits: int,
        terms: int = 1, copied: ConvProblem | None = None,
    ):  # fmt: skip
        wide = current().takes_wide_box()
        padded, copied = copied is not None, copied or problem
        in_place = not is_packed(problem, terms, wide)
        self._copy_bytes = copied_bytes(copied, terms, wide) if padded or not in_place else 0
        super().__init__(problem, algorithm, self._copy_bytes + parts_bytes(problem, splits))
        self._form, self._tile, self._terms, self._wide = form, tile, terms, wide
        self._copied, self._parts, self._splits = copied, splits, np.int32(splits)
        self._filter_tiles = ceil_div(problem.gemm_n, tile.filters(problem))
        module = wgmma_build(element_macros(problem.dtype, problem.y_dtype), tile, form)
        count, figures = wgmma_tiles(problem, tile, form.cluster) * splits, self.device.figures
        blocks = min(count, figures.multiprocessors * tile.blocks // form.cluster) * form.cluster
        self._kernel = self.launch(module, "multiply", (blocks,), THREADS, form.shared_bytes(tile))
        self._in_place = self._maps(problem) if in_place else None
        self._of_copy = self._pack = self._reduce = None
        if self._copy_bytes:
            self._of_copy, self._packing = self._maps(copied), self._packing_of(copied)
            self._pack = self.launch(module, "pack", (packing_blocks(copied),), PACKERS)
        if splits > 1:
            self._reduce = self.launch(module, "reduce", (ceil_div(math.prod(problem.y_shape), 256),), 256)
        self._params = self.params(terms)

    def _maps(self, problem: ConvProblem) -> TensorMapCache:
        view = im2col_view(problem, self._tile, self._terms, self._wide)
        return TensorMapCache(self.device.tensor_map, view)

    def _packing_of(self, copied: ConvProblem) -> Any:
        pixel_tiles = ceil_div(math.prod(copied.spatial), PACKED_PIXELS)
        values = {
            **{"channel_tiles": x_steps(copied), "pixel_tiles": pixel_tiles, "size": copied.as_3d.spatial},
            **{"padded": padded_channels(copied, self._terms, self._wide), "parts": x_parts(self._terms)},
        }
        return self.by_value(record_of(PACKING_PARAMS, values))

    def params(self, terms: int) -> Any:
        """What the kernel is told of a sum over a filter of so many terms."""
        p, tile, form, parts = self.problem, self._tile, self._form, x_parts(self._terms)
        side = band(p, tile, terms, self.device.figures) if form.cluster > 1 else self._filter_tiles
        padded, of_x = padded_channels(p, self._terms, self._wide), x_steps(p)
        values = {
            **{"channels_last": p.layout == "channels_last", "dimensions": p.ndim},
            **{"filter_tiles": self._filter_tiles, "band": side, "splits": self._parts},
            **{"tiles": wgmma_tiles(p, tile, form.cluster), "steps": sum_steps(p, terms)},
            **{"channel_steps": terms * of_x, "x_steps": parts * of_x, "group_channels": parts * padded},
            "factors": self._factors(),
        }
        return self.by_value(record_of(WGMMA_PARAMS, values))

    def _factors(self) -> int:
        """Which of two types of 8 bits rows and columns of a tile have; channels last, rows are x."""
        p = self.problem
        of_x = p.dtype in SECOND
        of_w = p.w_dtype in SECOND and p.dtype not in INTEGERS  # the terms of a filter are int8
        rows, columns = (of_x, of_w) if p.layout == "channels_last" else (of_w, of_x)
        return 2 * rows + columns

    def prepare_filter(self, w: Any) -> Any:
        if self.problem.itemsize != 4:
            return self.rows([w])
        high = self._tf32(w)
        return self.rows([high, high, self._tf32(w - high)] if self._terms == 3 else [high])

    def rows(self, terms: Sequence[Any]) -> Any:
        """(groups, filter tiles, steps, filters of a tile, pieces, elements of a piece), as stages hold it.

        Zeros beyond the filters and the channels; swizzled as the products read it.
        """
        p, xp, bits = self.problem, self.device.xp, BITS[self.problem.itemsize]
        channels, filters = x_steps(p) * step_channels(p), self._tile.filters(p)
        taps, count = math.prod(p.kernel), len(terms)
        rows = xp.zeros((p.groups, self._filter_tiles * filters, taps, count, channels), bits)
        for term, part in enumerate(terms):
            part = part.view(bits).reshape(p.groups, p.gemm_n, p.w_shape[1], taps)
            rows[:, : p.gemm_n, :, term, : p.w_shape[1]] = part.transpose(0, 1, 3, 2)
        rows = rows.reshape(p.groups, self._filter_tiles, filters, sum_steps(p, count), step_channels(p))
        rows = rows.transpose(0, 1, 3, 2, 4)  # (groups, filter tiles, steps, filters, channels of a step)
        pieces = rows.reshape(*rows.shape[:3], filters // 8, 8, 8, PIECE_BYTES // p.itemsize)
        row = np.arange(8)[:, None]
        return xp.ascontiguousarray(pieces[..., xp.asarray(row), xp.asarray(np.arange(8) ^ row), :])

    def _tf32(self, w: Any) -> Any:
        """w rounded to nearest with 10 explicit bits of the significand; NaN stays NaN."""
        xp = self.device.xp
        nearest = (w.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
        return xp.where(xp.isnan(w), np.uint32(0x7FFFE000), nearest).view(np.float32)

    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        conv = self.conv[activation is not None]
        self.multiply(x, w, bias, y, workspace, conv, self._params, None if self._in_place else conv)

    def multiply(
        self, x: Any, w: Any, bias: Any, y: Any, workspace: Any, conv: Any, params: Any, of_copy: Any
    ) -> None:
        """Launch the kernels.

        Args:
            conv: sizes of the problem; of_copy: of the problem of the copy of x, or None to read x itself.
        """
        maps, source, read = self._in_place, x, conv
        if of_copy is not None:
            assert self._pack is not None
            self._pack(x, workspace, conv, self._packing)
            maps, source, read = self._of_copy, workspace, of_copy
        assert maps is not None
        pixels = maps.at(self.device.address(source))
        if self._reduce is None:
            self._kernel(pixels, w, bias, y, None, read, params)
        else:
            parts = np.uintp(self.device.address(workspace) + self._copy_bytes)
            self._kernel(pixels, w, None, y, parts, read, params)
            self._reduce(parts, bias, y, conv, self._splits)
