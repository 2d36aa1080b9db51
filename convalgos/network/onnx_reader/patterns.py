"""Activations that a model spells out in several nodes, found and made one node each.

x * sigmoid(x) is SiLU, x * clip(x + 3, 0, 6) / 6 hard-swish, and GELU is a product with an error function or
with a hyperbolic tangent. All of them are x times a function of x, times a number: the factors of a product
are collected through nodes of Mul and Div, in whatever order they come, and compared with these forms.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from convalgos.core.epilogue import TANH_CUBE, Activation
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode

ACTIVATION = "convalgos.Activation"  # the operator of what is found; its attribute is "activation"
CLOSE = 1e-4  # by which numbers of a model may be off, relative


def with_activations_named(model: OnnxModel) -> list[OnnxNode]:
    """The nodes of a model, where those that spell out an activation are one."""
    search = _Search(model)
    found: dict[str, OnnxNode] = {}  # output of the last node of a pattern -> the node in its place
    gone: set[str] = set()
    for node in reversed(model.nodes):
        if node.op in ("Mul", "Div") and node.outputs[0] not in gone:
            made = search.activation(node)
            if made is not None:
                one, inside = made
                found[node.outputs[0]] = one
                gone |= inside
    return [found.get(n.outputs[0], n) for n in model.nodes if n.outputs[0] not in gone]


class _Search:
    def __init__(self, model: OnnxModel):
        self.model = model
        self.makers = {name: node for node in model.nodes for name in node.outputs}
        self.readers = Counter(name for node in model.nodes for name in node.inputs)
        self.readers.update(model.outputs)

    def activation(self, last: OnnxNode) -> tuple[OnnxNode, set[str]] | None:
        """(the activation that ends in a node, outputs of the nodes before it that it stands for)."""
        inside: set[str] = set()
        number, factors = self._factors(last.outputs[0], inside)
        if len(factors) != 2 or self.model.dtype(last.outputs[0]) != "float32":
            return None
        for x, gate in (factors, factors[::-1]):
            within = set(inside)
            name = self._gated(x, gate, number, within)
            if name is not None and self._is_closed(within, x, last):
                protos = [p for n in self.model.nodes if n.outputs[0] in within for p in n.protos]
                made = OnnxNode(
                    ACTIVATION, last.name, [x], last.outputs, {"activation": Activation(name)},
                    (*protos, *last.protos),
                )  # fmt: skip
                return made, within
        return None

    def _is_closed(self, inside: set[str], x: str, last: OnnxNode) -> bool:
        """Whether nothing but the pattern reads what is computed in it."""
        nodes = [self.makers[name] for name in inside] + [last]
        of_nodes = Counter(name for node in nodes for name in node.inputs)
        return x not in inside and all(of_nodes[name] == self.readers[name] for name in inside)

    def _factors(self, name: str, inside: set[str]) -> tuple[float, list[str]]:
        """(product of the numbers, other factors) of a value; products in it are noted in `inside`."""
        node = self.makers.get(name)
        if node is None or node.op not in ("Mul", "Div"):
            return 1.0, [name]
        number = 1.0
        others: list[str] = []
        for i, part in enumerate(node.inputs):
            constant = self.model.number(part)
            if constant is not None:
                if node.op == "Div" and (i == 0 or constant == 0):
                    return 1.0, [name]
                number *= 1 / constant if node.op == "Div" else constant
            elif node.op == "Div" and i:
                return 1.0, [name]
            elif self.readers[part] == 1:
                n, more = self._factors(part, inside)
                number, others = number * n, others + more
                if more != [part]:
                    inside.add(part)
            else:
                others.append(part)
        return number, others

    def _gated(self, x: str, gate: str, number: float, inside: set[str]) -> str | None:
        """The activation that is `number * x * gate`; the nodes of the gate are added to `inside`."""
        node = self._inside(gate, inside)
        if node is None:
            return None
        if node.op == "Sigmoid" and _near(number, 1) and self._is_once(node.inputs[0], x, inside):
            return "silu"
        if node.op == "Tanh" and _near(number, 1) and node.inputs[0] != x:
            plus_of = self._inside(node.inputs[0], inside)
            return (
                "mish"
                if plus_of is not None and plus_of.op == "Softplus" and plus_of.inputs[0] == x
                else None
            )
        if node.op == "HardSigmoid" and node.inputs[0] == x and _near(number, 1):
            alpha, beta = node.attributes.get("alpha", 0.2), node.attributes.get("beta", 0.5)
            return "hard_swish" if _near(alpha, 1 / 6) and _near(beta, 0.5) else None
        if node.op == "Clip":
            ends = [self._end(node, 0), self._end(node, 1)]
            plus = self._plus(node.inputs[0], inside)
            fits = ends == [0, 6] and plus == (x, 3.0) and _near(number, 1 / 6)
            return "hard_swish" if fits else None
        plus = self._plus(gate, inside)
        curve = None if plus is None or plus[1] != 1 else self._inside(plus[0], inside)
        if curve is None or not _near(number, 0.5):
            return None
        scale, inner = self._factors_within(curve.inputs[0], inside)
        if curve.op == "Erf" and inner == [x] and _near(scale, math.sqrt(0.5)):
            return "gelu"
        if curve.op == "Tanh" and _near(scale, math.sqrt(2 / math.pi)) and len(inner) == 1:
            return "gelu_tanh" if self._is_cubic(inner[0], x, inside) else None
        return None

    def _is_once(self, name: str, x: str, inside: set[str]) -> bool:
        """Whether a value is x, or 1 x, as exporters of Swish write its factor."""
        if name == x:
            return True
        scale, factors = self._factors_within(name, inside)
        return factors == [x] and _near(scale, 1)

    def _is_cubic(self, name: str, x: str, inside: set[str]) -> bool:
        """Whether a value is x + 0.044715 x^3."""
        node = self._inside(name, inside)
        if node is None or node.op != "Add" or x not in node.inputs:
            return False
        scale, factors = self._factors_within(node.inputs[node.inputs[0] == x], inside)
        powers = 0.0
        for factor in factors:
            made = self.makers.get(factor)
            if factor == x:
                powers += 1
            elif made is not None and made.op == "Pow" and made.inputs[0] == x:
                inside.add(factor)
                powers += self.model.number(made.inputs[1]) or math.nan
            else:
                return False
        return powers == 3 and _near(scale, TANH_CUBE)

    def _factors_within(self, name: str, inside: set[str]) -> tuple[float, list[str]]:
        found = self._factors(name, inside)
        if found[1] != [name]:
            inside.add(name)
        return found

    def _inside(self, name: str, inside: set[str]) -> OnnxNode | None:
        """The node that makes a value, which is then one of the pattern."""
        if name in self.makers:
            inside.add(name)
        return self.makers.get(name)

    def _plus(self, name: str, inside: set[str]) -> tuple[str, float] | None:
        """(value, number) where a value is their sum."""
        node = self.makers.get(name)
        if node is None or node.op != "Add":
            return None
        for value, other in (node.inputs, node.inputs[::-1]):
            number = self.model.number(other)
            if number is not None:
                inside.add(name)
                return value, number
        return None

    def _end(self, node: OnnxNode, which: int) -> float | None:
        """The low or the high of a Clip."""
        if len(node.inputs) > 1 + which and node.inputs[1 + which]:
            return self.model.number(node.inputs[1 + which])
        return node.attributes.get(("min", "max")[which])


def _near(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= CLOSE * wanted


def names_of(nodes: Iterable[OnnxNode]) -> str:
    """Their operators, each with how often it is there."""
    counts = Counter(node.op for node in nodes)
    return ", ".join(op if n == 1 else f"{n} {op}" for op, n in counts.items())
