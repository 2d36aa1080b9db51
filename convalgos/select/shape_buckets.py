"""What is kept of choices for programs that bring ever new shapes: shapes that were chosen for, and buckets.

A shape of a layer is its batch and the size of its map. Each of the first EXACT shapes of a layer is chosen
for by itself. A later one takes what suits its bucket: batch and sizes are rounded on a coarse grid, the
candidates of the shape on the grid are found once, and their times are scaled by the outputs that each of
them computes. These fill up tiles, by which one shape differs most from its neighbours.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import lru_cache

from convalgos.core.algorithm import Algorithm
from convalgos.core.problem import ConvProblem
from convalgos.select.measured import Family
from convalgos.select.ranking import Candidate
from convalgos.select.search import filled_outputs

EXACT = 4  # shapes of a layer that are chosen for each by itself
BATCHES, SIZES = 1 / 3, 1 / 2  # buckets for each doubling of the batch, and of a size
CLOSE = 1.25  # candidates of a bucket: those within this factor of the best, for each output
LAYERS, BUCKETS = 1024, 2048  # that are kept

Place = tuple[int, ...]  # batch and sizes of the map


@dataclass(eq=False)
class KnownLayer:
    """A layer under some limits, on a device: which algorithm was chosen for each of its first shapes."""

    family: Family
    chosen: dict[Place, Algorithm] = field(default_factory=dict)


_layers: OrderedDict[Hashable, KnownLayer] = OrderedDict()
_buckets: OrderedDict[tuple[KnownLayer, Place, int], Bucket | None] = OrderedDict()


def layer_of(family: Family, *limits: Hashable) -> KnownLayer:
    """What is kept of a layer, apart for whatever limits a choice."""
    key = (family, limits)
    found = _layers.get(key)
    if found is None:
        found = _layers[key] = KnownLayer(family)
        while len(_layers) > LAYERS:
            _layers.popitem(last=False)
    return found


def bucket_of(
    layer: KnownLayer, at: Place, stamp: int, candidates: Callable[[ConvProblem], list[Candidate]]
) -> Bucket | None:
    """The bucket of a shape of a layer; None where there is no such shape, or nothing serves it.

    Args:
        stamp: of the wisdom that its candidates are found by.
        candidates: finds those of a problem.
    """
    key = layer, at, stamp
    try:
        return _buckets[key]
    except KeyError:
        problem = shape_of(layer.family, at)
        found = None if problem is None else bucket(problem, candidates(problem))
        _buckets[key] = found
        while len(_buckets) > BUCKETS:
            _buckets.popitem(last=False)
        return found


def forget_choices() -> None:
    """Forget the choices that were made."""
    _layers.clear()
    _buckets.clear()


@dataclass(frozen=True)
class Bucket:
    """The shape that stands for others of its layer, and its candidates that are close to the best."""

    problem: ConvProblem
    candidates: tuple[Candidate, ...]
    rates: tuple[tuple[float, tuple[int, ...]], ...]  # of each: seconds for an output, and its granule

    def fastest_on(self, problem: ConvProblem) -> Algorithm:
        """The algorithm of the candidate that is the fastest when its time is scaled to another shape."""
        times = (
            (rate * filled_outputs(problem, granule), c.id, turn)
            for turn, (c, (rate, granule)) in enumerate(zip(self.candidates, self.rates, strict=True))
        )
        return self.candidates[min(times)[2]].algorithm


def bucket(problem: ConvProblem, candidates: list[Candidate]) -> Bucket | None:
    """The bucket of a shape of which the candidates are known; None where there are none."""
    granules = [c.algorithm.granule(c.computed) for c in candidates]
    rates = [c.estimate_s / filled_outputs(problem, g) for c, g in zip(candidates, granules, strict=True)]
    limit = CLOSE * min(rates, default=0.0)
    close = [i for i, rate in enumerate(rates) if rate <= limit]
    if not close:
        return None
    return Bucket(problem, tuple(candidates[i] for i in close), tuple((rates[i], granules[i]) for i in close))


def place_of(problem: ConvProblem) -> Place:
    """Which shape of its layer a problem is."""
    return (problem.N, *problem.spatial)


def on_grid(at: Place) -> Place:
    """The shape that stands for this one."""
    return (_grid(at[0], BATCHES), *(_grid(n, SIZES) for n in at[1:]))


def shape_of(layer: Family, at: Place) -> ConvProblem | None:
    """The problem of a shape of a layer; None where there is none, as where the kernel is larger than it."""
    try:
        problem = layer.problem(at[0], at[1:])
    except ValueError:
        return None
    return None if problem.is_empty else problem


@lru_cache(4096)
def _grid(size: int, steps: float) -> int:
    """The size that stands for this one; there are `steps` of them for each doubling."""
    return round(2 ** (round(steps * math.log2(size)) / steps))
