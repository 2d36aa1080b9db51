"""Which algorithms there are: one list, which selector, tests and benchmarks read.

They are the `ALGORITHMS` of every file in `convalgos.cpu` and `convalgos.gpu`, those of installed packages,
and those that the program registers.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from convalgos.core import laid_arrays
from convalgos.core.algorithm import Algorithm
from convalgos.core.arguments import DIRECTIONS
from convalgos.core.element_types import HALF_DTYPES, PRECISIONS
from convalgos.core.errors import missing
from convalgos.core.near_names import did_you_mean
from convalgos.core.planner import Composite, Planner
from convalgos.core.problem import ConvProblem
from convalgos.select import extensions
from convalgos.select.extensions import DEVICES

_added: dict[str, Algorithm] = {}  # by id, those from outside
# By device, direction, type, whether reorders may pay, and the border: the algorithms that were listed, and
# `ways_by_family`.
_families: dict[tuple[Any, ...], tuple[Any, tuple[tuple[Algorithm, ...], ...]]] = {}
_planners: dict[str, Planner] = {}  # by device, of sub-problems


@cache
def algorithms(device: str | None = None) -> tuple[Algorithm, ...]:
    """Every algorithm that there is, or of one device ("cpu", "gpu"), ordered by id."""
    extensions.load_entry_points(
        "convalgos.algorithms", lambda name, found: add_algorithms(*extensions.algorithms_of(found))
    )
    own = (a for name in DEVICES if device in (None, name) for a in _own(name))
    found = [*own, *(a for a in _added.values() if device in (None, a.device))]
    planned = (a.planned_by(_planners[a.device]) if isinstance(a, Composite) else a for a in found)
    return tuple(sorted(planned, key=lambda a: a.id))


def hand_down(planners: dict[str, Planner]) -> None:
    """Give the algorithms that are made of sub-problems what plans these: one planner for each device."""
    _planners.update(planners)
    _forget()


def add_algorithms(*algorithms: Algorithm) -> None:
    """Add algorithms from outside; one whose id another from outside has takes its place.

    Raises:
        TypeError, ValueError: one may not be added; then none is.
    """
    taken = {a.id for name in DEVICES for a in _own(name)}
    _added.update({a.id: a for a in [extensions.allowed(a, taken) for a in algorithms]})
    _forget()


def remove_algorithm(algorithm_id: str) -> None:
    """Take an algorithm from outside away again.

    Raises:
        ValueError: there is none of that id.
    """
    if algorithm_id not in _added:
        known = ", ".join(sorted(_added)) or "there are none"
        raise ValueError(f"id={algorithm_id!r} must be that of a registered algorithm: {known}")
    del _added[algorithm_id]
    _forget()


def _forget() -> None:
    for kept in (algorithms, between_reorders, converted, _gaining):
        kept.cache_clear()


@cache
def _own(device: str) -> tuple[Algorithm, ...]:
    """The algorithms of the library on a device, whose files are imported for this."""
    found: list[Algorithm] = []
    with extensions.importing:
        package = import_module(f"convalgos.{device}")
        for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
            module = import_module(f"{package.__name__}.{info.name}")
            found += getattr(module, "ALGORITHMS", ())
    ids = [a.id for a in found]
    if twice := sorted({i for i in ids if ids.count(i) > 1}):
        raise RuntimeError(f"two algorithms have the id {', '.join(twice)}")
    return tuple(found)


def turn_over(source: np.ndarray, target: np.ndarray) -> bool:
    """`cpu.layout.turned.copy_turned`, which the first array that is turned over imports."""
    if missing("llvmlite"):
        return False
    copy = import_module("convalgos.cpu.layout.turned").copy_turned
    laid_arrays.turn_by(copy)
    return bool(copy(source, target))


def algorithms_on(device: str, direction: str = "forward") -> tuple[Algorithm, ...]:
    """Those for "cpu" or for "cuda:N", in the form in which they compute a direction."""
    found = algorithms("cpu" if device == "cpu" else "gpu")
    return found if direction == "forward" else tuple(facing(a, direction) for a in found)


@cache
def facing(algorithm: Algorithm, direction: str) -> Algorithm:
    """The algorithm itself, or what computes a gradient by it where it only knows the way forward."""
    if direction in algorithm.directions or "forward" not in algorithm.directions:
        return algorithm
    if direction == "backward_weights" and not algorithm.exchanges:
        return algorithm
    package = import_module(f"convalgos.{algorithm.device}.{direction.replace('backward_', 'backward.')}")
    name = {"backward_data": "BackwardData", "backward_weights": "BackwardWeights"}[direction]
    found: Algorithm = getattr(package, name)(algorithm)
    return found


def bordered(algorithm: Algorithm, problem: ConvProblem) -> Algorithm:
    """The algorithm itself, or what runs it on the extended map where it does not know a problem's border."""
    if problem.is_zero_padded or algorithm.knows_border(problem):
        return algorithm
    return _bordered(algorithm)


