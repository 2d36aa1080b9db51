"""Figures that mean the same on every machine. Lower is better in all of them but the code of the pick."""

import zlib

import numpy as np

import convalgos as ca

from .common import ALGORITHMS, DTYPES, JUDGE, THREADS, Prepared, arrays, problem_of, served, use_threads
from .layers import FEW, LAYERS
from .library import module

try:
    PEERS = module("convalgos.tools.bench.peers").PEERS
except ImportError:  # a version that had none
    PEERS = ()


class Pick:
    """What "auto" takes: how far it is from the ceiling, from its peers and from the fastest candidate."""

    version = "1"
    params = (list(LAYERS), DTYPES, THREADS)
    param_names = ("layer", "dtype", "threads")
    direction = "forward"

    def setup(self, layer, dtype, threads):
        use_threads(threads)
        self.problem = problem_of(layer, dtype, self.direction)
        self.plan = served(self.problem)
        self.x, self.w, self.y = arrays(self.problem)
        prepared = self.plan.prepare(self.w)
        self.call = lambda: self.plan(self.x, prepared, out=self.y)

    def track_percent_over_roofline(self, layer, dtype, threads):
        """Time in percent of what the roofline allows a direct convolution, both measured in one process.

        100 is at the roofline; a transform that saves operations is below.
        """
        calibrate = module("convalgos.cpu.runtime.calibrate")
        machine, p = calibrate.measure(calibrate.thread_count()), self.problem
        least = max(p.flops / machine.peak(p.dtype), machine.stream(p.x_bytes + p.w_bytes + p.y_bytes))
        return (
            100
            * module("convalgos.select.measure.timing").interleave({"pick": self.call})["pick"].median
            / least
        )

    track_percent_over_roofline.unit = "% of the time at the roofline"

    def track_regret_percent(self, layer, dtype, threads):
        """How much longer the pick takes than the fastest candidate, in percent; 0 where it is that one."""
        table = ca.find(self.problem)
        seconds = {row.algorithm: row.median_s for row in table.rows}
        return 100 * (seconds[self.plan.algorithm] / min(seconds.values()) - 1)

    track_regret_percent.unit = "%"

    def track_choice(self, layer, dtype, threads):
        """Another number is another algorithm."""
        return code(self.plan.algorithm)

    track_choice.unit = "code of the pick"


def code(algorithm: str) -> int:
    """The same number for the same id in every version."""
    return zlib.crc32(algorithm.encode()) % 1_000_000


Pick.track_choice.pretty_source = "\n".join(f"{code(a.id):6d} {a.id}" for a in ca.algorithms())


class Peers(Pick):
    known = PEERS
    params = ([peer.name for peer in PEERS] or ["none"], *Pick.params)
    param_names = ("peer", *Pick.param_names)
    track_percent_over_roofline = track_regret_percent = track_choice = None

    def setup(self, peer, layer, dtype, threads):
        super().setup(layer, dtype, threads)
        found = next((p for p in self.known if p.name == peer), None)
        reason = "this version compares with none" if found is None else found.missing()
        if reason := reason or found.why_not(self.problem):
            raise NotImplementedError(reason)
        self.theirs = found.call(self.problem, self.x, self.w, ca.select.current_machine().threads)

    def track_time_vs_peer(self, peer, layer, dtype, threads):
        """Time of the pick / time of a peer, in turns in one process; below 1 the pick is faster."""
        found = module("convalgos.select.measure.timing").interleave({"pick": self.call, "peer": self.theirs})
        return found["pick"].median / found["peer"].median

    track_time_vs_peer.unit = "times the peer"


class Errors(Prepared):
    """What an algorithm is wrong by."""

    params = (ALGORITHMS, FEW, DTYPES, THREADS)

    def track_max_error_ulp(self, algorithm, layer, dtype, threads):
        """max|y - float64 answer| / max|float64 answer|, in units of the last place of the element type."""
        exact = ca.plan(self.problem.replace(dtype="float64", compute_dtype=None), algorithm=JUDGE)
        x, w, _ = arrays(self.problem)
        answer = exact(x.astype(np.float64), w.astype(np.float64))
        y = self.y if isinstance(self.y, np.ndarray) else self.y.get()
        return float(np.abs(y - answer).max() / np.abs(answer).max() / np.finfo(y.dtype).eps)

    track_max_error_ulp.unit = "ulp"
