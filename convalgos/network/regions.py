"""Foreign steps of a graph that are neighbours, merged into as few regions as can run one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from convalgos.network.graph import Foreign, ForeignRegion, NetworkGraph, Step

BuildRegion = Callable[[Sequence[Foreign], Sequence[str], Sequence[str]], ForeignRegion]
# (foreign steps in order, values that they read from outside, values that others read of them)


def in_regions(graph: NetworkGraph, build: BuildRegion) -> NetworkGraph:
    """The graph with its foreign steps in regions, which `build` makes.

    Two regions become one where one reads what the other writes, and no step between them would then have
    to run both before and after the whole.
    """
    merged = _merged(graph)
    groups = {group: [s for s in graph.steps if merged.get(s) == group] for group in set(merged.values())}
    steps: list[Step] = []
    for step in graph.steps:
        group = merged.get(step)
        if group is None:
            steps.append(step)
        elif groups[group][-1] is step:
            steps.append(_region(graph, [s for s in groups[group] if isinstance(s, Foreign)], build))
    return replace(graph, steps=tuple(_ordered(steps)))


def _merged(graph: NetworkGraph) -> dict[Step, int]:
    """The number of the region of each foreign step."""
    made_by = {name: step for step in graph.steps for name in step.outputs}
    number = {step: i for i, step in enumerate(graph.steps)}  # of the group of each step, alone at first
    members = {i: [step] for step, i in number.items()}

    def before(group: int) -> set[int]:
        """The groups whose values a group reads."""
        names = (name for step in members[group] for name in step.inputs)
        return {number[made_by[name]] for name in names if name in made_by} - {group}

    def behind(group: int, others: Iterable[int]) -> bool:
        """Whether one of the others reads, by steps between, what a group writes."""
        seen, waiting = set(), list(others)
        while waiting:
            other = waiting.pop()
            if other == group:
                return True
            if other not in seen:
                seen.add(other)
                waiting += before(other)
        return False

    for step in graph.steps:
        if not isinstance(step, Foreign):
            continue
        for name in step.inputs:
            first = made_by.get(name)
            if not isinstance(first, Foreign) or number[first] == number[step]:
                continue
            a, b = number[first], number[step]
            if not behind(a, before(b) - {a}):
                members[a] += members.pop(b)
                number |= dict.fromkeys(members[a], a)
    return {step: i for step, i in number.items() if isinstance(step, Foreign)}


def _region(graph: NetworkGraph, steps: Sequence[Foreign], build: BuildRegion) -> Foreign:
    """One step for several."""
    written = dict.fromkeys(name for step in steps for name in step.outputs)
    inside = set(steps)
    read_outside = {name for step in graph.steps if step not in inside for name in step.inputs}
    outputs = [name for name in written if name in read_outside or name in graph.outputs]
    inputs = list(dict.fromkeys(n for step in steps for n in step.inputs if n not in written))
    outputs = outputs or list(written)[:1]
    return Foreign(
        steps[0].name, tuple(inputs), outputs[0], build(steps, inputs, outputs), tuple(outputs[1:])
    )


def _ordered(steps: Sequence[Step]) -> list[Step]:
    """Steps, each behind those whose outputs it reads, and else in the order given."""
    made_by = {name: step for step in steps for name in step.outputs}
    found: dict[Step, None] = {}
    for step in steps:
        waiting = [step]
        while waiting:
            last = waiting[-1]
            first = [made_by[n] for n in last.inputs if n in made_by and made_by[n] not in found]
            if first:
                waiting += first
            else:
                found.setdefault(waiting.pop())
    return list(found)
