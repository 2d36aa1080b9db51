"""In which layouts a step may read and write, and what each of these ways costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.byte_scale import BYTE
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.element_types import INTEGERS
from convalgos.core.errors import Unsupported
from convalgos.core.layouts import BLOCKS, PLAIN, blocked_layout
from convalgos.core.machine import Machine, vector_bytes
from convalgos.core.pool_problem import PoolProblem
from convalgos.core.problem import ConvProblem
from convalgos.cpu.elementwise.attention import attention_seconds
from convalgos.cpu.elementwise.norm_cost import group_norm_seconds, layer_norm_seconds, softmax_seconds
from convalgos.cpu.elementwise.products import matmul_seconds
from convalgos.cpu.elementwise.recurrent import recurrent_seconds
from convalgos.cpu.layout.reorder import is_same
from convalgos.cpu.pooling.cost import pooling_seconds
from convalgos.cpu.runtime.filter_reads import rereading_seconds
from convalgos.network.array_functions import ArrayFunction
from convalgos.network.attention import Attention, Product, Rearrangement
from convalgos.network.compared import compared
from convalgos.network.dynamic_convolutions import DynamicConvolution
from convalgos.network.functions import ElementFunction
from convalgos.network.graph import (
    ChannelSelection,
    Concatenation,
    Convolution,
    Elementwise,
    LayerNormalization,
    LocalResponseNormalization,
    NetworkGraph,
    Pooling,
    Resizing,
    Shapes,
    Step,
    Transpose,
    TransposedConvolution,
    Upsampling,
    channels_from_last,
    channels_to_last,
)
from convalgos.network.group_norms import GroupNormalization
from convalgos.network.pixel_moves import PixelMove
from convalgos.network.planned import PlanLimits
from convalgos.network.pooled_convolutions import pooling_saves, poolings
from convalgos.network.quantized_graph import BYTEWISE, QuantizedConvolution, QuantizedMean
from convalgos.network.recurrence import Recurrence
from convalgos.network.softmax import Softmax
from convalgos.network.step_layouts import FIRST, is_laid_alike, serves
from convalgos.select import algorithms, choose, devices
from convalgos.select.constraints import Constraints, keeps
from convalgos.select.ranking import Candidate

CONVOLUTIONS = Convolution | TransposedConvolution | QuantizedConvolution
LAID_OUT = ("float32", *INTEGERS)  # types of maps that have other layouts
NORMS = LayerNormalization | GroupNormalization | LocalResponseNormalization | Softmax
MOVED = Upsampling | Resizing | Concatenation | ChannelSelection | PixelMove
STREAMED = (
    ArrayFunction | Elementwise | ElementFunction | Upsampling | Rearrangement
    | NORMS | BYTEWISE | QuantizedMean
)  # fmt: skip
SLACK = 1.5  # times the fastest by cost models, up to which what has the shorter filter may be faster
HELD = 0.4  # of the seconds in which a filter comes from memory: what the memory that it takes is worth
PREPARED = 1.7  # times the bytes of filters are those of prepared ones: transformed, or split into terms
GROWTH = 2.0  # of the work of a layer, up to which another shape keeps the algorithm
FULL_BLOCKS = 0.5  # of a block of channels, which a map must fill to be worth laying out in blocks


@dataclass(frozen=True)
class StepOption:
    """A way to compute a step: layouts of what it reads and writes, and its predicted seconds."""

    reads: tuple[str, ...]
    writes: str
    seconds: float
    candidate: Candidate | None = None  # of a convolution
    held: float = 0.0  # seconds that the memory of its filter is worth: layouts are chosen by it, too

    @property
    def error_bound(self) -> float:
        """What it adds to the error of the network."""
        return 0.0 if self.candidate is None else self.candidate.error_bound


class StepOptions:
    """The ways of all steps of a network of fixed shapes, by the cost models and what was measured.

    Args:
        shapes: of all values.
        growth: of the work of a layer, up to which another shape keeps the algorithm.
    """

    def __init__(self, graph: NetworkGraph, shapes: Shapes, limits: PlanLimits, growth: float = GROWTH):
        self._graph, self._shapes, self._limits = graph, shapes, limits
        self._growth = growth
        self._machine: Machine = devices.figures("cpu")
        self._measured = devices.store("cpu").known()
        self._poolings, self._compared = poolings(graph), compared(graph)
        self._known: dict[tuple[ConvProblem, Constraints, PoolProblem | None], Candidate | None] = {}
        self._alike_found: dict[tuple[Algorithm, ConvProblem], Candidate | None] = {}

    def of(self, step: Step) -> list[StepOption]:
        """Those of a step: at least one, which reads and writes channels first.

        Raises:
            Unsupported: nothing can compute a convolution within the limits.
        """
        ways = self._convolutions(step) if isinstance(step, CONVOLUTIONS) else self._alike(step)
        found = list(ways)
        if not found:
            raise Unsupported(f"step {step.name!r} cannot be computed within {self._limits}")
        return found

    def one_of(self, step: Step, like: StepOption, before: Shapes) -> StepOption:
        """The way in the layouts, and of a convolution in the precision, of an option for other shapes.

        Args:
            before: those shapes; what is predicted grows with the sizes of the output.

        Raises:
            Unsupported: nothing can compute a convolution so.
        """
        shape, shape_before = self._shapes[step.output], before[step.output]
        grown = 1.0 if shape == shape_before else math.prod(shape) / max(1, math.prod(shape_before))
        if isinstance(step, Transpose) and not moves_nothing(step, like.reads[0], like.writes, self._shapes):
            raise Unsupported(f"step {step.name!r} would move elements in the layouts of {like}")
        if isinstance(step, CONVOLUTIONS) and like.candidate is not None:
            problem = self._laid(step, like.reads[0], like.writes)
            if known := self._like(like.candidate, problem):
                return StepOption(like.reads, like.writes, like.seconds * grown, known)
            found = self._convolution(step, like.reads[0], like.writes, like.candidate.precision)
            if found is None:
                raise Unsupported(f"step {step.name!r} cannot be computed in the layouts of {like}")
            return found
        return like if grown == 1.0 else StepOption(like.reads, like.writes, like.seconds * grown)

    def layouts(self, name: str) -> tuple[str, ...]:
        """Those in which a value may lie, but for what is the same memory as channels first."""
        shape = self._shapes[name]
        itemsize = self.itemsize(name)
        if not 3 <= len(shape) <= 5 or self._graph.dtypes.get(name, "float32") not in LAID_OUT:
            return (FIRST,)
        if itemsize == 1:
            return FIRST, *(["channels_last"] if not is_same(shape, *PLAIN) else [])
        blocked = self._blocked
        worth = shape[1] >= FULL_BLOCKS * BLOCKS[blocked]
        others = ("channels_last", blocked) if worth else ("channels_last",)
        return FIRST, *(layout for layout in others if not is_same(shape, FIRST, layout))

    @cached_attribute
    def _blocked(self) -> str:
        return blocked_layout(vector_bytes() // 4)

    def itemsize(self, name: str) -> int:
        """Bytes of an element of a value."""
        return np.dtype(self._graph.dtypes.get(name, "float32")).itemsize

    def _convolutions(self, step: CONVOLUTIONS) -> Iterator[StepOption]:
        if isinstance(step, QuantizedConvolution):
            for layout in dict.fromkeys((*self.layouts(step.inputs[0]), *self.layouts(step.output))):
                if layout in PLAIN and (found := self._convolution(step, layout, layout, "float32")):
                    yield found
            return
        mixes = isinstance(step, Convolution)
        for reads, writes in product(self.layouts(step.inputs[0]), self.layouts(step.output)):
            if mixes or reads == writes in PLAIN:
                for precision in self._limits.precisions:
                    if found := self._convolution(step, reads, writes, precision):
                        yield found

    def _laid(self, step: CONVOLUTIONS, reads: str, writes: str) -> ConvProblem:
        """The problem of a convolution between two layouts."""
        problem = step.problem(self._shapes[step.inputs[0]])
        if reads == problem.layout and writes == problem.y_layout:
            return problem
        return problem.with_valid(layout=reads, y_layout=writes)

    def _convolution(self, step: CONVOLUTIONS, reads: str, writes: str, precision: str) -> StepOption | None:
        """The best way to compute a convolution between two layouts; a residual lies as y does."""
        residual = step.inputs[1:]
        pooling = self._pooling_behind(step, writes)
        limits = limits_of(self._limits, precision, step in self._compared)
        best = self._best(self._laid(step, reads, writes), limits, pooling)
        if best is None:
            return None
        seconds = self._seconds_of(best, pooling) + self._stream(*residual)
        return StepOption((reads, *[writes] * len(residual)), writes, seconds, best, self._held(best))

    def _pooling_behind(self, step: Step, layout: str) -> PoolProblem | None:
        """That of the output of a convolution in a layout, where nothing else reads it."""
        pooling = self._poolings.get(step.output)
        if pooling is None:
            return None
        return pooling.problem(self._shapes[step.output]).in_layout(layout)

    def _best(
        self, problem: ConvProblem, limits: Constraints, pooling: PoolProblem | None
    ) -> Candidate | None:
        """What suits a problem best; None where nothing serves it, but for the reference between layouts."""
        key = problem, limits, pooling
        if key not in self._known:
            found = choose.close_candidates(problem, "cpu", limits, SLACK)
            if problem.layout != problem.y_layout or problem.layout not in PLAIN:
                found = [c for c in found if c.algorithm.family != "cpu.reference"]
            prices = [self._seconds_of(c, pooling) + self._held(c) for c in found]
            self._known[key] = found[prices.index(min(prices))] if found else None
        return self._known[key]

    def _held(self, candidate: Candidate) -> float:
        """What the memory of the filter is worth, in seconds."""
        return HELD * candidate.algorithm.filter_bytes(candidate.computed) / self._machine.filter_bandwidth

    def _seconds_of(self, candidate: Candidate, pooling: PoolProblem | None) -> float:
        """Of a run, with the filter not in the caches: the others of the network were read since.

        Less what it saves where it does the pooling behind it as well.
        """
        seconds = candidate.estimate_s
        if pooling is not None:
            seconds -= pooling_saves(candidate, pooling, self._machine)
        if self._filter_bytes <= self._machine.threads * self._machine.l2_bytes:
            return seconds
        algorithm = candidate.algorithm
        nbytes = algorithm.filter_bytes(candidate.computed)
        reading = rereading_seconds(nbytes, PREPARED * self._filter_bytes, self._machine)
        return algorithm.seconds_between_layers(candidate.computed, seconds, reading, self._machine)

    @cached_attribute
    def _filter_bytes(self) -> int:
        """Of the filters of the network."""
        return sum(s.w.nbytes for s in self._graph.steps if isinstance(s, CONVOLUTIONS))

    def _like(self, known: Candidate, problem: ConvProblem) -> Candidate | None:
        """The same algorithm for another shape of its layer; None where it is not to be trusted with it."""
        key = known.algorithm, problem
        if key not in self._alike_found:
            self._alike_found[key] = self._found_like(known, problem)
        return self._alike_found[key]

    def _found_like(self, known: Candidate, problem: ConvProblem) -> Candidate | None:
        algorithm, growth = known.algorithm, problem.flops / max(1, known.problem.flops)
        if not 1 / self._growth <= growth <= self._growth or self._measured.lookup(problem):
            return None
        if problem == known.problem:
            return known
        computed = algorithm.computed(problem)
        serves = algorithm.why_not(computed) is None
        if not serves or not keeps(algorithm, problem, limits_of(self._limits, known.precision)):
            return None
        seconds = known.predicted_s * growth, known.estimate_s * growth
        return Candidate(algorithm, problem, computed, *seconds, known.prepare_s)

    def _alike(self, step: Step) -> Iterator[StepOption]:
        """Of a step that is no convolution: it reads and writes one layout."""
        every = (*step.inputs, *step.outputs)
        if isinstance(step, Transpose):
            yield from self._transposes(step)
            return
        if isinstance(step, Pooling | QuantizedMean | NORMS | ElementFunction):
            layouts: Sequence[str] = self.layouts(step.inputs[0])
        elif isinstance(step, MOVED | BYTEWISE) or is_laid_alike(step, self._shapes):
            layouts = [layout for layout in self.layouts(step.output) if serves(step, layout, self._shapes)]
            if isinstance(step, BYTEWISE):  # between floats, which lie in blocks, and bytes, which never do
                layouts = [layout for layout in layouts if layout in self.layouts(step.inputs[0])]
        else:
            layouts = (FIRST,)
        for layout in layouts:
            yield StepOption((layout,) * len(step.inputs), layout, self._seconds(step, layout, every))

    def _transposes(self, step: Transpose) -> Iterator[StepOption]:
        """The layouts in which an array before a transpose is the same memory as behind it."""
        rank = len(step.order)
        if step.order == channels_to_last(rank):
            yield StepOption((self._last(step.inputs[0]),), FIRST, 0.0)
        if step.order == channels_from_last(rank):
            yield StepOption((FIRST,), self._last(step.output), 0.0)

    def _last(self, name: str) -> str:
        """Channels last, but where that is the same memory as channels first."""
        return "channels_last" if "channels_last" in self.layouts(name) else FIRST

    def _seconds(self, step: Step, layout: str, values: Sequence[str]) -> float:
        if isinstance(step, Pooling):
            problem = step.problem(self._shapes[step.inputs[0]])
            return pooling_seconds(replace(problem, layout=layout, y_layout=layout), self._machine)
        if isinstance(step, Concatenation):  # slices of the output cost nothing
            return self._stream(*values) if layout == "channels_last" else 0.0
        if isinstance(step, ChannelSelection):  # of inputs that may be larger
            return self._machine.launch + self._stream(*[step.output] * (2 if layout == FIRST else 3))
        if isinstance(step, Resizing | PixelMove):
            return self._machine.launch + self._stream(*values) * (2 if layout == FIRST else 1)
        if isinstance(step, LayerNormalization):
            return layer_norm_seconds(self._shapes[step.output], layout, self._machine)
        if isinstance(step, Softmax):
            return softmax_seconds(self._shapes[step.output], layout, self._machine)
        if isinstance(step, GroupNormalization):
            return group_norm_seconds(self._shapes[step.output], layout, self._machine)
        if isinstance(step, Attention):
            return attention_seconds(*step.sizes(self._shapes), self._machine)
        if isinstance(step, Product | DynamicConvolution):
            return matmul_seconds(*step.sizes(self._shapes), self._machine)
        if isinstance(step, Recurrence):
            return recurrent_seconds(*step.sizes(self._shapes), self._machine)
        if isinstance(step, STREAMED):
            return self._machine.launch + self._stream(*values)
        return 0.0  # views, and what other libraries compute

    def _stream(self, *values: str) -> float:
        """Seconds to read and write values."""
        nbytes = sum(self.itemsize(name) * math.prod(self._shapes[name]) for name in values)
        return self._machine.stream(nbytes) if nbytes else 0.0


def moves_nothing(step: Transpose, reads: str, writes: str, shapes: Shapes) -> bool:
    """Whether what a transpose reads and writes in these layouts is the same memory."""
    ways = [(step.inputs[0], reads, writes), (step.output, writes, reads)]  # to the last place, and back
    to_last = step.order == channels_to_last(len(step.order))
    if to_last and len(step.order) != 3:  # of three dimensions both are the same order
        ways.pop()
    return any(
        other == FIRST and is_same(shapes[name], layout, "channels_last")
        for name, layout, other in (ways if to_last else ways[1:])
    )


@lru_cache(64)
def limits_of(limits: PlanLimits, precision: str = "float32", equal_bits: bool = False) -> Constraints:
    """What the choice of a convolution in a precision is held to.

    Threads that spin behind a step, as those of NumPy's BLAS do for 30 ms, take the cores from the next ones:
    a VGG-16 with one such step took 68 ms, and takes 39 without.

    Args:
        equal_bits: whether its channels are compared with each other.
    """
    precisions = None if precision in ("float32", BYTE.name) else (precision,)  # those of maps themselves
    spinning = [algorithm.id for algorithm in algorithms("cpu") if algorithm.spins]
    return Constraints(limits.workspace_limit, deny=spinning, precisions=precisions, equal_bits=equal_bits)
