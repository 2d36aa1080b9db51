"""What the selector sees, and how it prints: candidates in order, the rejected with their reasons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from convalgos.algorithm import Algorithm
from convalgos.problem import ConvProblem


@dataclass(frozen=True)
class Candidate:
    """An algorithm that can serve a problem."""

    algorithm: Algorithm
    seconds: float  # by which it is ranked: a run, with the share of preparing the filter that it pays
    workspace_bytes: int
    error_bound: float
    predicted: float | None = None  # seconds of a run by the cost model, or by the ranker that was asked for
    measured: float | None = None  # median seconds of a run
    spread: float | None = None  # (third quartile - first quartile) / median; None of a single sample
    prepare: float = 0.0  # seconds to prepare the filter
    note: Callable[[], str] = field(default=str, compare=False)  # what else to tell of it, found when asked

    @property
    def id(self) -> str:
        return self.algorithm.id


@dataclass(frozen=True)
class Rejection:
    """An algorithm that cannot, and why not."""

    id: str
    why_not: str


@dataclass(frozen=True)
class Ranking:
    """What the selector sees: candidates from fastest to slowest, and the rejected with their reasons."""

    problem: ConvProblem
    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejection, ...]
    basis: str = "predicted"  # of the first: "predicted", "measured", or "near" (measured on a near problem)
    near: ConvProblem | None = None  # the problem whose measurements were scaled
    costs: dict[str, float] = field(default_factory=dict)  # limit -> time of the pick / without this limit

    @property
    def margin(self) -> float | None:
        """Time of the second / time of the first."""
        if len(self.candidates) < 2 or not self.candidates[0].seconds:
            return None
        return self.candidates[1].seconds / self.candidates[0].seconds

    def __str__(self) -> str:
        p = self.problem
        forward = "" if p.direction == "forward" else "forward "
        lines = [
            f"{p}",
            f"  {p.arrays[2]} {p.result_shape}, {p.flops / 1e9:.3g} GFLOP, {p.bytes / 1e6:.3g} MB, "
            f"{forward}GEMM view {p.gemm_m} x {p.gemm_n} x {p.gemm_k} x {p.groups} groups",
        ]
        if self.near is not None:
            lines.append(f"  scaled from what was measured on {self.near}")
        lines.append(self._heading())
        lines += [self._line(rank, c) for rank, c in enumerate(self.candidates)]
        lines += [f"  {r.id:24s} no: {r.why_not}" for r in self.rejected]
        if self.margin is not None:
            first, second = self.candidates[:2]
            lines.append(
                f"  margin: {first.id} is {self.margin:.2f}x faster than {second.id}, as {self._how}"
            )
        lines += [f"  {limit}: {cost:.2f}x" for limit, cost in self.costs.items()]
        return "\n".join(lines)

    @property
    def _how(self) -> str:
        return {"predicted": "predicted", "measured": "measured", "near": "scaled"}.get(
            self.basis, self.basis
        )

    @property
    def _timed(self) -> bool:
        return any(c.measured is not None for c in self.candidates)

    def _heading(self) -> str:
        timed = f" {'measured time':>16s} {'spread':>8s}" if self._timed else ""
        return (
            f"  {'algorithm':24s} {'predicted time':>16s}{timed} {'x best':>7s} {'prepare':>13s} "
            f"{'workspace':>12s} {'error bound':>12s}"
        )

    def _line(self, rank: int, c: Candidate) -> str:
        mark = "->" if rank == 0 else "  "
        timed = ""
        if self._timed:
            spread = "1 sample" if c.spread is None else f"{c.spread:8.1%}"
            timed = f" {'':>25s}" if c.measured is None else f" {_us(c.measured)} {spread}"
        best = self.candidates[0].seconds
        ratio = c.seconds / best if best else 1.0
        return (
            f"{mark}{c.id:24s} {_us(c.seconds if c.predicted is None else c.predicted)}{timed} {ratio:7.2f} "
            f"{c.prepare * 1e6:10.1f} us {c.workspace_bytes / 1e6:9.2f} MB {c.error_bound:12.1e}  {c.note()}"
        )


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:13.1f} us"
