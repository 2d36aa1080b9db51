"""Sums that a model names by letters, spelled out as products of matrices: attention is found in these."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from convalgos.network.onnx_reader.messages import node_of, tensor_of

LETTERED_AXES = 13  # the opset from which on axes are an input


class LetteredProduct(NamedTuple):
    """The orders of dimensions in which both operands are matrices of one product, and that of its result.

    Leading dimensions that the second operand lacks are broadcast.
    """

    swapped: bool
    orders: tuple[list[int], list[int]]  # of the operands, after they are swapped
    result: list[int]
    vector: int | None = None  # the operand that lacks a dimension, with the result


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
    opset = max((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), default=1)
    return _spelled(node, found, opset)


def order_or_product(equation: str, operands: int) -> list[int] | LetteredProduct | None:
    """What an equation of so many operands says: an order of dimensions, a product of matrices, or neither.

    Example:
        >>> order_or_product("nchw -> nhwc", 1)
        [0, 2, 3, 1]
        >>> order_or_product("bhwc,wkc->bhwk", 2)
        LetteredProduct(swapped=False, orders=([0, 2, 1, 3], [0, 2, 1]), result=[0, 2, 1, 3], vector=None)
    """
    of_operands, _, y = equation.replace(" ", "").partition("->")
    parts = (*of_operands.split(","), y)
    if len(parts) != operands + 1 or not all(p.isalpha() and len({*p}) == len(p) for p in parts):
        return None
    if operands == 1 and {*parts[0]} == {*y}:
        return [parts[0].index(letter) for letter in y]
    return product_of_letters(*parts) if operands == 2 else None


def product_of_letters(a: str, b: str, y: str) -> LetteredProduct | None:
    """Of matrices in any order of dimensions, either in the place of the other, or of matrices and vectors.

    Example:
        >>> product_of_letters("bhid", "bhjd", "bhij").orders
        ([0, 1, 2, 3], [0, 1, 3, 2])
        >>> product_of_letters("bid", "bd", "bi").vector
        1
    """
    tried = _of_matrices(a, b, y, False), _of_matrices(b, a, y, True)
    if found := [product for product in tried if product is not None]:
        return min(found, key=lambda product: not _in_order(product.result))
    if len(a) == len(b):
        return None
    vector = int(len(b) < len(a))  # to which, and the result, "_" adds a dimension of one element
    if vector:
        b, y = f"{b}_", f"{y}_"
    else:
        a, y = (f"{part[:-1]}_{part[-1:]}" for part in (a, y))
    product = _of_matrices(a, b, y, False)
    if product is None or len(a) != len(b) or not _in_order(product.result):
        return None
    return product._replace(vector=vector)


def _of_matrices(a: str, b: str, y: str, swapped: bool) -> LetteredProduct | None:
    """In this order; the second operand has one dimension that the first lacks."""
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
    return LetteredProduct(swapped, orders, [made.index(letter) for letter in y])


def _in_order(order: list[int]) -> bool:
    return order == sorted(order)


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

    lacking = len(product.orders[0]) - 2 + (product.vector or 0)  # the place of what there is no dimension of
    if product.vector is not None:
        with_axis("Unsqueeze", inputs[product.vector], f"{y}/vector", lacking)
        inputs[product.vector] = f"{y}/vector"
    for at, order in enumerate(product.orders):
        if not _in_order(order):
            name = f"{y}/operand{at}"
            nodes.append(node_of("Transpose", [inputs[at]], [name], name, perm=order))
            inputs[at] = name
    behind = product.vector is not None or not _in_order(product.result)
    made = f"{y}/product" if behind else y
    nodes.append(node_of("MatMul", inputs, [made], node.name))
    if not _in_order(product.result):
        nodes.append(node_of("Transpose", [made], [y], f"{y}/order", perm=product.result))
    elif product.vector is not None:
        with_axis("Squeeze", made, y, lacking)
    return nodes
