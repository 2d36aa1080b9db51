"""Sums that a model names by letters, spelled out as products of matrices: attention is found in these."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from convalgos.network.onnx_reader.messages import node_of, tensor_of

LETTERED_AXES = 13  # the opset from which on axes are an input


class LetteredProduct(NamedTuple):
    """Which operands of a product of matrices come first, are transposed, and are vectors."""

    swapped: bool
    turned: tuple[bool, bool]
    vector: int | None  # the operand that lacks a dimension, with the result
    rank: int


class TurnedProduct(NamedTuple):
    """The orders of dimensions in which both operands are matrices of one product, and that of its result.

    Leading dimensions that the second operand lacks are broadcast.
    """

    swapped: bool
    orders: tuple[list[int], list[int]]  # of the operands, after they are swapped
    result: list[int]


def with_products_spelled_out(proto: Any) -> Any:
    """A ModelProto in which each Einsum that is a product of matrices is a MatMul, and one that only moves
    elements a Transpose; itself where none is."""
    found = {i: made for i, node in enumerate(proto.graph.node) if (made := _spelled_out(node, proto))}
    if not found:
        return proto
    own = type(proto)()
    own.CopyFrom(proto)
    del own.graph.node[:]
    for i, node in enumerate(proto.graph.node):
        own.graph.node.extend(found.get(i, [node]))
    return own


def _spelled_out(node: Any, proto: Any) -> list[Any]:
    """The nodes in the place of an Einsum; none where it stays."""
    if node.op_type != "Einsum" or node.domain not in ("", "ai.onnx"):
        return []
    equation = next(a.s for a in node.attribute if a.name == "equation").decode()
    found = order_or_product(equation, len(node.input))
    if found is None:
        return []
    if isinstance(found, list):
        return [node_of("Transpose", node.input, node.output, node.name, perm=found)]
    if isinstance(found, TurnedProduct):
        return _turned(node, found)
    opset = max((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), default=1)
    return _spelled(node, found, opset)


def order_or_product(equation: str, operands: int) -> list[int] | LetteredProduct | TurnedProduct | None:
    """What an equation of so many operands says: an order of dimensions, a product of matrices, or neither.

    Example:
        >>> order_or_product("nchw -> nhwc", 1)
        [0, 2, 3, 1]
        >>> order_or_product("bhwc,wkc->bhwk", 2)
        TurnedProduct(swapped=False, orders=([0, 2, 1, 3], [0, 2, 1]), result=[0, 2, 1, 3])
    """
    of_operands, _, y = equation.replace(" ", "").partition("->")
    parts = (*of_operands.split(","), y)
    if len(parts) != operands + 1 or not all(p.isalpha() and len({*p}) == len(p) for p in parts):
        return None
    if operands == 1 and {*parts[0]} == {*y}:
        return [parts[0].index(letter) for letter in y]
    if operands != 2:
        return None
    a, b, y = parts
    return product_of_letters(a, b, y) or _turned_product(a, b, y, False) or _turned_product(b, a, y, True)


def product_of_letters(a: str, b: str, y: str) -> LetteredProduct | None:
    """Of `...ik,...kj->...ij`, either operand transposed or not, or in the place of the other, or a vector.

    Example:
        >>> product_of_letters("bhid", "bhjd", "bhij")
        LetteredProduct(swapped=False, turned=(False, True), vector=None, rank=4)
        >>> product_of_letters("bid", "bd", "bi").vector
        1
    """
    if len(a) != len(b):
        vector = int(len(b) < len(a))  # to which, and the result, "_" adds a dimension of one element
        if vector:
            b, y = f"{b}_", f"{y}_"
        else:
            a, y = (f"{part[:-1]}_{part[-1]}" for part in (a, y))
        found = _of_matrices(a, b, y)
        return None if found is None else found._replace(vector=vector)
    found = _of_matrices(a, b, y)
    if found is None and (found := _of_matrices(b, a, y)) is not None:
        return found._replace(swapped=True)
    return found


def _turned_product(a: str, b: str, y: str, swapped: bool) -> TurnedProduct | None:
    """Of any order of dimensions; the second operand has one that the first lacks."""
    both = [letter for letter in y if letter in a and letter in b]
    inner = [letter for letter in a if letter in b and letter not in y]
    rows, columns = ([m for m in y if m in own and m not in other] for own, other in ((a, b), (b, a)))
    if not rows or len(inner) != 1 or len(columns) != 1:
        return None
    lead = [*rows[:-1], *both]
    if len(lead) + 2 != len(a) or len(both) + 2 != len(b) or len(lead) + 2 != len(y):
        return None  # a dimension is summed that only one operand has
    of_a, of_b, made = [*lead, rows[-1], *inner], [*both, *inner, *columns], [*lead, rows[-1], *columns]
    orders = [a.index(letter) for letter in of_a], [b.index(letter) for letter in of_b]
    return TurnedProduct(swapped, orders, [made.index(letter) for letter in y])


def _turned(node: Any, product: TurnedProduct) -> list[Any]:
    """The nodes of such a product."""
    nodes: list[Any] = []
    inputs, y = list(node.input)[:: -1 if product.swapped else 1], node.output[0]
    for at, order in enumerate(product.orders):
        if order != sorted(order):
            name = f"{y}/operand{at}"
            nodes.append(node_of("Transpose", [inputs[at]], [name], name, perm=order))
            inputs[at] = name
    in_order = product.result == sorted(product.result)
    made = y if in_order else f"{y}/product"
    nodes.append(node_of("MatMul", inputs, [made], node.name))
    if not in_order:
        nodes.append(node_of("Transpose", [made], [y], f"{y}/order", perm=product.result))
    return nodes


def _of_matrices(a: str, b: str, y: str) -> LetteredProduct | None:
    if min(map(len, (a, b, y))) < 2:
        return None
    (*lead_a, i, j), (*lead_b, k, m), (*lead, rows, columns) = map(list, (a, b, y))
    if not lead_a == lead_b == lead:
        return None
    inner = ({i, j} & {k, m}) - {rows, columns}
    if len(inner) != 1 or {i, j} - inner != {rows} or {k, m} - inner != {columns} or inner & {*lead}:
        return None
    return LetteredProduct(False, (j not in inner, k not in inner), None, len(a))


def _spelled(node: Any, product: LetteredProduct, opset: int) -> list[Any]:
    """The nodes of a product."""
    nodes: list[Any] = []
    inputs, y = list(node.input)[:: -1 if product.swapped else 1], node.output[0]

    def with_axis(op: str, x: str, made: str, axis: int) -> None:
        if opset < LETTERED_AXES:
            nodes.append(node_of(op, [x], [made], made, axes=[axis]))
            return
        axes = tensor_of(np.array([axis], np.int64), f"{made}/axes")
        nodes.append(node_of("Constant", [], [axes.name], value=axes))
        nodes.append(node_of(op, [x, axes.name], [made], made))

    lacking = product.rank - 2 + (product.vector or 0)  # the place of the dimension that there is none of
    if product.vector is not None:
        with_axis("Unsqueeze", inputs[product.vector], f"{y}/vector", lacking)
        inputs[product.vector] = f"{y}/vector"
    order = [*range(product.rank - 2), product.rank - 1, product.rank - 2]
    for at, turned in enumerate(product.turned):
        if turned:
            name = f"{y}/operand{at}"
            nodes.append(node_of("Transpose", [inputs[at]], [name], name, perm=order))
            inputs[at] = name
    made = y if product.vector is None else f"{y}/matrix"
    nodes.append(node_of("MatMul", inputs, [made], node.name))
    if product.vector is not None:
        with_axis("Squeeze", made, y, lacking)
    return nodes
