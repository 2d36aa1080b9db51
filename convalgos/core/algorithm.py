"""The contract: what an algorithm declares, and what its plan does.

problem -> algorithm -> plan -> prepare (the filter, once) -> run. An `Algorithm` instance is a candidate;
its fields are its tuning. A `Plan` holds everything that does not depend on the data; many threads may
call one plan at once, each call taking a workspace of its own from the plan's pool.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from convalgos.core.boundaries import ZERO
from convalgos.core.element_types import DTYPES, HALF_DTYPES, INTEGERS, SHORT_FLOATS, default_compute
from convalgos.core.errors import Unsupported, missing
from convalgos.core.filter_patterns import examples, left_out_of, pattern_of
from convalgos.core.integer_plan import EmptyIntegerPlan, IntegerPlan, RereadIntegerPlan
from convalgos.core.layouts import PLAIN, blocked_layout
from convalgos.core.machine import Machine, vector_bytes
from convalgos.core.plan import NOT_CHOSEN, Choice, Plan
from convalgos.core.problem import ConvProblem
from convalgos.core.wrapped_plans import CastPlan, EmptyPlan, RereadPlan

Figures = Any  # of an algorithm's device: `core.machine.Machine`, or on a GPU `gpu.device.GpuMachine`
# To bring a filter into another order, where a call brings it and finds neither it nor the code in caches;
# 110 layers, Xeon (Sapphire Rapids). Filters that are prepared behind one another take a third.
PREPARE_CALL = 1.2e-5  # seconds for any,
PACKING = 5.5e9  # bytes in a second,
COLD, COLD_RATE = 1 << 16, 1.3e9  # and so many bytes at first, in a second; both by `Machine.packing_pace`


def packing_seconds(nbytes: float, machine: Figures, rate: float = PACKING) -> float:
    """Predicted time to bring the bytes of a filter into another order, so many in a second of a Xeon."""
    seconds: float = PREPARE_CALL + (min(nbytes, COLD) / COLD_RATE + nbytes / rate) / machine.packing_pace
    return seconds


@dataclass(frozen=True)
class Algorithm(ABC):
    """One way to convolve. Subclass it, give it fields for its tuning, and list instances in `ALGORITHMS`."""

    family: ClassVar[str]  # "cpu.winograd"
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64")
    directions: ClassVar[tuple[str, ...]] = ("forward",)
    needs: ClassVar[tuple[str, ...]] = ("llvmlite",)  # optional modules, keys of EXTRAS
    deterministic: ClassVar[bool] = True  # the same bits on every run
    exchanges: ClassVar[bool] = False  # backward_weights by `swapped_roles` is worth a try
    widens: ClassVar[bool] = False  # of x of 16 bits, y may be float32
    spreads_nan: ClassVar[bool] = False  # a NaN in x reaches outputs that do not read it, as in transforms
    equal_bits: ClassVar[bool] = True  # filters that are equal give equal bits, wherever in w they stand
    approximates: ClassVar[bool] = False  # less exact than its types: chosen within `max_rel_error` only
    reads: ClassVar[tuple[str, ...]] = PLAIN  # layouts of x and of y, without a reorder; "blocked" stands for
    writes: ClassVar[tuple[str, ...]] = PLAIN  # blocks of as many channels as a vector of the CPU has lanes
    boundaries: ClassVar[tuple[str, ...]] = (ZERO,)  # what may lie beyond the edges of x
    mixes_layouts: ClassVar[bool] = False  # y may lie in another layout than x
    bounded_with: ClassVar[str] = ""  # those of one word here have one `least_of_all`, which is asked once
    patterns: ClassVar[tuple[str, ...]] = ()  # of `filter_patterns.KERNEL_PATTERNS`: it needs one of them
    casts: ClassVar[bool] = True  # converts data of 16 bits; not where filters lose a pattern when rounded
    least_prepare: ClassVar[float] = 0.0  # seconds that `prepare_cost` says at least, of any filter
    filter_waits: ClassVar[float] = 0.5  # times that filters are read from afar, less what sums hide of it
    skips_zeros: ClassVar[bool] = False  # zero weights are left out: NaN in x times 0 is then not NaN, but 0

    @property
    def variant(self) -> str:
        """The part of the id after the family, made from the fields; empty when there is only one."""
        return ""

    @property
    def id(self) -> str:
        """'device.family[.variant]'."""
        return f"{self.family}.{self.variant}" if self.variant else self.family

    @property
    def device(self) -> str:
        return self.family.partition(".")[0]

    @property
    def searches(self) -> bool:
        """Whether its cost takes long to find: a choice asks for `closely` before."""
        return False

    @property
    def spins(self) -> bool:
        """Whether threads of its library go on spinning after a call, and slow whatever runs next."""
        return False

    def why_not(self, problem: ConvProblem) -> str | None:
        """Why this algorithm cannot serve the problem, in one sentence, or None.

        Overrides start with `super().why_not(problem) or ...`.
        """
        for module in self.needs:
            if reason := missing(module):
                return reason
        if reason := self.why_not_facing(problem.direction):
            return reason
        if not self.takes(problem):
            return f"computes {' and '.join(self.dtypes)} only, not {problem.dtype}"
        if problem.dtype in DTYPES and problem.y_dtype != problem.dtype and not self.widens:
            return f"computes y of x's type, {problem.dtype}, not {problem.y_dtype}"
        if reason := self._why_not_laid(problem):
            return reason
        if not (problem.is_zero_padded or self.knows_border(problem)):
            return f"has no {' and '.join(dict.fromkeys(problem.boundary))} border of its own"
        if self.patterns and pattern_of(problem.pattern).kind not in self.patterns:
            known = " or ".join(map(repr, examples(self.patterns)))
            return f"needs a filter of pattern {known}, and the problem tells of {problem.pattern!r}"
        if problem.compute_dtype != (sums := default_compute(problem.dtype)):
            return f"computes {problem.dtype} in {sums}, not in {problem.compute_dtype}"
        return None

    def why_not_on_maps(self, problem: ConvProblem) -> str | None:
        """Why it cannot serve a problem whose layer it serves on maps of other sizes, or None."""
        return self.why_not(problem)

    def _why_not_laid(self, problem: ConvProblem) -> str | None:
        """Why it cannot read or write the layouts of a problem, or None."""
        x, y = problem.layout, problem.y_layout
        if x == y and x in PLAIN and self.reads is self.writes is PLAIN:
            return None
        own = blocked_layout(vector_bytes() // problem.itemsize) if self.device == "cpu" else ""
        for name, layout, served in (("x", x, self.reads), ("y", y, self.writes)):
            if layout in served or ("blocked" in served and layout == own):
                continue
            known = " and ".join(own if word == "blocked" else word for word in served)
            return f"{'reads' if name == 'x' else 'writes'} {name} in {known} only, not in {layout}"
        if x != y and not self.mixes_layouts:
            return f"computes y in the layout of x, {x}, not in {y}"
        return None

    def knows_border(self, problem: ConvProblem) -> bool:
        """Whether it computes what lies beyond the edges itself; else it is run on an extended map."""
        return set(self.boundaries).issuperset(problem.boundary)

    def approximates_on(self, problem: ConvProblem) -> bool:
        """Whether it is less exact than its types on a problem: always, or by a pattern that leaves out some
        of the filter."""
        return self.approximates or (bool(self.patterns) and left_out_of(problem.pattern) > 0)

    def takes(self, problem: ConvProblem) -> bool:
        """Whether it computes x's type: a choice asks no more of what does not."""
        return problem.dtype in self.dtypes

    def why_not_facing(self, direction: str) -> str | None:
        """Why it does not compute a direction, or None. What stands in for it has directions of its own."""
        if direction in self.directions:
            return None
        if direction == "backward_weights" and "forward" in self.directions:
            return "computes no gradient of the filter"
        return f"computes {' and '.join(self.directions)} only, not {direction}"

    def variants(self, problem: ConvProblem) -> Iterable[Algorithm]:
        """Other settings of its fields, beside those in `ALGORITHMS`, worth a try on a problem.

        An exhaustive search times those that are predicted to come near the best; what is measured of them
        is remembered by their ids, and may be chosen from then on.
        """
        return ()

    def within(
        self, problem: ConvProblem, *, workspace_limit: int | None, deterministic: bool, strict_nan: bool
    ) -> Algorithm:
        """This algorithm in a setting that keeps the limits on a choice, where it has several; or itself."""
        return self

    def note(self, problem: ConvProblem) -> str:
        """What a ranking tells of it beside its figures. Asked only where it can serve the problem."""
        return ""

    @abstractmethod
    def cost(self, problem: ConvProblem, machine: Figures) -> float:
        """Predicted seconds of one run, more than 0. Not asked for empty problems, which all cost nothing."""

    def least(self, problem: ConvProblem, machine: Figures) -> float:
        """A lower bound of `cost`, found in less time; infinite where the algorithm cannot serve.

        A choice then need not ask for the cost, nor for `why_not`, where something else is faster than this.
        """
        return 0.0

    def least_of_all(self, problem: ConvProblem, machine: Figures) -> float:
        """A lower bound of `least` of all settings of its fields, found in less time than that of each.

        A choice asks one of them, and need not ask each where something else is faster than this.
        """
        return 0.0

    def closely(self, problem: ConvProblem, machine: Figures) -> float:
        """A closer bound than `least`, of those that search."""
        return 0.0

    def granule(self, problem: ConvProblem) -> tuple[int, ...]:
        """Outputs that are computed together, per spatial dimension: maps are filled up to multiples."""
        return (1,) * problem.ndim

    def block_starts(self, problem: ConvProblem) -> tuple[int, ...]:
        """Where maps may be cut, per spatial dimension: parts that begin at multiples of these outputs have
        the bits of the whole, and waste no more on outputs that nobody asked for."""
        return self.granule(problem)

    def for_parts(self, problem: ConvProblem) -> Algorithm:
        """What computes parts of a map in the tiles of the whole, where these depend on the size of a map."""
        return self

    def prepare_cost(self, problem: ConvProblem, machine: Figures) -> float:
        """Predicted seconds to prepare the filter."""
        return packing_seconds(problem.w_bytes, machine)

    def filter_bytes(self, problem: ConvProblem) -> int:
        """Of the prepared filter."""
        return problem.w_bytes

    def seconds_between_layers(
        self, problem: ConvProblem, seconds: float, reading: float, machine: Machine
    ) -> float:
        """Of a run whose x another layer wrote, and which finds no filters in the caches of the cores.

        Args:
            problem: the layer.
            seconds: of a run of the layer behind runs of the same layer.
            reading: the filters that those caches hold then, once.
            machine: where it runs.
        """
        exposed = self.filter_waits * reading
        # The share of the filters that L2 cannot keep from one run to the next: it is fetched ahead, beside
        # the sums, in any run. These hide more of it where L2 takes whole lines, as on Zen 5.
        beyond_l2 = 1 - min(1.0, machine.threads * machine.l2_bytes / max(1, self.filter_bytes(problem)))
        hidden = seconds + exposed - math.hypot(seconds, exposed)
        return seconds + exposed - (1 - machine.line_waits) * beyond_l2 * hidden

    def workspace_bytes(self, problem: ConvProblem) -> int:
        """Scratch that one run of the plan holds, beside x, y and the prepared filter."""
        return 0

    @abstractmethod
    def error_bound(self, problem: ConvProblem) -> float:
        """Largest error of y for well-scaled data, relative to max|y| of the float64 answer.

        Or, where a few outputs are small by accident, to the size of such sums: `cpu.reference.error_scale`.
        """

    @abstractmethod
    def plan(self, problem: ConvProblem) -> Plan:
        """Everything that does not depend on the data. Called only where `why_not` is None."""

    def plan_like(self, problem: ConvProblem, known: Plan) -> Plan:
        """`plan`, cut as a plan of this algorithm for other sizes of the maps is, so that nothing is searched
        for, and prepared filters serve both. Where that does not suit, and by default, it is planned anew.
        """
        return self.plan(problem)

    def computed(self, problem: ConvProblem) -> ConvProblem:
        """The problem itself, or what is computed in its place.

        That is its float32 twin where the data are shorter and this computes float32, and on the CPU another
        problem of the same memory where that is faster (`ConvProblem.reread`) and this serves it.
        """
        given, *faster = self.forms(problem)
        if not faster or (self.why_not(faster[0]) and not self.why_not(given)):
            return given
        return faster[0]

    def forms(self, problem: ConvProblem) -> tuple[ConvProblem, ...]:
        """What may be computed in the place of a problem: the problem in a type that this computes, and
        after it one that is faster."""
        if problem.dtype in SHORT_FLOATS and not self.casts:
            return (problem,)
        if problem.dtype in SHORT_FLOATS and not self.takes_halves(problem):
            problem = _widened(problem) if problem.compute_dtype == "float32" else problem
        if self.device != "cpu" or (reread := problem.reread) is problem:
            return (problem,)
        return problem, reread

    def takes_halves(self, problem: ConvProblem) -> bool:
        """Whether 16-bit data are computed as they are; else in float32, where that is computed at all."""
        if problem.y_dtype != problem.dtype and not self.widens and "float32" in self.dtypes:
            return False
        return problem.dtype in self.dtypes

    def serve(self, problem: ConvProblem, choice: Choice = NOT_CHOSEN) -> Plan:
        """`plan`, or `Unsupported` with the reason; data of 16 and 8 bits are converted where that is needed.

        Args:
            choice: what the planner has to tell of it.
        """
        computed = self.computed(problem)
        if reason := self.why_not(computed):
            raise Unsupported(f"{self.id} cannot serve {problem}: {reason}")
        return self.built(problem, computed, choice)

    def built(
        self, problem: ConvProblem, computed: ConvProblem, choice: Choice = NOT_CHOSEN,
        known: Plan | None = None,
    ) -> Plan:  # fmt: skip
        """The plan of a problem that it is known to serve, and of what it computes in its place.

        Args:
            known: its plan for other sizes of the maps, see `plan_like`.
        """
        if problem.is_empty:
            empty = EmptyIntegerPlan if problem.dtype in INTEGERS else EmptyPlan
            return empty(problem, self).chosen(choice)
        plan = self.plan(computed) if known is None else self.plan_like(computed, known.computing)
        given = problem if computed.dtype == problem.dtype else _widened(problem)
        if computed != given and isinstance(plan, IntegerPlan):
            plan = RereadIntegerPlan(given, self, plan)
        elif computed != given:
            plan = RereadPlan(given, self, plan)
        if computed.dtype != problem.dtype:
            plan = CastPlan(problem, self, plan)
        return plan.chosen(choice)


