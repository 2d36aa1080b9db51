"""Recorded tables: the samples of every candidate on every layer, to evaluate selectors without the hardware.

`convalgos bench --json` writes them, with much else. The compact form has only what an evaluation needs, a
layer on each line. Both forms are read and checked here; wrong results are left out.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from convalgos.core import strict_json
from convalgos.core.json_format import FORMATS, load, reading
from convalgos.core.machine import Machine
from convalgos.core.problem import ConvProblem
from convalgos.gpu.device import GpuMachine
from convalgos.select.measured import Measured
from convalgos.tools.bench.recorded_machine import read_machine

DIGITS = 4  # of a sample in the compact form


@dataclass(frozen=True)
class RecordedLayer:
    """One layer, and the samples of every candidate that gave a right result on it."""

    suite: str
    name: str
    problem: ConvProblem
    count: int  # how often its network has it
    times: dict[str, Measured]  # id -> samples


@dataclass(frozen=True)
class Recorded:
    """The tables of one machine, or of one GPU."""

    machine: Machine | GpuMachine
    versions: dict[str, str]
    layers: tuple[RecordedLayer, ...]


def read_table_file(path: str | Path) -> Recorded:
    """A table in either form.

    Raises:
        ValueError: says what is wrong, and where. OSError: the file cannot be read.
    """
    found = load(path, "bench", "gpu_check", "selector_table")
    with reading(path):
        machine = read_machine(found["machine"])
        layers = tuple(_layer(layer) for layer in found["layers"])
        versions = {str(k): str(v) for k, v in found.get("versions", {}).items()}
    return Recorded(machine, versions, layers)


def compact_text(table: Recorded) -> str:
    """The compact form: sorted, with a line for every layer, so that it can be kept in git."""
    lines = [
        json.dumps(
            {
                "suite": layer.suite,
                "name": layer.name,
                "count": layer.count,
                "problem": str(layer.problem),
                "samples_us": {
                    name: [float(f"{s * 1e6:.{DIGITS}g}") for s in layer.times[name].samples_s]
                    for name in sorted(layer.times)
                },
            }
        )
        for layer in table.layers
    ]
    version = FORMATS["selector_table"]
    head = json.dumps({"format": version, "machine": asdict(table.machine), "versions": table.versions})
    return f'{head[:-1]}, "layers": [\n' + ",\n".join(lines) + "\n]}\n"


def _layer(found: dict[str, Any]) -> RecordedLayer:
    if "samples_us" in found:
        samples = {name: [s * 1e-6 for s in values] for name, values in found["samples_us"].items()}
    else:
        samples = {
            c["algorithm"]: c["samples_s"]
            for c in found["candidates"]
            if c["error"] is not None and c["error"] <= c["error_bound"]
        }
    for name, values in samples.items():
        if not values or not all(isinstance(s, float) and 0 < s < 1e6 for s in values):
            raise ValueError(f"layer {found['name']}: {name} has samples that are no seconds")
    return RecordedLayer(
        suite=str(found["suite"]),
        name=str(found["name"]),
        problem=ConvProblem.parse(found["problem"]),
        count=strict_json.count_of("count", found["count"], 0, 1 << 60),
        times={name: Measured(tuple(values)) for name, values in samples.items()},
    )
