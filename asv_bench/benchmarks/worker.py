"""Runs layers for `convalgos history quick`, in a process that has one version of the library.

Each line of the input is a request in JSON, and is answered by a line of JSON: {"problem": text} makes a
layer ready and tells its pick, {"burst": s} runs it for s seconds and tells those of each run.
"""

import json
import sys
import time

import convalgos as ca

from .common import arrays, served

LEAST = 2  # runs of a burst
WARM_UP = 0.04  # seconds in which the scheduler spreads the threads again


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # what a library prints is no answer
    call = None
    for line in sys.stdin:
        request = json.loads(line)
        if "problem" in request:
            call, answer = ready(request["problem"])
        else:
            answer = {"seconds": burst(call, request["burst"])}
        print(json.dumps(answer), file=answers, flush=True)


def ready(text: str):
    """(call, answer) of a layer."""
    try:
        problem = ca.ConvProblem.parse(text)
        plan = served(problem)
        x, w, y = arrays(problem)
        prepared = plan.prepare(w)
        plan(x, prepared, out=y)
    except Exception as error:  # of another version: whatever it raises, the others go on
        return None, {"why_not": f"{type(error).__name__}: {error}"}
    return lambda: plan(x, prepared, out=y), {"pick": plan.algorithm}


def burst(call, length: float) -> list[float]:
    until = time.perf_counter() + WARM_UP
    while time.perf_counter() < until:
        call()
    found, until = [], time.perf_counter() + length
    while len(found) < LEAST or time.perf_counter() < until:
        found.append(seconds(call))
    return found


def seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
