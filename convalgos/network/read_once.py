"""Steps of a network whose output one step reads: what fusions may make part of that one."""

from __future__ import annotations

from convalgos.network.graph import NetworkGraph, Step


def read_once(graph: NetworkGraph) -> dict[str, Step]:
    """The steps whose output one step reads, once, and that is no output of the network, by it."""
    readers = graph.readers()
    return {
        step.output: step
        for step in graph.steps
        if len(readers[step.output]) == 1 and step.output not in graph.outputs
    }
