"""The filters of a planned network, each in the form of its plan, prepared once."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from convalgos.core.prepared_filter import PreparedFilter
from convalgos.core.setting import thread_count
from convalgos.network.graph import Convolution, TransposedConvolution
from convalgos.network.planned import Planned, PlannedStep

Filters = Mapping[int, PreparedFilter]  # by the number of the step in its plan


def prepared_filters(planned: Planned, known: Filters | None = None) -> dict[int, PreparedFilter]:
    """Those of all convolutions of a plan, by as many threads as this library has.

    Args:
        known: those that need not be prepared.
    """
    found = dict(known or {})
    steps = {
        i: planned_step
        for i, planned_step in enumerate(planned.steps)
        if isinstance(planned_step.step, Convolution | TransposedConvolution) and i not in found
    }
    with ThreadPoolExecutor(thread_count()) as pool:
        return found | dict(zip(steps, pool.map(_prepared, steps.values()), strict=True))


def _prepared(planned_step: PlannedStep) -> PreparedFilter:
    found: PreparedFilter = planned_step.plan.prepare(planned_step.step.w)  # type: ignore[attr-defined]
    return found
