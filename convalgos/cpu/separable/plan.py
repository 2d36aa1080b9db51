"""The plan of a separable block: filters prepared once, and runs bound to arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.allocator import aligned_empty, whole_lines
from convalgos.core.arguments import Shape
from convalgos.core.bound_run import ALIGNMENT, AddressWord, BoundRun, Launch, check_bound, checked_scratch
from convalgos.core.errors import Unsupported
from convalgos.core.machine import vector_bytes
from convalgos.core.prepared_filter import FilterForm, FilterKey, PreparedFilter
from convalgos.cpu.gemm import panel_packing
from convalgos.cpu.gemm.blocked_plan import BLOCKED_ARGUMENTS
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.records import by_name, field_offset, record_words
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.separable.band_cut import BandCut, band_cut, band_cut_like
from convalgos.cpu.separable.band_kernels import (
    SEPARABLE_FIELDS,
    finish_means,
    run_separable_bands,
    sum_vectors,
)
from convalgos.cpu.separable.block import BlockShapes, BlockSizes, SeparableBlock, why_not_joined
from convalgos.cpu.separable.panel_cut import PanelCut, PlanePanelCut
from convalgos.cpu.separable.records import BandRecords
from convalgos.cpu.separable.run_outputs import (
    FLOAT,
    PART_OFFSETS,
    BiasedActivation,
    CommonWords,
    common_words,
)
from convalgos.cpu.vectors import simd

X_OF_PLANES = PART_OFFSETS[0] + field_offset(BLOCKED_ARGUMENTS, "x")  # in the record of a run


class RunPlaces(NamedTuple):
    """Addresses of the arrays of a run; 0 of what there is not."""

    x: int
    residual: int
    y: int
    mean: int
    scratch: int
    scratch_bytes: int


class BlockRun:
    """What runs of a block have in common, whatever the sizes of its maps."""

    def __init__(self, w: PreparedFilter, outputs: Sequence[BiasedActivation]):
        self.w, self.outputs = w, tuple(outputs)
        self.common: CommonWords | None = None  # of their records, found by the first run


class SeparablePlan:
    """Computes a depthwise convolution with the pointwise ones around it, without writing what is between.

    Args:
        block: of problems in blocks of as many channels as a vector has lanes.
        mean: whether the means of the maps of y are computed, too; then there is no projection.

    Raises:
        Unsupported: the convolutions cannot be joined, with the reason.
    """

    def __init__(self, block: SeparableBlock, mean: bool = False):
        if reason := why_not_joined(block, mean):
            raise Unsupported(f"a step {reason}")
        self._mean, self._lanes = mean, simd.lanes(FLOAT.itemsize)
        self._shapes_of = BlockShapes(block)
        self._set_cut(band_cut(block))
        self._key: FilterKey = self._own_key()

    def _set_cut(self, cut: BandCut, known: BandRecords | None = None) -> None:
        """Set what depends on the sizes of the maps; known: records for other sizes."""
        self._cut, self._tasks = cut, plan_threads()
        vectors = cut.sizes.images * cut.bands * cut.vectors
        self._sums_bytes = vectors * vector_bytes() if self._mean else 0
        self.scratch_bytes = self._tasks * cut.scratch_bytes + self._sums_bytes
        self._records = BandRecords(cut, self._mean, known)

    def shapes_on(self, x_shape: Shape) -> list[Shape] | None:
        """`SeparableBlock.shapes_on`."""
        return self._shapes_of.on(x_shape)

    def on_map(self, x_shape: Shape, shapes: Sequence[Shape] | None = None) -> SeparablePlan:
        """The plan of the same block on maps of other sizes, cut as this one: its filters serve both.

        Args:
            shapes: `shapes_on` these, where they are known.

        Raises:
            Unsupported: the convolutions cannot be joined in these sizes, with the reason.
            ValueError: a filter does not fit into its padded map.
        """
        if shapes is None and (shapes := self.shapes_on(x_shape)) is None:
            return SeparablePlan(self._cut.layers.on_map(x_shape), self._mean)
        filtered = self._records.filtered
        made = SeparablePlan.__new__(SeparablePlan)
        made._mean, made._lanes, made._key = self._mean, self._lanes, self._key
        made._shapes_of = self._shapes_of
        (*_, h, w), (*_, h_out, w_out) = shapes[filtered], shapes[filtered + 1]
        sizes = BlockSizes(x_shape, (h, w), (h_out, w_out))
        made._set_cut(band_cut_like(self._cut, sizes), self._records)
        return made

    @property
    def block(self) -> SeparableBlock:
        """The convolutions."""
        return self._cut.block

    def _own_key(self) -> FilterKey:
        shapes = tuple(p.w_shape for p in self.block.problems)
        panels_of = tuple(part and part.panels for part in (self._cut.expansion, self._cut.projection))
        form = FilterForm.of(self.block.depthwise, shapes, panels_of, self._lanes)
        return FilterKey(self.algorithm, form)

    @property
    def algorithm(self) -> str:
        """What reports call it."""
        return "cpu.separable"

    @property
    def told(self) -> bool:
        """Whether runs may be told where another x lies, as that of a network does."""
        return isinstance(self._cut.expansion, PlanePanelCut)

    @property
    def bands(self) -> int:
        """Of rows, through each of which all convolutions go."""
        return self._cut.bands

    def prepare(self, filters: Sequence[np.ndarray]) -> PreparedFilter:
        """The filters (K, C/groups, R, S) of the convolutions, in order, as the kernels read them."""
        cuts = {"expansion": self._cut.expansion, "projection": self._cut.projection}
        found = zip(self.block.parts, filters, strict=True)
        data = [
            self._packed_taps(w) if (cut := cuts.get(part)) is None else self._packed_panels(cut, w)
            for part, w in found
        ]
        return PreparedFilter(self._key, data)

    def _packed_taps(self, w: np.ndarray) -> np.ndarray:
        """(vectors, R, S, lanes), with zeros beyond the last channel."""
        whole = np.zeros((self._cut.vectors * self._lanes, *w.shape[2:]), FLOAT)
        whole[: len(w)] = w[:, 0]
        by_vector = np.moveaxis(whole.reshape(-1, self._lanes, *w.shape[2:]), 1, -1)
        packed = aligned_empty(whole.size, FLOAT).reshape(by_vector.shape)
        packed[...] = by_vector
        return packed

    def _packed_panels(self, cut: PanelCut, w: np.ndarray) -> np.ndarray:
        """`packed_panels` of whole blocks of channels, zeros beyond the last one; of planes one by one."""
        if isinstance(cut, PlanePanelCut):
            return panel_packing.packed_panels(w[None], cut.panels)
        filters, channels = w.shape[:2]
        w = np.pad(w.reshape(1, filters, channels), ((0, 0), (0, 0), (0, -channels % self._lanes)))
        return panel_packing.packed_panels(w, cut.panels)

    def bind(
        self, x: np.ndarray, w: PreparedFilter, y: np.ndarray, outputs: Sequence[BiasedActivation],
        residual: np.ndarray | None = None, scratch: np.ndarray | None = None, mean: np.ndarray | None = None,
    ) -> BoundRun:  # fmt: skip
        """A run on these very arrays; see `Plan.bind`.

        Args:
            w: as `prepare` gave it.
            outputs: what follows the sums of each convolution, in order.
            residual: that the last one adds, where that is a projection; it may be x.
            mean: (N, blocks of channels, 1, 1, lanes), where the plan was made to compute it.

        Raises:
            ValueError, TypeError, Unsupported: an array is not as the plan takes it.
        """
        first, last = self.block.problems[0], self.block.problems[-1]
        y_shape = last.array_shapes[2]
        check_bound("x", x, first.array_shapes[0], FLOAT, strided=False)
        check_bound("y", y, y_shape, FLOAT, strided=False, written=True)
        if residual is not None:
            check_bound("residual", residual, y_shape, FLOAT, strided=False)
        if w.key != self._key:
            raise ValueError(f"the filters were prepared for {w.key}, not for {self._key}")
        scratch = checked_scratch(scratch, self.scratch_bytes)
        if scratch is None:
            scratch = aligned_empty(self.scratch_bytes, np.uint8)
        arrays, address = (x, residual, y, mean, scratch), jit.data_address()
        if mean is not None:
            check_bound("mean", mean, (last.N, self._cut.vectors, 1, 1, self._lanes), FLOAT, strided=False)
        x_at, residual_at, y_at, mean_at, scratch_at = [0 if a is None else address(a) for a in arrays]
        places = RunPlaces(x_at, residual_at, y_at, mean_at, scratch_at, scratch.nbytes)
        return self._bound_at(places, BlockRun(w, outputs), arrays)

    def bound_again(
        self, settings: BlockRun, x: Sequence[int], y: Sequence[int], scratch: int, told: bool
    ) -> BoundRun | None:
        """A run as `bind` gave it for other sizes of the maps; see `Plan.bound_again`."""
        if (told and not self.told) or (settings.w.key is not self._key and settings.w.key != self._key):
            return None
        residual, mean = x[1] if len(x) > 1 else 0, y[1] if len(y) > 1 else 0
        places = RunPlaces(x[0], residual, y[0], mean, scratch, whole_lines(self.scratch_bytes))
        return self._bound_at(places, settings)

    def _bound_at(self, at: RunPlaces, settings: BlockRun, *kept: Any) -> BoundRun:
        tasks, records = self._tasks, self._records
        if settings.common is None:
            settings.common = common_words(
                self._cut.layers, records.kernel, settings.w.data, settings.outputs
            )
        common = settings.common
        # all that is given is shared: threads find their parts in their caches after steps that need less
        share = (at.scratch_bytes - self._sums_bytes) // tasks // ALIGNMENT * ALIGNMENT
        words = record_words(records.record).copy()
        begin = jit.data_address()(words)
        words[common.places] = common.values
        words[common.told] = (
            at.x, at.y, tasks, at.scratch, share, *[begin + offset for offset in PART_OFFSETS],
            records.filter_block(common.kind),
        )  # fmt: skip
        if at.residual:
            words[common.added] = at.residual - at.y, 1
        x_places = (AddressWord(begin + X_OF_PLANES, 0),) if self.told else ()
        launches = [Launch(run_separable_bands(), begin, tasks)]
        if at.mean:
            run = by_name(np.ndarray(1, SEPARABLE_FIELDS, words))
            run.sums, run.mean = at.scratch + tasks * share, at.mean
            run.sum_pixels = sum_vectors(FLOAT.itemsize, self._lanes)
            launches.append(Launch(finish_means(FLOAT.itemsize, self._lanes), begin, 1, alone=True))
        kept = self, settings, *kept, words
        return jit.bound_run(tuple(launches), *kept, x_places=x_places, settings=settings)
