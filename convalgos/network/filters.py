"""The filters of a network, prepared by all threads, each once for plans of the same key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from convalgos.core.prepared_filter import FilterKey, PreparedFilter
from convalgos.core.setting import thread_count
from convalgos.network.graph import Convolution, TransposedConvolution
from convalgos.network.planned import Planned, PlannedStep


class NetworkFilter(NamedTuple):
    """A filter of a network, and what it is prepared for."""

    w: int  # id of the array, which the graph keeps
    key: FilterKey


Filters = Mapping[NetworkFilter, PreparedFilter]


def filter_of(planned_step: PlannedStep) -> NetworkFilter:
    """Which filter a convolution runs on."""
    step: Any = planned_step.step
    return NetworkFilter(id(step.w), planned_step.plan._key)


def prepared_filters(planned: Planned, known: Iterable[Filters] = ()) -> dict[NetworkFilter, PreparedFilter]:
    """The filters of all convolutions of a plan.

    Args:
        known: those of other plans of the same graph, which serve where their keys are the same.
    """
    found: dict[NetworkFilter, PreparedFilter] = {}
    missing: dict[NetworkFilter, PlannedStep] = {}
    for planned_step in planned.steps:
        if isinstance(planned_step.step, Convolution | TransposedConvolution):
            wanted = filter_of(planned_step)
            there = next((filters[wanted] for filters in known if wanted in filters), None)
            if there is None:
                missing[wanted] = planned_step
            else:
                found[wanted] = there

    def prepare(planned_step: PlannedStep) -> PreparedFilter:
        step: Any = planned_step.step
        prepared: PreparedFilter = planned_step.plan.prepare(step.w)
        return prepared

    with ThreadPoolExecutor(thread_count()) as pool:
        found |= dict(zip(missing, pool.map(prepare, missing.values()), strict=True))
    return found
