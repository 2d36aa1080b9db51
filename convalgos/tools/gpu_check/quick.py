"""The first minutes: one regular and one odd problem for each algorithm and type, checked on the device.

1. The regular problems are computed in float64 on the device, by torch or else by `gpu.direct`.
2. The host compares these answers with its own, at some places.
3. A process for each algorithm compares its results with the answers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import product

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.problem import DIRECTIONS, LAYOUTS, ConvProblem
from convalgos.gpu.device import Device
from convalgos.select import registry
from convalgos.select.measure.backends import GpuBackend
from convalgos.tools.gpu_check.baselines import torch_call
from convalgos.tools.gpu_check.cases import AWKWARD, FORWARD, SPARSE, TYPES, USED, Case, types_facing
from convalgos.tools.gpu_check.checks import check_algorithms
from convalgos.tools.gpu_check.reference_answers import Answer, Answers, Truth
from convalgos.tools.gpu_check.results import OutOfTime, Result, told
from convalgos.tools.gpu_check.steps import DATA, NOTHING, PLANNING, Begun, Skip

REGULAR = (
    "n4 c64 h56 w56 k64 r3 s3 p1",
    "n8 c64 h56 w56 k64 r3 s3 p1 groups64",
    "n8 c64 h56 w56 k64 r3 s3 p1 stride2 groups64",
    "n2 c64 w4096 k64 s4096 p4095:0 groups64",
    "n1 c2 w65536 k2 s65536 p65535:0 groups2",
)
ODD = (
    "n5 c32 h17 w23 k48 r3 s3 p1",
    "n1 c17 h12 w13 k17 r5 s5 p2 stride2 groups17",
    "n1 c8 w3000 k8 s3000 p2999:0 groups8",
    "n1 c2 w40000 k2 s9000 p8999:0 groups2",
)
BOUND = 1e-10  # of an answer in float64
LAST = "wgmma"  # in the ids of what is tried last


def gpu_algorithms() -> dict[str, Algorithm]:
    """All algorithms by their ids: `gpu.direct` first, wgmma last, and behind it its forms that race."""
    found = registry.algorithms("gpu")
    listed = sorted(found, key=lambda a: (LAST in a.id, not a.id.startswith("gpu.direct")))
    forms = [form for a in listed if LAST in a.id for form in a.variants(ConvProblem.parse(REGULAR[0]))]
    return {a.id: a for a in (*listed, *forms)}


def quick_cases(algorithm: Algorithm) -> list[Case]:
    """Of its own directions and each type a regular and an odd problem, in different layouts if it can."""
    found: list[Case] = []
    for direction, name in ((d, name) for d in algorithm.directions for name in types_facing(d)):
        if (name in SPARSE) != algorithm.skips_zeros:
            continue
        for kind, texts, layouts in (
            ("regular", (*REGULAR, *USED), LAYOUTS),
            ("odd", (*ODD, *AWKWARD), LAYOUTS[::-1]),
        ):
            every = (_case(kind, *one, direction, name) for one in product(texts, layouts))
            served = (case for case in every if algorithm.why_not(algorithm.computed(case.problem)) is None)
            found += [case for case in [next(served, None)] if case is not None]
    return found


def _case(kind: str, text: str, layout: str, direction: str, name: str) -> Case:
    problem = ConvProblem.parse(text).replace(layout=layout, direction=direction, **TYPES[name])
    return Case(kind, text, problem)


def check_each(
    device: Device, algorithm: str, answers: Answers, until: float, skip: Skip = NOTHING
) -> Iterator[Begun | Result | OutOfTime]:
    """Check an algorithm on its regular and odd problems."""
    chosen = quick_cases(gpu_algorithms()[algorithm])
    yield from check_algorithms(device, chosen, True, until, whose=algorithm, answers=answers, skip=skip)


# --- the answers ---------------------------------------------------------------------------------


def answer_large_problems(
    device: Device, answers: Answers, until: float, skip: Skip = NOTHING
) -> Iterator[Begun | Result | OutOfTime]:
    """Compute the regular problems that are too large for the host, for `check_each` to compare with."""
    every = [
        _case("regular", text, LAYOUTS[0], direction, name)
        for text, direction in product(REGULAR, DIRECTIONS)
        for name in types_facing(direction)
        if name not in FORWARD  # of which algorithms are compared with the host, and with one another
    ]
    for done, case in enumerate(every):
        if time.monotonic() > until:
            yield OutOfTime(len(every) - done)
            return
        if skip.problem(case.problem):
            continue
        yield Begun(case, patience=DATA)
        truth = Truth(case.problem)
        if truth.places is None:
            continue
        for name, compute in {"torch": _by_torch, "gpu.direct": _by_direct}.items():
            if (str(case.problem), name) in skip:
                continue
            yield Begun(case, name, PLANNING)
            titles = case.title, str(case.problem), f"{name} in float64"
            try:
                y = compute(device, truth)
            except ImportError:
                continue
            except Exception as failure:  # the next one is asked, if the device is still of use
                reason = told(failure)
                lost = GpuBackend(device).lost()
                yield Result(*titles, f"answer: {reason}", failure=reason if lost else None)
                continue
            error = float(np.abs(y[tuple(truth.places.T)] - truth.y).max()) / truth.scale
            if error <= BOUND:
                answers.keep(case.problem, Answer(titles[2], BOUND, y))
                break
            yield Result(*titles, "answer", error=error, bound=BOUND)


def _by_torch(device: Device, truth: Truth) -> np.ndarray:
    problem = truth.problem.replace(dtype="float64", compute_dtype=None)
    y = torch_call(device.name, problem, *_wide(truth))()
    found: np.ndarray = y.cpu().numpy().reshape(problem.result_shape)
    return found


def _by_direct(device: Device, truth: Truth) -> np.ndarray:
    backend, problem = GpuBackend(device), truth.problem.replace(dtype="float64", compute_dtype=None)
    name = "gpu.direct.weights" if problem.direction == "backward_weights" else "gpu.direct"
    plan = registry.find_algorithm(name, problem).serve(problem)
    x, w = map(backend.put, _wide(truth))
    found: np.ndarray = problem.logical(2, backend.get(plan(x, plan.prepare(w))))
    return found


def _wide(truth: Truth) -> tuple[np.ndarray, np.ndarray]:
    return truth.first.astype(np.float64), truth.second.astype(np.float64)
