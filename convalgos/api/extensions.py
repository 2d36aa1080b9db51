"""Algorithms and rankers of the program's own, added to those of the library and of installed packages."""

from __future__ import annotations

from convalgos.api.planning import forget_plans
from convalgos.core import arguments
from convalgos.core.algorithm import Algorithm
from convalgos.select import ranker as selectors
from convalgos.select import registry
from convalgos.select.ranker import Ranker


def register(*algorithms: Algorithm, **rankers: Ranker) -> None:
    """Add algorithms, and rankers by name, to those that the selector knows.

    From then on `plan`, `explain`, `find`, `algorithms` and the benchmarks of this program know them, and
    plans are chosen anew. What is registered again takes the place of what had its id or name. A package adds
    its own by the entry points `convalgos.algorithms` and `convalgos.rankers`.

    Args:
        algorithms: instances of subclasses of `Algorithm`. `convalgos.testing.check_algorithm` tells whether
            one keeps the contract.
        rankers: called with (problem, candidates, machine), each returns the predicted seconds of a run of
            each candidate; its name is then one for `selector=`.

    Raises:
        TypeError: something is no algorithm, or cannot be called. ValueError: an id is one of the library's,
            or is none; a name is that of the built-in ranker. Then nothing is registered.

    Example:
        >>> import convalgos as ca
        >>> def shy(problem, candidates, machine):
        ...     return [c.predicted_s * (2 if "winograd" in c.id else 1) for c in candidates]
        >>> ca.register(shy=shy)
        >>> problem = ca.ConvProblem.parse("n1 c8 h9 w9 k8 r3 s3")
        >>> ca.plan(problem, selector="shy").algorithm in {a.id for a in ca.algorithms()}
        True
        >>> ca.unregister("shy")
    """
    for name, ranker in rankers.items():
        selectors.check_ranker(name, ranker)
    registry.add_algorithms(*algorithms)
    for name, ranker in rankers.items():
        selectors.register(name, ranker)
    forget_plans()


def unregister(*names: str) -> None:
    """Take registered algorithms, by id, and rankers, by name, away again.

    Raises:
        ValueError: nothing of that id or name was registered. TypeError: it is no text.
    """
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{arguments.shown(name)} must be the id of an algorithm or the name of a ranker")
        (registry.remove_algorithm if "." in name else selectors.unregister)(name)
    forget_plans()
