"""For which sizes of its inputs a graph of torch holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from convalgos.core.arguments import Shape
from convalgos.network.torch_reader.model import sizes_in

ATEN = torch.ops.aten
DROPS_ONES = (ATEN.squeeze.default, ATEN.squeeze.dim, ATEN.squeeze.dims)


class OpenSizes(NamedTuple):
    """Shapes of inputs, of which some sizes are open, and what has to be true of them."""

    declared: dict[str, tuple[Any, ...]]  # numbers, or expressions of symbols
    least: dict[str, Shape]
    guards: tuple[Any, ...]  # of the symbols: what decided on the way that the graph takes

    @property
    def shapes(self) -> dict[str, tuple[int | str, ...]]:
        """Of the inputs; a text where a size is open."""
        return {
            name: tuple(n if type(n) is int else str(n) for n in shape)
            for name, shape in self.declared.items()
        }

    def takes(self, shapes: Sequence[Sequence[int]]) -> bool:
        """Whether the graph holds for inputs of these shapes, in order."""
        known: dict[Any, int] = {}
        of_sums: list[tuple[Any, int]] = []
        for (name, declared), given in zip(self.declared.items(), shapes, strict=True):
            if len(declared) != len(given):
                return False
            for size, least, n in zip(declared, self.least[name], given, strict=True):
                if n < least or (type(size) is int and size != n):
                    return False
                if type(size) is not int and size.is_Symbol and known.setdefault(size, n) != n:
                    return False
                if type(size) is not int and not size.is_Symbol:
                    of_sums.append((size, n))
        if any(size.subs(known) != n for size, n in of_sums):
            return False
        # guards know no symbol of 1: a batch of one is held to what they ask of a batch of two
        tried = {symbol: max(n, 2) for symbol, n in known.items()}
        return all(guard.subs(tried) in (True,) for guard in self.guards)


def open_sizes_of(program: Any, graph: fx.GraphModule) -> OpenSizes:
    """Those of what `torch.export` made, and of the module of it."""
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    declared = {
        node.name: tuple(n if type(n) is int else n.node.expr for n in sizes_in(node.meta["val"]))
        for node in inputs
    }
    one = not any(node.target in DROPS_ONES for node in graph.graph.nodes)
    least = {name: tuple(_least(program, n, one) for n in shape) for name, shape in declared.items()}
    open_ones = [n for node in inputs for n in node.meta["val"].shape if type(n) is not int]
    guards = [g.expr for g in open_ones[0].node.shape_env.guards] if open_ones else []
    return OpenSizes(declared, least, tuple(dict.fromkeys(guards)))


def _least(program: Any, size: Any, one: bool) -> int:
    """The least value of a size; also 1, which `export` leaves out, unless operators drop such dimensions."""
    if type(size) is int:
        return size
    known = program.range_constraints.get(size)
    least = int(known.lower) if known is not None else 2
    return 1 if least == 2 and one else least
