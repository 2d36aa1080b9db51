"""Random layers (`convalgos.testing.random_layers`), and every candidate on them.

`check_problem` runs each algorithm that serves a problem, and what auto picks, in one direction, by
`convalgos.testing.check`: against the float64 reference, in poisoned memory, between guard bands. Which
schedule an algorithm takes follows from threads and caches: in a process that assumes small ones, as most of
`SURROUNDINGS` are, layers of a megaflop are cut into many boxes, blocks and parts. A batch is such a process,
drawn from a seed:

    python tests/random_layers.py SEED BATCH PROBLEMS [--without ID ...]

writes a line of JSON before each check, and one of results after each problem. tests/fuzz.py runs many.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

POOL = 60  # problems that are drawn for each that is taken
BORDERS = 0.2  # of them have something else than zeros beyond the edges
SURROUNDINGS = (  # threads, and bytes of the caches; None: those that there are
    (1, (16 << 10, 64 << 10, 512 << 10)),
    (2, (32 << 10, 256 << 10, 2 << 20)),
    (3, (16 << 10, 64 << 10, 512 << 10)),
    (2, None),
    (8, (32 << 10, 128 << 10, 1 << 20)),
    (1, (48 << 10, 2 << 20, 96 << 20)),
)


# --- drawing ---------------------------------------------------------------------------------


def various(drawn: list, count: int) -> list:
    """So many of the problems: one after the other the first that reaches most ways which none before did."""
    reached = {problem: ways(problem) for problem in drawn}
    found: list = []
    seen: set[tuple] = set()
    while len(found) < count:
        best = max(reached, key=lambda problem: len(reached[problem] - seen))
        seen |= reached.pop(best)
        found.append(best)
    return found


def ways(problem) -> set[tuple]:
    """How boxes of tiles are cut and shared on a problem, by the algorithms that have such.

    Returns:
        (id,) of those that serve it, and of each (kind, whether threads share boxes, how each dimension is
        cut: not "-", evenly "=", with smaller boxes "<"; whether a box has several images, whether in 3-D).
    """
    from convalgos.cpu import fft_tiles, winograd, winograd_weights
    from convalgos.cpu.winograd_weights import WinogradWeights

    found: set[tuple] = set()
    turned: dict = {}  # (direction, what is computed) -> the problem: the same for most algorithms
    for algorithm in (*fft_tiles.ALGORITHMS[:1], *winograd.ALGORITHMS, *winograd_weights.ALGORITHMS):
        computed, direction = algorithm.computed(problem), algorithm.directions[0]
        if (faced := turned.get((direction, computed))) is None:
            faced = turned[direction, computed] = computed.replace(direction=direction)
        if algorithm.why_not(faced) is None:
            found.add((algorithm.id,))
            of_filter = isinstance(algorithm, WinogradWeights)
            boxes = algorithm._boxes(faced) if of_filter else algorithm._schedule(faced)
            tiles = boxes.inputs if of_filter else boxes
            each = zip(tiles.grid, tiles.cuts, strict=True)
            cut = "".join("-" if cuts == 1 else "=" if n % cuts == 0 else "<" for n, cuts in each)
            found.add((type(algorithm).__name__, tiles.team, cut, tiles.box[0] > 1, problem.ndim == 3))
    return found


# --- checking --------------------------------------------------------------------------------


def check_problem(
    problem, kind: str, rng: random.Random, without=(), at=lambda name: None
) -> Iterator[tuple]:
    """(algorithm id or "auto", worst error over its bound, what failed or None) of each candidate.

    at: called with the name before each check.
    """
    import convalgos as ca
    from convalgos.select import find_algorithm
    from convalgos.select.registry import plain_ways
    from convalgos.testing import check
    from convalgos.testing.problems import suited

    steps = [(False, None), (rng.random() < 0.5, rng.choice((None, "relu")))]
    for algorithm in (*plain_ways(problem, "cpu"), "auto"):
        name = algorithm if algorithm == "auto" else algorithm.id
        if name in without or name == "cpu.reference":
            continue
        of_it = problem if name == "auto" else suited(algorithm, problem)
        if name != "auto" and algorithm.why_not(algorithm.computed(of_it)) is not None:
            continue
        at(name)
        try:
            if name == "auto":
                plan = ca.plan(problem)
                if plan.algorithm in without:
                    continue
                found = check(find_algorithm(plan.algorithm, problem), problem, kind, steps, plan)
            else:
                found = check(algorithm, of_it, kind, steps)
            yield name, found, None
        except Exception as failure:
            yield name, 0.0, f"{type(failure).__name__}: {failure}"


def problems_of(seed: int, batch: int, count: int) -> Iterator[tuple]:
    """(problem in a direction, kind of data, generator for what else is drawn) of a batch."""
    from convalgos.core.problem import DIRECTIONS
    from convalgos.testing.random_layers import random_layer

    rng = random.Random(f"{seed} {batch}")
    drawn = [random_layer(rng, borders=BORDERS) for _ in range(POOL * count)]
    for problem in various(drawn, count):
        kind = rng.choice(("reals", "reals", "integers"))
        for direction in DIRECTIONS:
            yield problem.replace(direction=direction), kind, rng


def surrounding(batch: int) -> tuple[int, tuple[int, int, int] | None]:
    """Threads and caches of the process of a batch."""
    return SURROUNDINGS[batch % len(SURROUNDINGS)]


def environment(batch: int) -> dict[str, str]:
    """That of the process of a batch: nothing there is measured, so that its picks repeat."""
    from convalgos.core.machine import vector_bytes

    paths = str(Path(__file__).parent), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "CONVALGOS_NUM_THREADS": str(surrounding(batch)[0]),
        "OMP_WAIT_POLICY": "passive",
        "CONVALGOS_PROFILE": "avx512" if vector_bytes() == 64 else "avx2",
        "CONVALGOS_WISDOM": str(Path(tempfile.gettempdir(), "convalgos-without-wisdom")),
    }


def run_batch(seed: int, batch: int, problems: int, without=(), timeout: float = 1800) -> dict:
    """What a batch found, in a process of its own: results, failures, and the seconds that it took.

    Returns:
        results: [direction, algorithm id or "auto", worst error over its bound] of each check that was right;
        ways: those of `ways` that its problems reach;
        failures: the problem, direction, kind of data, algorithm, and what is wrong, of each other.
    """
    begin = time.perf_counter()
    command = [__file__, *map(str, (seed, batch, problems)), "--without", *without]
    results, failures, reached, last = [], [], [], {}
    told, ended = lines_of(command, batch, timeout)
    for line in told:
        last = line.get("at", last)
        results += line.get("results", [])
        failures += line.get("failures", [])
        reached += line.get("ways", [])
    if ended:
        failures.append({**last, "what": ended})
    threads, caches = surrounding(batch)
    for failure in failures:
        failure |= {"seed": seed, "batch": batch, "threads": threads, "caches": caches}
    seconds = time.perf_counter() - begin
    return {"results": results, "failures": failures, "ways": reached, "seconds": seconds}


def lines_of(command: list[str], batch: int, timeout: float) -> tuple[list[dict], str]:
    """(the lines of JSON that a process of a batch wrote, how it ended where that was not as it should)."""
    try:
        done = subprocess.run(
            [sys.executable, *command], env=environment(batch), capture_output=True, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip
        output, ended, said = done.stdout, done.returncode and f"with {done.returncode}", done.stderr
    except subprocess.TimeoutExpired as late:
        output, ended, said = (late.stdout or b"").decode(), f"after {timeout:.0f} s", ""
    told = [json.loads(li) for li in output.splitlines() if li.startswith("{") and li.endswith("}")]
    return told, f"the process ended {ended}: {said.strip()[-2000:]}" if ended else ""


# --- the process of a batch ------------------------------------------------------------------


def assume_caches(sizes: tuple[int, int, int] | None) -> None:
    from convalgos.core import machine

    if sizes:
        figures = machine.Machine("assumed", 1, machine.vector_bytes(), *sizes, 1e11, 5e10, 2e10, 1e11, 5e-6)
        machine.assume(figures)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("seed", "batch", "problems"):
        parser.add_argument(name, type=int)
    parser.add_argument("--without", nargs="*", default=())
    given = parser.parse_args()
    assume_caches(surrounding(given.batch)[1])
    from convalgos.testing import example

    for problem, kind, rng in problems_of(given.seed, given.batch, given.problems):
        told = {"problem": str(problem), "direction": problem.direction, "kind": kind}

        def tell(algorithm: str, told=told) -> None:
            print(json.dumps({"at": told | {"algorithm": algorithm}}), flush=True)

        results, failures = [], []
        for algorithm, ratio, failed in check_problem(problem, kind, rng, given.without, tell):
            if failed:
                failures.append(told | {"algorithm": algorithm, "what": failed})
            else:
                results.append([problem.direction, algorithm, round(ratio, 4)])
        reached = sorted(ways(problem)) if problem.direction == "forward" else []
        print(json.dumps({"results": results, "failures": failures, "ways": reached}), flush=True)
        example.cache_clear()


if __name__ == "__main__":
    main()
