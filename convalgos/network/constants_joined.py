"""Constants that are added to sums with constants, as one."""

from __future__ import annotations

from dataclasses import replace

from convalgos.network.graph import Elementwise, NetworkGraph, Step


def constants_joined(graph: NetworkGraph) -> NetworkGraph:
    """Class tokens, which are added to a pad, and the positions that are added behind it are one constant.

    What nothing reads any more is left for `passes.needed`.
    """
    sums: dict[str, Elementwise] = {}
    steps: list[Step] = []
    for given in graph.steps:
        step = given
        if isinstance(step, Elementwise) and step.operation == "shift" and step.constant is not None:
            before = sums.get(step.inputs[0])
            if before is not None and before.constant is not None:
                step = replace(step, inputs=before.inputs, constant=before.constant + step.constant)
            if step.activation is None:
                sums[step.output] = step
        steps.append(step)
    return replace(graph, steps=tuple(steps))
