"""Types of what ONNX's operators write that move values, or sum them up along axes."""

from __future__ import annotations

import math

from convalgos.network.onnx_reader.messages import Dim
from convalgos.network.onnx_reader.types import (
    FLOAT,
    INT64,
    NotInferred,
    TensorType,
    TypedNode,
    broadcast,
    counted,
    dim_times,
    dims_product,
    merged_dim,
)


def _like(node: TypedNode, dims: list[Dim] | tuple[Dim, ...], of: int = 0) -> list[TensorType]:
    return [TensorType(node.type(of).kind, tuple(dims))]


def _reshape(node: TypedNode) -> list[TensorType]:
    """Reshape: 0 keeps a size, -1 is what remains."""
    x = node.dims(0)
    target: list[Dim] = node.attributes["shape"] if "shape" in node.attributes else node.sizes(1)
    if 0 in target and (node.attributes.get("allowzero") or len(x) <= max(_places(target, 0))):
        raise NotInferred
    made = [x[i] if n == 0 else n for i, n in enumerate(target)]
    if -1 not in target:
        return _like(node, made)
    (rest,) = _places(target, -1)
    # what both have of open sizes goes out of the quotient
    opened = [n for n in made if isinstance(n, str)]
    left = list(x)
    for n in opened:
        left = [m for i, m in enumerate(left) if i != left.index(n)] if n in left else [None]
    known = math.prod(n for n in made if isinstance(n, int) and n != -1)
    whole = dims_product(left)
    is_known = isinstance(whole, int) and None not in made and known > 0
    if isinstance(whole, int) and is_known and whole % known:
        raise NotInferred
    made[rest] = whole // known if isinstance(whole, int) and is_known else None
    return _like(node, made)


def _places(values: list[Dim], of: int) -> list[int]:
    return [i for i, n in enumerate(values) if n == of]


def _flatten(node: TypedNode) -> list[TensorType]:
    """Flatten."""
    x, axis = node.dims(0), node.attributes.get("axis", 1)
    if not -len(x) <= axis <= len(x):
        raise NotInferred
    axis += len(x) if axis < 0 else 0
    return _like(node, (dims_product(x[:axis]), dims_product(x[axis:])))


def _transpose(node: TypedNode) -> list[TensorType]:
    """Transpose."""
    x = node.dims(0)
    order = node.attributes.get("perm", list(reversed(range(len(x)))))
    if sorted(order) != list(range(len(x))):
        raise NotInferred
    return _like(node, [x[i] for i in order])


def _squeeze(node: TypedNode) -> list[TensorType]:
    """Squeeze."""
    x, axes = node.dims(0), node.numbers_of("axes", 1)
    if axes is None:
        raise NotInferred
    gone = {counted(axis, len(x)) for axis in axes}
    if any(isinstance(x[i], int) and x[i] != 1 for i in gone):
        raise NotInferred
    return _like(node, [n for i, n in enumerate(x) if i not in gone])


def _unsqueeze(node: TypedNode) -> list[TensorType]:
    """Unsqueeze."""
    x, axes = node.dims(0), node.numbers_of("axes", 1)
    if axes is None:
        raise NotInferred
    rank = len(x) + len(axes)
    new, old = {counted(axis, rank) for axis in axes}, iter(x)
    if len(new) < len(axes):
        raise NotInferred
    return _like(node, [1 if i in new else next(old) for i in range(rank)])


def _concatenation(node: TypedNode) -> list[TensorType]:
    """Concat."""
    shapes = [node.dims(i) for i in range(len(node.inputs))]
    rank = len(shapes[0])
    axis = node.axis(rank, 1)
    if any(len(s) != rank for s in shapes):
        raise NotInferred
    made: list[Dim] = list(shapes[0])
    for shape in shapes[1:]:
        made = [n if i == axis else merged_dim(n, shape[i]) for i, n in enumerate(made)]
    parts = [s[axis] for s in shapes]
    whole = [n for n in parts if isinstance(n, int)]
    made[axis] = parts[0] if len(parts) == 1 else sum(whole) if len(whole) == len(parts) else None
    return _like(node, made)