@cache
def _bordered(algorithm: Algorithm) -> Algorithm:
    package = import_module(f"convalgos.{algorithm.device}.borders.bordered")
    made: Algorithm = getattr(package, {"cpu": "CpuBordered", "gpu": "GpuBordered"}[algorithm.device])(
        algorithm
    )
    return made


def plain_ways(problem: ConvProblem, device: str) -> tuple[Algorithm, ...]:
    """The algorithms in the form in which they compute a problem, none between reorders."""
    found = algorithms_on(device, problem.direction)
    return found if problem.is_zero_padded else tuple(bordered(a, problem) for a in found)


def ways(problem: ConvProblem, device: str) -> tuple[Algorithm, ...]:
    """`plain_ways`, and those between reorders where that may pay."""
    found = plain_ways(problem, device)
    if not _may_reorder(problem, device):
        return found
    return found + tuple(bordered(a, problem) for a in _gaining(problem.direction))


def ways_in(problem: ConvProblem, device: str, precisions: tuple[str, ...] | None) -> tuple[Algorithm, ...]:
    """Those of `ways`, and of what computes a float32 problem in other formats: those of `precisions`."""
    found = ways(problem, device)
    if precisions is None:
        return found
    plain = found if problem.dtype in precisions else ()
    others = (a for name in precisions if name != problem.dtype for a in converted(name))
    return plain + tuple(bordered(a, problem) for a in others)


@cache
def converted(precision: str) -> tuple[Algorithm, ...]:
    """The algorithms of the CPU that compute a format, each behind a conversion from float32."""
    room = import_module("convalgos.cpu.layout.converted")
    of_x = "uint8" if precision == "int8" else precision
    found = (a for a in algorithms_on("cpu") if of_x in a.dtypes and a.family != "cpu.reference")
    return tuple(room.Converted(a, precision) for a in found)


def ways_by_family(problem: ConvProblem, device: str) -> tuple[tuple[Algorithm, ...], ...]:
    """Those of `ways` that compute the direction of a problem, together those of one class and types.

    What computes neither x's type nor, in its place, float32 is left out.
    """
    dtype = problem.dtype
    border = () if problem.is_zero_padded else problem.boundary
    key = (device, problem.direction, dtype, _may_reorder(problem, device), border)
    listed = algorithms("cpu" if device == "cpu" else "gpu")
    known, found = _families.get(key, ((), ()))
    if known is not listed:
        types = {dtype, "float32"} if dtype in HALF_DTYPES else {dtype}
        facing_it = (a for a in ways(problem, device) if a.why_not_facing(problem.direction) is None)
        found = _by_class(a for a in facing_it if not types.isdisjoint(a.dtypes))
        _families[key] = listed, found
    return found


