"""Check and time every GPU algorithm on the GPU at hand: `python -m convalgos.gpu_check`.

First correctness: awkward problems and the layers of the suites, in every type and both layouts, y prefilled
with NaN, against float64. Then times: CUDA events around replays of a captured graph, so that host time does
not count, and the host's time per call beside it. Writes a JSON file and a table. Needs NumPy and CuPy alone.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from convalgos import select
from convalgos.algorithm import missing, numpy_dtype
from convalgos.cpu.reference import reference, reference_at
from convalgos.gpu import device as gpu
from convalgos.gpu.plan import GpuPlan
from convalgos.machine import write_atomic
from convalgos.problem import ConvProblem
from convalgos.ranking import Candidate
from convalgos.suites import Layer, suites

SAMPLED = 256  # outputs of a layer that are checked
SAMPLES, BURST = 9, 10  # of a time: medians of so many replays, of so many calls each
PROMISING = 8.0  # candidates predicted slower than this multiple of the best are checked, but not timed
PEER = "gpu.cudnn"
KINDS = {"float32": {}, "tf32": {"compute_dtype": "tf32"}, "float16": {"dtype": "float16"}}
AWKWARD = (
    "n1 c1 h1 w1 k1 r1 s1",
    "n2 c3 h7 w5 k17 r3 s3 p1",
    "n5 c32 h17 w23 k48 r3 s3 p1",
    "n1 c130 h9 w9 k70 r1 s1",
    "n1 c3 h23 w31 k8 r11 s11 p2 stride4",
    "n1 c3 h14 w13 k4 r3 s3 p1:2,3:0 stride2 dilation2",
    "n1 c2 h3 w2 k3 r2 s2 p7:0,1:6 stride3",
    "n2 c6 h8 w9 k10 r3 s3 p1 groups2",
    "n1 c4 h10 w7 k12 r3 s3 p1 groups4",
    "n2 c64 h56 w56 k64 r3 s3 p1 groups64",
    "n1 c17 h12 w13 k17 r5 s5 p2 stride2 groups17",
    "n1 c8 h20 w33 k8 r31 s31 p15 groups8",
    "n2 c16 h64 w48 k16 r7 s7 p3 groups16",
    "n1 c8 w1000 k8 s4 p3:0 groups8",
    "n1 c2 w301 k3 s65 p32",
    "n1 c20 w67 k36 s3 p1",
    "n1 c256 h7 w7 k256 r3 s3 p1",
    "n1 c3 d5 h6 w7 k4 t3 r3 s3 p1",
    "n1 c4 d6 h5 w5 k4 t3 r1 s1 p1,0,0 groups4",
    "n0 c3 h5 w5 k4 r3 s3",
    "n2 c0 h5 w5 k4 r3 s3 p1",
)

Timer = Callable[[Callable[[], object]], tuple[float, float]]  # call -> seconds on the GPU, on the host


@dataclass(frozen=True)
class Result:
    """A candidate on a problem. `error` is relative to the largest output; times are None where not taken."""

    name: str
    problem: str
    algorithm: str
    error: float
    bound: float
    predicted_s: float
    gpu_s: float | None = None
    host_s: float | None = None
    failure: str | None = None

    @property
    def wrong(self) -> bool:
        return self.failure is not None or not self.error <= self.bound


def problems(layers: Sequence[Layer]) -> Iterator[tuple[str, ConvProblem, bool]]:
    """(name, problem, whether it is timed), awkward ones first."""
    kinds = KINDS if missing("ml_dtypes") else {**KINDS, "bfloat16": {"dtype": "bfloat16"}}
    layouts = ("channels_first", "channels_last")
    for text, layout, changes in product(AWKWARD, layouts, kinds.values()):
        yield "awkward", ConvProblem.parse(text).replace(layout=layout, **changes), False
    for layer, layout, changes in product(layers, layouts, KINDS.values()):
        name = f"{layer.suite}/{layer.name}"
        yield name, layer.problem.replace(layout=layout, **changes), True


class Truth:
    """Data of a problem, and its float64 answer at some outputs."""

    def __init__(self, problem: ConvProblem):
        rng, self.problem = np.random.default_rng(len(str(problem))), problem
        dtype = numpy_dtype(problem.dtype)
        scale = 1 / math.sqrt(max(1, problem.gemm_k))
        x = rng.standard_normal(problem.x_shape, np.float32).astype(dtype)
        self.w = (rng.standard_normal(problem.w_shape, np.float32) * scale).astype(dtype)
        self.bias = rng.standard_normal(problem.K, np.float32).astype(dtype)
        wide = problem.replace(layout="channels_first", dtype="float32", compute_dtype=None)
        self._where = None
        if math.prod(problem.y_shape) <= 16 * SAMPLED or problem.is_empty:
            y = reference(wide, x.astype(np.float64), self.w.astype(np.float64))
            bias = self.bias.astype(np.float64).reshape(-1, *(1,) * problem.ndim)
        else:
            self._where = np.stack([rng.integers(0, n, SAMPLED) for n in problem.y_shape], axis=1)
            y = reference_at(wide, x, self.w, self._where)
            bias = self.bias.astype(np.float64)[self._where[:, 1]]
        self._y = y + bias  # the float64 answer before ReLU
        self._last = problem.layout == "channels_last"
        self.x = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if self._last else x

    def error(self, y: np.ndarray) -> float:
        """Of relu(conv + bias); infinite where an output that is looked at was not written."""
        y = (np.moveaxis(y, -1, 1) if self._last else y).astype(np.float64)
        if np.isnan(y).any():
            return math.inf
        y = y if self._where is None else y[tuple(self._where.T)]
        scale = max(1.0, np.abs(self._y).max(initial=0))  # data are scaled so that outputs are of order 1
        return float(np.abs(y - np.maximum(self._y, 0)).max(initial=0)) / scale


class EventTimer:
    """Times on a stream of CuPy's: medians of replays of a captured graph, or of calls where none can be."""

    def __init__(self, device: gpu.Device):
        self._cuda = device.xp.cuda
        self._stream = self._cuda.Stream(non_blocking=True)

    def __call__(self, call: Callable[[], object]) -> tuple[float, float]:
        with self._stream:
            for _ in range(3):
                call()
            self._stream.synchronize()
            start = time.perf_counter()
            for _ in range(BURST):
                call()
            host = (time.perf_counter() - start) / BURST
            self._stream.synchronize()
            burst = self._captured(call)
            samples = [self._between(burst) / BURST for _ in range(SAMPLES)]
        return median(samples), host

    def _captured(self, call: Callable[[], object]) -> Callable[[], object]:
        def burst() -> None:
            for _ in range(BURST):
                call()

        try:
            self._stream.begin_capture()
            burst()
            graph = self._stream.end_capture()
        except Exception:  # products of cuBLAS and transforms of cuFFT cannot be captured through CuPy
            with suppress(Exception):  # a capture that failed ends with an error
                self._stream.end_capture()
            self._stream = self._cuda.Stream(non_blocking=True)
            return burst
        graph.launch(self._stream)
        return lambda: graph.launch(self._stream)

    def _between(self, burst: Callable[[], object]) -> float:
        first, last = self._cuda.Event(), self._cuda.Event()
        first.record(self._stream)
        with self._stream:
            burst()
        last.record(self._stream)
        last.synchronize()
        return self._cuda.get_elapsed_time(first, last) * 1e-3


