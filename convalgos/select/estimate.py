"""One order from what is predicted and what was measured: by which time each candidate is ranked.

1. A candidate that failed, or was wrong, when it was measured on the very problem is out.
2. A time that was measured on the very problem counts as it is. It corrects the predictions of the others;
   where there is none, what was measured on a near problem does.
3. Each run pays its share of preparing the filter.
4. Candidates beyond the limits are out.
5. Measured times that differ by no more than their noise count as one, so that picks repeat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import median

from convalgos.core.algorithm import Algorithm
from convalgos.core.machine import Machine
from convalgos.core.problem import ConvProblem
from convalgos.core.wrapped_plans import CastPlan
from convalgos.select.constraints import Constraints
from convalgos.select.measured import Entry
from convalgos.select.ranking import Candidate, Ranking, Rejection

MOST_DRIFT = 3.0  # times that a whole machine is slower or faster than its figures say


@lru_cache(4096)
def cost(algorithm: Algorithm, problem: ConvProblem, machine: Machine) -> float:
    """Seconds of a run by the cost model; nothing for an empty problem."""
    return cost_of(algorithm, problem, algorithm.computed(problem), machine)


def cost_of(algorithm: Algorithm, problem: ConvProblem, computed: ConvProblem, machine: Machine) -> float:
    """The same, with what the algorithm computes in the place of a problem; not kept for the next time."""
    if computed.is_empty:
        return 0.0
    seconds = algorithm.cost(computed, machine)
    if computed.dtype != problem.dtype and algorithm.device == "cpu":
        seconds += CastPlan.converting_seconds(problem, machine)
    return seconds


def near_corrections(
    candidates: Sequence[Candidate], near: ConvProblem, entry: Entry, machine: Machine
) -> dict[str, float]:
    """By id, how wrong predictions are on a near problem that was measured: measured / predicted."""
    ratios = {
        c.id: entry[c.id].median_s / there
        for c in candidates
        if c.id in entry
        and entry[c.id].failure is None
        and c.algorithm.why_not(c.algorithm.computed(near)) is None
        and (there := cost(c.algorithm, near, machine))
    }
    usual = _usual(list(ratios.values()))
    return {c.id: ratios.get(c.id, usual) for c in candidates}


def order(
    problem: ConvProblem,
    candidates: Sequence[Candidate],
    rejected: Sequence[Rejection],
    constraints: Constraints,
    *,
    entry: Entry | None = None,
    near: ConvProblem | None = None,
    corrections: Mapping[str, float] | None = None,
    measured_only: bool = False,
) -> Ranking:
    """The ranking of candidates, from what was measured of them and what is predicted, within limits.

    Args:
        entry: what was measured on this very problem.
        near: the problem whose measurements are in the corrections.
        corrections: by id, factors of the predictions.
        measured_only: leave out what was not measured on this very problem.
    """
    entry, out = entry or {}, list(rejected)
    sound, failed = _without_failures(candidates, entry)
    found = _estimated(sound, entry, corrections or {}, constraints.prepare_share())
    violations = {
        c.id: constraints.refusals(c.algorithm, problem, c.workspace_bytes, c.error_bound) for c in found
    }
    out += failed
    out += [Rejection(c.id, "; ".join(violations[c.id].values())) for c in found if violations[c.id]]
    within = [c for c in found if not violations[c.id] and not (measured_only and c.measured_s is None)]
    ranked, costs = _settled(within, entry), {}
    for limit in constraints.active if ranked else ():
        least = min(c.estimate_s for c in found if violations[c.id].keys() <= {limit})
        costs[limit] = ranked[0].estimate_s / least if least else 1.0
    basis = "near" if near is not None else "predicted"
    if ranked and ranked[0].measured_s is not None:
        basis = "measured"
    out.sort(key=lambda r: r.id)
    return Ranking(problem, tuple(ranked), tuple(out), basis, near, costs)


def _without_failures(
    candidates: Sequence[Candidate], entry: Entry
) -> tuple[list[Candidate], list[Rejection]]:
    """Those that did not fail when they were measured, and of the others the reasons."""
    sound, failed = [], []
    for c in candidates:
        known = entry.get(c.id)
        if known and known.failure is not None:
            failed.append(Rejection(c.id, f"failed when it was measured: {known.failure}"))
        elif known and known.error is not None and known.error > c.error_bound:
            reason = f"its error was {known.error:.1e} when measured, over its bound {c.error_bound:.1e}"
            failed.append(Rejection(c.id, reason))
        else:
            sound.append(c)
    return sound, failed


def _estimated(
    candidates: Sequence[Candidate], entry: Entry, corrections: Mapping[str, float], share: float
) -> list[Candidate]:
    """Candidates with what was measured of them, and the seconds by which they are ranked.

    Args:
        corrections: by id, of predictions, where nothing was measured on this very problem.
        share: of preparing the filter that a run pays.
    """
    common, found = _calibration(candidates, entry), []
    for c in candidates:
        if known := entry.get(c.id):
            prepare_s = c.prepare_s if known.prepare_s is None else known.prepare_s
            spread = known.spread if len(known.samples_s) > 1 else None
            c = replace(
                c, measured_s=known.median_s, spread=spread, prepare_s=prepare_s, adapted=known.adapted
            )
            run_s = known.median_s
        else:
            run_s = c.predicted_s * (corrections.get(c.id, 1.0) if common is None else common)
        found.append(replace(c, estimate_s=run_s + share * c.prepare_s))
    return found


def _calibration(candidates: Sequence[Candidate], entry: Entry) -> float | None:
    """The factor of predictions of what was not measured, found where it was: both see one machine.

    What was predicted slower than something measured does not get ahead of the fastest measured.
    """
    known = [(c.predicted_s, entry[c.id].median_s) for c in candidates if c.id in entry and c.predicted_s]
    if not known:
        return None
    return max(
        _usual([seconds / predicted for predicted, seconds in known]),
        min(seconds for _, seconds in known) / min(predicted for predicted, _ in known),
    )


def _usual(ratios: list[float]) -> float:
    """The ratio of measured to predicted time to expect of others: not further off than machines drift."""
    return min(MOST_DRIFT, max(1 / MOST_DRIFT, median(ratios))) if ratios else 1.0


def _settled(candidates: Sequence[Candidate], entry: Entry) -> list[Candidate]:
    """Sorted; those measured within the noise of the fastest count as fast, ordered as predicted."""
    ranked = sorted(candidates, key=lambda c: (c.estimate_s, c.id))
    if not ranked or ranked[0].measured_s is None:
        return ranked
    best = ranked[0]
    ties = {c.id for c in ranked if c.measured_s is not None and entry[c.id].ties(entry[best.id])}
    settled = [replace(c, estimate_s=best.estimate_s) if c.id in ties else c for c in ranked]
    return sorted(settled, key=lambda c: (c.estimate_s, c.predicted_s, c.id))
