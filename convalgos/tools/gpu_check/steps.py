"""What a job announces to the process that directs it, and what it is told to skip.

A job is a function `job(device, *, skip, until)` that yields what it finds. Before anything that may never
return it yields a `Begun`, by which the directing process knows what to blame, and how long to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from convalgos.tools.gpu_check.cases import Case

Key = tuple[str, str]  # (problem, algorithm)
Job = Callable[..., Iterator[Any]]
CUDNN = "gpu.cudnn"  # family, of which every plan has an id of its own

# Seconds without a word after which what was begun counts as hanging; estimates.
DATA = 60.0  # the host computes data and answers, a library is imported
PLANNING = 30.0  # a plan: its kernels are compiled and loaded, its filter is prepared
RUNNING = 10.0  # a kernel of ours runs, and its result is looked at
FIRST = 20.0  # more for the first step of a process: CuPy loads its libraries and compiles its own kernels


@dataclass(frozen=True)
class Begun:
    """What is tried next: to be blamed where no answer comes. No algorithm: nobody is to blame."""

    case: Case
    algorithm: str = ""
    patience: float = RUNNING

    @property
    def key(self) -> Key:
        return str(self.case.problem), self.algorithm


@dataclass(frozen=True)
class Skip:
    """What a job leaves out: pairs that were tried before, and algorithms that are barred.

    Attributes:
        lost: of the pairs those over which a process was lost.
    """

    tried: frozenset[Key] = frozenset()
    lost: frozenset[Key] = frozenset()
    barred: frozenset[str] = frozenset()

    def __contains__(self, key: Key) -> bool:
        return key in self.tried or self.hopeless(key)

    def hopeless(self, key: Key) -> bool:
        """Whether a pair is not to be tried again, though others of its problem are."""
        return key in self.lost or accused(key[1]) in self.barred

    def problem(self, problem: object) -> bool:
        """Whether a process was lost over a problem, with nobody to blame."""
        return (str(problem), "") in self.lost


NOTHING = Skip()


def accused(algorithm: str) -> str:
    """Who is barred for an algorithm: cuDNN for any of its plans."""
    return CUDNN if algorithm.startswith(CUDNN) else algorithm
