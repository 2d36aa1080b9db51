"""Layer functions of a CNN: how far NumPy is from a CPU's limits, and what is left of a GPU's lead then.

Source: an analysis of Chainer (arXiv:1908.00213), a framework whose functions on a CPU are NumPy's; they were
rewritten with OpenMP and MKL, and compared with those of a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import geometric_mean, median
from typing import ClassVar

import numpy as np

from convalgos.core.errors import Unsupported, missing
from convalgos.core.machine import Machine
from convalgos.cpu.runtime import mkl
from convalgos.gpu import device as gpu
from convalgos.select import devices
from convalgos.select.measure.backends import CPU
from convalgos.select.measure.timing import LONG_CALL, interleave
from convalgos.studies import chainer_process, gpu_functions
from convalgos.studies.layer_functions import FUNCTIONS, LayerCall, LayerData, LayerSizes, work_of
from convalgos.studies.library_functions import convalgos_calls, mkl_calls, torch_calls
from convalgos.studies.numba_functions import numba_calls
from convalgos.studies.numpy_functions import numpy_calls
from convalgos.studies.study import (
    Answer,
    Chart,
    Finding,
    NotRun,
    Part,
    Study,
    StudyColumn,
    StudySetting,
)

WANTED = 5.0  # times Chainer
WARM_SAMPLES = 3
TOLERANCE = 1e-3  # of an answer, relative to its largest element
REFERENCE_GPU = "sm_90"  # whose figures stand where there is no GPU

Seconds = dict[str, dict[str, float]]  # by library and function


class FunctionsStudy(Study):
    """Every function by every library on the same arrays, timed in turns, beside its floor."""

    name = "functions"
    question = (
        "How much faster than NumPy can a CPU compute a CNN's layers, and what is left of a GPU's lead?"
    )
    source = (
        "An analysis of Chainer (arXiv:1908.00213) on CPU and GPU: its NumPy functions, which copy windows "
        "and call one product of matrices, were rewritten with OpenMP and MKL. Compared so, both processors "
        "optimised, a GPU leads by what its peak and its memory give, not by the factors that NumPy suggests."
    )
    method = (
        "Each function (with its gradients) runs on the same float32 arrays by NumPy as Chainer does it, by "
        "loops in Numba, by MKL's product of matrices on copied windows, by convalgos and by torch, in "
        "turns; medians. Chainer 7.8 itself runs in a process of its own, straight after. Every answer is "
        "compared with NumPy's. Floors are max(operations / peak, bytes / bandwidth) of the processor."
    )
    look_at = (
        "The column Chainer / convalgos, and in the last table the lead of a GPU over NumPy beside its lead "
        "over the fastest code here: the second is what the processors differ by."
    )
    sizes: ClassVar[tuple[LayerSizes, ...]] = (
        LayerSizes(16, 64, 56, 64, 256, 2048, 1000),
        LayerSizes(1, 128, 28, 128, 16, 2048, 1000),
    )
    quick_sizes: ClassVar[LayerSizes] = LayerSizes(4, 32, 28, 32, 64, 1024, 1000)
    rounds: ClassVar[int] = 2

    def parts(self, setting: StudySetting) -> Iterator[Answer]:
        yield from _absent(setting)
        for i, sizes in enumerate((self.quick_sizes,) if setting.quick else self.sizes):
            if i and setting.left() < setting.seconds / 3:
                break
            data = LayerData(sizes)
            seconds = self._timed(data, setting)
            yield from self._chainer(data, seconds, setting)
            yield _table(sizes, seconds)
            yield _remaining(data, seconds)
            if setting.device == "gpu" and gpu.why_none() is None:
                yield gpu_functions.gpu_part(data, seconds, setting)
            yield from _findings(sizes, seconds)

    def _timed(self, data: LayerData, setting: StudySetting) -> Seconds:
        """The functions by all libraries that are here, each function's ways in turns."""
        setting.tell(f"making the calls of {data.sizes}")
        ways: dict[str, dict[str, LayerCall]] = {"NumPy": numpy_calls(data)}
        if not missing("numba"):
            ways["Numba"] = _numba(data, setting.threads)
        if not mkl.why_no_mkl():
            ways["MKL"] = mkl_calls(data)
        ways["convalgos"] = convalgos_calls(data)
        if not missing("torch"):
            ways["torch"] = torch_calls(data, setting.threads)
        found: Seconds = {library: {} for library in ways}
        for function in FUNCTIONS:
            calls = {library: calls[function] for library, calls in ways.items() if function in calls}
            setting.tell(function)
            _check(function, calls)
            timings = interleave(dict(calls), rounds=self._rounds(setting), deadline=setting.deadline)
            for library, timing in timings.items():
                found[library][function] = _warm_seconds(calls[library], timing.median)
        return found

    def _rounds(self, setting: StudySetting) -> int:
        """Fewer where time runs short."""
        return 1 if setting.quick or setting.left() < setting.seconds / 2 else self.rounds

    def _chainer(self, data: LayerData, seconds: Seconds, setting: StudySetting) -> Iterator[NotRun]:
        """Adds Chainer's own seconds, or says why there are none."""
        python = chainer_process.chainer_python()
        if python is None:
            return
        setting.tell("Chainer")
        seconds_left = max(30.0, setting.left())
        try:
            found = chainer_process.run_chainer(
                python, data, threads=setting.threads, rounds=self._rounds(setting), seconds=seconds_left
            )
        except Unsupported as reason:
            yield NotRun("Chainer's own figures", str(reason))
            return
        for function, call in numpy_calls(data).items():
            _compare(f"Chainer's {function}", found.answers[function], call())
        seconds["Chainer"] = {f: timing.median for f, timing in found.timings.items()}


