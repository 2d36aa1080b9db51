"""For how many threads the work of a plan is cut.

That is all threads that `jit.launch` runs on; or one thread, where each has a slice of a larger problem for
itself (`on_one_thread`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Generic, ParamSpec, TypeVar, cast

from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.thread_pool import SHORT_THREADS

# A problem of less is run by one thread: to wake others and to wait for them costs as much as they save, and
# much more where other programs hold the cores.
SMALL = 3e-5  # seconds on one thread,
# at so many of the direct convolution's, and of x, w and y, in a second; Xeon, AVX-512
FLOPS, BYTES = 9e10, 3e10
TINY = 3e-6  # of a problem that is worth the threads which are awake: one has done less by then (Zen 5)
# Threads up to which such launches are shared: all that are awake look at each. Timed on two cores
MOST_SHORT = 8
THREAD_UNITS = 4  # units of work for each thread, where a problem can be cut into so many

Given = ParamSpec("Given")
Result = TypeVar("Result")

_this = threading.local()


def plan_threads() -> int:
    """Threads that a plan made now shares its work among."""
    return 1 if getattr(_this, "alone", False) else jit.thread_count()


def worth_sharing(problem: ConvProblem) -> bool:
    """Whether the tasks of a problem are dealt to several threads when it is run."""
    return are_worth_sharing(problem.flops, problem.bytes)


def are_worth_sharing(flops: int, moved: int, least: float = SMALL) -> bool:
    """Whether so many operations, and bytes moved, take one thread more than `least` seconds."""
    sums = flops / FLOPS
    return sums > least or sums + moved / BYTES > least


def is_short(flops: int, moved: int) -> bool:
    """Whether so many operations, and bytes moved, are worth the threads that are awake, and no others."""
    if plan_threads() > MOST_SHORT or are_worth_sharing(flops, moved):
        return False
    return are_worth_sharing(flops, moved, TINY)


def short_launch_threads(problem: ConvProblem) -> int:
    """Threads that a launch of a problem is cut for, where its tasks may be as few as is best."""
    if worth_sharing(problem):
        return plan_threads()
    return min(plan_threads(), SHORT_THREADS) if is_short(problem.flops, problem.bytes) else 1


@contextmanager
def on_one_thread() -> Iterator[None]:
    """What is planned inside is for one thread, which calls its kernels itself, with task 0."""
    before, _this.alone = _alone(), True
    try:
        yield
    finally:
        _this.alone = before


def cached_by_threads(entries: int) -> Callable[[Callable[Given, Result]], CachedByThreads[Given, Result]]:
    """`lru_cache` of a function of hashable arguments that depends on `plan_threads` too."""

    def decorate(function: Callable[Given, Result]) -> CachedByThreads[Given, Result]:
        return CachedByThreads(function, entries)

    return decorate


class CachedByThreads(Generic[Given, Result]):
    """A function whose results are kept for each number of threads."""

    def __init__(self, function: Callable[Given, Result], entries: int):
        self.__wrapped__ = function

        def of_threads(threads: int, *arguments: Any) -> Any:
            return function(*arguments)  # type: ignore[call-arg]  # as they were given

        self._cached = lru_cache(entries)(of_threads)
        self.cache_clear = self._cached.cache_clear

    def __call__(self, *arguments: Given.args, **named: Given.kwargs) -> Result:
        assert not named, "arguments are told apart by their places"
        return cast(Result, self._cached(plan_threads(), *arguments))


class SingleThreaded:
    """Mixed into algorithms whose plans one thread can run: kernel plans that launch each step once.

    `cpu/backward` gives each thread slices of a gradient, which it computes by such plans.
    """

    def least_groups(self, problem: ConvProblem) -> int:
        """Of a slice of the groups of a problem: with fewer, vectors would be partly empty."""
        return 1


def _alone() -> bool:
    return bool(getattr(_this, "alone", False))
