"""Moves of elements made part of the moves next to them, and of the attention or product that has them."""

from __future__ import annotations

from dataclasses import replace

from convalgos.core.moves import Move
from convalgos.network.attention import Attention, Product, Rearrangement
from convalgos.network.graph import NetworkGraph, Step, View
from convalgos.network.read_once import read_once

Moves = tuple[Move, ...]
INVERTIBLE = ("view", "transpose")
OF_MATRICES = Attention | Product


def moves_absorbed(graph: NetworkGraph) -> NetworkGraph:
    """The graph in which attention reads what was moved where it was, and writes where it will be.

    The moves that nothing reads then are still there.
    """
    steps: dict[str, Step] = {}
    makers = read_once(graph)
    for step in graph.steps:
        before = steps.get(step.inputs[0]) if step.inputs else None
        alone = before is not None and before.output in makers
        made = step
        if isinstance(step, OF_MATRICES):
            made = _reading_unmoved(step, steps)
        elif isinstance(step, Rearrangement):
            name, moves = _unmoved(step.inputs[0], step.moves, steps)
            made = replace(step, inputs=(name,), moves=moves)
        if alone and isinstance(before, OF_MATRICES) and (moves := _moves_of(step)) and _is_invertible(moves):
            own = (*before.moves[:-1], (*before.moves[-1], *moves))
            del steps[before.output]
            made = replace(before, output=step.output, moves=own)
        for name in step.outputs:
            steps[name] = made
    found = tuple(dict.fromkeys(steps.values()))
    return replace(graph, steps=found)


def _reading_unmoved(step: OF_MATRICES, steps: dict[str, Step]) -> OF_MATRICES:
    """Attention, or a product, of what its matrices are moved from."""
    inputs, moves = list(step.inputs), list(step.moves)
    for i in range(min(len(inputs), len(moves) - 1)):  # a constant operand is no input
        inputs[i], moves[i] = _unmoved(inputs[i], moves[i], steps)
    return replace(step, inputs=tuple(inputs), moves=tuple(moves))


def _unmoved(name: str, moves: Moves, steps: dict[str, Step]) -> tuple[str, Moves]:
    """What a value is moved from, and all moves from there on."""
    while (before := steps.get(name)) is not None and (own := _moves_of(before)):
        name, moves = before.inputs[0], (*own, *moves)
    return name, moves


def _moves_of(step: Step) -> Moves:
    """The moves that a step is; none where it is something else, as transposes, which are of layouts."""
    if isinstance(step, View):
        return (("view", step.shape),)
    return step.moves if isinstance(step, Rearrangement) else ()


def _is_invertible(moves: Moves) -> bool:
    return all(kind in INVERTIBLE for kind, *_ in moves)
