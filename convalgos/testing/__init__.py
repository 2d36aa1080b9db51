"""The tests that ship with the library: hold an algorithm of your own to what ours are held to.

>>> from convalgos.cpu.reference import Reference
>>> from convalgos.testing import check_algorithm
>>> check_algorithm(Reference(), only=["not_a_number"])
Checked(id='cpu.reference', runs={'not_a_number': 6})
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convalgos.core.algorithm import Algorithm
from convalgos.core.errors import Unsupported
from convalgos.testing.answers import KINDS, check, check_all, example
from convalgos.testing.contract import CHECKS
from convalgos.testing.memory import Guarded
from convalgos.testing.problems import GRADIENT_PROBLEMS, PROBLEMS, table_problems

__all__ = [
    "CHECKS",
    "Checked",
    "GRADIENT_PROBLEMS",
    "Guarded",
    "KINDS",
    "PROBLEMS",
    "check",
    "check_algorithm",
    "check_all",
    "example",
    "table_problems",
]


@dataclass(frozen=True)
class Checked:
    """What was run of an algorithm; all of it was right."""

    id: str
    runs: dict[str, int]  # name of a check -> its runs


def check_algorithm(algorithm: Algorithm, *, only: Sequence[str] | None = None) -> Checked:
    """Run everything that the project holds its own algorithms to, on an algorithm of the CPU.

    About 150 awkward problems in both layouts and types, random layers, gradients, 16-bit data, NaN and
    infinity, arrays of all kinds, threads, refusals, and the figures that the selector reads. It takes about
    a minute. An algorithm need not be registered for it.

    Args:
        algorithm: an instance.
        only: names of the checks to run; by default all of `CHECKS`.

    Raises:
        AssertionError: it breaks the contract; lists every check that failed, with its first failures.
        TypeError: it is no instance of `Algorithm`. ValueError: no such check, or it serves no problem.
        Unsupported: it runs on a GPU, where `python -m convalgos.tools.gpu_check --one ID` checks it, or what
            it needs is not installed.

    Example:
        >>> from convalgos.cpu.direct import Direct
        >>> from convalgos.testing import check_algorithm
        >>> check_algorithm(Direct(), only=["figures", "refusals"]).runs["figures"] > 100
        True
    """
    if not isinstance(algorithm, Algorithm):
        raise TypeError(f"algorithm={algorithm!r} must be an instance of a subclass of Algorithm")
    if algorithm.device != "cpu":
        how = f"`python -m convalgos.tools.gpu_check --one {algorithm.id}` checks it on a machine with one"
        raise Unsupported(f"{algorithm.id} runs on a GPU: {how}")
    if unknown := [name for name in only or () if name not in CHECKS]:
        raise ValueError(f"only={unknown[0]!r} must be among {', '.join(CHECKS)}")
    runs: dict[str, int] = {}
    failures: list[str] = []
    for name in only or CHECKS:
        try:
            runs[name] = CHECKS[name](algorithm)
        except Exception as failure:
            failures.append(f"{name}: {type(failure).__name__}: {failure}")
    if failures:
        raise AssertionError(f"{algorithm.id} breaks the contract:\n" + "\n".join(failures))
    if not any(runs.values()):
        raise ValueError(f"{algorithm.id} serves none of the problems: {_reason(algorithm)}")
    return Checked(algorithm.id, runs)


def _reason(algorithm: Algorithm) -> str:
    return next(reason for _, reason in table_problems(algorithm, "float32") if reason)