def run(name: str, truth: Truth, candidate: Candidate, device: gpu.Device, timer: Timer | None) -> Result:
    """Check a candidate, and time it where there is a timer."""
    problem, xp = truth.problem, device.xp
    result = Result(
        name, str(problem), candidate.id, math.inf, candidate.error_bound, candidate.predicted or 0.0
    )
    try:
        plan = candidate.algorithm.serve(problem)
        assert isinstance(plan, GpuPlan)
        x, bias = xp.asarray(truth.x), xp.asarray(truth.bias)
        w = plan.prepare(xp.asarray(truth.w))
        y = xp.full(problem.array_shape(problem.y_shape), np.nan, truth.x.dtype)
        plan(x, w, bias=bias, activation="relu", out=y)
        error = truth.error(xp.asnumpy(y) if hasattr(xp, "asnumpy") else y)
        times = timer(lambda: plan(x, w, out=y)) if timer else (None, None)
    except Exception as failure:  # one that is broken must not hide what is known of the others
        return Result(**{**asdict(result), "failure": f"{type(failure).__name__}: {failure}"[:500]})
    return Result(**{**asdict(result), "error": error, "gpu_s": times[0], "host_s": times[1]})


def check(device: gpu.Device, layers: Sequence[Layer], timer: Timer | None, limit_s: float) -> list[Result]:
    """All results; layers are left out when the time is spent, and that is said."""
    results: list[Result] = []
    until = time.monotonic() + limit_s
    for name, problem, timed in problems(layers):
        if time.monotonic() > until:
            print(f"{limit_s:.0f} s are spent: {name} and what follows are left out", flush=True)
            break
        ranking = select.rank(problem, device.name)
        if not ranking.candidates:
            continue
        truth, best = Truth(problem), ranking.candidates[0].seconds
        for candidate in ranking.candidates:
            promising = timed and candidate.seconds <= PROMISING * best
            if timed and not promising:
                continue
            results.append(run(name, truth, candidate, device, timer if promising else None))
            if results[-1].wrong:
                r = results[-1]
                print(f"WRONG {r.algorithm} on {r.problem}: {r.failure or f'{r.error:.1e}'}", flush=True)
    return results


