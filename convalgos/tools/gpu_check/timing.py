"""Times on a GPU: layers and gradients beside cuDNN, long signals beside cuFFT, calls, and ceilings.

The candidates of a layer are timed in turns: of cuDNN the plans that its heuristics put first, of which the
best counts, and of ours those that the cost models do not predict to be far slower.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.errors import Unsupported
from convalgos.core.plan import result_dtype
from convalgos.core.problem import ConvProblem
from convalgos.gpu.device import Device
from convalgos.gpu.device.calibrate import copy_bandwidth, product_rate
from convalgos.gpu.launch.plan import GpuPlan
from convalgos.gpu.vendor import cost
from convalgos.select import choose
from convalgos.select.measure.accuracy import repeating_arrays
from convalgos.select.measure.backends import Call, GpuBackend
from convalgos.select.measure.timing import interleave
from convalgos.select.ranking import Candidate
from convalgos.tools.gpu_check.baselines import TORCH, Baseline, recorded, torch_call
from convalgos.tools.gpu_check.cases import Case
from convalgos.tools.gpu_check.checks import candidates
from convalgos.tools.gpu_check.results import OutOfTime, Result, told
from convalgos.tools.gpu_check.steps import CUDNN, DATA, NOTHING, PLANNING, RUNNING, Begun, Skip

LONGEST_PEER = 0.1  # seconds of a call of torch's by prediction: others are not timed
TIMED = "all together"  # in the place of an algorithm: the layer is done
PLANS = 5  # of cuDNN that are tried on a layer; one takes some 20 ms
PROMISING = 6.0  # times the best prediction: ours that are predicted slower are not timed
HOPEFUL = 1.5  # times the best of its kind in a first try: others are not timed again
ROUNDS, BURST = 2, 3
HOST_TRIES = 5  # of which the fastest counts: the host does other things, too
CALLS = (  # small enough for the GPU to be done before the host
    "n1 c16 h8 w8 k16 r3 s3 p1",
    "n1 c16 h8 w8 k16 r3 s3 p1 groups16",
    "n1 c16 w64 k16 s4 p3:0 groups16",
)


@dataclass(frozen=True)
class Timed:
    """A candidate on a layer: samples of the GPU's time, and the host's time per call."""

    algorithm: str
    samples_s: tuple[float, ...]
    predicted_s: float
    workspace_bytes: int
    error_bound: float
    host_s: float | None = None

    @cached_attribute
    def median_s(self) -> float:
        return float(np.median(self.samples_s))

    @property
    def ours(self) -> bool:
        return not self.algorithm.startswith(CUDNN)


@dataclass(frozen=True)
class LayerTimes:
    """A layer: what the selector picks without having measured, and all that was timed, fastest first."""

    case: Case
    pick: str
    rows: tuple[Timed, ...]
    others: dict[str, float] = field(default_factory=dict)  # median seconds of other libraries

    def best(self, wanted: Callable[[Timed], bool] = lambda row: True) -> Timed | None:
        return next((row for row in self.rows if wanted(row)), None)

    @property
    def picked(self) -> Timed | None:
        return self.best(lambda row: row.algorithm == self.pick)

    @cached_attribute
    def baseline(self) -> Baseline | None:
        """cuDNN's best plan, or torch beside us, or what was recorded."""
        if best := self.best(lambda row: not row.ours):
            return Baseline(best.algorithm, best.median_s)
        if TORCH in self.others:
            return Baseline(TORCH, self.others[TORCH])
        return recorded(self.case.problem)


@dataclass(frozen=True)
class HostTime:
    """Seconds that the host needs for a call of a plan, and for launching it when it was captured."""

    problem: str
    algorithm: str
    call_s: float
    captured_s: float | None


@dataclass(frozen=True)
class Ceiling:
    """What the GPU reaches without us: bytes/s or flop/s."""

    name: str
    value: float


# --- layers --------------------------------------------------------------------------------------