def _warm_seconds(call: LayerCall, seconds: float) -> float:
    """The seconds of a call in memory that it has had before, as Chainer's calls are timed.

    So long a call was timed once, right after others had taken its memory: new pages cost as much again.
    """
    if seconds <= LONG_CALL:
        return seconds
    call()
    return min(seconds, median(CPU.seconds(call) for _ in range(WARM_SAMPLES)))


def _numba(data: LayerData, threads: int) -> dict[str, LayerCall]:
    import numba

    numba.set_num_threads(threads)
    return numba_calls(data)


def _absent(setting: StudySetting) -> Iterator[NotRun]:
    """What this installation lacks."""
    for module, what in (("numba", "Numba's loops"), ("torch", "torch's functions")):
        if reason := missing(module):
            yield NotRun(what, reason.removeprefix("needs "))
    if reason := mkl.why_no_mkl():
        yield NotRun("MKL's products", reason.removeprefix("needs "))
    if chainer_process.chainer_python() is None:
        yield NotRun("Chainer's own figures", chainer_process.HOW)
    if reason := gpu.why_none():
        yield NotRun("the functions on a GPU", reason.removeprefix("needs "))
    elif setting.device != "gpu":
        yield NotRun("the functions on a GPU", "--device gpu")


def _check(function: str, calls: dict[str, LayerCall]) -> None:
    right = np.array(calls["NumPy"]())
    for library, call in calls.items():
        _compare(f"{library}'s {function}", call(), right)


def _compare(what: str, found: np.ndarray, right: np.ndarray) -> None:
    """Raises ValueError where two answers differ by more than rounding."""
    if found.size != right.size:
        raise ValueError(f"{what} has {found.size} elements and NumPy's {right.size}")
    error = float(np.abs(found.reshape(right.shape) - right).max() / np.abs(right).max())
    if not error <= TOLERANCE:
        raise ValueError(f"{what} differs from NumPy's by {error:.1e}")


