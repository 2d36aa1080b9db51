"""Whole training steps: y, dx and dw of every layer, beside what autograd runs with other libraries.

The filter changes in every training step. So the time to prepare it is part of every run that is timed here,
and of the choice (`weights_constant=False`). A peer computes both gradients in one call, as autograd does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from convalgos.core.errors import Unsupported
from convalgos.core.problem import DIRECTIONS, ConvProblem
from convalgos.select import choose
from convalgos.select.constraints import Constraints
from convalgos.select.measure import timing as measure_timing
from convalgos.select.measure.accuracy import AccuracyCheck, random_arrays
from convalgos.select.measure.backends import Call, backend
from convalgos.select.measure.timing import Timing
from convalgos.tools.bench import peers
from convalgos.tools.bench.peer import Peer
from convalgos.tools.bench.results import PeerResult, finite, layer_as_json, over_bound
from convalgos.tools.bench.run import peer_threads, try_call
from convalgos.tools.bench.suites import Layer

CHANGING = Constraints(weights_constant=False)


@dataclass(frozen=True)
class PassResult:
    """One of the three on a layer: what was picked and how it did, or why there is nothing."""

    direction: str
    algorithm: str | None = None
    timing: Timing | None = None
    workspace_bytes: int = 0
    error: float = math.nan  # as in `measure.Row`
    error_bound: float = math.nan
    why_not: str | None = None
    failed: bool = False  # it raised an error, which it never should

    @property
    def wrong(self) -> bool:
        return not self.error <= self.error_bound

    def as_json(self) -> dict[str, Any]:
        return {
            "direction": self.direction,
            "algorithm": self.algorithm,
            "median_s": self.timing.median if self.timing else None,
            "samples_s": list(self.timing.samples) if self.timing else [],
            "workspace_bytes": self.workspace_bytes,
            "error": finite(self.error),
            "error_bound": finite(self.error_bound),
            "why_not": self.why_not,
            "failed": self.failed,
        }


@dataclass(frozen=True)
class PeerStep:
    """A peer on a layer: its forward pass, and its call of both gradients."""

    name: str
    forward: PeerResult
    backward: PeerResult

    @property
    def timings(self) -> tuple[Timing | None, Timing | None]:
        """Of the forward pass, and of both gradients."""
        return self.forward.timing, self.backward.timing

    @property
    def seconds(self) -> float | None:
        """Of a step."""
        return total(self.timings)

    def as_json(self) -> dict[str, Any]:
        parts = {"forward": self.forward.as_json(), "backward": self.backward.as_json()}
        return {"name": self.name, "seconds": self.seconds, **parts}


@dataclass(frozen=True)
class StepResult:
    """All that was found out about a step of a layer."""

    kind: ClassVar[str] = "training"

    layer: Layer
    passes: tuple[PassResult, ...]  # in the order of DIRECTIONS
    peers: tuple[PeerStep, ...]

    @property
    def problem(self) -> ConvProblem:
        return self.layer.problem

    @property
    def seconds(self) -> float | None:
        """Of a step: the sum of the median times of the passes; None where one of them is missing."""
        return total(p.timing for p in self.passes)

    @property
    def spread(self) -> float | None:
        """That of its passes together, as a share of the whole."""
        if self.seconds is None:
            return None
        return sum(p.timing.spread * p.timing.median for p in self.passes if p.timing) / self.seconds

    def peer(self, name: str) -> PeerStep | None:
        return next((p for p in self.peers if p.name == name), None)

    def ratio(self, name: str) -> float | None:
        """Time of a peer's step / time of ours: above 1 ours is faster."""
        theirs = self.peer(name)
        if theirs is None or theirs.seconds is None or self.seconds is None:
            return None
        return theirs.seconds / self.seconds

    def complaints(self) -> list[str]:
        """One line for every pass that gave a wrong result or failed."""
        lines = []
        for p in self.passes:
            name = f"{self.layer.name} {p.direction}"
            if p.failed:
                lines.append(f"{name}: {p.algorithm} failed: {(p.why_not or '').splitlines()[0]}")
            elif p.algorithm is not None and p.wrong:
                lines.append(over_bound(name, p.algorithm, p.error, p.error_bound))
        return lines

    def as_json(self) -> dict[str, Any]:
        return layer_as_json(self.layer) | {
            "seconds": self.seconds,
            "passes": [p.as_json() for p in self.passes],
            "peers": [p.as_json() | {"ratio": self.ratio(p.name)} for p in self.peers],
        }


