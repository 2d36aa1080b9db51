"""Foreign steps that are neighbours made one region, as large as can be without a cycle.

Steps are numbered by how often a path from them to an output of the network changes from another library to
this one. Between foreign steps of one number lies none of ours, so that neighbours among them are one step:
what is computed of shapes lies where it is read, as late as can be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from convalgos.network.graph import Foreign, NetworkGraph, Step

Join = Callable[[Sequence[Foreign], tuple[str, ...], tuple[str, ...]], Step]


def with_regions(graph: NetworkGraph, join: Join) -> NetworkGraph:
    """The graph in which neighbouring foreign steps are one.

    Args:
        join: (steps in order, inputs, outputs) -> the step in their place.
    """
    changes = _changes(graph)
    makers = {name: step for step in graph.steps for name in step.outputs}
    region: dict[Step, int] = {}
    for number, step in enumerate(graph.steps):
        if isinstance(step, Foreign):
            region[step] = number
            for name in step.inputs:
                other = makers.get(name)
                if isinstance(other, Foreign) and changes[other] == changes[step]:
                    old, new = region[other], region[step]
                    region |= {s: new for s, r in region.items() if r == old}
    members: dict[int, list[Foreign]] = defaultdict(list)
    for step, number in region.items():
        assert isinstance(step, Foreign)
        members[number].append(step)
    steps = [s for s in graph.steps if s not in region]
    readers = graph.readers()
    for own in members.values():
        inside = {name for step in own for name in step.outputs}
        inputs = dict.fromkeys(name for step in own for name in step.inputs if name not in inside)
        outputs = [
            name
            for step in own
            for name in step.outputs
            if name in graph.outputs or any(reader not in own for reader in readers[name])
        ]
        steps.append(join(own, tuple(inputs), tuple(outputs)))
    return replace(graph, steps=ordered(graph.inputs, steps))


def ordered(inputs: Sequence[str], steps: Sequence[Step]) -> tuple[Step, ...]:
    """Steps in an order in which each reads what was written before it, else as they were.

    Raises:
        ValueError: there is none; names what is missing.
    """
    known = set(inputs)
    makers = {name: step for step in steps for name in step.outputs}
    found: dict[Step, None] = {}
    begun: set[Step] = set()
    stack = list(reversed(steps))
    while stack:
        step = stack[-1]
        lacking = [name for name in step.inputs if name not in known]
        if step in found or not lacking:
            found[step] = None
            known |= {*step.outputs}
            stack.pop()
            continue
        before = [makers[name] for name in lacking if name in makers]
        if len(before) < len(lacking) or step in begun:
            raise ValueError(f"step {step.name!r} reads {lacking[0]!r}, which nothing writes before it")
        begun.add(step)
        stack += before
    return tuple(found)


def _changes(graph: NetworkGraph) -> dict[Step, int]:
    readers = graph.readers()
    found: dict[Step, int] = {}
    for step in reversed(graph.steps):
        foreign = isinstance(step, Foreign)
        found[step] = max(
            (
                found[reader] + (not foreign and isinstance(reader, Foreign))
                for name in step.outputs
                for reader in readers[name]
            ),
            default=0,
        )
    return found
