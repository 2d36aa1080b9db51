"""Progress of asv, from what it prints: it reports a benchmark only after all its parameters."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path

from convalgos.select.measure.timing import Progress

NOT_MEASURED = re.compile(r" n/a +$")  # rows of asv's tables, by far the most
NOT_SERVED = "asv: skipped: NotImplementedError"


def watch(
    command: Sequence[str],
    environment: dict[str, str],
    results: Path,
    only: Sequence[str],
    rounds: int | None,
    tell: Callable[[str], None],
    progress: Progress,
) -> int:
    """Run asv, tell its lines but those of what is not measured, and how many processes it has started.

    Args:
        results: asv's folder of results, where it lists the benchmarks before it runs them.
        only: the regular expressions that choose benchmarks; all when empty.
        rounds: of each benchmark, where they are not its own.

    Returns:
        The exit status.
    """
    ticks = results.with_name("ticks")  # the benchmarks add a byte to it in each process
    added = {"CONVALGOS_HISTORY_TICKS": str(ticks), "PYTHONUNBUFFERED": "1"}
    done = threading.Event()

    def poll() -> None:
        total = 0
        while not done.wait(0.5):
            total = total or expected(results / "benchmarks.json", only, rounds)
            if total and ticks.exists():
                count = ticks.stat().st_size
                progress(f"{count} of {total} processes", min(1.0, count / total))

    watcher = threading.Thread(target=poll, daemon=True)
    watcher.start()
    try:
        with subprocess.Popen(
            command,
            env={**os.environ, **environment, **added},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                for line in measured(process.stdout or ()):
                    tell(line)
            except BaseException:
                process.terminate()
                raise
    finally:
        done.set()
        watcher.join()
    return process.returncode


def measured(lines: Iterable[str]) -> Iterator[str]:
    """What asv says, without the rows of what is n/a, and without the reasons of that."""
    case = ""  # for which parameters the next line is
    for line in lines:
        if "For parameters: " in line:
            case = line.rstrip()
        elif NOT_SERVED not in line:
            if case:
                yield case
            if not NOT_MEASURED.search(line):
                yield line.rstrip()
            case = ""
        else:
            case = ""


def expected(listed: Path, only: Sequence[str], rounds: int | None) -> int:
    """The processes that asv will start for the benchmarks it has listed; 0 where it has listed none yet."""
    try:
        found = json.loads(listed.read_text())
    except (OSError, ValueError):
        return 0
    total = 0
    for name, benchmark in found.items():
        if isinstance(benchmark, dict):
            combinations = [f"{name}({', '.join(c)})" for c in product(*benchmark["params"])]
            chosen = [c for c in combinations if not only or any(re.search(o, c) for o in only)]
            total += len(chosen) * (rounds or benchmark.get("rounds", 1))
    return total
