"""Sums that a model names by letters, spelled out as products of matrices: attention is found in these."""

from __future__ import annotations

from typing import Any, NamedTuple


class _Product(NamedTuple):
    """Which operands of a product of matrices are transposed first."""

    first: bool
    second: bool
    rank: int


def with_products_spelled_out(proto: Any) -> Any:
    """A ModelProto in which each Einsum that is a product of matrices is a MatMul; itself where none is."""
    found = {i: p for i, node in enumerate(proto.graph.node) if (p := _product(node)) is not None}
    if not found:
        return proto
    own = type(proto)()
    own.CopyFrom(proto)
    del own.graph.node[:]
    for i, node in enumerate(proto.graph.node):
        own.graph.node.extend(_spelled(node, found[i]) if i in found else [node])
    return own


def _product(node: Any) -> _Product | None:
    """Of an Einsum `...ik,...kj->...ij`, either operand transposed or not; None of other nodes.

    Example:
        >>> from onnx import helper
        >>> _product(helper.make_node("Einsum", ["a", "b"], ["y"], equation="b h i d, b h j d -> b h i j"))
        _Product(first=False, second=True, rank=4)
    """
    if node.op_type != "Einsum" or node.domain not in ("", "ai.onnx") or len(node.input) != 2:
        return None
    equation = next(a.s for a in node.attribute if a.name == "equation").decode().replace(" ", "")
    operands, _, y = equation.partition("->")
    a, _, b = operands.partition(",")
    parts = a, b, y
    if not all(part.isalpha() and len({*part}) == len(part) > 1 for part in parts):
        return None
    (*lead_a, i, j), (*lead_b, k, m), (*lead, rows, columns) = parts
    if not lead_a == lead_b == lead:
        return None
    inner = ({i, j} & {k, m}) - {rows, columns}
    if len(inner) != 1 or {i, j} - inner != {rows} or {k, m} - inner != {columns} or inner & {*lead}:
        return None
    return _Product(j not in inner, k not in inner, len(a))


def _spelled(node: Any, product: _Product) -> list[Any]:
    """The nodes in the place of an Einsum."""
    from onnx import helper

    nodes, inputs = [], list(node.input)
    order = [*range(product.rank - 2), product.rank - 1, product.rank - 2]
    for at, turned in enumerate(product[:2]):
        if turned:
            name = f"{node.output[0]}/operand{at}"
            nodes.append(helper.make_node("Transpose", [inputs[at]], [name], name=name, perm=order))
            inputs[at] = name
    return [*nodes, helper.make_node("MatMul", inputs, list(node.output), name=node.name)]