def table(results: Sequence[Result], figures: gpu.GpuMachine) -> str:
    """A line for each timed problem: the fastest, the pick, the ratio to cuDNN."""
    wrong = [r for r in results if r.wrong]
    lines = [
        f"# {figures.name}, {figures.arch}",
        "",
        f"{len(results)} runs, {len(wrong)} wrong. Times are microseconds on the GPU.",
        "",
        *(f"- WRONG: {r.algorithm} on `{r.problem}`: {r.failure or f'{r.error:.1e}'}" for r in wrong),
        "",
        "| layer | problem | pick | us | host us | fastest | us | cuDNN us | cuDNN / pick |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    ratios: dict[str, list[float]] = {}
    by_problem: dict[tuple[str, str], list[Result]] = {}
    for r in results:
        if r.gpu_s is not None:
            by_problem.setdefault((r.name, r.problem), []).append(r)
    for (name, problem), rows in by_problem.items():
        pick, best = rows[0], min(rows, key=lambda r: r.gpu_s or math.inf)
        peer = next((r.gpu_s for r in rows if r.algorithm == PEER), None)
        ratio = peer / pick.gpu_s if peer and pick.gpu_s else None
        if ratio:
            parsed = ConvProblem.parse(problem)
            kind = parsed.dtype if parsed.dtype != "float32" else parsed.compute_dtype
            ratios.setdefault(f"{kind} {parsed.layout}", []).append(ratio)
        cells = [name, f"`{problem}`", pick.algorithm, _us(pick.gpu_s), _us(pick.host_s), best.algorithm]
        lines.append(
            "| " + " | ".join([*cells, _us(best.gpu_s), _us(peer), f"{ratio:.2f}" if ratio else ""]) + " |"
        )
    lines += ["", "Geometric mean of cuDNN / pick:"]
    lines += [f"- {kind}: {math.exp(sum(map(math.log, r)) / len(r)):.2f}" for kind, r in ratios.items()]
    return "\n".join(lines) + "\n"


def _us(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:.1f}"


def write(results: Sequence[Result], figures: gpu.GpuMachine, folder: Path) -> Path:
    """The table; the JSON lies beside it."""
    stem = folder / figures.fingerprint
    record = {"device": asdict(figures), "results": [asdict(r) for r in results]}
    write_atomic(stem.with_suffix(".json"), json.dumps(record, indent=1))
    write_atomic(stem.with_suffix(".md"), table(results, figures))
    return stem.with_suffix(".md")


def main(arguments: Sequence[str] | None = None, timer: Callable[[Any], Timer] = EventTimer) -> int:
    parser = argparse.ArgumentParser(prog="python -m convalgos.gpu_check", description=__doc__)
    parser.add_argument(
        "suites", nargs="*", metavar="SUITE", help=f"of {', '.join(suites())}; all by default"
    )
    parser.add_argument("--device", default="cuda", help="cuda or cuda:N")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder of the report")
    parser.add_argument("--seconds", type=float, default=450, help="after which no further layer is begun")
    parser.add_argument("--no-times", action="store_true", help="check only")
    given = parser.parse_args(arguments)
    if unknown := set(given.suites) - set(suites()):
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(suites())}")
    device = gpu.named(given.device)
    layers = [layer for name in given.suites or suites() for layer in suites()[name]]
    with gpu.use(device):
        results = check(device, layers, None if given.no_times else timer(device), given.seconds)
    path = write(results, device.figures, given.out)
    wrong = sum(r.wrong for r in results)
    print(f"{len(results)} runs, {wrong} wrong; report in {path}")
    return 1 if wrong or not results else 0


if __name__ == "__main__":
    sys.exit(main())
