"""How good effort="adapt" is on recorded tables: its elimination is fed with recorded samples, call by call.

The samples of one half are those of the calls, in their order, from each of the first STARTS on; what it
picks is scored on the other half, like any pick, and then the other way round.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from convalgos.select.measure.elimination import CALLS, MOST_TIED, Elimination
from convalgos.select.ranking import Ranking
from convalgos.tools.evaluate.regret import MeasuredLayer

STARTS = 5


@dataclass(frozen=True)
class Replayed:
    """What plans that adapt would have done on some layers."""

    regrets: tuple[float, ...]  # of the fastest so far after CALLS calls
    overheads: tuple[float, ...]  # time of these calls / that of as many of the fastest
    calls: tuple[float, ...]  # of these, until it settled; 0 where nothing was tied
    needed: tuple[
        float, ...
    ]  # predicted time of the fastest / that of the pick: what MODEL_ERROR should cover

    @property
    def mean(self) -> float:
        """Geometric mean of the regret."""
        return _geometric_mean(self.regrets)

    def __str__(self) -> str:
        p95, error = np.quantile(self.regrets, 0.95), np.quantile(self.needed, (0.95, 0.98))
        return (
            f"effort='adapt' after {CALLS} calls: mean regret {self.mean:.3f}, P95 {p95:.2f}, worst "
            f"{max(self.regrets):.2f}; they take {_geometric_mean(self.overheads):.2f}x the time of the "
            f"fastest, and it settles after {fmean(self.calls):.1f}\n"
            f"the fastest is predicted within {error[0]:.2f}x of the pick on 95 % of the layers, and within "
            f"{error[1]:.2f}x on 98 %"
        )


def replay_adapting(found: Sequence[MeasuredLayer]) -> Replayed:
    """Adapt on each layer by the predictions of the cost models."""
    return Replayed(*zip(*map(_replayed, found), strict=True))


def _replayed(case: MeasuredLayer) -> tuple[float, float, float, float]:
    """The fields of `Replayed` for a layer."""
    candidates = tuple(sorted(case.candidates, key=lambda c: (c.estimate_s, c.id)))
    tied = [c.id for c in Ranking(case.layer.problem, candidates, ()).tied[:MOST_TIED]]
    regrets, overheads, settled = [], [], []
    for half, first in itertools.product((0, 1), range(STARTS)):
        chosen, scored = case.halves[half], case.halves[1 - half]
        best = scored[min(chosen, key=lambda name: chosen[name])]
        samples = {name: case.layer.times[name].samples_s for name in tied}
        leader, spent, calls = _first_calls({n: s[half::2] or s for n, s in samples.items()}, first)
        regrets.append(scored[leader] / best)
        overheads.append(spent / (CALLS * best))
        settled.append(calls)
    predicted = {c.id: c.predicted_s for c in candidates}
    return (
        _geometric_mean(regrets),
        _geometric_mean(overheads),
        fmean(settled),
        predicted[case.oracle] / candidates[0].predicted_s,
    )


def _first_calls(samples: dict[str, Sequence[float]], first: int) -> tuple[str, float, float]:
    """(the fastest so far after CALLS calls, their seconds, calls until it settled)"""
    state, spent, settled = Elimination(tuple(samples)), 0.0, 0
    upcoming = {
        name: itertools.islice(itertools.cycle(s), first % len(s), None) for name, s in samples.items()
    }
    for _ in range(CALLS):
        settled += not state.settled
        name = state.turn
        spent += (seconds := next(upcoming[name]))
        state.add(name, seconds)
    return state.leader, spent, settled


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(fmean(map(math.log, values)))