def _by_class(algorithms: Iterable[Algorithm]) -> tuple[tuple[Algorithm, ...], ...]:
    """Of one class, or bounded together, and of the same types: what computes a gradient by others is of the
    types of these."""
    found: dict[tuple[type | str, tuple[str, ...]], list[Algorithm]] = {}
    for algorithm in algorithms:
        found.setdefault((algorithm.bounded_with or type(algorithm), algorithm.dtypes), []).append(algorithm)
    return tuple(map(tuple, found.values()))


def _may_reorder(problem: ConvProblem, device: str) -> bool:
    last = device == "cpu" and problem.layout == "channels_last"
    return last and bool(_reordered().is_promising(problem))


@cache
def _gaining(direction: str) -> tuple[Algorithm, ...]:
    """Those of `between_reorders` that one layout may suit better than the other."""
    either = _reordered().EITHER
    return tuple(a for a in between_reorders(direction) if a.family not in either)


@cache
def between_reorders(direction: str) -> tuple[Algorithm, ...]:
    """The algorithms of the CPU that compute a direction, each in the other layout.

    But not the reference, nor what is made of sub-problems, each of which may go between reorders itself.
    """
    found = (a for a in algorithms_on("cpu", direction) if direction in a.directions)
    those = (a for a in found if a.family != "cpu.reference" and not isinstance(a, Composite))
    return tuple(_reordered().Reordered(a) for a in those)


@cache
def _reordered() -> Any:
    """How an algorithm runs in the other layout, imported where one is asked for: it compiles kernels."""
    return import_module("convalgos.cpu.layout.reordered")


def find_algorithm(algorithm_id: str, problem: ConvProblem | None = None) -> Algorithm:
    """The algorithm of an id, or the variant of one that is worth a try on a problem.

    Args:
        problem: in the form in which it computes its direction; forward by default.

    Raises:
        ValueError: there is none; the message suggests the nearest.
    """
    found = _known(algorithm_id, problem)
    if found is not None:
        return found if problem is None else bordered(found, problem)
    if problem is not None and isinstance(algorithm_id, str):
        for algorithm in variants(problem, algorithm_id.partition(".")[0]):
            if algorithm.id == algorithm_id:
                return algorithm
    known = [a.id for a in algorithms()]
    raise ValueError(
        f"algorithm={algorithm_id!r} must be 'auto' or one of the {len(known)} ids that "
        f"`convalgos algorithms` and ca.algorithms() list{did_you_mean(algorithm_id, known)}"
    )


def _known(algorithm_id: str, problem: ConvProblem | None) -> Algorithm | None:
    """The algorithm of an id, itself or between conversions, or None."""
    kinds = sorted(DEVICES, key=lambda kind: not str(algorithm_id).startswith(kind))
    for algorithm in (a for kind in kinds for a in algorithms(kind)):
        if algorithm.id == algorithm_id:
            return algorithm if problem is None else facing(algorithm, problem.direction)
    name = str(algorithm_id).rpartition(".as_")[2]
    directions = DIRECTIONS if problem is None else (problem.direction,)
    others = [a for direction in directions for a in between_reorders(direction)]
    others += converted(name) if name in PRECISIONS else ()
    return next((a for a in others if a.id == algorithm_id), None)


def variants(
    problem: ConvProblem, device: str, wanted: Callable[[Algorithm], bool] = lambda algorithm: True
) -> list[Algorithm]:
    """Settings of the algorithms that are not listed, but worth a try on a problem, ordered by id.

    Args:
        wanted: which of the algorithms are asked for theirs.
    """
    listed = {a.id for a in ways(problem, device)}
    found: dict[str, Algorithm] = {}
    for algorithm in plain_ways(problem, device):
        computed = algorithm.computed(problem)
        if wanted(algorithm) and algorithm.why_not(computed) is None:
            found |= {v.id: v for v in algorithm.variants(computed) if v.why_not(computed) is None}
    return [found[i] for i in sorted(found.keys() - listed)]
