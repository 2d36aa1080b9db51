"""What is stored of a network: the graph, filters as they are and as plans want them, and what was planned.

Prepared filters count on a machine and a version of this library: elsewhere they are left aside, and made
from the filters as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.errors import Unsupported
from convalgos.core.machine import fingerprint
from convalgos.core.prepared_filter import PreparedFilter
from convalgos.core.problem import ConvProblem
from convalgos.core.setting import thread_count
from convalgos.core.version import __version__
from convalgos.network.batch_parts import BatchParts, in_parts
from convalgos.network.choice import planned_by
from convalgos.network.filters import Filters, filter_of, has_filter
from convalgos.network.graph import NetworkGraph
from convalgos.network.layout_choice import LayoutChoice
from convalgos.network.planned import PlanLimits, Planned
from convalgos.network.saved_file import (
    check_content,
    data_and_arrays,
    network_file_content,
    write_network_file,
)
from convalgos.network.saved_values import (
    Arrays,
    ArraysInMemory,
    graph_of_plain,
    plain_graph,
    plain_value,
    value_of_plain,
)
from convalgos.network.step_options import StepOption, limits_of
from convalgos.select import registry
from convalgos.select.constraints import within
from convalgos.select.ranking import Candidate

Data = dict[str, Any]


class PlanRecord(NamedTuple):
    """What is stored of a plan."""

    planned: Planned
    choice: LayoutChoice
    limits: PlanLimits
    filters: Filters
    parts: BatchParts | None = None


def store_network(graph: NetworkGraph, plans: Sequence[PlanRecord], path: Path) -> None:
    """Write a network, its plans and their filters into a file, whole or not at all.

    Raises:
        Unsupported: a part of it is run by a library whose regions cannot be stored. OSError: as of `open`.
    """
    arrays = Arrays()
    data = {
        "graph": plain_graph(graph, arrays),
        "made_by": _maker(),
        "plans": [_plain_plan(plan, graph, arrays) for plan in plans],
    }
    write_network_file(path, data, arrays.all)


def stored_network(path: Path) -> tuple[NetworkGraph, list[PlanRecord]]:
    """The graph of a file, and its plans where they serve this machine.

    Raises:
        ValueError: it is no such file, or damaged. OSError: as of `open`.
        Unsupported: it needs a library that is not installed.
    """
    content = network_file_content(path)
    with ThreadPoolExecutor(1) as beside:  # the hash takes as long as all that is copied from the file
        whole = beside.submit(check_content, path, content)
        reason: Exception | None = None
        try:
            found = _graph_and_plans(content)
        except Exception as error:  # whatever a damaged file leads to, or one of another hand
            reason = error
        whole.result()
    if isinstance(reason, Unsupported):
        raise reason
    if reason is not None:
        raise ValueError(f"{path} is no network that can be read: {reason}")
    return found


def _graph_and_plans(content: np.ndarray) -> tuple[NetworkGraph, list[PlanRecord]]:
    """Those of the bytes of a file. Where it is damaged, or of another hand, this may raise any error."""
    data, found = data_and_arrays(content)
    arrays = Arrays(found)
    graph, plans = graph_of_plain(data["graph"], arrays), []
    if data["made_by"] == _maker():
        prepared = ArraysInMemory(list(found), _filters_in_order(data))
        plans = [_plan_of_plain(plan, graph, prepared) for plan in data["plans"] if _has_algorithms(plan)]
    return graph, plans


def _filters_in_order(data: Data) -> list[int]:
    """The numbers of the arrays of prepared filters, as the steps of the plans read them."""
    plans = [own for plan in data["plans"] for own in (plan.get("part"), plan) if own]
    found = [plan["filters"][step] for plan in plans for step in sorted(plan["filters"], key=int)]
    return [value["packed"] for value in found if isinstance(value, dict) and "packed" in value]


def _maker() -> list[str]:
    """What prepared filters count on."""
    return [__version__, fingerprint(thread_count())]


def _plain_plan(plan: PlanRecord, graph: NetworkGraph, arrays: Arrays) -> Data:
    choice, parts, part = plan.choice, plan.parts, None
    if parts is not None:
        part = _plain_plan(PlanRecord(parts.planned, parts.choice, plan.limits, plan.filters), graph, arrays)
    return {
        "part": part,
        "shapes": {name: list(plan.planned.shapes[name]) for name in graph.inputs},
        "limits": list(plan.limits),
        "options": [_plain_option(choice.options[step]) for step in graph.steps],
        "written": dict(choice.written),
        "changed": {name: list(layouts) for name, layouts in choice.changed.items()},
        "seconds": choice.seconds,
        "exact": choice.exact,
        "of_other_shapes": choice.of_other_shapes,
        "filters": _plain_filters(plan, arrays),
        "keys": {
            str(i): str(filter_of(step).key) for i, step in enumerate(plan.planned.steps) if has_filter(step)
        },
    }


def _plain_option(option: StepOption) -> Data:
    found = option.candidate
    own = None if found is None else [found.id, str(found.problem), found.estimate_s]
    return {"reads": list(option.reads), "writes": option.writes, "seconds": option.seconds, "own": own}


def _plain_filters(plan: PlanRecord, arrays: Arrays) -> Data:
    """By the numbers of their steps those that there is a form for; others are prepared anew."""
    found = {}
    for i, planned_step in enumerate(plan.planned.steps):
        if has_filter(planned_step) and (own := plan.filters.get(filter_of(planned_step))) is not None:
            with suppress(TypeError):
                found[str(i)] = plain_value(own.data, arrays)
    return found


def _plan_of_plain(data: Data, graph: NetworkGraph, prepared: Arrays) -> PlanRecord:
    """A plan of a file; `prepared` are its arrays, but in memory where they are asked for."""
    precisions, *others = data["limits"]
    limits = PlanLimits(tuple(precisions), *others)
    inputs = {name: tuple(shape) for name, shape in data["shapes"].items()}
    shapes = graph.shapes_of(inputs)
    options = [_option_of_plain(option, limits) for option in data["options"]]
    choice = LayoutChoice(
        dict(zip(graph.steps, options, strict=True)), data["written"],
        {name: tuple(layouts) for name, layouts in data["changed"].items()},
        float(data["seconds"]), bool(data["exact"]), bool(data["of_other_shapes"]),
    )  # fmt: skip
    planned = planned_by(graph, shapes, limits, choice)
    filters = {}
    for number, value in data["filters"].items():
        step = planned.steps[int(number)] if int(number) < len(planned.steps) else None
        wanted = filter_of(step) if step is not None and has_filter(step) else None
        # a plan made from one for other shapes may have had other steps, or other forms of its filters
        if wanted is not None and str(wanted.key) == data.get("keys", {}).get(number):
            filters[wanted] = PreparedFilter(wanted.key, value_of_plain(value, prepared))
    parts = None
    if data.get("part"):
        part = _plan_of_plain(data["part"], graph, prepared)
        parts = in_parts(planned, part.planned, part.choice, graph)
        filters |= part.filters
    return PlanRecord(planned, choice, limits, filters, parts)


def _has_algorithms(data: Data) -> bool:
    """Whether all algorithms of a plan are there: one that a program added, or a variant that is worth a try
    on maps of another size only, may not be."""
    if data.get("part") and not _has_algorithms(data["part"]):
        return False
    for option in data["options"]:
        if option["own"] is not None:
            name, text, _ = option["own"]
            try:
                registry.find_algorithm(name, ConvProblem.parse(text))
            except ValueError:
                return False
    return True


def _option_of_plain(data: Mapping[str, Any], limits: PlanLimits) -> StepOption:
    candidate = None
    if data["own"] is not None:
        name, text, seconds = data["own"]
        problem = ConvProblem.parse(text)
        algorithm = registry.find_algorithm(name, problem)
        algorithm = within(algorithm, algorithm.computed(problem), limits_of(limits))
        candidate = Candidate.of(algorithm, problem, float(seconds))
    return StepOption(tuple(data["reads"]), data["writes"], float(data["seconds"]), candidate)
