"""How much of the machine each library puts to use on a layer: its flops against the peak, and its cores."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import convalgos as ca
from convalgos.core.errors import Unsupported
from convalgos.core.problem import DIRECTIONS, ConvProblem
from convalgos.select.measure.accuracy import random_arrays
from convalgos.select.measure.backends import Backend, Call
from convalgos.select.measure.timing import interleave
from convalgos.studies.network_training.words import ALGORITHMS, TORCH
from convalgos.tools.bench.peers import peers_on

PASSES = {"forward": DIRECTIONS[:1], "backward": DIRECTIONS[1:]}  # dx and dw in one call
PEER = "torch.channels_first"


@dataclass(frozen=True)
class LayerUse:
    """What a library makes of the machine on a pass of a layer."""

    library: str
    pass_: str
    seconds: float
    efficiency: float  # flops of the direct convolution / seconds / peak: above 1 by fewer products
    busy: float | None  # share of the cores' time in which they ran; None on a GPU
    workspace_bytes: int | None  # the largest of its passes; None where the library does not tell


@dataclass
class Metered:
    """A call that notes for what share of the time of so many cores the process ran."""

    call: Call
    threads: int

    def __post_init__(self) -> None:
        self._shares: list[float] = []

    def __call__(self) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        self.call()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        self._shares.append(cpu / wall / self.threads)

    @property
    def busy(self) -> float:
        return median(self._shares)


def measure_layer(
    problem: ConvProblem, backend: Backend, peak: float, threads: int, *, rounds: int, deadline: float
) -> tuple[list[LayerUse], dict[str, str]]:
    """Time the passes of a forward layer by each library, in the same rounds.

    Args:
        peak: flop/s of the machine.
        deadline: of `time.perf_counter`, after which nothing is timed once more.

    Returns:
        What was timed, and for each library that could not serve, why.
    """
    device = "cpu" if backend.name == "cpu" else "gpu"
    calls: dict[tuple[str, str], tuple[Call, int | None]] = {}
    missing: dict[str, str] = {}
    for library, algorithm in ALGORITHMS[device].items():
        try:
            calls |= {(library, p): c for p, c in _calls(problem, backend, algorithm).items()}
        except Unsupported as reason:
            missing[library] = str(reason)
    try:
        calls |= {(TORCH, p): (c, None) for p, c in _calls_of_torch(problem, device, threads).items()}
    except Unsupported as reason:
        missing[TORCH] = str(reason)
    timed = {f"{library} {p}": call for (library, p), (call, _) in calls.items()}
    metered: dict[str, Call] = timed
    if device == "cpu":
        metered = {name: Metered(call, threads) for name, call in timed.items()}
    timings = interleave(metered, rounds=rounds, burst=3, backend=backend, deadline=deadline)
    found = []
    for (library, p), (_, workspace) in calls.items():
        name = f"{library} {p}"
        seconds, call = timings[name].median, metered[name]
        flops = problem.flops * len(PASSES[p])
        busy = call.busy if isinstance(call, Metered) else None
        found.append(LayerUse(library, p, seconds, flops / seconds / peak, busy, workspace))
    return found, missing


def _calls(problem: ConvProblem, backend: Backend, algorithm: str) -> dict[str, tuple[Call, int | None]]:
    """The calls of both passes by an algorithm of ours, filters prepared in each: they change in training.

    Raises:
        Unsupported: it does not serve a pass.
    """
    found: dict[str, tuple[Call, int | None]] = {}
    for name, directions in PASSES.items():
        steps = [_step(problem.replace(direction=d), backend, algorithm) for d in directions]
        found[name] = (_in_turn([call for call, _ in steps]), max(workspace for _, workspace in steps))
    return found


def _step(problem: ConvProblem, backend: Backend, algorithm: str) -> tuple[Call, int]:
    """The call of one direction, and its workspace."""
    with backend.working():
        plan = ca.plan(problem, backend.name, algorithm, weights_constant=False)
    first, second = (backend.put(array) for array in random_arrays(problem))
    result = backend.empty(problem.array_shapes[2], first.dtype)
    return lambda: plan(first, plan.prepare(second), out=result), plan.workspace_bytes


def _calls_of_torch(problem: ConvProblem, device: str, threads: int) -> dict[str, Call]:
    """The calls of both passes by torch.

    Raises:
        Unsupported: torch is not installed, or does not serve the problem.
    """
    peer = next(p for p in peers_on(device) if p.name == PEER)
    if reason := peer.missing() or peer.why_not_trained(problem):
        raise Unsupported(reason)
    x, w = random_arrays(problem)
    _, dy = random_arrays(problem.replace(direction="backward_weights"))
    forward, backward = peer.call(problem, x, w, threads), peer.call_backward(problem, x, w, dy, threads)
    return {"forward": forward, "backward": backward}


def _in_turn(calls: list[Call]) -> Call:
    def call() -> None:
        for each in calls:
            each()

    return call