@lru_cache(256)
def _widened(problem: ConvProblem) -> ConvProblem:
    """The float32 twin of a problem of shorter data."""
    return problem.replace(dtype="float32", w_dtype=None, y_dtype=None, compute_dtype=None)


def error_of_sums(problem: ConvProblem) -> float:
    """The error bound of sums of all products in some order: errors grow like a random walk.

    Each partial sum is rounded by up to eps / 2 of its size, which grows with the square root of its length:
    k of them add up to an error of 0.2 sqrt(k) eps times the size of the whole sum, as a standard deviation;
    six of these, for the largest of 10^8 sums, are 1.2 sqrt(k) eps. The 4 leaves room for products that are
    rounded before they are added and for signs that agree, which few terms make likely: two products may err
    by 2 eps of their size, which is that of the sum, and not of what is left of it where they cancel. So
    errors are relative to `cpu.reference.error_scale`. The 2 is for the bias, and for rounding y. Data of 16
    bits are summed in float32, and rounded once more.
    """
    if problem.dtype in HALF_DTYPES and problem.compute_dtype == "float32":
        rounded = problem.eps if problem.y_dtype == problem.dtype else 0.0
        return rounded + error_of_sums(_widened(problem))
    return problem.eps * (4 * math.sqrt(max(1, problem.reduction)) + 2) * room_for_few(problem)


def room_for_few(problem: ConvProblem) -> float:
    """A factor of error bounds, with which few outputs, too, mostly err by less than that share of max|y|.

    One sum in a hundred is smaller than an eightieth of its usual size, as its terms cancel; that the largest
    of n sums is so small has a chance of a hundredth to the power of n.
    """
    outputs = math.prod(problem.array_shapes[2])
    return 1 + 4 / max(1, outputs) ** 2
