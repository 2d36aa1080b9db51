"""In which layouts a step may read and write, and what each of these ways costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from convalgos.core.errors import Unsupported
from convalgos.core.layouts import BLOCKS, PLAIN, blocked_layout
from convalgos.core.machine import Machine, vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.layout.reorder import is_same
from convalgos.cpu.pooling.cost import pooling_seconds
from convalgos.network.graph import (
    Concatenation,
    Convolution,
    Elementwise,
    NetworkGraph,
    Pooling,
    Shapes,
    Step,
    TransposedConvolution,
    Upsampling,
)
from convalgos.network.planned import PlanLimits
from convalgos.select import choose, devices
from convalgos.select.constraints import Constraints
from convalgos.select.ranking import Candidate

FIRST = "channels_first"
FULL_BLOCKS = 0.5  # of a block of channels, which a map must fill to be worth laying out in blocks


@dataclass(frozen=True)
class StepOption:
    """A way to compute a step: layouts of what it reads and writes, and its predicted seconds."""

    reads: tuple[str, ...]
    writes: str
    seconds: float
    candidate: Candidate | None = None  # of a convolution

    @property
    def error_bound(self) -> float:
        """What it adds to the error of the network."""
        return 0.0 if self.candidate is None else self.candidate.error_bound


class StepOptions:
    """The ways of all steps of a network of fixed shapes, by the cost models and what was measured.

    Args:
        shapes: of all values.
    """

    def __init__(self, graph: NetworkGraph, shapes: Shapes, limits: PlanLimits):
        self._graph, self._shapes, self._limits = graph, shapes, limits
        self._machine: Machine = devices.figures("cpu")
        self._known: dict[tuple[ConvProblem, str], Candidate | None] = {}

    def of(self, step: Step) -> list[StepOption]:
        """Those of a step: at least one, which reads and writes channels first.

        Raises:
            Unsupported: nothing can compute a convolution within the limits.
        """
        if isinstance(step, Convolution | TransposedConvolution):
            found = list(self._convolutions(step))
        else:
            found = list(self._alike(step))
        if not found:
            raise Unsupported(f"step {step.name!r} cannot be computed within {self._limits}")
        return found

    def one_of(self, step: Step, like: StepOption) -> StepOption:
        """The way in the layouts, and of a convolution in the precision, of an option for other shapes.

        Raises:
            Unsupported: nothing can compute a convolution so.
        """
        if isinstance(step, Convolution | TransposedConvolution) and like.candidate is not None:
            found = self._convolution(step, like.reads[0], like.writes, like.candidate.precision)
            if found is None:
                raise Unsupported(f"step {step.name!r} cannot be computed in the layouts of {like}")
            return found
        every = (*step.inputs, *step.outputs)
        return replace(like, seconds=self._seconds(step, like.writes, every))

    def layouts(self, name: str) -> tuple[str, ...]:
        """Those in which a value may lie; of several that are the same memory, the first."""
        shape = self._shapes[name]
        if not 3 <= len(shape) <= 5 or self._graph.dtypes.get(name, "float32") != "float32":
            return (FIRST,)
        found = [layout for layout in PLAIN if layout == FIRST or not is_same(shape, FIRST, layout)]
        blocked = self._blocked
        worth = shape[1] >= FULL_BLOCKS * BLOCKS[blocked]
        if worth and not any(is_same(shape, layout, blocked) for layout in found):
            found.append(blocked)
        return tuple(found)

    @cached_property
    def _blocked(self) -> str:
        return blocked_layout(vector_bytes() // 4)

    def _convolutions(self, step: Convolution | TransposedConvolution) -> Iterator[StepOption]:
        mixes = isinstance(step, Convolution)
        for reads, writes in product(self.layouts(step.inputs[0]), self.layouts(step.output)):
            if mixes or reads == writes in PLAIN:
                for precision in self._limits.precisions:
                    if found := self._convolution(step, reads, writes, precision):
                        yield found

    def _convolution(
        self, step: Convolution | TransposedConvolution, reads: str, writes: str, precision: str
    ) -> StepOption | None:
        """The best way to compute a convolution between two layouts; a residual lies as y does."""
        x, *residual = step.inputs
        problem = step.problem(self._shapes[x]).with_valid(layout=reads, y_layout=writes)
        best = self._best(problem, precision)
        if best is None:
            return None
        return StepOption(
            (reads, *[writes] * len(residual)), writes, best.estimate_s + self._stream(*residual), best
        )

    def _best(self, problem: ConvProblem, precision: str) -> Candidate | None:
        """What suits a problem best; None where nothing serves it, but for the reference between layouts."""
        key = problem, precision
        if key not in self._known:
            found = choose.predicted_pick(problem, "cpu", limits_of(self._limits, precision))
            plain = problem.layout == problem.y_layout and problem.layout in PLAIN
            if found is not None and found.algorithm.family == "cpu.reference" and not plain:
                found = None
            self._known[key] = found
        return self._known[key]

    def _alike(self, step: Step) -> Iterator[StepOption]:
        """Of a step that is no convolution: it reads and writes one layout."""
        every = (*step.inputs, *step.outputs)
        if isinstance(step, Pooling):
            layouts: Sequence[str] = self.layouts(step.inputs[0])
        elif isinstance(step, Upsampling | Concatenation) or self._is_laid_alike(step):
            layouts = [layout for layout in self.layouts(step.output) if self._serves(step, layout)]
        else:
            layouts = (FIRST,)
        for layout in layouts:
            yield StepOption((layout,) * len(step.inputs), layout, self._seconds(step, layout, every))

    def _is_laid_alike(self, step: Step) -> bool:
        """Whether an elementwise step reads maps of one shape, or with one number for each map."""
        if not isinstance(step, Elementwise):
            return False
        y = self._shapes[step.output]
        per_map = (*y[:2], *(1,) * (len(y) - 2))
        return all(self._shapes[name] in (y, per_map) for name in step.inputs)

    def _serves(self, step: Step, layout: str) -> bool:
        """Whether all that a step reads may lie in a layout, and be put side by side in it."""
        if layout == FIRST:
            return True
        shapes = [self._shapes[name] for name in step.inputs]
        whole_blocks = not any(shape[1] % BLOCKS.get(layout, 1) for shape in shapes[:-1])
        return whole_blocks or not isinstance(step, Concatenation)

    def _seconds(self, step: Step, layout: str, values: Sequence[str]) -> float:
        if isinstance(step, Pooling):
            problem = step.problem(self._shapes[step.inputs[0]])
            return pooling_seconds(replace(problem, layout=layout, y_layout=layout), self._machine)
        if isinstance(step, Concatenation):  # slices of the output cost nothing
            return self._stream(*values) if layout == "channels_last" else 0.0
        if isinstance(step, Elementwise | Upsampling):
            return self._machine.launch + self._stream(*values)
        return 0.0  # views, and what other libraries compute

    def _stream(self, *values: str) -> float:
        """Seconds to read and write values."""
        nbytes = sum(4 * math.prod(self._shapes[name]) for name in values)
        return self._machine.stream(nbytes) if nbytes else 0.0


def limits_of(limits: PlanLimits, precision: str = "float32") -> Constraints:
    """What the choice of a convolution in a precision is held to."""
    precisions = None if precision == "float32" else (precision,)
    return Constraints(workspace_limit=limits.workspace_limit, precisions=precisions)
