"""How good a selector is on recorded tables: its regret on each layer, and over all.

The fastest candidate is found by one half of a layer's samples; it and the pick are compared by the other
half, and then the other way round: a candidate that was fastest by luck does not win twice. A pick that
cannot be told from the fastest is right. A ranker that learns (it has a method `fit`) is never fitted to the
network, or the machine, on which it is evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from convalgos.core.machine import Machine
from convalgos.core.problem import ConvProblem
from convalgos.gpu import device as gpu
from convalgos.gpu.device.offline import OfflineDevice
from convalgos.select import choose
from convalgos.select.measured import Measured
from convalgos.select.ranker import predict
from convalgos.select.ranking import Candidate
from convalgos.tools.evaluate import other_machine
from convalgos.tools.evaluate.recorded_tables import Recorded, RecordedLayer

HELD_OUT = ("network", "machine")


@dataclass(frozen=True)
class MeasuredLayer:
    """A layer as a ranker sees it: only candidates that were measured, and that this version has."""

    layer: RecordedLayer
    machine: Any  # `Machine`, or `GpuMachine`
    candidates: tuple[Candidate, ...]
    unmeasured: tuple[str, ...]  # candidates that the table does not have

    @property
    def group(self) -> str:
        """Its network."""
        return self.layer.suite or self.layer.name

    def seconds(self, algorithm: str) -> float:
        return self.layer.times[algorithm].median_s

    @cached_property
    def halves(self) -> tuple[dict[str, float], dict[str, float]]:
        """Median seconds of each candidate on the even samples, and on the odd ones."""

        def median(samples: Sequence[float], first: int) -> float:
            return float(np.median(samples[first::2] or samples))

        times = {c.id: self.layer.times[c.id].samples_s for c in self.candidates}
        return {i: median(s, 0) for i, s in times.items()}, {i: median(s, 1) for i, s in times.items()}

    @cached_property
    def oracle(self) -> str:
        """The fastest by all samples."""
        return min(self.candidates, key=lambda c: (self.seconds(c.id), c.id)).id

    def regret(self, algorithm: str) -> float:
        """Time of a candidate / time of the fastest, which is chosen on other samples than these."""
        logs = [
            math.log(scored[algorithm] / scored[min(chosen, key=lambda i: chosen[i])])
            for chosen, scored in (self.halves, self.halves[::-1])
        ]
        return math.exp(sum(logs) / 2)


@dataclass(frozen=True)
class PickRegret:
    """One pick."""

    case: MeasuredLayer
    pick: str
    regret: float
    right: bool  # the fastest, or not to be told from it

    @property
    def lost_s(self) -> float:
        """Seconds that the network loses by this pick."""
        return (self.case.seconds(self.pick) - self.case.seconds(self.case.oracle)) * self.case.layer.count


@dataclass(frozen=True)
class Evaluation:
    """All picks of one selector. Regret is the time of the pick over that of the fastest."""

    selector: str
    judged: tuple[PickRegret, ...]

    @cached_property
    def regrets(self) -> np.ndarray:
        """(layers,)"""
        return np.array([j.regret for j in self.judged])

    @property
    def mean(self) -> float:
        """Geometric mean of the regret."""
        return float(np.exp(np.log(self.regrets).mean()))

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.regrets, share))

    def within(self, factor: float) -> float:
        """Share of the layers whose regret is at most this."""
        return float((self.regrets <= factor).mean())

    @property
    def right(self) -> float:
        """Share of the picks that are the fastest, ties counted."""
        return sum(j.right for j in self.judged) / len(self.judged)

    @property
    def lost_s(self) -> float:
        return sum(j.lost_s for j in self.judged)

    def gap_closed(self, single: Evaluation) -> float:
        """Of the distance from the single best algorithm (0) to the fastest on each layer (1)."""
        return 1 - math.log(self.mean) / math.log(single.mean) if single.mean > 1 else 1.0

    def by_group(self) -> dict[str, Evaluation]:
        """Of each network."""
        groups: dict[str, list[PickRegret]] = {}
        for j in self.judged:
            groups.setdefault(j.case.group, []).append(j)
        return {name: Evaluation(self.selector, tuple(found)) for name, found in groups.items()}


@dataclass(frozen=True)
class ModelError:
    """How far the predictions of a family are off what was measured."""

    family: str
    count: int
    bias: float  # geometric mean of predicted / measured
    scatter: float  # typical factor around that: exp of the standard deviation of the logarithm


def measured_layers(tables: Iterable[Recorded]) -> list[MeasuredLayer]:
    """The layers of some tables, as a ranker sees them. Layers without candidates are left out."""
    found = []
    for table in tables:
        seen = _candidates([layer.problem for layer in table.layers], table.machine)
        for layer, candidates in zip(table.layers, seen, strict=True):
            there = tuple(c for c in candidates if c.id in layer.times)
            absent = tuple(c.id for c in candidates if c.id not in layer.times)
            if there:
                found.append(MeasuredLayer(layer, table.machine, there, absent))
    return found


def _candidates(problems: list[ConvProblem], machine: Any) -> list[list[Candidate]]:
    """Of each problem, as on the machine of the table, which may be one that is not at hand."""
    if isinstance(machine, Machine):
        return other_machine.survey_there(problems, machine)
    with gpu.use(OfflineDevice(machine)) as device:
        return [choose.survey(problem, device.name, machine)[0] for problem in problems]


def evaluate(
    name: str, ranker: Any, found: Sequence[MeasuredLayer], *, held_out: str = "network"
) -> Evaluation:
    """Judge a ranker. One with a method `fit(cases) -> ranker` is fitted anew for each part that is held out.

    Args:
        held_out: "network" (on all machines) or "machine" (with all networks).

    Raises:
        ValueError: there is no case, or no machine to learn from, or the ranker does not give a time for each
            candidate.
    """
    if not found:
        raise ValueError("the tables have no layer with a candidate of this version")
    if held_out not in HELD_OUT:
        raise ValueError(f"held_out={held_out!r} must be one of {', '.join(map(repr, HELD_OUT))}")
    parts = [c.group if held_out == "network" else c.machine for c in found]
    if held_out == "machine" and len(set(parts)) < 2:
        raise ValueError("held_out='machine' needs the tables of two machines")
    fitted = {part: _fitted(ranker, found, parts, part) for part in dict.fromkeys(parts)}
    judged = []
    for case, part in zip(found, parts, strict=True):
        seconds = predict(fitted[part], case.layer.problem, case.candidates, case.machine)
        ranked = sorted(zip(seconds, [c.id for c in case.candidates], strict=True))
        judged.append(_judge(case, ranked[0][1]))
    return Evaluation(name, tuple(judged))


def single_best(found: Sequence[MeasuredLayer]) -> Evaluation:
    """The best that one algorithm does on all layers; where it was not measured, the slowest stands in."""

    def available_pick(case: MeasuredLayer, name: str) -> str:
        if any(c.id == name for c in case.candidates):
            return name
        return max(case.candidates, key=lambda c: (case.seconds(c.id), c.id)).id

    names = sorted({c.id for case in found for c in case.candidates})
    tried = [Evaluation(i, tuple(_judge(case, available_pick(case, i)) for case in found)) for i in names]
    return min(tried, key=lambda e: e.mean)


def model_errors(found: Sequence[MeasuredLayer]) -> list[ModelError]:
    """The error of each family's cost model, over all candidates that took at most 3 times the fastest."""
    logs: dict[str, list[float]] = {}
    for case in found:
        limit = 3 * case.seconds(case.oracle)
        for c in case.candidates:
            if c.predicted_s and case.seconds(c.id) <= limit:
                logs.setdefault(c.algorithm.family, []).append(math.log(c.predicted_s / case.seconds(c.id)))
    return [
        ModelError(family, len(v), math.exp(float(np.mean(v))), math.exp(float(np.std(v))))
        for family, v in sorted(logs.items())
    ]


def _fitted(ranker: Any, found: Sequence[MeasuredLayer], parts: Sequence[Any], held_out: Any) -> Any:
    if not hasattr(ranker, "fit"):
        return ranker
    return ranker.fit([case for case, part in zip(found, parts, strict=True) if part != held_out])


def _judge(case: MeasuredLayer, pick: str) -> PickRegret:
    fastest: Measured = case.layer.times[case.oracle]
    right = pick == case.oracle or case.layer.times[pick].ties(fastest)
    return PickRegret(case, pick, case.regret(pick), right)
