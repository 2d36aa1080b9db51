"""Which problems a program really runs: `with ca.capture() as problems`, and `convalgos capture -- COMMAND`.

Every run of a plan that a public call made is counted, in this process. For whole programs COMMAND is started
with CONVALGOS_CAPTURE set to a file, to which every Python process that imports convalgos adds what it ran,
when it ends and every few seconds. A line of the file reads `COUNT PROBLEM`.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from convalgos import algorithm
from convalgos.machine import write_atomic
from convalgos.problem import ConvProblem
from convalgos.store import locked

VARIABLE = "CONVALGOS_CAPTURE"
EVERY = 5.0  # seconds after which a program's file is brought up to date: it may be killed


@contextmanager
def capture() -> Iterator[Counter[ConvProblem]]:
    """Count the problems that are run meanwhile, by all threads of this process.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> with ca.capture() as problems:
        ...     y = ca.conv(np.ones((1, 1, 9), "f4"), np.ones((1, 1, 3), "f4"))
        >>> [(str(problem), count) for problem, count in problems.items()]
        [('n1 c1 w9 k1 s3', 1)]
    """
    found: Counter[ConvProblem] = Counter()
    lock = threading.Lock()

    def watch(problem: ConvProblem) -> None:
        with lock:
            found[problem] += 1

    algorithm.watchers.append(watch)
    try:
        yield found
    finally:
        algorithm.watchers.remove(watch)


def read(path: str | Path) -> Counter[ConvProblem]:
    """What a file holds.

    Raises:
        ValueError: names the file and the line. OSError: it cannot be read.
    """
    found: Counter[ConvProblem] = Counter()
    for number, line in enumerate(Path(path).read_text("utf-8").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            count = int(words[0]) if words[0].isdecimal() else 1
            found[ConvProblem.parse(" ".join(words[words[0].isdecimal() :]))] += count
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    return found


def add(path: str | Path, more: Mapping[ConvProblem, int]) -> None:
    """Add counts to those of a file, alone among all processes."""
    path = Path(path)
    with locked(path):
        total = read(path) if path.exists() else Counter()
        total.update(more)
        lines = sorted((-count, str(problem)) for problem, count in total.items())
        write_atomic(path, "".join(f"{-count} {problem}\n" for count, problem in lines))


def capture_program(path: str) -> None:
    """Count what this process runs until it ends, into a file. `import convalgos` calls it where asked to."""
    found: Counter[ConvProblem] = Counter()
    lock = threading.Lock()
    due = time.monotonic() + EVERY

    def watch(problem: ConvProblem) -> None:
        nonlocal due
        with lock:
            found[problem] += 1
            late = time.monotonic() > due
        if late:
            due = time.monotonic() + EVERY
            flush()

    def flush() -> None:
        with lock:
            more = dict(found)
            found.clear()
        if more:
            add(path, more)

    algorithm.watchers.append(watch)
    atexit.register(flush)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=found.clear)  # what the parent ran, the parent tells
