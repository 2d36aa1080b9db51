"""Attention that a model spells out: two products of computed arrays with a softmax between them.

Around the scores stand factors, of q, of k or of the scores, and sums with biases and masks, in a shape that
the scores are seen in for it.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from convalgos.core.moves import Move
from convalgos.network.attention import Attention
from convalgos.network.onnx_reader.channels import Steps
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode
from convalgos.network.onnx_reader.value_types import DynamicShape

ATTENTION = "convalgos.Attention"  # the operator of what is found; its attributes are those of the step
MOST_BIASES = 2


class _Scores(NamedTuple):
    """What a softmax is of."""

    product: OnnxNode
    scale: float
    biases: list[str]
    views: list[tuple[int, ...]]
    of_heads: str  # the name of a constant (..., 1, 1) that the product is multiplied with, or ""


def with_attention_named(model: OnnxModel) -> list[OnnxNode]:
    """The nodes of a model, where those that spell out attention are one."""
    search = _Search(model)
    found: dict[str, list[OnnxNode]] = {}
    gone: set[str] = set()
    for node in model.nodes:
        if node.op == "MatMul" and (made := search.attention(node)) is not None:
            found[node.outputs[0]], inside = made
            gone |= inside
    nodes = (n for n in model.nodes if not n.outputs or n.outputs[0] not in gone)
    return [one for n in nodes for one in found.get(n.outputs[0] if n.outputs else "", [n])]


def attention(node: OnnxNode, model: OnnxModel) -> Steps:
    """What the pattern found."""
    given, biases = node.attributes, node.inputs[3:]
    constants = tuple(model.constant(name) if model.is_constant(name) else None for name in biases)
    inputs = tuple(name for name in node.inputs if not model.is_constant(name))
    moves = (*given["moves"], ())
    return [Attention(node.name, inputs, node.outputs[0], moves, given["scale"], given["views"], constants)]


class _Search:
    def __init__(self, model: OnnxModel):
        self._model = model
        self._readers = Counter(name for node in model.nodes for name in node.inputs)
        self._readers.update(model.outputs)

    def attention(self, last: OnnxNode) -> tuple[list[OnnxNode], set[str]] | None:
        """(the attention whose product with v this is, outputs of the nodes before that it stands for).

        Before it stands what scales q where heads have factors of their own.
        """
        softmax = self._alone(last.inputs[0], "Softmax")
        rank = len(self._model.shape(last.inputs[0]) or ())
        if softmax is None or rank < 2 or self._model.dtype(last.outputs[0]) != "float32":
            return None
        default = -1 if self._model.opset >= 13 else 1
        if softmax.attributes.get("axis", default) not in (-1, rank - 1):
            return None
        inside = {softmax.outputs[0]}
        scores = self._scores(softmax.inputs[0], inside)
        if scores is None or not self._is_as_made(softmax.inputs[0], scores):
            return None
        (q, k), v = scores.product.inputs, last.inputs[1]
        if any(map(self._model.is_constant, (q, k, v))):
            return None
        ahead = self._scaled(q, scores.of_heads, last) if scores.of_heads else []
        q = ahead[0].outputs[0] if ahead else q
        by_q, q, q_moves = operand_of(self._model, q)
        by_k, k, k_moves = operand_of(self._model, k)
        _, v, v_moves = operand_of(self._model, v, scaled=False)
        if any(len(self._model.shape(name) or ()) < 2 for name in scores.product.inputs):
            return None
        protos = tuple(p for n in self._model.nodes if n.outputs and n.outputs[0] in inside for p in n.protos)
        attributes = {
            "moves": (q_moves, k_moves, v_moves), "scale": scores.scale * by_q * by_k,
            "views": tuple(scores.views),
        }  # fmt: skip
        inputs = [q, k, v, *scores.biases]
        made = OnnxNode(ATTENTION, last.name, inputs, last.outputs, attributes, (*protos, *last.protos))
        return [*ahead, made], inside

    def _scaled(self, q: str, factors: str, last: OnnxNode) -> list[OnnxNode]:
        """The node that multiplies q with the factors of heads."""
        name = f"{last.outputs[0]}/scaled"
        self._model.types[name] = self._model.types[q]
        return [self._model.node_before(last, "Mul", [q, factors], name)]

    def _alone(self, name: str, op: str) -> OnnxNode | None:
        """The maker of a value of one reader, where it is of this operator."""
        node = self._model.maker(name)
        return node if node is not None and node.op == op and self._readers[name] == 1 else None

    def _scores(self, name: str, inside: set[str]) -> _Scores | None:
        """What the scores before a softmax are made of; outputs of their nodes are noted."""
        biases: list[str] = []
        views: list[tuple[int, ...]] = []
        scale, of_heads = 1.0, ""
        view: tuple[int, ...] = ()
        while (node := self._model.maker(name)) is not None and self._readers[name] == 1:
            inside.add(name)
            if node.op == "MatMul":
                return None if view else _Scores(node, scale, biases[::-1], views[::-1], of_heads)
            if node.op == "Add" and len(biases) < MOST_BIASES and scale == 1 and not of_heads:
                part = self._added(node)
                if part is None:
                    return None
                name, bias = part
                biases.append(bias)
                views.append(view)
            elif node.op == "Reshape":
                found = self._seen(node, view)
                if found is None:
                    return None
                name, view = node.inputs[0], found
            elif (by := _factor(self._model, node)) is not None:
                name, number = by
                scale *= number
            elif not (of_heads or view) and (own := self._factors_of_heads(node)) is not None:
                name, of_heads = own
            else:
                return None
        return None

    def _factors_of_heads(self, node: OnnxNode) -> tuple[str, str] | None:
        """(x, the constant) of a product of x (N, heads, rows, columns) with a number for each head."""
        for x, factors in (node.inputs, node.inputs[::-1]) if node.op == "Mul" else ():
            heads = (self._model.shape(x) or ())[1:2]
            array = self._model.constant(factors) if self._model.is_constant(factors) else None
            if array is not None and array.ndim in (3, 4) and array.shape[-3:] == (*heads, 1, 1):
                return (x, factors) if array.size == array.shape[-3] and self._rank(x) == 4 else None
        return None

    def _rank(self, name: str) -> int:
        return len(self._model.shape(name) or ())

    def _is_as_made(self, name: str, scores: _Scores) -> bool:
        """Whether a softmax sees the scores in the shape of the product, where there was another between."""
        return not any(scores.views) or self._known(name) == self._known(scores.product.outputs[0])

    def _seen(self, node: OnnxNode, view: tuple[int, ...]) -> tuple[int, ...] | None:
        """The view of the scores before a reshape that undoes one, or begins one."""
        x, y = (self._known(name) for name in (node.inputs[0], node.outputs[0]))
        if x is None or y is None or len(x) < 2 or x[-2:] != y[-2:] or 0 in x or min(x[-2:]) < 1:
            return None
        return () if view and len(x) < len(y) else x

    def _known(self, name: str) -> tuple[int, ...] | None:
        """A shape with -1 in the place of one size that is open."""
        shape = self._model.shape(name)
        if shape is None or sum(not isinstance(n, int) for n in shape) > 1:
            return None
        return tuple(n if isinstance(n, int) else -1 for n in shape)

    def _added(self, node: OnnxNode) -> tuple[str, str] | None:
        """(scores, bias) of a sum."""
        of = [self._model.maker(name) for name in node.inputs]
        for i in (0, 1):
            x, bias = node.inputs[i], node.inputs[1 - i]
            shape, other = self._model.shape(x), self._model.shape(bias)
            if of[i] is None or shape is None or not other or self._model.dtype(bias) != "float32":
                continue
            fits = not self._model.is_constant(x) and _is_broadcast_to(other, shape)
            if fits and (self._model.is_constant(bias) or self._leads_to_product(x)):
                return x, bias
        return None

    def _leads_to_product(self, name: str) -> bool:
        """Whether a value is scores, and no mask."""
        for _ in range(6):
            node = self._model.maker(name)
            if node is None:
                return False
            if node.op == "MatMul":
                return True
            name = next((n for n in node.inputs if not self._model.is_constant(n)), "")
        return False


def _is_broadcast_to(bias: DynamicShape, shape: DynamicShape) -> bool:
    """Whether what is added to scores has their columns, and is broadcast over them, never they over it."""
    if len(bias) > len(shape) or bias[-1] != shape[-1]:
        return False
    return all(n in (1, m) for n, m in zip(bias[::-1], shape[::-1], strict=False))


def _factor(model: OnnxModel, node: OnnxNode) -> tuple[str, float] | None:
    """(x, number) of a product with a number, or of a quotient."""
    if node.op not in ("Mul", "Div"):
        return None
    for i in (0, 1):
        number = model.number(node.inputs[i])
        if number is None or (node.op == "Div" and (i == 0 or not number)):
            continue
        array = model.constant(node.inputs[i])
        assert array is not None
        x = node.inputs[1 - i]
        if array.ndim <= len(model.shape(x) or ()):
            return x, number if node.op == "Mul" else 1 / number
    return None


def operand_of(model: OnnxModel, name: str, scaled: bool = True) -> tuple[float, str, tuple[Move, ...]]:
    """(a factor, array, moves) of an operand of a product."""
    scale, moves = 1.0, []
    while (node := model.maker(name)) is not None:
        by = _factor(model, node) if scaled else None
        if by is not None:
            name, scale = by[0], scale * by[1]
        elif node.op == "Transpose" and (order := node.attributes.get("perm")):
            moves.append(("transpose", tuple(order)))
            name = node.inputs[0]
        else:
            break
    return scale, name, tuple(reversed(moves))
