"""For how many threads work is cut: for all of them, or for one that has a piece of the work for itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Any, TypeVar

from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime import jit

# A problem of less is run by one thread: to wake others and to wait for them costs as much as they save, and
# much more where other programs hold the cores.
SMALL = 3e-5  # seconds on one thread,
FLOPS, BYTES = (
    9e10,
    3e10,
)  # at so many of the direct convolution's, and of x, w and y, in a second; Xeon, AVX-512

Function = TypeVar("Function", bound=Callable[..., Any])

_this = threading.local()


def thread_count() -> int:
    """Threads that a plan made now shares its work among."""
    return 1 if _alone() else jit.thread_count()


def worth_sharing(problem: ConvProblem) -> bool:
    """Whether the tasks of a problem are dealt to several threads when it is run."""
    return problem.flops / FLOPS + problem.bytes / BYTES > SMALL


@contextmanager
def alone() -> Iterator[None]:
    """What is planned inside is for one thread, which calls its kernels itself, with task 0."""
    before, _this.alone = _alone(), True
    try:
        yield
    finally:
        _this.alone = before


def cut_once(entries: int) -> Callable[[Function], Function]:
    """`lru_cache` of what depends on `thread_count` too."""

    def decorate(function: Function) -> Function:
        @lru_cache(entries)
        def kept(alone: bool, *arguments: Any) -> Any:
            return function(*arguments)

        @wraps(function)
        def cached(*arguments: Any) -> Any:
            return kept(_alone(), *arguments)

        cached.cache_clear = kept.cache_clear  # type: ignore[attr-defined]
        return cached  # type: ignore[return-value]

    return decorate


class Lone:
    """Mixed into algorithms whose plans one thread can run: kernel plans that launch each step once."""

    def least_groups(self, problem: ConvProblem) -> int:
        """Of a slice of the groups of a problem: with fewer, vectors would be partly empty."""
        return 1


def _alone() -> bool:
    return getattr(_this, "alone", False)
