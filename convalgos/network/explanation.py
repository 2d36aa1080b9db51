"""What planning gave each step of a network, and what the choice of layouts across them saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convalgos.core.arguments import Shape
from convalgos.core.tabular import Tabular, count, microseconds
from convalgos.network.arena import least_arena_bytes
from convalgos.network.array_functions import ArrayFunction
from convalgos.network.batch_parts import BatchParts
from convalgos.network.choice import layout_problem
from convalgos.network.graph import Foreign, NetworkGraph, TransposedConvolution
from convalgos.network.layout_choice import LayoutChoice
from convalgos.network.planned import (
    JoinedConvolutions,
    LayoutChange,
    PlanLimits,
    Planned,
    PlannedStep,
    PooledConvolution,
    ScaledConvolution,
)
from convalgos.network.quantized_graph import QuantizedArithmetic, QuantizedMean
from convalgos.network.step_options import CONVOLUTIONS, StepOptions
from convalgos.select import devices

STEP_BY_STEP = "each step by itself"


@dataclass(frozen=True)
class StepRow:
    """What one step got. Times are in seconds, of all its runs in one of the network."""

    name: str
    what: str  # kind of step, or for other libraries what they compute
    algorithm: str  # of a convolution
    reads: tuple[str, ...]  # layouts
    writes: str
    shape: Shape  # of its output, logical
    flops: int  # of a convolution, in all its runs
    predicted_s: float
    measured_s: float | None = None
    of_peak: float | None = None  # flops a second over those of the machine in float32, measured or predicted
    dtype: str = "float32"  # of its output
    runs: int = 1  # in one of the network: for some images of the batch at a time, if there are several

    def to_dict(self) -> dict[str, Any]:
        """Its fields as plain data."""
        return {
            "name": self.name, "what": self.what, "algorithm": self.algorithm, "reads": list(self.reads),
            "writes": self.writes, "shape": list(self.shape), "flops": self.flops,
            "predicted_s": self.predicted_s, "measured_s": self.measured_s, "of_peak": self.of_peak,
            "dtype": self.dtype, "runs": self.runs,
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class NetworkExplanation(Tabular):
    """The steps of a planned network in order, and what other choices of layouts are predicted to take.

    It prints as a table; changes of layout are steps of their own.
    """

    shapes: Mapping[str, Shape]  # of the inputs
    rows: tuple[StepRow, ...]
    alternatives: Mapping[str, float]  # a layout for all steps, or STEP_BY_STEP -> predicted seconds
    exact: bool  # whether no other choice of layouts is predicted to be faster
    arena_bytes: int
    least_arena_bytes: int  # in use at the worst step: no arena is smaller
    scratch_bytes: int
    parts: str = ""  # in which images run through the first steps, if any

    @property
    def predicted_s(self) -> float:
        """Of a run."""
        return sum(row.predicted_s for row in self.rows)

    @property
    def measured_s(self) -> float | None:
        """Of all steps one by one, where they were timed."""
        measured = [row.measured_s for row in self.rows if row.measured_s is not None]
        return sum(measured) if len(measured) == len(self.rows) else None

    @property
    def changes(self) -> tuple[StepRow, ...]:
        """The changes of layout."""
        return tuple(row for row in self.rows if row.what == "layout change")

    def to_dict(self) -> dict[str, Any]:
        return {
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "steps": self._frame_rows(),
            "predicted_s": self.predicted_s,
            "measured_s": self.measured_s,
            "alternatives_s": dict(self.alternatives),
            "exact": self.exact,
            "arena_bytes": self.arena_bytes,
            "least_arena_bytes": self.least_arena_bytes,
            "scratch_bytes": self.scratch_bytes,
            "parts": self.parts,
        }

    def _frame_rows(self) -> list[dict[str, Any]]:
        return [row.to_dict() for row in self.rows]

    def __repr__(self) -> str:
        return f"<Network of {count(len(self.rows), 'step')}: {microseconds(self.predicted_s)} predicted>"

    def __str__(self) -> str:
        inputs = ", ".join(f"{name} {shape}" for name, shape in self.shapes.items())
        wide = max((len(row.name) for row in self.rows), default=4)
        wide = min(40, max(4, wide))
        lines = [
            f"network on {inputs}",
            f"  {'step':{wide}s} {'what':14s} {'algorithm':24s} {'layouts':31s} {'output':18s} "
            f"{'predicted':>12s} {'measured':>12s} {'of peak':>7s}",
        ]
        lines += [_line(row, wide) for row in self.rows]
        measured = self.measured_s
        told = "" if measured is None else f", {microseconds(measured)} measured step by step"
        changes = sum(row.predicted_s for row in self.changes)
        best = "no other layouts are predicted faster" if self.exact else "the best layouts found"
        lines += [
            f"  in all {microseconds(self.predicted_s)} predicted{told}; {best}",
            f"  {count(len(self.changes), 'change')} of layout, {microseconds(changes)}",
        ]
        for name, seconds in self.alternatives.items():
            ratio = seconds / self.predicted_s if self.predicted_s else 1.0
            lines.append(f"  {name:24s} {microseconds(seconds):>12s}  {ratio:.3f} times this")
        lines.append(
            f"  arena {self.arena_bytes / 1e6:.2f} MB (in use at once {self.least_arena_bytes / 1e6:.2f}), "
            f"{self.scratch_bytes / 1e6:.2f} MB of it scratch"
        )
        lines += [f"  {self.parts}"] if self.parts else []
        return "\n".join(lines)


def explanation(
    graph: NetworkGraph,
    planned: Planned,
    choice: LayoutChoice,
    limits: PlanLimits,
    measured: Sequence[float] | None = None,
    parts: BatchParts | None = None,
) -> NetworkExplanation:
    """What a plan is, beside what other choices of layouts would be.

    Args:
        choice: the layouts of the plan.
        measured: seconds of each step in turn, once.
        parts: in which it runs, if any: steps and arena are theirs.
    """
    inputs = {name: planned.shapes[name] for name in graph.inputs}
    shapes = graph.shapes_of(inputs)
    problem = layout_problem(graph, shapes, StepOptions(graph, shapes, limits))
    others = {layout: problem.in_layout(layout) for layout in problem.layouts()}
    others[STEP_BY_STEP] = problem.step_by_step()
    peak = devices.figures("cpu").peak_float32
    runs = [(graph, planned, 1)] if parts is None else parts.runs(graph)
    steps = [(step, of, times) for _, of, times in runs for step in of.steps]
    once: Sequence[float | None] = measured or [None] * len(steps)
    rows = [_row(*step, s, peak) for step, s in zip(steps, once, strict=True)]
    arena = planned.arena_bytes, least_arena_bytes(planned, graph), planned.scratch_bytes
    if parts is not None:
        whole = parts.arena_bytes + parts.between_bytes
        arena = whole, whole, parts.scratch_bytes
    return NetworkExplanation(
        inputs, tuple(rows), {name: other.seconds for name, other in others.items()}, choice.exact, *arena,
        "" if parts is None else str(parts),
    )  # fmt: skip


def _row(
    planned_step: PlannedStep, planned: Planned, runs: int, once_s: float | None, peak: float
) -> StepRow:
    step, plan, flops = planned_step.step, planned_step.plan, 0
    what = type(step).__name__.lower()
    if isinstance(step, CONVOLUTIONS):
        flops = plan.problem.flops
        what = "transposed" if isinstance(step, TransposedConvolution) else "convolution"
        what = "pooled" if isinstance(step, PooledConvolution) else what
    elif isinstance(step, JoinedConvolutions):
        flops = sum(problem.flops for problem in plan.block.problems)
        what = f"{len(step.parts)} convolutions"
    elif isinstance(step, ScaledConvolution):
        flops, what = plan.problem.flops, "scaled"
    elif isinstance(step, QuantizedArithmetic):
        what = f"quantized {step.operation}"
    elif isinstance(step, QuantizedMean):
        what = "quantized mean"
    elif isinstance(step, LayoutChange):
        what = "layout change"
    elif isinstance(step, ArrayFunction):
        what = step.function.replace("_", " ")
    elif isinstance(step, Foreign) and step.region is not None:
        what = f"{step.region.library}: {step.region.what}"
    seconds = once_s or planned_step.seconds
    return StepRow(
        step.name, what, getattr(plan, "algorithm", ""), planned_step.reads, planned_step.writes,
        tuple(planned.shapes[step.output]), runs * flops, runs * planned_step.seconds,
        None if once_s is None else runs * once_s, flops / seconds / peak if flops and seconds else None,
        planned.dtype(step.output).name, runs,
    )  # fmt: skip


def _line(row: StepRow, wide: int) -> str:
    reads = "+".join(dict.fromkeys(row.reads))
    layouts = row.writes if reads == row.writes else f"{reads} > {row.writes}"
    measured = "" if row.measured_s is None else microseconds(row.measured_s)
    of_peak = "" if row.of_peak is None else f"{row.of_peak:.0%}"
    runs = "" if row.runs == 1 else f"{row.runs} x "
    shape = runs + "x".join(map(str, row.shape)) + ("" if row.dtype == "float32" else f" {row.dtype}")
    return (
        f"  {row.name[:wide]:{wide}s} {row.what[:14]:14s} {row.algorithm:24s} {layouts:31s} {shape:18s} "
        f"{microseconds(row.predicted_s):>12s} {measured:>12s} {of_peak:>7s}".rstrip()
    )