def _split(node: TypedNode) -> list[TensorType]:
    """Split: into parts of given sizes, or as equal as can be."""
    x = node.dims(0)
    axis = node.axis(len(x), 0)
    sizes, n = node.numbers_of("split", 1), x[axis]
    if sizes is None:
        if not isinstance(n, int):
            raise NotInferred
        count = node.attributes.get("num_outputs", node.outputs)
        part = -(-n // count)
        if (n % count and node.opset < 18) or count != node.outputs or n <= part * (count - 1):
            raise NotInferred
        sizes = [min(part, n - begin) for begin in range(0, n, part)]
    if len(sizes) != node.outputs:
        raise NotInferred
    return [TensorType(node.type(0).kind, (*x[:axis], size, *x[axis + 1 :])) for size in sizes]


def _cut(node: TypedNode) -> list[TensorType]:
    """Slice."""
    x = node.dims(0)
    if node.opset < 10:
        begins, ends = node.attributes["starts"], node.attributes["ends"]
        axes, steps = node.attributes.get("axes"), None
    else:
        axes = node.numbers(3) if node.has(3) else None
        steps = node.numbers(4) if node.has(4) else None
        if node.constant(1) is None or node.constant(2) is None:  # ends that only a run knows
            return _like(node, [None] * len(x))
        begins, ends = node.numbers(1), node.numbers(2)
    axes = axes if axes is not None else range(len(begins))
    made: list[Dim] = list(x)
    for axis, begin, end, step in zip(axes, begins, ends, steps or [1] * len(begins), strict=True):
        at = counted(axis, len(x))
        n = x[at]
        if step == 0:
            raise NotInferred
        made[at] = (
            None
            if not isinstance(n, int)
            else len(range(n)[slice(begin, None if step < 0 and end < -n else end, step)])
        )
    return _like(node, made)


def _gather(node: TypedNode) -> list[TensorType]:
    """Gather."""
    x, at = node.dims(0), node.dims(1)
    axis = node.axis(len(x), 0)
    return _like(node, (*x[:axis], *at, *x[axis + 1 :]))


def _pad(node: TypedNode) -> list[TensorType]:
    """Pad."""
    x, pads = node.dims(0), node.numbers_of("pads", 1)
    if pads is None or node.has(3) or len(pads) != 2 * len(x):
        raise NotInferred
    sums = [a + b for a, b in zip(pads[: len(x)], pads[len(x) :], strict=True)]
    return _like(node, [n + m if isinstance(n, int) else n if m == 0 else None
                        for n, m in zip(x, sums, strict=True)])  # fmt: skip


def _reduction(node: TypedNode) -> list[TensorType]:
    """ReduceMean and its like."""
    x, axes = node.dims(0), node.numbers_of("axes", 1)
    if not axes:
        if node.attributes.get("noop_with_empty_axes"):
            return _like(node, x)
        axes = list(range(len(x)))
    gone = {counted(axis, len(x)) for axis in axes}
    if node.attributes.get("keepdims", 1):
        return _like(node, [1 if i in gone else n for i, n in enumerate(x)])
    return _like(node, [n for i, n in enumerate(x) if i not in gone])


def _place_of_extreme(node: TypedNode) -> list[TensorType]:
    """ArgMax and ArgMin."""
    x = node.dims(0)
    axis = node.axis(len(x), 0)
    one = (1,) if node.attributes.get("keepdims", 1) else ()
    return [TensorType(INT64, (*x[:axis], *one, *x[axis + 1 :]))]


def _expand(node: TypedNode) -> list[TensorType]:
    """Expand, to sizes that are known."""
    return _like(node, broadcast([node.dims(0), node.sizes(1)]))


def _gather_of_many_axes(node: TypedNode) -> list[TensorType]:
    """GatherND."""
    x, at = node.dims(0), node.dims(1)
    count = at[-1]
    if node.attributes.get("batch_dims") or not isinstance(count, int) or count > len(x):
        raise NotInferred
    return _like(node, (*at[:-1], *x[count:]))


def _sampling(node: TypedNode) -> list[TensorType]:
    """GridSample."""
    x, grid = node.dims(0), node.dims(1)
    if len(x) != len(grid):
        raise NotInferred
    return _like(node, (*x[:2], *grid[1:-1]))


def _counting(node: TypedNode) -> list[TensorType]:
    """Range."""
    if any(node.constant(i) is None for i in range(3)):
        return _like(node, (None,))
    begin, end, step = (node.numbers(i)[0] for i in range(3))
    return _like(node, (max(0, math.ceil((end - begin) / step)),))


def _top(node: TypedNode) -> list[TensorType]:
    """TopK, of a number that may be computed."""
    x = node.dims(0)
    axis, k = node.axis(len(x), -1), node.constant(1)
    dims = (None,) * len(x) if k is None else (*x[:axis], int(k.reshape(-1)[0]), *x[axis + 1 :])
    return [TensorType(node.type(0).kind, dims), TensorType(INT64, dims)]


def _like_places(node: TypedNode) -> list[TensorType]:
    """GatherElements."""
    return _like(node, node.dims(1))


def _size(node: TypedNode) -> list[TensorType]:
    """Size."""
    return [TensorType(INT64, ())]


def _tile(node: TypedNode) -> list[TensorType]:
    """Tile."""
    return _like(node, [dim_times(n, m) for n, m in zip(node.dims(0), node.sizes(1), strict=True)])


def _filled(node: TypedNode) -> list[TensorType]:
    """ConstantOfShape."""
    kind = node.attributes["value"].data_type if "value" in node.attributes else FLOAT
    return [TensorType(kind, tuple(node.sizes(0)))]


def _shape(node: TypedNode) -> list[TensorType]:
    """Shape."""
    rank = len(node.dims(0))
    return [
        TensorType(
            INT64, (len(range(rank)[slice(node.attributes.get("start"), node.attributes.get("end"))]),)
        )
    ]


def _recurrent(node: TypedNode) -> list[TensorType]:
    """LSTM, GRU and RNN: all states, the last, and the last of the cells."""
    x, r = node.dims(0), node.dims(2)
    if node.attributes.get("layout") or len(x) != 3 or len(r) != 3:
        raise NotInferred
    kind, directions, hidden = node.type(0).kind, r[0], r[2]
    last = TensorType(kind, (directions, x[1], hidden))
    return [TensorType(kind, (x[0], directions, x[1], hidden)), last, last]


REDUCTIONS = (
    "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
)  # fmt: skip
MOVES = {
    "Reshape": _reshape, "Flatten": _flatten, "Transpose": _transpose, "Squeeze": _squeeze, "Split": _split,
    "Unsqueeze": _unsqueeze, "Concat": _concatenation, "Slice": _cut, "Gather": _gather, "Pad": _pad,
    "GatherND": _gather_of_many_axes, "GridSample": _sampling, "Range": _counting, "Expand": _expand,
    "TopK": _top, "GatherElements": _like_places, "Size": _size,
    "ConstantOfShape": _filled, "Tile": _tile, "Shape": _shape,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    **dict.fromkeys(REDUCTIONS, _reduction), **dict.fromkeys(("ArgMax", "ArgMin"), _place_of_extreme),
}  # fmt: skip
