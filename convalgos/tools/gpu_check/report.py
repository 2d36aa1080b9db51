"""What a check has found, as a JSON file and as a table for people.

The timed layers are in the form of `convalgos bench --json`: `convalgos select evaluate` reads them and tells
how far each cost model is off.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from convalgos.core.cache_files import write_atomic
from convalgos.core.json_format import head
from convalgos.gpu.device import GpuMachine
from convalgos.tools.gpu_check.probe import Answered
from convalgos.tools.gpu_check.results import OutOfTime, Result
from convalgos.tools.gpu_check.targets import Reached, once_measured, ours, picked, targets_reached
from convalgos.tools.gpu_check.timing import Ceiling, HostTime, LayerTimes, Timed

LAYERS = (
    "| problem | pick | us | fastest of ours | us | baseline | us | baseline / pick | baseline / fastest |"
)
MODELS = "| layers | predicted / measured | scatter |"


@dataclass
class Report:
    """A check as it grows."""

    command: str
    figures: GpuMachine
    versions: dict[str, str]
    phases: dict[str, str] = field(
        default_factory=dict
    )  # what was done -> how long it took, and if it was cut
    unfinished: list[str] = field(default_factory=list)  # phases that were cut
    results: list[Result] = field(default_factory=list)
    layers: list[LayerTimes] = field(default_factory=list)
    signals: list[LayerTimes] = field(default_factory=list)
    calls: list[HostTime] = field(default_factory=list)
    ceilings: list[Ceiling] = field(default_factory=list)
    answers: list[Answered] = field(default_factory=list)
    barred: list[str] = field(default_factory=list)  # algorithms that took processes down, in words
    notes: list[str] = field(default_factory=list)  # on how the check went
    wrong: list[Result] = field(default_factory=list, init=False)  # of the results
    _lines: dict[str, list[str]] = field(init=False)  # of JSON, for what there is much of
    _errors: dict[tuple[str, str], Result] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._lines = {"layers": [], "signals": [], "checks": []}
        given = [*self.results, *self.layers, *self.signals]
        self.results, self.layers, self.signals = [], [], []
        for found in given:
            self.add("", found)

    def add(self, phase: str, found: Any) -> None:
        """Anything that a job yields."""
        if isinstance(found, Result):
            self.results.append(found)
            self._lines["checks"].append(json.dumps(found.as_json()))
            if found.what == "y":
                self._errors[found.problem, found.algorithm] = found
            if found.wrong:
                self.wrong.append(found)
        elif isinstance(found, Answered):
            self.answers.append(found)
        elif isinstance(found, LayerTimes):
            signal = found.case.suite == "causal"
            (self.signals if signal else self.layers).append(found)
            self._lines["signals" if signal else "layers"].append(json.dumps(self._layer(found)))
        elif isinstance(found, HostTime):
            self.calls.append(found)
        elif isinstance(found, Ceiling):
            self.ceilings.append(found)
        elif isinstance(found, OutOfTime):
            told = f"cut, {found.left} problems left" if found.left else "cut"
            self.phases[phase] = f"{told} while {found.running}" if found.running else told
            self.unfinished.append(phase)

    def targets(self) -> list[Reached]:
        return targets_reached(self._right(self.layers), self._right(self.signals), self.calls, self.ceilings)

    def _right(self, timed: Sequence[LayerTimes]) -> list[LayerTimes]:
        """Without the algorithms whose result on the layer is wrong: their times mean nothing."""
        wrong = {(r.problem, r.algorithm) for r in self.wrong}
        if not wrong:
            return [*timed]
        return [
            replace(la, rows=tuple(r for r in la.rows if (str(la.case.problem), r.algorithm) not in wrong))
            for la in timed
        ]

    def write(self, folder: Path) -> Path:
        """The table; the JSON lies beside it. Both are replaced whole."""
        stem = folder / self.figures.fingerprint
        write_atomic(stem.with_suffix(".json"), self.text())
        write_atomic(stem.with_suffix(".md"), self.table())
        return stem.with_suffix(".md")

    # --- JSON ------------------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        found: dict[str, Any] = json.loads(self.text())
        return found

    def text(self) -> str:
        """JSON with a line for each item of the lists in it, to be read and kept in git."""
        record = head("gpu_check") | {
            "command": self.command,
            "machine": asdict(self.figures),
            "versions": self.versions,
            "phases": self.phases,
            "notes": self.notes,
            "barred": self.barred,
            "driver": [asdict(a) for a in self.answers],
            "wrong": [str(r) for r in self.wrong],
            "targets": [asdict(t) | {"met": t.met} for t in self.targets()],
            "ceilings": {c.name: c.value for c in self.ceilings},
            "calls": [asdict(c) for c in self.calls],
        }
        parts = [
            f" {json.dumps(name)}: {_in_lines(map(json.dumps, v)) if isinstance(v, list) else json.dumps(v)}"
            for name, v in record.items()
        ]
        parts += [f' "{name}": {_in_lines(lines)}' for name, lines in self._lines.items()]
        return "{\n" + ",\n".join(parts) + "\n}\n"

    def _layer(self, layer: LayerTimes) -> dict[str, Any]:
        case, problem = layer.case, str(layer.case.problem)
        candidates = [
            {
                "algorithm": row.algorithm,
                "median_s": row.median_s,
                "samples_s": list(row.samples_s),
                "host_s": row.host_s,
                "predicted_s": row.predicted_s,
                "workspace_bytes": row.workspace_bytes,
                "error": _error(self._errors.get((problem, row.algorithm))),
                "error_bound": row.error_bound,
            }
            for row in layer.rows
        ]
        found = {
            "suite": case.suite,
            "name": case.name,
            "count": case.count,
            "problem": problem,
            "flops": case.problem.flops,
            "pick": layer.pick,
            "baseline": layer.baseline and layer.baseline._asdict(),
            "candidates": candidates,
        }
        return found | {"others_s": layer.others} if layer.others else found

    # --- the table -------------------------------------------------------------------------------

    def table(self) -> str:
        algorithms = {r.algorithm for r in self.results if r.what == "y"}
        forward = [la for la in self.layers if la.case.problem.direction == "forward"]
        gradients = [la for la in self.layers if la.case.problem.direction != "forward"]
        lines = [
            f"# {self.figures.name}, {self.figures.arch}",
            "",
            f"`{self.command}`",
            "",
            f"{len(self.results)} checks of {len(algorithms)} algorithms, **{len(self.wrong)} wrong**.",
            "",
            *(f"- WRONG: {r}" for r in self.wrong),
            *(f"- BARRED: {text}" for text in self.barred),
            *(f"- {text}" for text in self.notes),
            "",
            *_rows(
                "| target | aim | reached | layers | beside | furthest behind |",
                [
                    (t.what, aim(t), reached(t), str(t.count), t.beside, t.least.replace("|", "/"))
                    for t in self.targets()
                ],
            ),
            "Ratios are the time of the baseline for the same problem and layout over ours, by events",
            "of the GPU, with what fits into L2 still there; geometric means. The baseline is cuDNN's best",
            "plan through its front end, else what torch makes of it, else what was recorded. A pick is what",
            '`algorithm="auto"` takes without having measured anything.',
            "",
            *_rows("| question to the driver | answer |", [(a.question, a.answer) for a in self.answers]),
            *_rows("| ceiling | reached |", [(c.name, f"{c.value:.3e}") for c in self.ceilings]),
            *_rows(
                "| call | algorithm | host us | captured us |",
                [(f"`{c.problem}`", c.algorithm, _us(c.call_s), _us(c.captured_s)) for c in self.calls],
            ),
            *_rows(
                "| signal | pick | us | others |",
                [(f"`{la.case.problem}`", *_one(la.picked), _others(la)) for la in self._right(self.signals)],
            ),
            *_timed("layer", self._right(forward)),
            *_timed("gradient", self._right(gradients)),
            *_rows("| phase | |", list(self.phases.items())),
            "",
            ", ".join(f"{name} {version}" for name, version in self.versions.items()),
        ]
        return "\n".join(lines) + "\n"


def _in_lines(items: Iterable[str]) -> str:
    text = ",\n  ".join(items)
    return f"[\n  {text}\n ]" if text else "[]"


def _error(result: Result | None) -> float | None:
    """None for what was not checked, and for what is not finite."""
    known = result is not None and result.error is not None and math.isfinite(result.error)
    return result.error if known and result is not None else None


def _rows(head: str, rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A table with an empty line behind it; none where there is nothing to show."""
    if not rows:
        return []
    bars = "|" + " --- |" * (head.count("|") - 1)
    return [head, bars, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _timed(what: str, layers: Sequence[LayerTimes]) -> list[str]:
    """The times of forward passes or of gradients, and how far the cost models are off on them."""
    return [
        *_rows(f"| {what} {LAYERS}", [_layer_row(la) for la in layers]),
        *_rows(f"| algorithm of a {what} {MODELS}", _models(layers)),
    ]


def _layer_row(layer: LayerTimes) -> tuple[str, ...]:
    case, peer = layer.case, layer.baseline
    ratios = [
        f"{peer.seconds / row.median_s:.2f}" if row and peer else ""
        for row in (picked(layer), once_measured(layer))
    ]
    return (
        case.title, f"`{case.problem}`", *_one(picked(layer)), *_one(ours(layer)),
        *((peer.name, _us(peer.seconds)) if peer else ("", "")), *ratios,
    )  # fmt: skip


def _one(row: Timed | None) -> tuple[str, str]:
    return ("", "") if row is None else (row.algorithm, _us(row.median_s))


def _others(layer: LayerTimes) -> str:
    pick = layer.picked
    return ", ".join(
        f"{name} {s * 1e6:.1f} us" + (f" ({s / pick.median_s:.2f}x)" if pick else "")
        for name, s in layer.others.items()
    )


def _models(layers: Sequence[LayerTimes]) -> list[tuple[str, ...]]:
    """How far the cost model of each algorithm is off, as `convalgos select evaluate` tells by family."""
    logs: dict[str, list[float]] = {}
    for row in (row for la in layers for row in la.rows):
        if row.predicted_s > 0:
            logs.setdefault(row.algorithm, []).append(math.log(row.predicted_s / row.median_s))
    found: list[tuple[str, ...]] = []
    for name, values in sorted(logs.items()):
        mean = sum(values) / len(values)
        scatter = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))
        found.append((name, str(len(values)), f"{math.exp(mean):.2f}", f"{math.exp(scatter):.2f}"))
    return found


def aim(t: Reached) -> str:
    return f"{'<=' if t.at_most else '>='} {t.target:g}{t.unit}"


def reached(t: Reached) -> str:
    if t.reached is None:
        return "not timed"
    return f"{t.reached:.2f}{t.unit}{'' if t.met else ' (not met)'}"


def _us(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:.1f}"