def steps_of(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    """The layers of which there is a step each: a gradient stands for the layer that it is a gradient of."""
    found, problems = [], set()
    for layer in sorted(layers, key=lambda layer: layer.problem.direction != "forward"):  # stable
        problem = layer.problem.replace(direction="forward")
        if layer.problem.direction == "forward" or problem not in problems:
            found.append(Layer(layer.suite, layer.name, problem, layer.count))
        problems.add(problem)
    return tuple(found)


def training_peers(words: str | None, device: str = "cpu") -> tuple[Peer, ...]:
    """Those of `peers.choose` that compute gradients.

    Raises:
        ValueError: there is no such peer, or one that was asked for computes none.
    """
    chosen = peers.choose_peers(words, device)
    for peer in chosen:
        if words is not None and peer.backward is None:
            raise ValueError(f"peers={peer.name!r} computes no gradients, and so has no training step")
    return tuple(peer for peer in chosen if peer.backward is not None)


def run_step(
    layer: Layer,
    others: Sequence[Peer] = (),
    *,
    rounds: int = 3,
    device: str = "cpu",
    progress: measure_timing.Progress = measure_timing.silent,
) -> StepResult:
    """Time and check the three passes of a forward layer and those of peers, in the same rounds.

    Args:
        others: peers that compute gradients.
        device: of the passes, and of the peers.
        rounds: of interleaved timing; see `measure.interleave`.
        progress: called before every step.
    """
    problem, here = layer.problem, backend(device)
    x, w = random_arrays(problem)
    _, dy = random_arrays(problem.replace(direction="backward_weights"))  # x is the same again
    given = {"forward": (x, w), "backward_data": (dy, w), "backward_weights": (x, dy)}
    checks = {d: AccuracyCheck(problem.replace(direction=d), here, given[d]) for d in DIRECTIONS}
    calls: dict[str, Call] = {}
    passes, steps = [], []
    for direction, check in checks.items():
        progress(direction, 0.0)
        tried, call = _try_pass(check)
        passes.append(tried)
        if call is not None:
            calls[direction] = call
    for peer in others if calls else ():
        progress(peer.name, 0.0)
        step, theirs = _try_peer(peer, checks)
        steps.append(step)
        calls |= theirs
    timings = measure_timing.interleave(calls, rounds=rounds, backend=here, progress=progress)

    def timed(result: PeerResult) -> PeerResult:
        return replace(result, timing=timings.get(result.name, result.timing))

    return StepResult(
        layer,
        tuple(replace(p, timing=timings.get(p.direction)) for p in passes),
        tuple(PeerStep(s.name, timed(s.forward), timed(s.backward)) for s in steps),
    )


def total(timings: Iterable[Timing | None]) -> float | None:
    """Sum of the medians; None where one is missing."""
    medians = [t.median if t else None for t in timings]
    return sum(m for m in medians if m) if all(medians) else None


# --- inside ----------------------------------------------------------------------------------


def _try_pass(check: AccuracyCheck) -> tuple[PassResult, Call | None]:
    """What a first run of the pick tells, and the call to time, which prepares the filter, too."""
    problem, here = check.problem, check.backend
    ranking = choose.rank(problem, here.name, CHANGING)
    pick = ranking.candidates[0].id if ranking.candidates else None
    try:
        plan = choose.explained(ranking, here.name)
        first, second = here.put(check.x), here.put(check.w)
        result = here.unwritten(problem.array_shapes[2], check.x.dtype)

        def call() -> Any:
            """A step: small filters that did not change since would be found prepared."""
            return plan(first, plan.prepare(second), out=result)

        call()
        error = check.error(result)
    except Unsupported as reason:
        return PassResult(problem.direction, why_not=str(reason)), None
    except Exception as failure:  # one that is broken must not hide what is known of the others
        why_not = f"{type(failure).__name__}: {failure}"
        return PassResult(problem.direction, pick, why_not=why_not, failed=True), None
    taken = next(c for c in ranking.candidates if c.id == plan.algorithm)
    limits = taken.workspace_bytes, error, taken.error_bound
    return PassResult(problem.direction, plan.algorithm, None, *limits), call


def _try_peer(peer: Peer, checks: dict[str, AccuracyCheck]) -> tuple[PeerStep, dict[str, Call]]:
    """What first calls of a peer tell, and those to time, by name."""
    forward, data, weights = (checks[direction] for direction in DIRECTIONS)
    problem, x, w, dy = forward.problem, forward.x, forward.w, data.x
    names = f"{peer.name} forward", f"{peer.name} backward"
    if reason := peer.why_not_trained(problem):
        return PeerStep(peer.name, *(PeerResult(name, None, None, reason) for name in names)), {}
    threads = peer_threads(forward.backend)
    found = (
        try_call(names[0], lambda: peer.call(problem, x, w, threads), forward),
        try_call(names[1], lambda: peer.call_backward(problem, x, w, dy, threads), data, weights),
    )
    calls = {result.name: call for result, call in found if call is not None}
    return PeerStep(peer.name, *(result for result, _ in found)), calls
