"""What a bench finds out about layers, as data: to show (`convalgos.tools.report`) and to keep (`as_json`).

Of whole training steps (`convalgos.tools.bench.training`) it is the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from platform import python_version
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from convalgos.core.json_format import head
from convalgos.core.machine import Machine
from convalgos.core.problem import ConvProblem
from convalgos.gpu.device import GpuMachine
from convalgos.select.measure.table import Row, Table
from convalgos.select.measure.timing import Timing
from convalgos.tools.bench.recorded_machine import machine_figures
from convalgos.tools.bench.suites import Layer

DISTRIBUTIONS = {  # what `versions` calls a package -> the distributions that bring it
    "convalgos": ("convalgos",),
    "numpy": ("numpy",),
    "numba": ("numba",),
    "llvmlite": ("llvmlite",),
    "scipy": ("scipy",),
    "pyfftw": ("pyFFTW",),
    "mkl": ("mkl",),
    "torch": ("torch",),
    "onnx": ("onnx",),
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu"),
    "openvino": ("openvino",),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "cudnn-frontend": ("nvidia-cudnn-frontend",),
}


@dataclass(frozen=True)
class PeerResult:
    """A peer on a layer: its timing and error, or why there is none."""

    name: str
    timing: Timing | None
    error: float | None
    why_not: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "median_s": self.timing.median if self.timing else None,
            "samples_s": list(self.timing.samples) if self.timing else [],
            "error": self.error,
            "why_not": self.why_not,
        }


class Findings(Protocol):
    """What is found out about a layer by one measurement or another."""

    kind: ClassVar[str]  # of `json_format`

    @property
    def layer(self) -> Layer: ...

    def complaints(self) -> list[str]:
        """One line for everything that was wrong or failed, which nothing should."""

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`: null for what there is not, and for an error that is not finite."""


M = TypeVar("M", bound=Findings)


@dataclass(frozen=True)
class LayerResult:
    """All that was found out about a layer."""

    kind: ClassVar[str] = "bench"

    layer: Layer
    pick: str | None  # what algorithm="auto" takes by its estimate; None where nothing serves
    table: Table
    peers: tuple[PeerResult, ...]

    @property
    def problem(self) -> ConvProblem:
        return self.layer.problem

    @property
    def pick_row(self) -> Row | None:
        return next((row for row in self.table.rows if row.algorithm == self.pick), None)

    @property
    def wrong(self) -> tuple[Row, ...]:
        """Candidates whose error is over their own bound."""
        return tuple(row for row in self.table.rows if not row.error <= row.error_bound)

    @property
    def oracle(self) -> Row | None:
        """The fastest right candidate."""
        return next((row for row in self.table.rows if row not in self.wrong), None)

    @property
    def regret(self) -> float | None:
        """Time of the pick / time of the oracle; None where the pick failed or is wrong."""
        if self.pick_row is None or self.oracle is None or self.pick_row in self.wrong:
            return None
        return self.pick_row.median_s / self.oracle.median_s

    @property
    def seconds(self) -> float | None:
        """Median time of the pick."""
        return self.pick_row.median_s if self.pick_row else None

    def peer_seconds(self, name: str) -> float | None:
        """Median time of a peer."""
        return next((p.timing.median for p in self.peers if p.name == name and p.timing), None)

    def ratio(self, name: str) -> float | None:
        """Time of a peer / time of the pick: above 1 the pick is faster."""
        theirs = self.peer_seconds(name)
        return theirs / self.seconds if theirs and self.seconds else None

    def complaints(self) -> list[str]:
        """One line for every candidate that gave a wrong result or failed."""
        name, lines = self.layer.name, []
        for row in self.wrong:
            lines.append(over_bound(name, row.algorithm, row.error, row.error_bound))
        for failure in self.table.failed:
            lines.append(f"{name}: {failure.id} failed: {failure.why_not.splitlines()[0]}")
        return lines

    def as_json(self) -> dict[str, Any]:
        return layer_as_json(self.layer) | {
            "pick": self.pick,
            "oracle": self.oracle.algorithm if self.oracle else None,
            "regret": self.regret,
            "candidates": [
                {
                    "algorithm": row.algorithm,
                    "median_s": row.median_s,
                    "samples_s": list(row.samples_s),
                    "workspace_bytes": row.workspace_bytes,
                    "error": finite(row.error),
                    "error_bound": row.error_bound,
                    "host_s": row.host_s,
                }
                for row in self.table.rows
            ],
            "rejected": [{"algorithm": r.id, "why_not": r.why_not} for r in self.table.rejected],
            "failed": [{"algorithm": r.id, "why_not": r.why_not} for r in self.table.failed],
            "peers": [peer.as_json() for peer in self.peers],
        }


@dataclass
class Results(Generic[M]):
    """A bench as it grows."""

    command: str
    machine: Machine | GpuMachine
    versions: dict[str, str]
    skipped: dict[str, str] = field(default_factory=dict)  # node of the model -> why it is not a layer
    layers: list[M] = field(default_factory=list)
    started: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC")

    def complaints(self) -> list[str]:
        """Those of all layers."""
        return [line for result in self.layers for line in result.complaints()]


LayerResults = Results[LayerResult]


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of those that are there; None where none is."""
    logs = [math.log(v) for v in values if v]
    return math.exp(sum(logs) / len(logs)) if logs else None


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter here, of those installed; none is imported."""
    found = {"python": python_version()}
    for name, distributions in DISTRIBUTIONS.items():
        for distribution in distributions:
            try:
                found[name] = metadata.version(distribution)
                break
            except metadata.PackageNotFoundError:
                continue
    return found


# --- to keep ---------------------------------------------------------------------------------


def as_json(results: Results[Any]) -> dict[str, Any]:
    """All of it, for `json.dumps`: null for what there is not, and for an error that is not finite."""
    return head(results.layers[0].kind if results.layers else "bench") | {
        "command": results.command,
        "started": results.started,
        "machine": machine_figures(results.machine),
        "versions": results.versions,
        "skipped": [{"name": name, "why_not": why_not} for name, why_not in results.skipped.items()],
        "layers": [result.as_json() for result in results.layers],
    }


def layer_as_json(layer: Layer) -> dict[str, Any]:
    """What every measurement tells of a layer."""
    return {
        "suite": layer.suite,
        "name": layer.name,
        "count": layer.count,
        "problem": str(layer.problem),
        "flops": layer.problem.flops,
    }


def finite(error: float) -> float | None:
    """An error, or its bound, as JSON has it."""
    return error if math.isfinite(error) else None


def over_bound(layer: str, algorithm: str, error: float, bound: float) -> str:
    """The complaint about a wrong result."""
    return f"{layer}: {algorithm} has error {error:.1e}, over its bound {bound:.1e}"
