"""How good a selector is on recorded tables: its regret on each layer, and over all.

The fastest candidate is found by one half of a layer's samples; it and the pick are compared by the other
half, and then the other way round: a candidate that was fastest by luck does not win twice. A pick that
cannot be told from the fastest is right. A ranker that learns (it has a method `fit`) is never fitted to the
part of the layers, as their network, on which it is evaluated.

What is timed is the time of the pick over the least in the same samples, which is often that of a candidate
that had luck. The noise floor is the same for the candidate that the other samples found to be the fastest.
Regret is the one over the other: what is left when the noise is taken away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
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
from convalgos.tools.evaluate.noise import Halves, halves_of, noise_floor, timed_regret
from convalgos.tools.evaluate.recorded_tables import Recorded, RecordedLayer
from convalgos.tools.evaluate.splits import network_of, parts_of
from convalgos.tools.report.kinds import layer_kind


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
        return network_of(self.layer)

    @cached_property
    def kind(self) -> str:
        """What networks call such a layer."""
        return layer_kind(self.layer.problem)

    def seconds(self, algorithm: str) -> float:
        return self.layer.times[algorithm].median_s

    @cached_property
    def halves(self) -> Halves:
        """Median seconds of each candidate on the even samples, and on the odd ones."""
        return halves_of(self.layer.times, (c.id for c in self.candidates))

    @cached_property
    def oracle(self) -> str:
        """The fastest by all samples."""
        return min(self.candidates, key=lambda c: (self.seconds(c.id), c.id)).id

    def regret(self, algorithm: str) -> float:
        """Time of a candidate / time of the fastest, which is chosen on other samples than these."""
        return timed_regret(self.halves, algorithm) / self.noise_floor

    @cached_property
    def noise_floor(self) -> float:
        """What is noise of the regret that is timed."""
        return noise_floor(self.halves)


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
    held_out: str = ""  # what it had not learned from, if it learns

    @property
    def name(self) -> str:
        """For a table."""
        return f"{self.selector}, {self.held_out} held out" if self.held_out else self.selector

    @cached_property
    def regrets(self) -> np.ndarray:
        """(layers,)"""
        return np.array([j.regret for j in self.judged])

    @cached_property
    def timed(self) -> np.ndarray:
        """(layers,) Time of each pick / the least time in the same samples."""
        return np.array([timed_regret(j.case.halves, j.pick) for j in self.judged])

    @cached_property
    def floors(self) -> np.ndarray:
        """(layers,) Noise floors."""
        return np.array([j.case.noise_floor for j in self.judged])

    @property
    def mean(self) -> float:
        """Geometric mean of the regret."""
        return geometric(self.regrets)

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
        return self._by(lambda case: case.group)

    def by_kind(self) -> dict[str, Evaluation]:
        """Of each kind of layers."""
        return self._by(lambda case: case.kind)

    def _by(self, key: Callable[[MeasuredLayer], str]) -> dict[str, Evaluation]:
        groups: dict[str, list[PickRegret]] = {}
        for j in self.judged:
            groups.setdefault(key(j.case), []).append(j)
        return {name: replace(self, judged=tuple(found)) for name, found in groups.items()}


def geometric(values: np.ndarray) -> float:
    """The geometric mean."""
    return float(np.exp(np.log(values).mean()))


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
        held_out: one of `splits.HELD_OUT`.

    Raises:
        ValueError: there is no case, or no machine to learn from, or the ranker does not give a time for each
            candidate.
    """
    if not found:
        raise ValueError("the tables have no layer with a candidate of this version")
    learns = hasattr(ranker, "fit")
    parts = parts_of(found, held_out)
    fitted = {part: _fitted(ranker, found, parts, part) for part in dict.fromkeys(parts)}
    judged = []
    for case, part in zip(found, parts, strict=True):
        seconds = predict(fitted[part], case.layer.problem, case.candidates, case.machine)
        ranked = sorted(zip(seconds, [c.id for c in case.candidates], strict=True))
        judged.append(_judge(case, ranked[0][1]))
    return Evaluation(name, tuple(judged), held_out if learns else "")


def single_best(found: Sequence[MeasuredLayer]) -> Evaluation:
    """The best that one algorithm does on all layers; where it was not measured, the slowest stands in."""

    def available_pick(case: MeasuredLayer, name: str) -> str:
        if any(c.id == name for c in case.candidates):
            return name
        return max(case.candidates, key=lambda c: (case.seconds(c.id), c.id)).id

    names = sorted({c.id for case in found for c in case.candidates})
    tried = [Evaluation(i, tuple(_judge(case, available_pick(case, i)) for case in found)) for i in names]
    return min(tried, key=lambda e: e.mean)


def _fitted(ranker: Any, found: Sequence[MeasuredLayer], parts: Sequence[Any], held_out: Any) -> Any:
    if not hasattr(ranker, "fit"):
        return ranker
    return ranker.fit([case for case, part in zip(found, parts, strict=True) if part != held_out])


def _judge(case: MeasuredLayer, pick: str) -> PickRegret:
    fastest: Measured = case.layer.times[case.oracle]
    right = pick == case.oracle or case.layer.times[pick].ties(fastest)
    return PickRegret(case, pick, case.regret(pick), right)
