"""Recorded tables: the samples of every candidate on every layer, to evaluate selectors without the hardware.

`convalgos bench --json` writes them, with much else. The compact form, which `convalgos record` writes, has
only what an evaluation needs, a layer on each line. Both forms are read and checked here; wrong results are
left out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from convalgos.core import strict_json
from convalgos.core.json_format import FORMATS, load, reading
from convalgos.core.machine import Machine
from convalgos.core.problem import ConvProblem
from convalgos.gpu.device import GpuMachine
from convalgos.select.measured import Measured
from convalgos.tools.bench.recorded_machine import machine_figures, read_machine

DIGITS = 4  # of a sample in the compact form


@dataclass(frozen=True)
class RecordedLayer:
    """One layer, and the samples of every candidate that gave a right result on it."""

    suite: str
    name: str
    problem: ConvProblem
    count: int  # how often its network has it
    times: dict[str, Measured]  # id -> samples, which alternate between two halves of the rounds
    stopped: tuple[str, ...] = ()  # of these: slow when first run, and not timed again
    disturbed: tuple[str, ...] = ()  # of these: other programs ran meanwhile, again and again
    hopeless: tuple[str, ...] = ()  # not run, as predicted
    failed: dict[str, str] = field(default_factory=dict)  # id -> what it raised, or how wrong it was
    peers: dict[str, Measured] = field(default_factory=dict)  # library -> samples, in the same rounds


@dataclass(frozen=True)
class Recorded:
    """The tables of one machine, or of one GPU."""

    machine: Machine | GpuMachine
    versions: dict[str, str]
    layers: tuple[RecordedLayer, ...]
    protocol: dict[str, Any] = field(default_factory=dict)  # how it was recorded, where that is told


def read_table_file(path: str | Path) -> Recorded:
    """A table in either form.

    Raises:
        ValueError: says what is wrong, and where. OSError: the file cannot be read.
    """
    found = load(path, "bench", "gpu_check", "selector_table")
    with reading(path):
        return replace(read_head(found), layers=tuple(map(read_layer, found["layers"])))


def read_head(found: dict[str, Any]) -> Recorded:
    """All of a table but its layers.

    Raises:
        ValueError, KeyError, TypeError: something is wrong with it.
    """
    versions = {str(k): str(v) for k, v in found.get("versions", {}).items()}
    return Recorded(read_machine(found["machine"]), versions, (), dict(found.get("protocol", {})))


def read_layer(found: dict[str, Any]) -> RecordedLayer:
    """A layer of either form; errors as of `read_head`."""
    layer = RecordedLayer(
        suite=str(found["suite"]),
        name=str(found["name"]),
        problem=ConvProblem.parse(found["problem"]),
        count=strict_json.count_of("count", found["count"], 0, 1 << 60),
        times={},
    )
    if "samples_us" not in found:
        right = (c for c in found["candidates"] if c["error"] is not None and c["error"] <= c["error_bound"])
        return replace(layer, times=_measured(layer, {c["algorithm"]: c["samples_s"] for c in right}))
    return replace(
        layer,
        times=_measured(layer, found["samples_us"], 1e-6),
        stopped=_ids(found, "stopped"),
        disturbed=_ids(found, "disturbed"),
        hopeless=_ids(found, "hopeless"),
        failed={str(k): str(v) for k, v in found.get("failed", {}).items()},
        peers=_measured(layer, found.get("peers_us", {}), 1e-6),
    )


def compact_text(table: Recorded) -> str:
    """The compact form: sorted, with a line for every layer, so that it can be kept in git."""
    lines = [json.dumps(layer_json(layer)) for layer in table.layers]
    head = json.dumps(head_json(table))
    return f'{head[:-1]}, "layers": [\n' + ",\n".join(lines) + "\n]}\n"


def head_json(table: Recorded) -> dict[str, Any]:
    """All of the compact form but its layers."""
    found = {
        "format": FORMATS["selector_table"],
        "machine": machine_figures(table.machine),
        "versions": table.versions,
    }
    return found | ({"protocol": table.protocol} if table.protocol else {})


def layer_json(layer: RecordedLayer) -> dict[str, Any]:
    """A layer of the compact form; what there is none of is left out."""
    marks = {
        "stopped": sorted(layer.stopped),
        "disturbed": sorted(layer.disturbed),
        "hopeless": sorted(layer.hopeless),
        "failed": layer.failed,
        "peers_us": _rounded(layer.peers),
    }
    return {
        "suite": layer.suite,
        "name": layer.name,
        "count": layer.count,
        "problem": str(layer.problem),
        "samples_us": _rounded(layer.times),
    } | {name: value for name, value in marks.items() if value}


def _rounded(times: dict[str, Measured]) -> dict[str, list[float]]:
    return {name: [float(f"{s * 1e6:.{DIGITS}g}") for s in times[name].samples_s] for name in sorted(times)}


def _measured(layer: RecordedLayer, samples: dict[str, Any], unit: float = 1.0) -> dict[str, Measured]:
    """Samples in seconds of those in some unit, which are checked."""
    found = {str(name): tuple(s * unit for s in values) for name, values in samples.items()}
    for name, values in found.items():
        if not values or not all(isinstance(s, float) and 0 < s < 1e6 for s in values):
            raise ValueError(f"layer {layer.name}: {name} has samples that are no seconds")
    return {name: Measured(values) for name, values in found.items()}


def _ids(found: dict[str, Any], field_name: str) -> tuple[str, ...]:
    ids = found.get(field_name, [])
    if not isinstance(ids, list):
        raise TypeError(f"{field_name}={strict_json.excerpt(ids)} must be a list of ids")
    return tuple(strict_json.text("the id of an algorithm", i, 200) for i in ids)
