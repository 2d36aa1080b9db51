"""The filters of a network, prepared by all threads, each once for plans of the same key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.allocator import LARGE, consecutive_empty, move, release_arrays
from convalgos.core.prepared_filter import FilterKey, PreparedFilter
from convalgos.core.setting import thread_count
from convalgos.cpu.runtime.plan import Packed
from convalgos.network.graph import Convolution, TransposedConvolution
from convalgos.network.mapped_weights import as_prepared_from, let_go
from convalgos.network.planned import JoinedConvolutions, Planned, PlannedStep, ScaledConvolution
from convalgos.network.quantized_graph import QuantizedConvolution
from convalgos.network.reached_taps import reached_filter


class NetworkFilter(NamedTuple):
    """A filter of a network, and what it is prepared for."""

    w: tuple[int, ...]  # ids of the arrays and scales, which the graph keeps
    key: FilterKey


HUGE = 1 << 26  # bytes from which on a filter is prepared alone, before the others: it may be copied for that
MOVED = 4  # filters of each thread, after which is given back what they were prepared in, or moved from,
MOVED_BYTES = 1 << 23  # or fewer of so many bytes in all
FILTERED = Convolution | TransposedConvolution | QuantizedConvolution | JoinedConvolutions | ScaledConvolution
Filters = Mapping[NetworkFilter, PreparedFilter]


def has_filter(planned_step: PlannedStep) -> bool:
    """Whether a step runs on a filter that is prepared."""
    return isinstance(planned_step.step, FILTERED)


def filter_of(planned_step: PlannedStep) -> NetworkFilter:
    """Which filter a convolution runs on; of joined ones it is those of all."""
    step: Any = planned_step.step
    if type(step) is Convolution:  # most of them
        return NetworkFilter((id(step.w),), planned_step.plan._key)
    read = [part.w for part in getattr(step, "parts", (step,))]
    if isinstance(step, QuantizedConvolution):  # prepared with its scales
        read.append(step.quantization)
    return NetworkFilter(tuple(map(id, read)), planned_step.plan._key)


def filters_of_like(planned: Planned, like: Planned, filters: Filters) -> Filters | None:
    """The filters of a plan that another one of the same steps was made like, where they serve that, too."""
    for own, other in zip(planned.steps, like.steps, strict=True):
        if own is not other:  # of other sizes
            key, known = getattr(own.plan, "_key", None), getattr(other.plan, "_key", None)
            if key is not known and key != known:
                return None
    return filters


def _nbytes(planned_step: PlannedStep) -> int:
    """Of the filters of a step, as the graph has them."""
    step: Any = planned_step.step
    return sum(part.w.nbytes for part in getattr(step, "parts", (step,)))


def prepared_filters(planned: Planned, known: Iterable[Filters] = ()) -> dict[NetworkFilter, PreparedFilter]:
    """The filters of all convolutions of a plan.

    Args:
        known: those of other plans of the same graph, which serve where their keys are the same.
    """
    found: dict[NetworkFilter, PreparedFilter] = {}
    missing: dict[NetworkFilter, PlannedStep] = {}
    for planned_step in planned.steps:
        if has_filter(planned_step):
            wanted = filter_of(planned_step)
            there = next((filters[wanted] for filters in known if wanted in filters), None)
            if there is None:
                missing[wanted] = planned_step
            else:
                found[wanted] = there

    def prepare(planned_step: PlannedStep) -> PreparedFilter:
        step: Any = planned_step.step
        read = [part.w for part in getattr(step, "parts", (step,))]
        own: Any = [as_prepared_from(w) for w in read]
        if isinstance(step, Convolution):
            own = [reached_filter(w, planned_step.plan.problem) for w in own]
        filters = own if isinstance(step, JoinedConvolutions) else own[0]
        scales = (step.quantization,) if isinstance(step, QuantizedConvolution) else ()
        prepared: PreparedFilter = planned_step.plan.prepare(filters, *scales)
        for w in read:
            let_go(w)
        return prepared

    if not missing:
        return found
    huge = [wanted for wanted, planned_step in missing.items() if _nbytes(planned_step) >= HUGE]
    found |= {wanted: prepare(missing.pop(wanted)) for wanted in huge}
    if huge:
        release_arrays()  # what they were prepared in
    with ThreadPoolExecutor(thread_count()) as pool:
        nbytes = {wanted: _nbytes(planned_step) for wanted, planned_step in missing.items()}
        largest_first = sorted(missing, key=lambda wanted: -nbytes[wanted])  # while little else is there
        for some in _groups(largest_first, nbytes):
            found |= dict(zip(some, pool.map(prepare, map(missing.__getitem__, some)), strict=True))
            if sum(map(nbytes.__getitem__, some)) >= LARGE:
                release_arrays()
        if sum(nbytes.values()) >= LARGE:
            _lay_in_a_row(found, missing, pool)
    return found


def _groups(
    filters: Iterable[NetworkFilter], nbytes: Mapping[NetworkFilter, int]
) -> Iterator[list[NetworkFilter]]:
    """As many at a time as keep all threads at work."""
    some: list[NetworkFilter] = []
    taken = 0
    for filter_ in filters:
        some.append(filter_)
        taken += nbytes[filter_]
        if len(some) % thread_count() == 0 and (taken >= MOVED_BYTES or len(some) == MOVED * thread_count()):
            yield some
            some, taken = [], 0
    yield some


def _lay_in_a_row(
    found: dict[NetworkFilter, PreparedFilter], wanted: Iterable[NetworkFilter], pool: ThreadPoolExecutor
) -> None:
    """Move filters into one piece of memory, in the order in which a run reads them.

    Kernels fetch ahead: behind the end of a filter that is now the beginning of the next one. And one piece
    has large pages, where the system gives these to arrays of megabytes only.
    """
    moved = [filter_ for filter_ in wanted if isinstance(found[filter_].data, Packed)]
    places = consecutive_empty([found[filter_].data.array.nbytes for filter_ in moved])

    def moved_to(place: np.ndarray, filter_: NetworkFilter) -> None:
        array, key = found[filter_].data.array, found[filter_].key
        move(array.reshape(-1).view(np.uint8), place)
        copy = place.view(array.dtype).reshape(array.shape)
        found[filter_] = PreparedFilter(key, Packed(copy, copy.ctypes.data))

    numbered = dict(zip(moved, places, strict=True))
    for some in _groups(moved, {filter_: place.nbytes for filter_, place in numbered.items()}):
        list(pool.map(moved_to, map(numbered.__getitem__, some), some))
        release_arrays()
