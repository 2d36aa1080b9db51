"""Is the working tree slower than its parent commit? A dozen layers in two minutes.

Two processes, one with the package of the working tree and one with that of the other commit, run the same
layers in turns, so that a machine whose speed drifts is fair to both. Nothing is saved.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convalgos.select.measure import timing as measure_timing
from convalgos.select.measure.backends import Backend
from convalgos.select.measure.timing import Timing
from convalgos.tools.history.asv import commit_of, in_tree, snapshot, source_tree

BUDGET = 100.0  # seconds after which no further layer is begun
ROUNDS = 6
BURST = 0.03  # seconds for which a layer runs in each of them
NOTABLE = 1.1  # a ratio that may be more than noise, where the quartiles do not overlap either
READY = "n1 c1 h1 w1 k1 r1 s1"  # asked of a version that may lack all
LISTING = (
    "import json; from benchmarks.layers import QUICK; "
    "print(json.dumps({name: str(problem) for name, problem in QUICK.items()}))"
)


class Incomparable(RuntimeError):
    """The other commit has nothing that could be measured."""


@dataclass(frozen=True)
class PickTimed:
    """A version on a layer: its pick and times, or why there are none."""

    pick: str | None
    timing: Timing | None
    why_not: str | None = None

    @property
    def least(self) -> float | None:
        """Seconds of the fastest run: other programs only make runs longer."""
        return min(self.timing.samples) if self.timing else None


@dataclass(frozen=True)
class Compared:
    """A layer on both sides."""

    layer: str
    problem: str
    before: PickTimed
    now: PickTimed

    @property
    def ratio(self) -> float | None:
        """Least time now / least time before: below 1 it is faster now."""
        return self.now.least / self.before.least if self.now.least and self.before.least else None

    @property
    def verdict(self) -> str:
        """ "faster", "slower", or nothing where it may be noise or there is no ratio."""
        if self.ratio is None or self.now.timing is None or self.before.timing is None:
            return ""
        before, now = self.before.timing.quartiles, self.now.timing.quartiles
        if self.ratio > NOTABLE and now[0] > before[1]:
            return "slower"
        return "faster" if self.ratio < 1 / NOTABLE and now[1] < before[0] else ""


def why_not_compared(base: str) -> str | None:
    """Why there is nothing to compare with, in one sentence, or None."""
    try:
        root = source_tree()
        commit_of(root, "HEAD")
    except ValueError as reason:
        return f"no git history here ({reason})"
    try:
        commit_of(root, base)
    except ValueError as reason:
        return f"{reason}: the clone is shallow, or this is its first commit" if "^" in base else str(reason)
    return None


def quick(
    base: str = "HEAD^", *, budget: float = BUDGET, progress: measure_timing.Progress = measure_timing.silent
) -> Iterator[Compared]:
    """The layers of the benchmarks as they are compared, until the budget is spent.

    Args:
        base: the commit to compare the working tree with, uncommitted changes among it.
        budget: seconds after which no further layer is begun.

    Raises:
        ValueError: the working tree cannot be measured. Incomparable: the other commit cannot.
    """
    root, deadline = source_tree(), time.monotonic() + budget
    layers = json.loads(_listed(root))
    with snapshot(root, commit_of(root, base)) as tree, _worker(tree) as before, _worker(root) as now:
        for ask, error in ((now, ValueError), (before, Incomparable)):
            if reason := ask({"problem": READY}).get("why_not"):
                raise error(f"{'the working tree' if ask is now else base} cannot be measured: {reason}")
        for i, (name, problem) in enumerate(layers.items()):
            if time.monotonic() > deadline:
                return
            progress(name, i / len(layers))
            yield _compare(name, problem, before, now)


# --- inside ----------------------------------------------------------------------------------

Ask = Callable[[dict[str, Any]], dict[str, Any]]


def _compare(name: str, problem: str, before: Ask, now: Ask) -> Compared:
    sides, found = (before, now), [ask({"problem": problem}) for ask in (before, now)]
    samples: list[list[float]] = [[], []]
    for turn in range(ROUNDS):
        for i in (0, 1) if turn % 2 == 0 else (1, 0):
            if "pick" in found[i]:
                time.sleep(Backend.idle)
                samples[i] += sides[i]({"burst": BURST})["seconds"]
    return Compared(
        name,
        problem,
        *(
            PickTimed(f.get("pick"), Timing(tuple(s)) if s else None, f.get("why_not"))
            for f, s in zip(found, samples, strict=True)
        ),
    )


def _command(tree: Path, *words: str) -> tuple[list[str], dict[str, str]]:
    """A command that has the package of a tree, and the benchmarks of the working tree."""
    environment = in_tree(tree, "PYTHONPATH", source_tree() / "asv_bench")
    return [sys.executable, "-P", *words], {**os.environ, **environment}


def _listed(root: Path) -> str:
    """The layers of the benchmarks, as JSON: name -> problem."""
    command, environment = _command(root, "-c", LISTING)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"the benchmarks cannot be imported: {_last(done.stderr)}")
    return done.stdout


def _last(text: str) -> str:
    """The last line of what a process said."""
    return next(reversed(text.strip().splitlines()), "it ended without a word")


@contextmanager
def _worker(tree: Path) -> Iterator[Ask]:
    """A process that answers requests with the package of a tree; it ends with the context."""
    command, environment = _command(tree, "-m", "benchmarks.worker")
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True
        ) as process,
    ):
        asked, told = process.stdin, process.stdout
        assert asked and told

        def ask(request: dict[str, Any]) -> dict[str, Any]:
            try:
                print(json.dumps(request), file=asked, flush=True)
                found: dict[str, Any] = json.loads(told.readline())
                return found
            except (BrokenPipeError, json.JSONDecodeError):
                process.wait()
                said.seek(0)
                return {"why_not": _last(said.read()), "seconds": []}

        try:
            yield ask
        finally:
            process.kill()
            with suppress(BrokenPipeError):  # what a dead process has not read
                asked.close()
