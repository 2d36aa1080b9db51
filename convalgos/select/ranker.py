"""Rankers: what predicts how long candidates take. The cost models do, or one of your own by `register`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from convalgos.core.machine import Machine
from convalgos.core.problem import ConvProblem
from convalgos.select import extensions
from convalgos.select.ranking import Candidate

# (problem, candidates, machine) -> predicted seconds of a run of each candidate, in their order
Ranker = Callable[[ConvProblem, Sequence[Candidate], Machine], Sequence[float]]


def analytic(problem: ConvProblem, candidates: Sequence[Candidate], machine: Machine) -> list[float]:
    """The ranker that is used where no other is asked for: the cost model of each algorithm."""
    return [c.predicted_s for c in candidates]


_rankers: dict[str, Ranker] = {"analytic": analytic}


def register(name: str, ranker: Ranker) -> None:
    """Make a ranker known by a name, for `selector=` of `plan` and `explain`, and for `select evaluate`.

    Args:
        ranker: called with (problem, candidates, machine), it returns the predicted seconds of a run of each
            candidate, in their order. `candidate.predicted_s` is what the cost model says. One that has a
            method `fit(tables)` is fitted to the tables of other networks before it is evaluated.

    Raises:
        ValueError: the name is not a word, or is the built-in one. TypeError: the ranker cannot be called.

    Example:
        >>> import convalgos as ca
        >>> def shy(problem, candidates, machine):
        ...     return [c.predicted_s * (2 if "winograd" in c.id else 1) for c in candidates]
        >>> ca.select.register("shy", shy)
        >>> problem = ca.ConvProblem.parse("n1 c8 h9 w9 k8 r3 s3")
        >>> ca.plan(problem, selector="shy").algorithm in {a.id for a in ca.algorithms()}
        True
    """
    check_ranker(name, ranker)
    _rankers[name] = ranker


def check_ranker(name: str, ranker: Ranker) -> None:
    """What `register` refuses."""
    if not isinstance(name, str) or not name.isidentifier() or name == "analytic":
        raise ValueError(f"name={name!r} must be a word, other than 'analytic'")
    if not callable(ranker):
        raise TypeError(f"ranker={ranker!r} must be callable with (problem, candidates, machine)")


def unregister(name: str) -> None:
    """Take a ranker away again.

    Raises:
        ValueError: there is none of that name, or it is the built-in one.
    """
    if name not in _rankers or name == "analytic":
        raise ValueError(f"name={name!r} must be that of a registered ranker: {', '.join(rankers()[1:])}")
    del _rankers[name]


def rankers() -> tuple[str, ...]:
    """The names of all rankers, those of installed packages among them."""
    extensions.load_entry_points("convalgos.rankers", register)
    return tuple(_rankers)


def find_ranker(name: str) -> Ranker:
    """A ranker by its name.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    if name not in rankers():
        raise ValueError(f"selector={name!r} must be one of {', '.join(sorted(_rankers))}")
    return _rankers[name]


def predict(
    ranker: Ranker, problem: ConvProblem, candidates: Sequence[Candidate], machine: Machine
) -> list[float]:
    """What a ranker says, checked."""
    seconds = [float(s) for s in ranker(problem, candidates, machine)]
    if len(seconds) != len(candidates) or not all(s >= 0 for s in seconds):
        raise ValueError(f"a ranker must give a number of seconds for each of {len(candidates)} candidates")
    return seconds