def layers(
    device: Device,
    cases: Sequence[Case],
    until: float,
    skip: Skip = NOTHING,
    beside: str = "cuDNN",
) -> Iterator[Begun | Result | LayerTimes | OutOfTime]:
    """Time layers until a moment of `time.monotonic`.

    Args:
        skip: what was lost before, and who is barred.
        beside: "cuDNN", or "FFTs": for causal convolutions, what is written with one of the whole signal.
    """
    for done, case in enumerate(cases):
        if time.monotonic() > until:
            yield OutOfTime(len(cases) - done)
            return
        if skip.problem(case.problem) or _is_done(case, skip) or case.problem.is_empty:
            continue
        yield Begun(case, patience=DATA)
        found, failed = candidates(case, device, "everyone's" if beside == "cuDNN" else "ours")
        yield from failed
        if not found:
            continue
        promising = PROMISING * found[0].predicted_s
        chosen = [c for c in found if c.id.startswith(CUDNN) or c.predicted_s <= promising]
        if beside == "cuDNN":
            varied = choose.varied(case.problem, device.name, device.figures)
            plans = [c for c in varied if c.id.startswith(CUDNN)]  # of which `gpu.cudnn` is the first
            chosen += plans[1:PLANS]
        chosen = [c for c in chosen if not skip.hopeless((str(case.problem), c.id))]
        arrays = repeating_arrays(case.problem)
        if beside != "cuDNN":
            others = _spectral_peers(device, case.problem)
        elif any(c.id.startswith(CUDNN) for c in chosen):
            others = {}
        else:
            others = _torch_peer(device, case.problem, *arrays)
        yield from _layer(device, case, found[0].id, chosen, others, arrays)


def _is_done(case: Case, skip: Skip) -> bool:
    return (str(case.problem), TIMED) in skip.tried


def _layer(
    device: Device,
    case: Case,
    pick: str,
    chosen: Sequence[Candidate],
    others: dict[str, Call],
    arrays: tuple[np.ndarray, np.ndarray],
) -> Iterator[Begun | Result | LayerTimes]:
    backend, problem = GpuBackend(device), case.problem
    x, w = map(backend.put, arrays)
    y = backend.empty(problem.array_shapes[2], result_dtype(problem))
    calls, firsts, known = dict(others), {}, {}
    for candidate in chosen:
        yield Begun(case, candidate.id, PLANNING)
        try:
            plan = candidate.algorithm.serve(problem)
            prepared = plan.prepare(w)
            backend.wait()
            call = lambda plan=plan, prepared=prepared: plan(x, prepared, out=y)  # noqa: E731
            yield Begun(case, candidate.id, RUNNING)
            backend.ready(call)
            firsts[candidate.id] = backend.seconds(call)
        except (Unsupported, MemoryError) as reason:  # as of a plan of cuDNN that was found to be wrong
            yield Result(case.title, str(problem), candidate.id, f"not timed: {told(reason)}")
            continue
        except Exception as failure:
            yield Result(case.title, str(problem), candidate.id, "timing", failure=told(failure))
            if backend.lost():
                return
            continue
        calls[candidate.id], known[candidate.id] = call, candidate
    for kind in (True, False):
        of_kind = {name: s for name, s in firsts.items() if name.startswith(CUDNN) == kind}
        limit = HOPEFUL * min(of_kind.values(), default=0.0)
        for name in (n for n, s in of_kind.items() if s > limit and n != pick):
            del calls[name]
    yield Begun(case, patience=DATA)
    timings = interleave(calls, rounds=ROUNDS, burst=BURST, backend=backend)
    rows = []
    for name, candidate in known.items():
        samples = timings[name].samples if name in timings else (firsts[name],)
        host = backend.host_seconds(calls[name]) if name in calls else None
        rows.append(
            Timed(
                name, samples, candidate.predicted_s, candidate.workspace_bytes, candidate.error_bound, host
            )
        )
    rows.sort(key=lambda row: row.median_s)
    yield LayerTimes(case, pick, tuple(rows), {name: timings[name].median for name in others})
    yield Begun(case, TIMED)  # not once more where a later layer loses the process


def _torch_peer(
    device: Device, problem: ConvProblem, first: np.ndarray, second: np.ndarray
) -> dict[str, Call]:
    """What torch makes of cuDNN, where it is there, has this device, and is not expected to take for ever."""
    if cost.predicted_seconds(problem, device.figures) > LONGEST_PEER:
        return {}
    with suppress(Exception):
        call = torch_call(device.name, problem, first, second)
        GpuBackend(device).ready(call)
        return {TORCH: call}
    return {}


