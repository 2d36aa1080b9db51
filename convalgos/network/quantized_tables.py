"""Functions of one byte, in whatever steps, as one table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from convalgos.cpu.elementwise.byte_steps import ByteArithmeticPlan
from convalgos.network.graph import Foreign, NetworkGraph, Step
from convalgos.network.quantized_graph import Lookup, QuantizedArithmetic
from convalgos.network.same_values import reading_same

EVERY = np.arange(256, dtype=np.uint8)  # byte


def tables_joined(graph: NetworkGraph) -> NetworkGraph:
    """Tables of tables as one; sums and products of two functions of one map as one; none of the identity."""
    tables: dict[str, tuple[str, np.ndarray]] = {}  # value -> (value that it is a function of, table)
    same: dict[str, str] = {}
    named = {name for step in graph.steps if isinstance(step, Foreign) for name in step.inputs}
    kept = named.union(graph.outputs)  # regions know what they read by its name
    types = graph.dtypes
    steps: list[Step] = []
    for given in graph.steps:
        step = reading_same(given, same)
        known = [tables.get(name, (name, EVERY)) for name in step.inputs]
        if isinstance(step, QuantizedArithmetic) and known[0][0] == known[1][0]:
            table = _of_both(step, known[0][1], known[1][1])
        elif isinstance(step, Lookup):
            table = step.table[known[0][1]]
        else:
            steps.append(step)
            continue
        source = known[0][0]
        alike = types.get(source, "uint8") == types.get(step.output, "uint8")
        if alike and np.array_equal(table, EVERY) and step.output not in kept:
            same[step.output] = source
            continue
        tables[step.output] = source, table
        steps.append(Lookup(step.name, (source,), step.output, table))
    return replace(graph, steps=tuple(steps))


def _of_both(step: QuantizedArithmetic, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The table of a sum or a product of what two tables give."""
    table = np.empty((1, 256), np.uint8)
    shapes = ((1, 256),) * 2
    plan = ByteArithmeticPlan(step.operation, shapes, "channels_first", step.scales, step.activation)
    plan.run((a.reshape(1, 256), b.reshape(1, 256)), table)
    return table.reshape(-1)
