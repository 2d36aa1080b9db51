"""The filters of a network, prepared by all threads, each once for plans of the same key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.allocator import LARGE, move, offering, release_arrays
from convalgos.core.prepared_filter import FilterKey, PreparedFilter
from convalgos.core.setting import thread_count
from convalgos.cpu.runtime.plan import KernelPlan, Packed
from convalgos.network.filter_row import FilterRow, at_most
from convalgos.network.graph import Convolution, TransposedConvolution
from convalgos.network.mapped_weights import Copies, as_prepared_from, let_go
from convalgos.network.planned import JoinedConvolutions, Planned, PlannedStep, ScaledConvolution
from convalgos.network.quantized_graph import QuantizedConvolution
from convalgos.network.reached_taps import reached_filter
from convalgos.select import registry


class NetworkFilter(NamedTuple):
    """A filter of a network, and what it is prepared for."""

    w: tuple[int, ...]  # ids of the arrays and scales, which the graph keeps
    key: FilterKey


HUGE = 1 << 26  # bytes from which on a filter is prepared alone, before the others: it may be copied for that
EARLY = 1 << 21  # bytes from which on one is prepared before smaller ones
SOME = 4  # filters of each thread, after which is given back what they were prepared in,
SOME_BYTES = 1 << 23  # or fewer of so many bytes in all
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


def filters_of_like(
    planned: Planned, like: Planned, filters: Filters, known: Callable[[], Iterable[Filters]] = tuple
) -> Filters:
    """The filters of a plan like another one of the same steps: those of that, and what serves only this.

    Args:
        known: gives those of other plans of the same graph.
    """
    further: list[PlannedStep] = []
    for own, other in zip(planned.steps, like.steps, strict=True):
        if own is not other:  # of other sizes
            key, before = getattr(own.plan, "_key", None), getattr(other.plan, "_key", None)
            if key is not before and key != before:
                further.append(own)
    return {**filters, **prepared_filters(further, known())} if further else filters


def filter_nbytes(planned_step: PlannedStep) -> int:
    """Of the filters of a step, as the graph has them."""
    step: Any = planned_step.step
    return sum(part.w.nbytes for part in getattr(step, "parts", (step,)))


def prepared_filters(
    steps: Iterable[PlannedStep], known: Iterable[Filters] = ()
) -> dict[NetworkFilter, PreparedFilter]:
    """The filters of all convolutions among some steps.

    Args:
        known: those of other plans of the same graph, which serve where their keys are the same.
    """
    found: dict[NetworkFilter, PreparedFilter] = {}
    missing: dict[NetworkFilter, PlannedStep] = {}
    for planned_step in steps:
        if has_filter(planned_step):
            wanted = filter_of(planned_step)
            there = next((filters[wanted] for filters in known if wanted in filters), None)
            if there is None:
                missing[wanted] = planned_step
            else:
                found[wanted] = there

    if not missing:
        return found
    huge = [wanted for wanted, planned_step in missing.items() if filter_nbytes(planned_step) >= HUGE]
    found |= {wanted: _prepared(missing.pop(wanted)) for wanted in huge}
    if huge:
        release_arrays()  # what they were prepared in
    nbytes = {wanted: filter_nbytes(planned_step) for wanted, planned_step in missing.items()}
    missing = {wanted: missing[wanted] for wanted in _large_first(nbytes)}
    told = [_told(planned_step) for planned_step in missing.values()]
    room = sum(at_most(n or nbytes[wanted]) for wanted, n in zip(missing, told, strict=True))
    row = FilterRow(room) if sum(nbytes.values()) >= LARGE else None
    copies = Copies()

    def prepared(number: int, planned_step: PlannedStep) -> PreparedFilter:
        if row is None:
            return _prepared(planned_step, copies)
        return _in_row(planned_step, copies, row, number, told[number])

    numbers = count()
    with ThreadPoolExecutor(thread_count()) as pool:
        for some in _groups(missing, nbytes):
            steps = map(missing.__getitem__, some)
            found |= dict(zip(some, pool.map(prepared, islice(numbers, len(some)), steps), strict=True))
            if row is not None:
                release_arrays()
    return found


def _prepared(planned_step: PlannedStep, copies: Copies | None = None) -> PreparedFilter:
    """The filter of a step."""
    step: Any = planned_step.step
    read = [part.w for part in getattr(step, "parts", (step,))]
    copies = copies if len(read) == 1 else None
    own: Any = [as_prepared_from(w, copies) for w in read]
    if isinstance(step, Convolution):
        own = [reached_filter(w, planned_step.plan.problem) for w in own]
    elif isinstance(step, JoinedConvolutions):
        problems = planned_step.plan.block.problems
        own = [reached_filter(w, problem) for w, problem in zip(own, problems, strict=True)]
    filters = own if isinstance(step, JoinedConvolutions) else own[0]
    scales = (step.quantization,) if isinstance(step, QuantizedConvolution) else ()
    prepared: PreparedFilter = planned_step.plan.prepare(filters, *scales)
    for w in read:
        let_go(w)
    data = prepared.data
    if copies is not None and not (isinstance(data, Packed) and not np.may_share_memory(data.array, own[0])):
        copies.leave()  # filters of other forms may be the weights as they are
    return prepared


def _in_row(
    planned_step: PlannedStep, copies: Copies, row: FilterRow, number: int, told: int
) -> PreparedFilter:
    """The filter of a step, in its place of a row where it is one of `Packed`."""
    offer = row.offer(number, told)
    try:
        with offering(offer):
            prepared = _prepared(planned_step, copies)
        data = prepared.data
        if offer.asked or not isinstance(data, Packed):
            return prepared
        offer.asked = True
        place = row.place(number, data.array.nbytes)
        move(data.array.reshape(-1).view(np.uint8), place)
        packed = place.view(data.array.dtype).reshape(data.array.shape)
        return PreparedFilter(prepared.key, Packed(packed, packed.ctypes.data))
    finally:
        if not offer.asked:
            row.place(number, 0)


def _large_first(nbytes: Mapping[NetworkFilter, int]) -> list[NetworkFilter]:
    """Filters in the order in which they are prepared, and lie: large ones, which may be copied for it, while
    little else is there, and the others as a run reads them."""
    large = [wanted for wanted, n in nbytes.items() if n >= EARLY]
    return [*sorted(large, key=lambda wanted: -nbytes[wanted]), *(w for w, n in nbytes.items() if n < EARLY)]


def _told(planned_step: PlannedStep) -> int:
    """About the bytes of the prepared filter of a step; 0 where its algorithm does not tell."""
    plan = getattr(planned_step.plan, "computing", planned_step.plan)
    if isinstance(plan, KernelPlan):
        with suppress(ValueError):  # of an algorithm that a program has taken away
            return registry.find_algorithm(plan.algorithm, plan.problem).filter_bytes(plan.problem)
    return 0


def _groups(
    filters: Iterable[NetworkFilter], nbytes: Mapping[NetworkFilter, int]
) -> Iterator[list[NetworkFilter]]:
    """As many at a time as keep all threads at work."""
    some: list[NetworkFilter] = []
    taken = 0
    for filter_ in filters:
        some.append(filter_)
        taken += nbytes[filter_]
        if len(some) % thread_count() == 0 and (taken >= SOME_BYTES or len(some) == SOME * thread_count()):
            yield some
            some, taken = [], 0
    yield some