def _spectral_peers(device: Device, problem: ConvProblem) -> dict[str, Call]:
    """Those that run here: a library that is not installed, or knows no GPU, is left out."""
    found: dict[str, Call] = {}
    for name, build in {"cupy.fft": _spectral, "torch.fft": _spectral_torch}.items():
        with suppress(Exception):
            call = build(device, problem)
            GpuBackend(device).ready(call)
            found[name] = call
    return found


def _spectral(device: Device, problem: ConvProblem) -> Call:
    """y by transforms of the whole padded signal, that of the filter made before."""
    xp = device.xp
    x, w = map(xp.asarray, repeating_arrays(problem))
    size, n = problem.spatial[0], 2 * problem.spatial[0]
    spectrum = xp.fft.rfft(w[:, 0, ::-1], n)  # (C, n // 2 + 1)
    return lambda: xp.fft.irfft(xp.fft.rfft(x, n) * spectrum, n)[..., :size]


def _spectral_torch(device: Device, problem: ConvProblem) -> Call:
    """The same with torch, on its default stream, which is CuPy's, too."""
    import torch

    x, w = (torch.from_numpy(array).to(device.name) for array in repeating_arrays(problem))
    size, n = problem.spatial[0], 2 * problem.spatial[0]
    spectrum = torch.fft.rfft(w[:, 0, :].flip(-1), n)
    return lambda: torch.fft.irfft(torch.fft.rfft(x, n) * spectrum, n)[..., :size]


# --- the host ------------------------------------------------------------------------------------


def calls(
    device: Device, until: float, skip: Skip = NOTHING
) -> Iterator[Begun | Result | HostTime | OutOfTime]:
    """The host's time of every algorithm on small problems."""
    backend = GpuBackend(device)
    for done, text in enumerate(CALLS):
        if time.monotonic() > until:
            yield OutOfTime(len(CALLS) - done)
            return
        for compute in ("float32", "tf32"):
            problem = ConvProblem.parse(text).replace(compute_dtype=compute)
            case = Case("calls", text, problem)
            yield Begun(case, patience=DATA)
            found, failed = candidates(case, device)
            yield from failed
            for candidate in found:
                if (str(problem), candidate.id) in skip:
                    continue
                yield Begun(case, candidate.id, PLANNING)
                try:
                    yield _host_time(backend, candidate, problem)
                except (Unsupported, MemoryError) as reason:
                    yield Result(text, str(problem), candidate.id, f"not timed: {told(reason)}")
                except Exception as failure:
                    yield Result(text, str(problem), candidate.id, "calls", failure=told(failure))


def _host_time(backend: GpuBackend, candidate: Candidate, problem: ConvProblem) -> HostTime:
    plan = candidate.algorithm.serve(problem)
    assert isinstance(plan, GpuPlan)
    x, w = map(backend.put, repeating_arrays(problem))
    y = backend.empty(problem.array_shape(problem.y_shape), result_dtype(problem))
    prepared = plan.prepare(w)
    call = lambda: plan(x, prepared, out=y)  # noqa: E731
    backend.ready(call)
    took = min(backend.host_seconds(call) for _ in range(HOST_TRIES))
    try:
        replay = plan.capture(x, prepared, out=y)
    except Unsupported:  # not every library can be captured
        return HostTime(str(problem), candidate.id, took, None)
    captured = min(backend.host_seconds(replay) for _ in range(HOST_TRIES))
    return HostTime(str(problem), candidate.id, took, captured)


# --- what the GPU can do -------------------------------------------------------------------------


def ceilings(
    device: Device, until: float, skip: Skip = NOTHING
) -> Iterator[Begun | Result | Ceiling | OutOfTime]:
    """A copy beyond L2, and products of large matrices."""
    kinds: dict[str, Callable[[], float]] = {
        "copy bytes/s": lambda: copy_bandwidth(device),
        "float32 product flop/s": lambda: product_rate(device, "float32"),
        "float16 product flop/s": lambda: product_rate(device, "float16"),
    }
    for done, (name, run) in enumerate(kinds.items()):
        if time.monotonic() > until:
            yield OutOfTime(len(kinds) - done)
            return
        begun = Begun(Case("ceilings", name, ConvProblem.parse("n1 c1 w1 k1 s1")), name)
        if begun.key in skip:
            continue
        yield begun
        try:
            yield Ceiling(name, run())
        except Exception as failure:
            yield Result("ceilings", "", name, "ceiling", failure=told(failure))
