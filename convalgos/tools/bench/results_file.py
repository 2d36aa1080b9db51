"""Reads the files of `bench --json` and `training --json`, for the terminal and for pages."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from convalgos.core import strict_json
from convalgos.core.json_format import load, reading
from convalgos.core.problem import ConvProblem
from convalgos.select.measure.table import Row, Table
from convalgos.select.measure.timing import Timing
from convalgos.select.ranking import Rejection
from convalgos.tools.bench.recorded_machine import read_machine
from convalgos.tools.bench.results import LayerResult, PeerResult, Results
from convalgos.tools.bench.suites import Layer
from convalgos.tools.bench.training import PassResult, PeerStep, StepResult


def read_results(path: Path) -> Results[LayerResult] | Results[StepResult]:
    """The results in a file: those of `bench`, or of `training`.

    Raises:
        ValueError: says what is wrong, and where. OSError: the file cannot be read.
    """
    found = load(path, "bench", "training")
    read_layer: Callable[[dict[str, Any]], Any] = _step if found["kind"] == "training" else _layer
    with reading(path):
        return Results(
            command=str(found["command"]),
            machine=read_machine(found["machine"]),
            versions={str(k): str(v) for k, v in found["versions"].items()},
            skipped={str(s["name"]): str(s["why_not"]) for s in found["skipped"]},
            layers=[read_layer(layer) for layer in found["layers"]],
            started=str(found["started"]),
        )


def _layer(found: dict[str, Any]) -> LayerResult:
    layer = _what(found)
    rows = tuple(_row(c) for c in found["candidates"])
    peers = tuple(_peer(p) for p in found["peers"])
    table = Table(layer.problem, rows, _reasons(found["rejected"]), _reasons(found["failed"]))
    return LayerResult(layer, _optional(_name, found["pick"]), table, peers)


def _step(found: dict[str, Any]) -> StepResult:
    passes = tuple(_pass(p) for p in found["passes"])
    peers = tuple(PeerStep(str(p["name"]), _peer(p["forward"]), _peer(p["backward"])) for p in found["peers"])
    return StepResult(_what(found), passes, peers)


def _what(found: dict[str, Any]) -> Layer:
    problem = ConvProblem.parse(found["problem"])
    return Layer(str(found["suite"]), str(found["name"]), problem, _count("count", found["count"]))


def _pass(found: dict[str, Any]) -> PassResult:
    return PassResult(
        direction=str(found["direction"]),
        algorithm=_optional(_name, found["algorithm"]),
        timing=_seconds(found["samples_s"]) if found["samples_s"] else None,
        workspace_bytes=_count("workspace_bytes", found["workspace_bytes"]),
        error=_error(found["error"]),
        error_bound=_error(found["error_bound"]),
        why_not=_optional(str, found["why_not"]),
        failed=bool(found["failed"]),
    )


def _row(found: dict[str, Any]) -> Row:
    return Row(
        algorithm=str(found["algorithm"]),
        timing=_seconds(found["samples_s"]),
        workspace_bytes=_count("workspace_bytes", found["workspace_bytes"]),
        error=_error(found["error"]),
        error_bound=_error(found["error_bound"]),
        host_s=_optional(_time, found["host_s"]),
    )


def _peer(found: dict[str, Any]) -> PeerResult:
    timing = _seconds(found["samples_s"]) if found["samples_s"] else None
    error = _optional(_error, found["error"])
    return PeerResult(str(found["name"]), timing, error, _optional(str, found["why_not"]))


def _error(found: Any) -> float:
    """Not known, or not finite, where it is null."""
    return math.inf if found is None else strict_json.number("error", found, 0.0, 1e300)


def _reasons(found: list[dict[str, str]]) -> tuple[Rejection, ...]:
    return tuple(Rejection(str(r["algorithm"]), str(r["why_not"])) for r in found)


def _seconds(values: list[Any]) -> Timing:
    if not isinstance(values, list) or not values:
        raise ValueError(f"samples_s={strict_json.excerpt(values)} must be a list of seconds")
    return Timing(tuple(map(_time, values)))


def _time(value: Any) -> float:
    return strict_json.number("seconds", value, 1e-12, 1e9)


def _count(name: str, value: Any) -> int:
    return strict_json.count_of(name, value, 0, 1 << 60)


def _name(value: Any) -> str:
    return strict_json.text("the id of an algorithm", value, 200)


def _optional(read: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else read(value)
