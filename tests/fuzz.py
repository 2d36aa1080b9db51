"""Many random layers, every candidate and what auto picks, forward and both gradients, against the reference.

    python tests/fuzz.py --checks 100000 --seed 0 --out fuzz.json

A check is one algorithm, or auto, on one problem in one direction. The record is complete after every batch,
and a run with the same seed goes on where it ended. Each batch is a process (see random_layers.py), so that a
crash is a failure of the check that it was at; `--batch NUMBER` repeats one and prints its failures.
"""

import argparse
import importlib.metadata as metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from random_layers import run_batch

FORMAT = 1
PROBLEMS = 25  # of a batch, each in three directions
PACKAGES = ("numpy", "numba", "llvmlite", "mkl", "pyfftw", "ml_dtypes")


def here() -> dict:
    """The machine, and what is installed."""
    from convalgos.core.machine import cache_sizes, cpu_count, vector_bytes
    from convalgos.core.processor import cpu_name

    versions = {"python": platform.python_version()}
    for name in ("convalgos", *PACKAGES):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "none"
    return {
        "machine": {
            "cpu": cpu_name(),
            "cores": cpu_count(),
            "vector_bytes": vector_bytes(),
            "cache_bytes": cache_sizes(),
            "system": platform.platform(),
        },
        "versions": versions,
    }


def new_record(seed: int, without: list[str]) -> dict:
    return {
        "format": FORMAT,
        **here(),
        "seed": seed,
        "without": without,
        "problems_of_a_batch": PROBLEMS,
        "batches": 0,
        "checks": 0,
        "seconds": 0.0,
        "by_direction": {},  # direction -> algorithm id or "auto" -> checks, worst error over its bound
        "failures": [],
    }


def add(record: dict, found: dict) -> None:
    """The results of one more batch."""
    for direction, algorithm, ratio in found["results"]:
        of = record["by_direction"].setdefault(direction, {})
        entry = of.setdefault(algorithm, {"checks": 0, "worst": 0.0})
        entry["checks"] += 1
        entry["worst"] = max(entry["worst"], ratio)
    record["failures"] += found["failures"]
    record["checks"] += len(found["results"]) + len(found["failures"])
    record["seconds"] = round(record["seconds"] + found["seconds"], 1)
    record["batches"] += 1


def save(record: dict, path: Path) -> None:
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(record, indent=1))
    os.replace(aside, path)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--checks", type=int, default=100_000, help="how many in all, those of the record included"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="the record; one that is there is gone on with")
    parser.add_argument("--without", nargs="*", default=[], metavar="ID", help="algorithms to leave out")
    parser.add_argument("--jobs", type=int, default=1, help="batches that run at a time")
    parser.add_argument("--batch", type=int, help="run only this batch, and print its failures")
    given = parser.parse_args(arguments)
    if given.batch is not None:
        found = run_batch(given.seed, given.batch, PROBLEMS, given.without)
        print(json.dumps(found["failures"], indent=1))
        return bool(found["failures"])
    told = {
        "seed": given.seed,
        "without": given.without,
        "format": FORMAT,
        "problems_of_a_batch": PROBLEMS,
    }
    record = known_record(given.out, told) or new_record(given.seed, given.without)
    if "differs" in record:
        print(record["differs"], file=sys.stderr)
        return 2
    run = Run("checks", given.checks, given.jobs, given.out, add)
    run(record, lambda batch: run_batch(given.seed, batch, PROBLEMS, given.without))
    return bool(record["failures"])


def known_record(out: Path | None, told: dict) -> dict:
    """The record of a run that goes on, or why another cannot: {"differs": why}; none where there is none."""
    if out is None or not out.exists():
        return {}
    record = json.loads(out.read_text())
    for name, value in told.items():
        if record[name] != value:
            return {"differs": f"{out} has {name} {record[name]}, not {value}: name another file"}
    return record


class Run(NamedTuple):
    """Batches, one after the other or some at a time, until there are enough."""

    unit: str  # which number of the record counts
    wanted: int
    jobs: int
    out: Path | None
    add: Callable[[dict, dict], None]  # the results of one more batch to the record

    def __call__(self, record: dict, run: Callable[[int], dict]) -> None:
        begin, before = time.perf_counter(), record[self.unit]
        while record[self.unit] < self.wanted:
            first = record["batches"]
            with ThreadPoolExecutor(self.jobs) as jobs:  # each waits for a process
                found = list(jobs.map(run, range(first, first + self.jobs)))
            for of_batch in found:  # in their order, so that the record ends between two of them
                self.add(record, of_batch)
                for failure in of_batch["failures"]:
                    print(json.dumps(failure), flush=True)
            if self.out:
                save(record, self.out)
            rate = (record[self.unit] - before) / (time.perf_counter() - begin)
            left = max(0, self.wanted - record[self.unit]) / rate / 60 if rate else 0
            print(
                f"{record[self.unit]:,} of {self.wanted:,} {self.unit}, {len(record['failures'])} failed; "
                f"{rate:.3g} a second, {left:.0f} minutes left",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