def _table(sizes: LayerSizes, seconds: Seconds) -> Part:
    libraries = list(seconds)
    base = "Chainer" if "Chainer" in seconds else "NumPy"
    rows = []
    for function in FUNCTIONS:
        times = [_milliseconds(seconds[library].get(function)) for library in libraries]
        ours = seconds["convalgos"].get(function)
        rows.append((function, *times, seconds[base][function] / ours if ours else None))
    return Part(
        f"Each function on {sizes}",
        "Time of a call. Where convalgos has no time it has no such function: a training step through "
        "convalgos.torch leaves it to torch, and at inference the norm is folded into the convolution.",
        (
            StudyColumn("function"),
            *(StudyColumn(library, "ms") for library in libraries),
            StudyColumn(f"{base} / convalgos", "x"),
        ),
        tuple(rows),
        Chart("bars", "function", tuple(libraries), log_y=True),
    )


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _remaining(data: LayerData, seconds: Seconds) -> Part:
    """A GPU's lead over NumPy, over the fastest code here, and what the two processors' figures say."""
    here, there = devices.current_machine(), devices.figures(REFERENCE_GPU)
    rows = []
    for function, work in work_of(data).items():
        floor = _floor(here, work.flops, work.moved)
        on_gpu = there.launch + work.floor(there.peak("float32"), there.bandwidth)
        library, best = min(
            ((name, times[function]) for name, times in seconds.items() if function in times),
            key=lambda pair: pair[1],
        )
        rows.append(
            (
                function,
                library,
                100 * floor / best,
                seconds["NumPy"][function] / on_gpu,
                best / on_gpu,
                floor / on_gpu,
            )
        )
    return Part(
        f"What is left of a GPU's lead on {data.sizes}",
        f"The floor of {there.name} (float32 on CUDA cores, from its figures, with one launch) set beside "
        "NumPy, the fastest code here, and the floor of this processor. The last column is what the "
        "processors differ by when both sides are optimised. Above 100 % of the floor is what needs fewer "
        "operations than the definition, as Winograd's algorithm does.",
        (
            StudyColumn("function"),
            StudyColumn("fastest here"),
            StudyColumn("of its floor", "%"),
            StudyColumn("GPU over NumPy", "x"),
            StudyColumn("GPU over the fastest", "x"),
            StudyColumn("by the processors", "x"),
        ),
        tuple(rows),
        Chart(
            "bars", "function", ("GPU over NumPy", "GPU over the fastest", "by the processors"), log_y=True
        ),
    )


def _floor(machine: Machine, flops: float, moved: float) -> float:
    return max(flops / machine.peak("float32"), machine.stream(moved))


def _findings(sizes: LayerSizes, seconds: Seconds) -> Iterator[Finding]:
    best = {
        f: min(t[f] for name, t in seconds.items() if f in t and name not in ("NumPy", "Chainer"))
        for f in FUNCTIONS
    }
    leads = {f: seconds["NumPy"][f] / best[f] for f in FUNCTIONS}
    told = f"{geometric_mean(leads.values()):.1f} times in the geometric mean on {sizes}, {_range(leads)}"
    yield Finding(
        "NumPy's functions use a small part of a CPU: rewritten with OpenMP and MKL they gain several times.",
        f"The fastest code here is faster than NumPy's {told}.",
        geometric_mean(leads.values()) >= 2,
    )
    if "Chainer" in seconds:
        ours = {f: seconds["Chainer"][f] / s for f, s in seconds["convalgos"].items()}
        slow = ", ".join(f"{f} {ratio:.1f}" for f, ratio in sorted(ours.items()) if ratio < WANTED)
        yield Finding(
            f"convalgos computes the functions of a CNN {WANTED:.0f} times as fast as Chainer on a CPU.",
            f"{geometric_mean(ours.values()):.1f} times in the geometric mean on {sizes}, {_range(ours)}"
            + (f"; below {WANTED:.0f}: {slow}." if slow else "."),
            geometric_mean(ours.values()) >= WANTED,
        )


def _range(ratios: dict[str, float]) -> str:
    least, most = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    return f"from {ratios[least]:.1f} ({least}) to {ratios[most]:.1f} ({most})"


STUDY = FunctionsStudy()
