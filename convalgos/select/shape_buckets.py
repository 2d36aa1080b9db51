"""The choice without its explanation, for programs that bring ever new shapes.

`choose` finds the first candidate of `select.rank` without asking for all the others: an algorithm whose
least possible cost is over the best one found is left out. Once a layer has come in EXACT shapes, a new one
takes what suits its class: batch and sizes are rounded on a coarse grid, the candidates of that problem
are chosen once, and their times are scaled by the outputs that each of them computes. These fill up tiles, by
which one shape differs most from its neighbours. A near shape that was measured takes the place of the class.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache

from convalgos.core.algorithm import HALF_DTYPES, Algorithm
from convalgos.core.plan import Choice, Plan
from convalgos.core.problem import ConvProblem
from convalgos.select import choose as select_choose
from convalgos.select import devices, estimate, registry
from convalgos.select.constraints import Constraints
from convalgos.select.measured import Family, family

EXACT = 4  # shapes of a layer that are ranked each by itself
BATCHES, SIZES = 1 / 3, 1 / 2  # classes for each doubling of the batch, and of a size
CLOSE = 1.25  # candidates of a class: those within this factor of the best, for each output
LAYERS, CLASSES = 1024, 2048  # that are kept

Place = tuple[int, ...]  # batch and sizes of the map


@dataclass(frozen=True)
class Option:
    """A candidate and its seconds, with the share of preparing the filter that a run pays."""

    algorithm: Algorithm
    seconds: float  # of a run, or for each output where there is a granule
    granule: tuple[int, ...] = ()

    def on(self, problem: ConvProblem) -> float:
        """Seconds on another shape of the layer."""
        return self.seconds * _outputs(problem, self.granule)


_ranked: OrderedDict[tuple, dict[Place, Algorithm]] = OrderedDict()  # layer -> shapes that were ranked


def plan(problem: ConvProblem, device: str, constraints: Constraints) -> Plan:
    """The plan of `select.pick`, found in less time, or that of a near shape's pick.

    Raises:
        Unsupported: nothing can serve the problem within the limits; lists each reason.
    """

    def ranking() -> str:
        return str(select_choose.rank(problem, device, constraints))

    known = devices.store(device)
    near = None
    if known.entries():
        if known.lookup(problem):
            return select_choose.pick(problem, device, constraints)
        near = known.near(problem)
    if problem.is_empty:
        return select_choose.pick(problem, device, constraints)
    found = like(problem, device, constraints, near[0] if near else None)
    if found is not None:
        algorithm, other = found
        if algorithm.why_not(algorithm.computed(problem)) is None and select_choose.keeps(
            algorithm, problem, constraints
        ):
            scaled = "" if other == problem else f"{algorithm.id} by what suits {other}, scaled\n"
            return select_choose.planned(algorithm, problem, device, Choice(lambda: scaled + ranking()))
    options = choose(problem, device, constraints)
    if not options:
        return select_choose.pick(problem, device, constraints)  # which says why not
    return select_choose.planned(options[0].algorithm, problem, device, Choice(ranking))


def choose(
    problem: ConvProblem, device: str, constraints: Constraints, *, slack: float = 1.0, fitted: bool = False
) -> list[Option]:
    """The best candidate by the cost models and those that were looked at on the way, fastest first.

    Args:
        slack: look at what may be slower than the best by this factor, too.
        fitted: compare the seconds for each output that is computed, in vain or not: by these the candidates
            of one shape are those of the shapes around it, whose tiles may fit better or worse.
    """
    machine, share = devices.figures(device), constraints.prepare_share()
    stands_in = problem.dtype in HALF_DTYPES or problem.reread is not problem
    bounds = []
    for i, algorithm in enumerate(registry.ways(problem, device)):
        computed = algorithm.computed(problem) if stands_in else problem
        least = algorithm.least(computed, machine)
        if least < math.inf:
            granule = algorithm.granule(computed) if fitted else ()
            outputs = _outputs(problem, granule) if fitted else 1
            bounds.append((least / outputs, i, algorithm, granule, outputs))
    found: list[Option] = []
    best = math.inf
    bounds.sort(key=lambda b: (b[2].searches, *b[:2]))
    for least, _, algorithm, granule, outputs in bounds:
        if least > slack * best:
            continue
        computed = algorithm.computed(problem) if stands_in else problem
        if algorithm.searches and algorithm.closely(computed, machine) > slack * best * outputs:
            continue
        algorithm = select_choose.within(algorithm, computed, constraints)
        kept = select_choose.keeps(algorithm, problem, constraints)
        if algorithm.why_not(computed) is not None or not kept:
            continue
        seconds = estimate.cost(algorithm, problem, machine)
        if share:
            seconds += share * algorithm.prepare_cost(computed, machine)
        found.append(Option(algorithm, seconds / outputs, granule))
        best = min(best, seconds / outputs)
    return sorted(found, key=lambda o: (o.seconds, o.algorithm.id))


def like(
    problem: ConvProblem, device: str, constraints: Constraints, near: ConvProblem | None
) -> tuple[Algorithm, ConvProblem] | None:
    """The algorithm that suits another shape of a layer, scaled to this one, and that shape; or None.

    Args:
        near: a near shape that was measured.
    """
    layer, place = family(problem), (problem.N, *problem.spatial)
    if near is None:
        key = (layer, device, constraints)
        ranked = _ranked.get(key)
        if ranked is None or (len(ranked) < EXACT and place not in ranked):
            return _look(problem, device, constraints, key, place)
        if place in ranked:
            return ranked[place], problem
        place = (_grid(place[0], BATCHES), *(_grid(n, SIZES) for n in place[1:]))
    else:
        place = (near.N, *near.spatial)
    found = _options(layer, place, device, constraints, devices.store(device).stamp)
    if found is None:
        return None
    other, options = found
    return min(options, key=lambda o: (o.on(problem), o.algorithm.id)).algorithm, other


def forget() -> None:
    """Forget the choices that were made."""
    _ranked.clear()
    _options.cache_clear()


# --- inside ----------------------------------------------------------------------------------


def _look(
    problem: ConvProblem, device: str, constraints: Constraints, key: tuple, place: Place
) -> tuple[Algorithm, ConvProblem] | None:
    """Choose for this very shape, and remember that."""
    options = choose(problem, device, constraints)
    if not options:
        return None
    _ranked.setdefault(key, {})[place] = options[0].algorithm
    while len(_ranked) > LAYERS:
        _ranked.popitem(last=False)
    return options[0].algorithm, problem


@lru_cache(CLASSES)
def _options(
    layer: Family, place: Place, device: str, constraints: Constraints, stamp: int
) -> tuple[ConvProblem, tuple[Option, ...]] | None:
    """The candidates of a shape of a layer that are close to its best; None where there is no such shape.

    Args:
        stamp: of the wisdom that this was chosen by.
    """
    try:
        problem = layer.problem(place[0], place[1:])
    except ValueError:  # the kernel is larger than the map
        return None
    if problem.is_empty:
        return None
    if devices.store(device).lookup(problem):
        ranking = select_choose.rank(problem, device, constraints)
        options = [_fitted(problem, c.algorithm, c.seconds) for c in ranking.candidates]
    else:
        options = choose(problem, device, constraints, slack=CLOSE, fitted=True)
    least = min((o.seconds for o in options), default=0.0)
    close = tuple(o for o in options if o.seconds <= CLOSE * least)
    return (problem, close) if close else None


def _fitted(problem: ConvProblem, algorithm: Algorithm, seconds: float) -> Option:
    granule = algorithm.granule(algorithm.computed(problem))
    return Option(algorithm, seconds / _outputs(problem, granule), granule)


def _outputs(problem: ConvProblem, granule: tuple[int, ...]) -> int:
    """Outputs of all images for one filter, the map filled up to whole tiles."""
    return problem.N * math.prod(-(-n // g) * g for n, g in zip(problem.spatial_out, granule, strict=True))


@lru_cache(4096)
def _grid(size: int, steps: float) -> int:
    """The size that stands for this one; there are `steps` of them for each doubling."""
    return round(2 ** (round(steps * math.log2(size)) / steps))
