"""One order from what is predicted and what was measured: by which time each candidate is ranked.

A time that was measured on the very problem counts as it is, and puts right the predictions of the others;
where there is none, what was measured on a near problem does. Measured times that differ by no more than
their noise count as one, so that picks repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import median

from convalgos.core.algorithm import Algorithm
from convalgos.core.machine import Machine
from convalgos.core.problem import ConvProblem
from convalgos.select.constraints import Constraints
from convalgos.select.measured import Entry, Measured
from convalgos.select.ranking import Candidate, Ranking, Rejection

MOST_DRIFT = 3.0  # times that a whole machine is slower or faster than its figures say


@lru_cache(4096)
def cost(algorithm: Algorithm, problem: ConvProblem, machine: Machine) -> float:
    """Seconds of a run by the cost model; nothing for an empty problem."""
    return 0.0 if problem.is_empty else algorithm.cost(algorithm.computed(problem), machine)


def scaled(
    candidates: Sequence[Candidate], near: ConvProblem, entry: Entry, machine: Machine
) -> list[Candidate]:
    """Predictions corrected by how wrong they are on a near problem that was measured."""
    ratios = {
        c.id: entry[c.id].median_s / there
        for c in candidates
        if c.id in entry
        and entry[c.id].failure is None
        and c.algorithm.why_not(c.algorithm.computed(near)) is None
        and (there := cost(c.algorithm, near, machine))
    }
    usual = _usual(list(ratios.values()))
    return [replace(c, seconds=c.seconds * ratios.get(c.id, usual)) for c in candidates]


def order(
    problem: ConvProblem,
    candidates: Sequence[Candidate],
    rejected: Sequence[Rejection],
    constraints: Constraints,
    entry: Entry | None = None,
    near: ConvProblem | None = None,
    measured_only: bool = False,
) -> Ranking:
    """The ranking of candidates, from what was measured of them and what is predicted, within limits.

    Args:
        entry: what was measured on this very problem.
        near: the problem whose measurements are in the seconds of the candidates already.
        measured_only: leave out what was not measured on this very problem.
    """
    entry, out = entry or {}, list(rejected)
    sound = []
    for c in candidates:
        known = entry.get(c.id)
        if known and known.failure is not None:
            out.append(Rejection(c.id, f"failed when it was measured: {known.failure}"))
        elif known and known.error is not None and known.error > c.error_bound:
            reason = f"its error was {known.error:.1e} when measured, over its bound {c.error_bound:.1e}"
            out.append(Rejection(c.id, reason))
        else:
            sound.append(c)
    timed = [_timed(c, entry.get(c.id)) for c in _calibrated(sound, entry)]
    share = constraints.prepare_share()
    timed = [replace(c, seconds=c.seconds + share * c.prepare) for c in timed]
    kept, costs = [], {}
    violations = {c.id: constraints.violations(c.algorithm, c.workspace_bytes, c.error_bound) for c in timed}
    for c in timed:
        if violations[c.id]:
            out.append(Rejection(c.id, "; ".join(violations[c.id].values())))
        elif not (measured_only and c.measured is None):
            kept.append(c)
    kept = _settled(kept, entry)
    for limit in constraints.active if kept else ():
        least = min(c.seconds for c in timed if violations[c.id].keys() <= {limit})
        costs[limit] = kept[0].seconds / least if least else 1.0
    basis = "near" if near is not None else "predicted"
    if kept and kept[0].measured is not None:
        basis = "measured"
    out.sort(key=lambda r: r.id)
    return Ranking(problem, tuple(kept), tuple(out), basis, near, costs)


def _timed(c: Candidate, known: Measured | None) -> Candidate:
    if known is None:
        return c
    prepare = c.prepare if known.prepare_s is None else known.prepare_s
    spread = known.spread if len(known.samples_s) > 1 else None
    return replace(c, seconds=known.median_s, measured=known.median_s, spread=spread, prepare=prepare)


def _calibrated(candidates: Sequence[Candidate], entry: Entry) -> list[Candidate]:
    """Predictions of what was not measured, times the ratio found where it was: both see one machine.

    What was predicted slower than something measured does not get ahead of the fastest measured.
    """
    known = [(c.predicted, entry[c.id].median_s) for c in candidates if c.id in entry and c.predicted]
    if not known:
        return list(candidates)
    factor = max(
        _usual([seconds / predicted for predicted, seconds in known]),
        min(seconds for _, seconds in known) / min(predicted for predicted, _ in known),
    )
    return [replace(c, seconds=c.seconds * factor) for c in candidates]


def _usual(ratios: list[float]) -> float:
    """The ratio of measured to predicted time to expect of others: not further off than machines drift."""
    return min(MOST_DRIFT, max(1 / MOST_DRIFT, median(ratios))) if ratios else 1.0


def _settled(candidates: Sequence[Candidate], entry: Entry) -> list[Candidate]:
    """Sorted; those measured within the noise of the fastest count as fast, ordered as predicted."""
    ranked = sorted(candidates, key=lambda c: (c.seconds, c.id))
    if not ranked or ranked[0].measured is None:
        return ranked
    best = ranked[0]
    ties = {c.id for c in ranked if c.measured is not None and entry[c.id].ties(entry[best.id])}
    settled = [replace(c, seconds=best.seconds) if c.id in ties else c for c in ranked]
    return sorted(settled, key=lambda c: (c.seconds, c.predicted or 0.0, c.id))
