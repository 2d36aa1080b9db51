"""Whether results are right: of every algorithm on a problem, and whatever a user does with its plan."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.errors import Unsupported
from convalgos.core.plan import result_dtype
from convalgos.gpu.device import Device
from convalgos.gpu.launch.plan import GpuPlan
from convalgos.select import choose
from convalgos.select.measure.accuracy import random_arrays
from convalgos.select.measure.backends import GpuBackend
from convalgos.select.ranking import Candidate
from convalgos.tools.gpu_check.cases import Case
from convalgos.tools.gpu_check.reference_answers import Answers, Truth, ahead
from convalgos.tools.gpu_check.results import OutOfTime, Result, told
from convalgos.tools.gpu_check.steps import CUDNN, DATA, NOTHING, PLANNING, RUNNING, Begun, Skip

THREADS = 4
LONGEST = 0.3  # seconds that an algorithm may be predicted to take where it is not checked thoroughly


WHOSE: dict[str, Callable[[Algorithm], bool]] = {
    "ours": lambda a: not a.id.startswith(CUDNN),
    "cuDNN's": lambda a: a.id.startswith(CUDNN),
    "everyone's": lambda a: True,
}


def candidates(case: Case, device: Device, whose: str = "everyone's") -> tuple[list[Candidate], list[Result]]:
    """All that can serve a problem, in the order of their predictions, whatever was measured before.

    Args:
        whose: "ours", "cuDNN's", "everyone's" or an id: cuDNN takes long to be asked.

    Returns:
        Also what went wrong in asking them, in which case there are none.
    """
    wanted = WHOSE.get(whose, lambda a: a.id == whose)
    of = case.problem, device.name, device.figures
    try:
        found, _ = choose.survey(*of, wanted=wanted)
        if not found and whose not in WHOSE:  # it may be a variant of one that is listed
            found = [c for c in choose.varied(*of, lambda a: whose.startswith(f"{a.id}.")) if c.id == whose]
    except Exception as failure:
        return [], [Result(case.title, str(case.problem), "", "choosing", failure=told(failure))]
    return sorted(found, key=lambda c: (c.predicted_s, c.id)), []


# --- results -------------------------------------------------------------------------------------


def check_algorithms(
    device: Device,
    cases: Sequence[Case],
    thorough: bool,
    until: float,
    whose: str = "everyone's",
    answers: Answers | None = None,
    skip: Skip = NOTHING,
) -> Iterator[Begun | Result | OutOfTime]:
    """Every algorithm on every problem.

    Args:
        thorough: also with bias and ReLU.
        until: a moment of `time.monotonic`, after which no further problem is begun.
        whose: algorithms; see `candidates`.
        answers: that are known of large problems.
        skip: what was tried before.
    """
    tried = {problem for problem, _ in skip.tried}
    before = [i for i, case in enumerate(cases) if str(case.problem) in tried]
    cases = [case for case in cases[max(before, default=0) :] if not skip.problem(case.problem)]
    with closing(ahead(case.problem for case in cases)) as truths:
        for done, case in enumerate(cases):
            if time.monotonic() > until:
                yield OutOfTime(len(cases) - done)
                return
            yield Begun(case, patience=DATA)
            truth, checker = next(truths), None
            found, failed = candidates(case, device, whose)
            yield from failed
            for candidate in found:
                if (str(case.problem), candidate.id) in skip:
                    continue
                if not thorough and candidate.predicted_s >= LONGEST:
                    continue
                checker = checker or _Checker(device, case, truth, answers)
                yield from checker.check(candidate, thorough)


class _Checker:
    """A problem on the device. Large results are compared there with a known one, or the first right one."""

    def __init__(self, device: Device, case: Case, truth: Truth, answers: Answers | None):
        self._device, self._case, self._truth = device, case, truth
        self._backend = GpuBackend(device)
        self._x, self._w, self._bias = map(self._backend.put, (truth.first, truth.second, truth.bias))
        self._right: tuple[Result, Any] | None = None
        known = answers.known(case.problem) if answers else None
        if known is not None and truth.places is not None:
            answer = Result(case.title, str(case.problem), known.by, "y", bound=known.bound)
            self._right = answer, self._backend.put(known.y)

    def check(self, candidate: Candidate, thorough: bool) -> Iterator[Begun | Result]:
        case, problem = self._case, str(self._case.problem)
        result = Result(case.title, problem, candidate.id, "y", bound=candidate.error_bound)
        plan = None
        try:
            yield Begun(case, candidate.id, PLANNING)
            plan = candidate.algorithm.serve(case.problem)
            w = plan.prepare(self._w, self._truth.quantization)
            self._backend.wait()
            yield Begun(case, candidate.id, RUNNING)
            y = self._run(plan, w)
            plain = replace(result, **self._compared_with_host(y))
            if not plain.wrong:
                plain, earlier = self._compared(plain, y)
                yield from earlier
            yield self._with_builds(plain, plan)
            if thorough and self._case.problem.direction == "forward":
                y = self._run(plan, w, bias=self._bias, activation="relu")
                found = self._compared_with_host(y, finished=True)
                yield self._with_builds(replace(result, what="bias and relu", **found), plan)
        except MemoryError as error:  # a smaller GPU is no reason for a complaint
            yield replace(result, what=f"not checked: {told(error)}")
        except Exception as failure:  # one that is broken must not hide what is known of the others
            yield self._with_builds(replace(result, failure=told(failure)), plan)

    def _run(self, plan: Any, w: Any, **more: Any) -> Any:
        """The result, logical."""
        y = self._backend.unwritten(self._case.problem.array_shapes[2], result_dtype(self._case.problem))
        plan(self._x, w, out=y, **more)
        self._backend.wait()  # errors of the kernels come to light here
        return self._case.problem.logical(2, y)

    def _compared_with_host(self, y: Any, finished: bool = False) -> dict[str, Any]:
        """error, where and nans of a result (logical) against what the host computed."""
        truth, xp = self._truth, self._device.xp
        if not math.prod(y.shape):
            return {"error": 0.0}
        if truth.places is None:
            y, xp = self._backend.get(y), np  # what is small, the host looks at
        written = ~xp.isnan(_wide(y))
        nans = y.size - int(written.sum())
        if nans:
            return {"error": math.inf, "nans": nans, "where": _place(int(xp.argmin(written)), y)}
        right = truth.finished() if finished else truth.y
        if truth.places is None:
            errors = np.abs(y - right)
            where = _place(int(np.argmax(errors)), errors)
        else:
            errors = np.abs(self._backend.at(y, truth.places) - right)
            where = tuple(truth.places[int(np.argmax(errors))].tolist())
        return {"error": float(errors.max()) / truth.scale, "where": where}

    def _compared(self, result: Result, y: Any) -> tuple[Result, list[Result]]:
        """The result, right at some places, after a comparison at all others; and what turns out wrong."""
        if self._truth.places is None or self._case.problem.is_empty:
            return result, []
        if self._right is None:
            self._right = result, y
            return result, []
        first, right = self._right
        apart = self._device.xp.abs(_wide(y) - _wide(right))
        where = _place(int(self._device.xp.argmax(apart)), y)
        limit = (result.bound or 0.0) + (first.bound or 0.0)
        if float(apart[where]) <= limit * self._truth.scale:
            return result, []
        exact, place = self._truth.at(where), np.array([where])
        ours, theirs = (
            abs(float(self._backend.at(array, place)[0]) - exact) / self._truth.scale for array in (y, right)
        )
        worse = replace(result, error=ours, where=where) if ours > (result.error or 0.0) else result
        if theirs <= (first.bound or 0.0):
            return worse, []
        self._right = None if worse.wrong else (worse, y)
        return worse, [replace(first, error=theirs, where=where)]

    def _with_builds(self, result: Result, plan: Any) -> Result:
        return replace(result, builds=builds_of(plan)) if result.wrong else result


def builds_of(plan: Any) -> tuple[str, ...]:
    """The kernels of a plan, with the macros that they were built with."""
    launches = plan.launches if isinstance(plan, GpuPlan) else ()
    return tuple(dict.fromkeys(f"{la.name} of {la.build}" for la in launches))


def _place(at: int, y: Any) -> tuple[int, ...]:
    """Where the element of a number is."""
    return tuple(map(int, np.unravel_index(at, y.shape)))


def _wide(y: Any) -> Any:
    """In a type that every library compares."""
    if y.dtype.kind in "iu":  # whose differences may not fit
        return y.astype(np.float64)
    return y.astype(np.float32) if y.dtype.itemsize == 2 else y


# --- what users do with a plan -------------------------------------------------------------------


def behave(
    device: Device, cases: Sequence[Case], until: float, skip: Skip = NOTHING
) -> Iterator[Begun | Result | OutOfTime]:
    """Every algorithm on problems that are not empty: again, captured, in threads, ..."""
    for done, case in enumerate(cases):
        if time.monotonic() > until:
            yield OutOfTime(len(cases) - done)
            return
        if skip.problem(case.problem):
            continue
        yield Begun(case, patience=DATA)
        found, failed = candidates(case, device)
        yield from failed
        for candidate in found:
            if (str(case.problem), candidate.id) not in skip:
                yield from _behaviours(device, case, candidate)


def _behaviours(device: Device, case: Case, candidate: Candidate) -> Iterator[Begun | Result]:
    backend = GpuBackend(device)
    scale = 4.0  # that of the outputs of `random_arrays`
    try:
        yield Begun(case, candidate.id, PLANNING)
        plan = candidate.algorithm.serve(case.problem)
        numbers = map(backend.put, random_arrays(case.problem))
        x, w = next(numbers), plan.prepare(next(numbers))
        backend.wait()
        yield Begun(case, candidate.id, RUNNING)
        right = backend.get(plan(x, w))
    except Exception:  # which `check` tells of
        return
    exact = candidate.algorithm.deterministic
    bound = 2 * candidate.error_bound * scale
    for what, run in _TRIED.items():
        result = Result(case.title, str(case.problem), candidate.id, what)
        yield Begun(case, candidate.id, RUNNING)
        try:
            for y in run(device, plan, x, w):
                found = backend.get(y)
                if found.tobytes() == right.tobytes():
                    continue
                with np.errstate(invalid="ignore"):  # what was not written may be anything
                    apart = float(np.abs(found.astype(np.float64) - right.astype(np.float64)).max())
                if exact or not apart <= bound:
                    unlike = f"differs by up to {apart:.2e} from the first run"
                    result = replace(result, failure=unlike, builds=builds_of(plan))
        except Unsupported:  # not every library can be captured
            continue
        except Exception as failure:
            result = replace(result, failure=told(failure), builds=builds_of(plan))
        yield result


def _again(device: Device, plan: Any, x: Any, w: Any) -> Iterator[Any]:
    for _ in range(3):
        yield plan(x, w)


def _on_a_stream(device: Device, plan: Any, x: Any, w: Any) -> Iterator[Any]:
    device.synchronize()
    with device.new_stream():
        y = plan(x, w)
        device.synchronize()
    yield y


def _in_threads(device: Device, plan: Any, x: Any, w: Any) -> Iterator[Any]:
    """One plan, called by several threads at once, each on its own stream."""
    device.synchronize()

    def run(_: int) -> list[Any]:
        with device.new_stream():
            found = [plan(x, w) for _ in range(3)]
            device.synchronize()
        return found

    with ThreadPoolExecutor(THREADS) as pool:
        for found in pool.map(run, range(THREADS)):
            yield from found


def _captured(device: Device, plan: Any, x: Any, w: Any) -> Iterator[Any]:
    """Replayed twice, the second time after other numbers were in x."""
    kept, y = x.copy(), device.xp.empty_like(plan(x, w))
    replay = plan.capture(x, w, out=y)
    y.fill(0)
    yield replay()
    x.fill(0)
    replay()
    x[...] = kept
    yield replay()


def _of_a_view(device: Device, plan: Any, x: Any, w: Any) -> Iterator[Any]:
    """x as every second element of another array, y into every second one, and arrays off their alignment."""
    xp = device.xp
    spread = xp.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    spread[..., ::2] = x
    yield plan(spread[..., ::2], w)
    y = plan(x, w)
    wide = xp.zeros((*y.shape[:-1], 2 * y.shape[-1]), y.dtype)
    yield plan(x, w, out=wide[..., ::2])
    shifted = xp.zeros(x.size + 1, x.dtype)[1:].reshape(x.shape)
    shifted[...] = x
    yield plan(shifted, w)


_TRIED: dict[str, Callable[[Device, Any, Any, Any], Iterator[Any]]] = {
    "the same bits again": _again,
    "on another stream": _on_a_stream,
    "in threads": _in_threads,
    "of views": _of_a_view,
    "captured": _captured,
}
