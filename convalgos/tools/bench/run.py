"""The main job: every algorithm on a layer, the pick, the oracle and the peers.

1. The selector ranks the candidates.
2. Each peer is called once, and its result checked.
3. All of them are timed in the same rounds (`convalgos.select.measure.table`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from convalgos.core.arrays import host_array
from convalgos.select import choose, devices
from convalgos.select.measure import timing as measure_timing
from convalgos.select.measure.accuracy import AccuracyCheck
from convalgos.select.measure.backends import Backend, backend
from convalgos.select.measure.table import time_candidates
from convalgos.select.measure.timing import Timing
from convalgos.select.ranking import Ranking
from convalgos.tools.bench.peer import Peer
from convalgos.tools.bench.results import LayerResult, PeerResult
from convalgos.tools.bench.suites import Layer

PEER_ERROR = 1e-2  # a peer further off than this did not compute the same problem


def run_layer(
    layer: Layer,
    peers: Sequence[Peer] = (),
    *,
    only: Iterable[str] = (),
    rounds: int = 3,
    device: str = "cpu",
    progress: measure_timing.Progress = measure_timing.silent,
) -> LayerResult:
    """Time and check every candidate and peer on a layer, in the same rounds.

    Args:
        only: ids of algorithms, "auto" for the one that is picked among all; all candidates when empty. The
            pick is then the best guess among them.
        device: of the candidates, and of the peers.
        rounds, progress: see `measure.table`.
    """
    problem = layer.problem
    ranking = choose.rank(problem, device)
    if only := set(only):
        only |= {c.id for c in ranking.candidates[:1] if "auto" in only}
        ranking = Ranking(
            problem,
            tuple(c for c in ranking.candidates if c.id in only),
            tuple(r for r in ranking.rejected if r.id in only),
        )
    check = AccuracyCheck(problem, backend(device))
    found, calls = try_peers(peers if ranking.candidates else (), check, progress)
    table = time_candidates(ranking, rounds=rounds, check=check, others=calls, progress=progress)
    for name, timing in table.others.items():
        found[name] = PeerResult(name, timing, found[name].error)
    pick = ranking.candidates[0].id if ranking.candidates else None
    return LayerResult(layer, pick, table, tuple(found.values()))


def try_peers(
    peers: Sequence[Peer], check: AccuracyCheck, progress: measure_timing.Progress
) -> tuple[dict[str, PeerResult], dict[str, Callable[[], object]]]:
    """What first calls of peers tell, by name, and the calls of those that are to be timed."""
    found: dict[str, PeerResult] = {}
    calls: dict[str, Callable[[], object]] = {}
    for peer in peers:
        progress(peer.name, 0.0)
        found[peer.name], call = _try_peer(peer, check)
        if call:
            calls[peer.name] = call
    return found, calls


def _try_peer(peer: Peer, check: AccuracyCheck) -> tuple[PeerResult, Callable[[], object] | None]:
    """What a first call tells of a peer, with the call to time; see `try_call`."""
    if reason := peer.why_not(check.problem):
        return PeerResult(peer.name, None, None, reason), None
    threads = peer_threads(check.backend)
    return try_call(peer.name, lambda: peer.call(check.problem, check.x, check.w, threads), check)


def peer_threads(where: Backend) -> int:
    """How many threads a peer may have."""
    return devices.current_machine().threads if where.name == "cpu" else 1


def try_call(
    name: str, build: Callable[[], Callable[[], Any]], *checks: AccuracyCheck
) -> tuple[PeerResult, Callable[[], object] | None]:
    """What a first call of a peer tells, with the call to time where it was not so long that it will do.

    Args:
        build: makes the call, which returns a result for each check, channels first; of several a tuple.
    """
    try:
        with checks[0].backend.working():
            call = build()
        start = time.perf_counter()
        given = call()
        results = [host_array(result) for result in (given if isinstance(given, tuple) else (given,))]
        took = time.perf_counter() - start
    except Exception as failure:  # of another library: whatever it raises, our bench goes on
        return PeerResult(name, None, None, f"{type(failure).__name__}: {failure}"), None
    errors = [_error_of_peer(check, result) for check, result in zip(checks, results, strict=True)]
    error = max(errors)
    if not error <= PEER_ERROR:
        return PeerResult(name, None, None, f"its result is {error:.1e} off"), None
    if took > measure_timing.SINGLE_CALL:
        return PeerResult(name, Timing((took,)), error), None
    return PeerResult(name, None, error), call


def _error_of_peer(check: AccuracyCheck, result: np.ndarray) -> float:
    """`AccuracyCheck.error` of an array that has its channels first."""
    if check.problem.layout == "channels_last" and check.problem.arrays[2] != "dw":
        result = np.moveaxis(result, 1, -1)
    return check.error(result)
