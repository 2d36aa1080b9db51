"""What the selector sees, and how it prints: candidates in order, the rejected with their reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from convalgos.core.algorithm import Algorithm
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.problem import ConvProblem
from convalgos.core.tabular import Tabular, count, microseconds
from convalgos.select.constraints import needs
from convalgos.select.devices import working_on

# On 95 % of the layers in each table of asv_bench/tables/ (two threads of Zen 5), and of 120 layers of other
# networks (two of a Xeon), the fastest candidate is predicted within 1.35 times the first of the ranking, and
# on 98 % within 1.46; a few lie further out. `convalgos select evaluate` tells it of a table.
MODEL_ERROR = 1.6
NEAR_ERROR = 1.25  # once predictions are corrected by what was measured on a near problem; an estimate


@dataclass(frozen=True)
class Candidate:
    """An algorithm that can serve a problem, from the first look at it to the pick. Times are in seconds.

    Example:
        >>> import convalgos as ca
        >>> first = ca.explain(ca.ConvProblem.parse("n1 c4 w9 k4 s3")).candidates[0]
        >>> first.predicted_s > 0, first.measured_s is None, first.workspace_bytes >= 0
        (True, True, True)
    """

    algorithm: Algorithm
    problem: ConvProblem
    computed: ConvProblem  # what the algorithm computes in its place: `Algorithm.computed`
    predicted_s: float  # a run, by the cost model, or by the ranker that was asked for
    # What it is ranked by: a run as far as is known, and the share of preparing the filter that it pays.
    # The time measured counts for the prediction, and others measured correct it (`select.estimate`).
    estimate_s: float
    prepare_s: float = 0.0  # to prepare the filter: predicted, or as measured
    measured_s: float | None = None  # a run: the median
    spread: float | None = None  # (third quartile - first quartile) / median; None of a single sample
    adapted: bool = False  # measured in the calls of a program (effort="adapt")
    device: str = "cpu"

    @classmethod
    def of(cls, algorithm: Algorithm, problem: ConvProblem, predicted_s: float) -> Candidate:
        """One of which no more than a prediction is known."""
        return cls(algorithm, problem, algorithm.computed(problem), predicted_s, predicted_s)

    @cached_attribute
    def id(self) -> str:
        return self.algorithm.id

    @property
    def workspace_bytes(self) -> int:
        """Scratch that a run holds."""
        return self._needs[0]

    @property
    def error_bound(self) -> float:
        """Relative to max|y|: `Algorithm.error_bound`, and the rounding of 16-bit data."""
        return self._needs[1]

    @cached_attribute
    def _needs(self) -> tuple[int, float]:
        with working_on(self.device):
            return needs(self.algorithm, self.problem)

    @property
    def precision(self) -> str:
        """The number format that it computes in."""
        name: str = getattr(self.algorithm, "precision", self.problem.dtype)
        return name

    def note(self) -> str:
        """What a ranking tells of it beside its figures."""
        with working_on(self.device):
            return self.algorithm.note(self.computed)

    # --- what rankers and programs of before call these times --------------------------------

    @property
    def predicted(self) -> float:
        """`predicted_s`."""
        return self.predicted_s

    @property
    def seconds(self) -> float:
        """`estimate_s`."""
        return self.estimate_s

    @property
    def measured(self) -> float | None:
        """`measured_s`."""
        return self.measured_s

    @property
    def prepare(self) -> float:
        """`prepare_s`."""
        return self.prepare_s


@dataclass(frozen=True)
class Rejection:
    """An algorithm that cannot, and why not."""

    id: str
    why_not: str
    elsewhere: bool = field(default=False, compare=False)  # it only computes other directions or types


def worth_telling(rejected: Sequence[Rejection]) -> tuple[list[Rejection], str]:
    """The rejections but those that only name a direction or a type, and a sentence on these, if any."""
    told = [r for r in rejected if not r.elsewhere]
    left = len(rejected) - len(told)
    return told, f"{f'{left} more':24s} no: for other directions or types only" if left else ""


@dataclass(frozen=True)
class Ranking(Tabular):
    """What the selector sees: candidates from fastest to slowest, and the rejected with their reasons."""

    problem: ConvProblem
    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejection, ...]
    basis: str = "predicted"  # of the first: "predicted", "measured", or "near" (measured on a near problem)
    near: ConvProblem | None = None  # the problem whose measurements were scaled
    costs: dict[str, float] = field(default_factory=dict)  # limit -> time of the pick / without this limit
    nominal: bool = False  # it goes by figures of the machine that nobody measured

    @property
    def margin(self) -> float | None:
        """Time of the second / time of the first."""
        if len(self.candidates) < 2 or not self.candidates[0].estimate_s:
            return None
        return self.candidates[1].estimate_s / self.candidates[0].estimate_s

    @property
    def model_error(self) -> float:
        """The factor by which the first may err beside the others; 1 where it was measured."""
        return {"predicted": MODEL_ERROR, "near": NEAR_ERROR}.get(self.basis, 1.0)

    @property
    def tied(self) -> tuple[Candidate, ...]:
        """The first, and those that predictions do not tell from it: within the models' error of its time."""
        if not self.candidates:
            return ()
        first, *others = self.candidates
        return first, *(c for c in others if c.estimate_s < self.model_error * first.estimate_s)

    def __repr__(self) -> str:
        rest = f"{count(len(self.candidates), 'candidate')}, {len(self.rejected)} rejected"
        if not self.candidates:
            return f"<Ranking of {self.problem}: no algorithm can serve it, {rest}>"
        first = self.candidates[0]
        lead = f", {self.margin:.2f}x faster than {self.candidates[1].id}" if self.margin else ""
        time = f"{microseconds(first.estimate_s)} as {self._how}"
        return f"<Ranking of {self.problem}: {first.id}, {time}{lead}; {rest}>"

    def to_dict(self) -> dict[str, Any]:
        """All of it as `json.dumps` takes it.

        Example:
            >>> import convalgos as ca
            >>> found = ca.explain(ca.ConvProblem.parse("n1 c4 w9 k4 s3")).to_dict()
            >>> found["candidates"][0]["predicted_s"] > 0
            True
        """
        return {
            "problem": str(self.problem),
            "pick": self.candidates[0].id if self.candidates else None,
            "basis": self.basis,
            "near": None if self.near is None else str(self.near),
            "tied": [c.id for c in self.tied],
            "candidates": self._frame_rows(),
            "rejected": [{"algorithm": r.id, "why_not": r.why_not} for r in self.rejected],
            "limit_costs": dict(self.costs),
        }

    def _frame_rows(self) -> list[dict[str, Any]]:
        return [
            {
                "algorithm": c.id,
                "seconds": c.estimate_s,
                "predicted_s": c.predicted_s,
                "measured_s": c.measured_s,
                "spread": c.spread,
                "prepare_s": c.prepare_s,
                "workspace_bytes": c.workspace_bytes,
                "error_bound": c.error_bound,
                "precision": c.precision,
                "note": c.note(),
            }
            for c in self.candidates
        ]

    def __str__(self) -> str:
        lines = self.header()
        lines.append(self._heading())
        marks = ["->", *["~ "] * (len(self.tied) - 1), *["  "] * len(self.candidates)]
        lines += [self._line(mark, c) for mark, c in zip(marks, self.candidates, strict=False)]
        told, others = worth_telling(self.rejected)
        lines += [f"  {r.id:24s} no: {r.why_not}" for r in told]
        lines += [f"  {others}"] if others else []
        return "\n".join(lines + self.footer())

    def header(self) -> list[str]:
        """The problem, and what it amounts to."""
        p = self.problem
        forward = "" if p.direction == "forward" else "forward "
        lines = [
            f"{p}",
            f"  {p.arrays[2]} {p.result_shape}, {p.flops / 1e9:.3g} GFLOP, {p.bytes / 1e6:.3g} MB, "
            f"{forward}GEMM view {p.gemm_m} x {p.gemm_n} x {p.gemm_k} x {p.groups} groups",
        ]
        read = {str(c.computed): None for c in self.candidates if c.computed.ndim != p.ndim}
        lines += [f"  the same memory, read as {text}" for text in read]
        if self.near is not None:
            lines.append(f"  scaled from what was measured on {self.near}")
        return lines

    @property
    def frontier(self) -> tuple[Candidate, ...]:
        """Those that are faster than all of a smaller error bound, from the fastest on."""
        found: list[Candidate] = []
        for candidate in self.candidates:
            if not found or candidate.error_bound < found[-1].error_bound:
                found.append(candidate)
        return tuple(found)

    def footer(self) -> list[str]:
        """By how much the first is ahead, what less error costs, and what limits do."""
        lines = []
        if self.margin is not None:
            first, second = self.candidates[:2]
            lines.append(
                f"  margin: {first.id} is {self.margin:.2f}x faster than {second.id}, as {self._how}"
            )
        if (tied := len(self.tied)) > 1:
            error = f"within the models' error ({self.model_error:g}x)"
            lines.append(f"  tied: the first {tied}, {error}; effort='adapt' or 'measure' tells them apart")
        if any(c.precision != self.problem.dtype for c in self.candidates):
            lines.append("  error against time, the fastest of each error bound:")
            lines += [f"    {c.error_bound:8.1e} {_us(c.estimate_s)}  {c.id}" for c in self.frontier]
        lines += [f"  {limit}: {cost:.2f}x" for limit, cost in self.costs.items()]
        if self.nominal and self.basis != "measured":
            lines.append("  by nominal figures of this machine: convalgos tune --machine measures it")
        return lines

    @property
    def _how(self) -> str:
        return {"predicted": "predicted", "measured": "measured", "near": "scaled"}.get(
            self.basis, self.basis
        )

    @property
    def _timed(self) -> bool:
        return any(c.measured_s is not None for c in self.candidates)

    def _heading(self) -> str:
        timed = f" {'measured time':>16s} {'spread':>8s}" if self._timed else ""
        return (
            f"  {'algorithm':24s} {'predicted time':>16s}{timed} {'x best':>7s} {'prepare':>13s} "
            f"{'workspace':>12s} {'error bound':>12s}"
        )

    def _line(self, mark: str, c: Candidate) -> str:
        timed = ""
        if self._timed:
            spread = "1 sample" if c.spread is None else f"{c.spread:8.1%}"
            timed = f" {'':>25s}" if c.measured_s is None else f" {_us(c.measured_s)} {spread}"
        best = self.candidates[0].estimate_s
        ratio = c.estimate_s / best if best else 1.0
        return (
            f"{mark}{c.id:24s} {_us(c.predicted_s)}{timed} {ratio:7.2f} {c.prepare_s * 1e6:10.1f} us "
            f"{c.workspace_bytes / 1e6:9.2f} MB {c.error_bound:12.1e}  {c.note()}"
        )


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:13.1f} us"
