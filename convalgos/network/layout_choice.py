"""Which layout each value of a network lies in, chosen for all of them at once: the least predicted seconds.

Each step has options: layouts of what it reads and writes, and the seconds of the best algorithm for these. A
value lies in the layout that it is written in, and in those that it is changed into: once for all readers of
one layout. As a partitioned Boolean quadratic problem (`network.pbqp`) steps are nodes, and so are values,
whose options are these sets of layouts; edges only forbid what does not go together.

Source: Anderson and Gregg 2018, arXiv:1710.01079; Liu et al. 2019, arXiv:1809.02697 (NeoCPU).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from convalgos.core.layouts import BLOCKS
from convalgos.network.graph import NetworkGraph, Step
from convalgos.network.pbqp import BRANCHES, Pbqp
from convalgos.network.step_layouts import FIRST
from convalgos.network.step_options import StepOption

# Costs of tiled algorithms do not tell layouts apart; whole networks in blocks were a few percent faster.
PLAIN_COSTS = 1.0001

Layouts = tuple[str, ...]
Conversion = Callable[[str, str, str], float]  # (value, source, target) -> seconds


@dataclass(frozen=True)
class LayoutChoice:
    """An option of each step, and the layouts that each value is written in and changed into."""

    options: Mapping[Step, StepOption]
    written: Mapping[str, str]
    changed: Mapping[str, Layouts]
    seconds: float
    exact: bool = True  # whether no other choice is predicted to be faster
    of_other_shapes: bool = False  # whether the layouts were chosen for other shapes


class LayoutProblem:
    """The choice of layouts for a network of fixed shapes.

    Args:
        options: of each step of the graph.
        conversion: predicts the seconds to change a value from one layout into another.
    """

    def __init__(
        self, graph: NetworkGraph, options: Mapping[Step, Sequence[StepOption]], conversion: Conversion
    ):
        self._graph, self._options, self._conversion = graph, options, conversion
        self._makers = {name: step for step in graph.steps for name in step.outputs}
        self._readers = graph.readers()
        self._sets = {name: list(self._sets_of(name)) for name in self._values()}

    def solve(
        self, error_price: float = 0.0, known: Sequence[LayoutChoice] = (), branches: int = BRANCHES
    ) -> LayoutChoice:
        """The choice of the least seconds; never worse than those that are known.

        Args:
            error_price: seconds that a unit of error costs.
            branches: of `Pbqp.solve`.
        """
        return self._solved(lambda step: self._options[step], error_price, known, branches)

    def layouts(self) -> list[str]:
        """Those that any step may read and write alone."""
        return sorted(
            {o.writes for found in self._options.values() for o in found if {*o.reads} <= {o.writes}}
        )

    def in_layout(self, layout: str) -> LayoutChoice:
        """The best where every step that can reads and writes this layout alone."""

        def alone(step: Step) -> Sequence[StepOption]:
            found = [o for o in self._options[step] if {*o.reads, o.writes} == {layout}]
            return found or self._options[step]

        return self._solved(alone)

    def step_by_step(self) -> LayoutChoice:
        """Each step by its own fastest option, whatever the others take; changes between them as it comes."""
        return self._solved(lambda step: [min(self._options[step], key=lambda o: o.seconds)])

    def _solved(
        self,
        allowed: Callable[[Step], Sequence[StepOption]],
        error_price: float = 0.0,
        known: Sequence[LayoutChoice] = (),
        branches: int = BRANCHES,
    ) -> LayoutChoice:
        graph, problem = self._graph, Pbqp()
        options = {step: allowed(step) for step in graph.steps}
        steps = {
            step: problem.add_node([_cost(o) + error_price * o.error_bound for o in options[step]])
            for step in graph.steps
        }
        values = {name: problem.add_node([cost for _, _, cost in sets]) for name, sets in self._sets.items()}
        for step in graph.steps:
            for name in step.outputs:
                if name in values:
                    fits = [
                        [o.writes == written for written, _, _ in self._sets[name]] for o in options[step]
                    ]
                    problem.add_edge(steps[step], values[name], _forbidding(fits))
            for i, name in enumerate(step.inputs):
                fits = [[o.reads[i] in there for _, there, _ in self._sets[name]] for o in options[step]]
                problem.add_edge(steps[step], values[name], _forbidding(fits))
        starts = [self._numbers(choice, options) for choice in known]
        found = problem.solve(starts, branches)
        chosen = {step: options[step][found.choices[node]] for step, node in steps.items()}
        sets = {name: self._sets[name][found.choices[node]] for name, node in values.items()}
        seconds = sum(o.seconds for o in chosen.values()) + sum(cost for _, _, cost in sets.values())
        return LayoutChoice(
            chosen,
            {name: written for name, (written, _, _) in sets.items()},
            {name: tuple(x for x in there if x != written) for name, (written, there, _) in sets.items()},
            seconds,
            found.exact,
        )

    def _numbers(self, choice: LayoutChoice, options: Mapping[Step, Sequence[StepOption]]) -> list[int]:
        """A choice as numbers of options, in the order of the nodes."""
        found = [options[step].index(choice.options[step]) for step in self._graph.steps]
        for name, sets in self._sets.items():
            wanted = choice.written[name], {choice.written[name], *choice.changed[name]}
            found.append([(written, set(there)) for written, there, _ in sets].index(wanted))
        return found

    def _values(self) -> Iterator[str]:
        """Those that somebody reads."""
        for name, readers in self._readers.items():
            if readers or name in self._graph.outputs:
                yield name

    def _sets_of(self, name: str) -> Iterator[tuple[str, Layouts, float]]:
        """(layout that a value is written in, all that it is there in, seconds of the changes)."""
        written = {FIRST} if name in self._graph.inputs else set()
        if name in self._makers:
            written |= {o.writes for o in self._options[self._makers[name]]}
        readers = self._readers[name]  # a step that reads it twice is there twice
        read = {
            layout
            for step in dict.fromkeys(readers)
            for o in self._options[step]
            for layout, other in zip(o.reads, step.inputs, strict=True)
            if other == name
        }
        needed = {FIRST} if name in self._graph.outputs else set()
        for layout in sorted(written):
            others = sorted((read | needed) - {layout})
            for count in range(min(len(readers) + len(needed), len(others)) + 1):
                for more in combinations(others, count):
                    if needed <= {layout, *more}:
                        yield layout, (layout, *more), sum(self._conversion(name, layout, m) for m in more)


def _cost(option: StepOption) -> float:
    """The seconds of an option; of those that are predicted alike, one that writes blocks costs less."""
    return (option.seconds + option.held) * (1.0 if option.writes in BLOCKS else PLAIN_COSTS)


def _forbidding(fits: Sequence[Sequence[bool]]) -> np.ndarray:
    return np.where(np.array(fits, bool), 0.0, math.inf)
