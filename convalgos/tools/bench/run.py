"""The main job: every algorithm on every layer, the pick, the oracle and the peers, as data.

`read_target` turns what the user names into layers, `run_layer` measures one of them, and `Results` is what
there is to show (`convalgos.tools.report.terminal`) and to keep (`as_json`). Of whole training steps
(`convalgos.tools.bench.training`) it is the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from convalgos.core.arrays import host_array
from convalgos.core.json_format import head
from convalgos.core.machine import Machine
from convalgos.core.near_names import did_you_mean
from convalgos.core.problem import ConvProblem
from convalgos.gpu.device import GpuMachine
from convalgos.measure import capture
from convalgos.measure import timing as measure_timing
from convalgos.measure.accuracy import AccuracyCheck
from convalgos.measure.backends import Backend, backend
from convalgos.measure.timing import Row, Table, Timing
from convalgos.select import choose, devices
from convalgos.select.ranking import Ranking
from convalgos.tools.bench.onnx_model import read_model
from convalgos.tools.bench.peers import Peer
from convalgos.tools.bench.suites import Layer, names, read_table, suite, suites

SUFFIXES = (".csv", ".onnx", ".txt")  # of files that `read_target` reads
PEER_ERROR = 1e-2  # a peer further off than this did not compute the same problem
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


class Measured(Protocol):
    """What is found out about a layer by one measurement or another."""

    kind: ClassVar[str]  # of `json_format`

    @property
    def layer(self) -> Layer: ...

    def complaints(self) -> list[str]:
        """One line for everything that was wrong or failed, which nothing should."""

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`: null for what there is not, and for an error that is not finite."""


M = TypeVar("M", bound=Measured)


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


# --- what to measure -------------------------------------------------------------------------


def read_target(target: str, batch: int | None = None) -> tuple[tuple[Layer, ...], dict[str, str]]:
    """The layers of a suite, table, model, capture or problem, and the nodes of a model that are skipped.

    Args:
        target: "all" (but convbench), the name of a suite, a path that ends in .csv, .onnx or .txt (see
            `recorder`), or the text of a problem.
        batch: the size of the batch dimension, in place of what the target says.

    Raises:
        ValueError: says what is wrong, and where. Unsupported: onnx is not installed. OSError: no such file.
    """
    skipped: dict[str, str] = {}
    suffix = Path(target).suffix.lower()
    if target == "all":
        layers = tuple(layer for found in suites().values() for layer in found)
    elif target in names():
        layers = suite(target)
    elif suffix == ".csv":
        layers = read_table(Path(target))
    elif suffix == ".onnx":
        return read_model(Path(target), batch)
    elif suffix == ".txt":
        layers = tuple(
            Layer("", f"captured_{i}", problem, count)
            for i, (problem, count) in enumerate(capture.read(target).most_common(), 1)
        )
    elif " " in target:
        layers = (Layer("", "problem", ConvProblem.parse(target)),)
    else:
        hint = did_you_mean(target, ["all", *names()]) or "; convalgos suites lists the suites"
        raise ValueError(
            f"{target!r} is not a suite, a .csv, .onnx or .txt file, or a problem like "
            f"'c64 h56 w56 k64 r3 s3 p1'{hint}"
        )
    if batch is not None:
        layers = tuple(
            Layer(la.suite, la.name, la.problem.replace(x_shape=(batch, *la.problem.x_shape[1:])), la.count)
            for la in layers
        )
    return layers, skipped


def changed(
    layers: Iterable[Layer],
    *,
    dtype: str | None = None,
    compute_dtype: str | None = None,
    layout: str | None = None,
    direction: str | None = None,
) -> tuple[Layer, ...]:
    """The layers with what is not None changed; another dtype is computed in what is usual for it."""
    changes: dict[str, Any] = {"layout": layout, "direction": direction}
    changes = {name: value for name, value in changes.items() if value}
    if dtype or compute_dtype:
        changes["compute_dtype"] = compute_dtype
    if dtype:
        changes["dtype"] = dtype
    return tuple(Layer(la.suite, la.name, la.problem.replace(**changes), la.count) for la in layers)


# --- measuring -------------------------------------------------------------------------------


def run_layer(
    layer: Layer,
    peers: Sequence[Peer] = (),
    *,
    only: Iterable[str] = (),
    rounds: int = 3,
    device: str = "cpu",
    progress: measure_timing.Progress = measure_timing.silent,
) -> LayerResult:
    """Time and check every candidate and peer on a layer, in the same rounds.

    Args:
        only: ids of algorithms; all candidates when empty. The pick is then the best guess among them.
        device: of the candidates, and of the peers.
        rounds, progress: see `measure.table`.
    """
    problem = layer.problem
    ranking = choose.rank(problem, device)
    if only := set(only):
        ranking = Ranking(
            problem,
            tuple(c for c in ranking.candidates if c.id in only),
            tuple(r for r in ranking.rejected if r.id in only),
        )
    check = AccuracyCheck(problem, backend(device))
    calls: dict[str, Callable[[], object]] = {}
    found: dict[str, PeerResult] = {}
    for peer in peers if ranking.candidates else ():
        progress(peer.name, 0.0)
        found[peer.name], call = _try_peer(peer, check)
        if call:
            calls[peer.name] = call
    table = measure_timing.table(ranking, rounds=rounds, check=check, others=calls, progress=progress)
    for name, timing in table.others.items():
        found[name] = PeerResult(name, timing, found[name].error)
    pick = ranking.candidates[0].id if ranking.candidates else None
    return LayerResult(layer, pick, table, tuple(found.values()))


def _try_peer(peer: Peer, check: AccuracyCheck) -> tuple[PeerResult, Callable[[], object] | None]:
    """What a first call tells of a peer, with the call to time; see `try_call`."""
    if reason := peer.why_not(check.problem):
        return PeerResult(peer.name, None, None, reason), None
    threads = peer_threads(check.backend)
    return try_call(peer.name, lambda: peer.call(check.problem, check.x, check.w, threads), check)


def peer_threads(where: Backend) -> int:
    """How many threads a peer may have."""
    return devices.current_machine().threads if where.name == "cpu" else 1


def try_call(
    name: str, build: Callable[[], Callable[[], Any]], *checks: AccuracyCheck
) -> tuple[PeerResult, Callable[[], object] | None]:
    """What a first call of a peer tells, with the call to time where it was not so long that it will do.

    Args:
        build: makes the call, which returns a result for each check, channels first; of several a tuple.
    """
    try:
        with checks[0].backend.working():
            call = build()
        start = time.perf_counter()
        given = call()
        results = [host_array(result) for result in (given if isinstance(given, tuple) else (given,))]
        took = time.perf_counter() - start
    except Exception as failure:  # of another library: whatever it raises, our bench goes on
        return PeerResult(name, None, None, f"{type(failure).__name__}: {failure}"), None
    errors = [_error_of_peer(check, result) for check, result in zip(checks, results, strict=True)]
    error = max(errors)
    if not error <= PEER_ERROR:
        return PeerResult(name, None, None, f"its result is {error:.1e} off"), None
    if took > measure_timing.SINGLE_CALL:
        return PeerResult(name, Timing((took,)), error), None
    return PeerResult(name, None, error), call


def _error_of_peer(check: AccuracyCheck, result: np.ndarray) -> float:
    """`AccuracyCheck.error` of an array that has its channels first."""
    if check.problem.layout == "channels_last" and check.problem.arrays[2] != "dw":
        result = np.moveaxis(result, 1, -1)
    return check.error(result)


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
        "machine": asdict(results.machine),
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
