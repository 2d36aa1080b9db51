"""The algorithm of all blocks of a call: what the selector picks for the whole.

Tiles of an algorithm that begin elsewhere than in the whole map round otherwise, so blocks begin where tiles
do, as far as they are much larger than these.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from convalgos.api import call_plans
from convalgos.core import plan_cache
from convalgos.core.algorithm import Algorithm
from convalgos.core.arguments import Shape
from convalgos.core.problem import ConvProblem
from convalgos.select import choose, devices, registry
from convalgos.select.constraints import Constraints

LEAST_TILES = 4  # that a block has at least where it begins with one

Limits = tuple[tuple[str, Any], ...]


def set_limits(strict_nan: bool, max_rel_error: float | None, selector: str | None, *border: Any) -> Limits:
    """Those that are set.

    Raises:
        ValueError: one is invalid, or the fill value is, of a `border` (boundary, fill_value).
    """
    call_plans.limits(strict_nan, max_rel_error, selector, *border)
    given = {"strict_nan": strict_nan, "max_rel_error": max_rel_error, "selector": selector}
    return tuple((name, value) for name, value in given.items() if value not in (None, False))


def pinned_algorithm(problem: ConvProblem, algorithm: str, given: Limits) -> str:
    """The id of what the whole would be computed by; nothing of its size is allocated."""
    if algorithm != "auto":
        registry.find_algorithm(algorithm, problem)
        return algorithm
    if problem.is_empty:
        return "auto"
    return _fastest(problem, given, devices.choice_key("cpu"), plan_cache.forgotten)


@lru_cache(256)
def _fastest(problem: ConvProblem, given: Limits, _of_choices: Any, _forgotten: int) -> str:
    """The last two are what a choice is made for, and how often all were forgotten."""
    known = dict(given)
    selector = known.pop("selector", None)
    constraints = Constraints(**known, weights_constant=False)
    if selector is not None:
        found = list(choose.rank(problem, "cpu", constraints, selector=selector).candidates)
    else:
        found = choose.close_candidates(problem, "cpu", constraints, 1.0)
    return found[0].id if found else "auto"


def block_starts(algorithm: str, problem: ConvProblem) -> Shape:
    """Outputs at whose multiples blocks should begin, in each dimension."""
    if algorithm == "auto":
        return (1,) * problem.ndim
    chosen = registry.find_algorithm(algorithm, problem)
    if chosen.why_not(problem) is not None:
        return (1,) * problem.ndim
    return chosen.block_starts(problem)


def in_tiles_of(algorithm: str, problem: ConvProblem) -> Algorithm | None:
    """The algorithm of blocks in the tiles of the whole; None where its id says it all."""
    if algorithm == "auto" or problem.direction != "forward":
        return None
    chosen = registry.find_algorithm(algorithm, problem)
    found = chosen if chosen.why_not(problem) else chosen.for_parts(problem)
    return None if found is chosen else found


def worth(step: int, stride: int, chunks: Shape) -> int:
    """The same of one dimension, or 1 where blocks hold only a few tiles."""
    return step if LEAST_TILES * step * stride <= max(chunks) else 1
