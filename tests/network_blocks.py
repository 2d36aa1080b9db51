"""The blocks that networks are made of, with all that may vary in them.

Each takes values that a `Drawing` has and adds nodes, or raises `DoesNotFit`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from network_drawing import DoesNotFit, Drawing
from network_nodes import activation, convolution, finished, norm


def plain_block(d: Drawing) -> None:
    x = d.map()
    c = d.channels(x)
    groups = d.rng.choice((1, 1, 1, 1, *(n for n in (2, 3, 4, 7, c) if c % n == 0)))
    filters = groups * d.rng.choice((1, 2, 3, 4, 8)) if groups > 1 else None
    finished(d, convolution(d, x, filters, groups=groups))


def depthwise_block(d: Drawing) -> None:
    x = d.map()
    c = d.channels(x)
    finished(d, convolution(d, x, c * d.rng.choice((1, 1, 1, 2)), groups=c))


def inverted_residual(d: Drawing) -> None:
    """Expansion, depthwise, perhaps squeeze and excitation, projection, and the sum where it fits."""
    x = d.map()
    ndim, c = d.rank(x) - 2, d.channels(x)
    one = (1,) * ndim
    wide = d.rng.choice((c, 2 * c, 3 * c, 16, 32, 48, 96))
    y = finished(d, convolution(d, x, wide, one, stride=one, pads=[0] * 2 * ndim)) if d.chance(0.8) else x
    r, wide = d.rng.choice((3, 3, 5)), d.channels(y)
    stride = (d.rng.choice((1, 1, 2)),) * ndim
    y = convolution(d, y, wide, (r,) * ndim, wide, stride, pads=[r // 2] * 2 * ndim, dilations=one)
    y = finished(d, y)
    if d.chance(0.5):
        y = excited(d, y)
    k = d.rng.choice((c, c, 16, 24, 32))
    y = convolution(d, y, k, one, stride=one, pads=[0] * 2 * ndim)
    y = norm(d, y) if d.chance(0.3) else y
    if d.shapes[y] == d.shapes[x]:
        y = d.node("Add", *d.rng.sample((x, y), 2))
    if d.chance(0.3):
        activation(d, y)


def excited(d: Drawing, x: str) -> str:
    ndim, c = d.rank(x) - 2, d.channels(x)
    one = (1,) * ndim
    axes = [*range(2, ndim + 2)]
    mean = (
        d.node("ReduceMean", x, axes=axes)
        if d.opset < 18 and d.chance(0.3)
        else d.node("GlobalAveragePool", x)
    )
    few = d.rng.choice((4, 8, 16))
    plain = {"stride": one, "pads": [0] * 2 * ndim, "dilations": one}
    gate = activation(d, convolution(d, mean, few, one, **plain))
    gate = d.node(d.rng.choice(("Sigmoid", "HardSigmoid")), convolution(d, gate, c, one, **plain))
    return d.node("Mul", *d.rng.sample((x, gate), 2))


def excitation(d: Drawing) -> None:
    excited(d, d.map())


def transposed_block(d: Drawing) -> None:
    x, rng = d.map(), d.rng
    ndim, c = d.rank(x) - 2, d.channels(x)
    groups = rng.choice((1, 1, *(n for n in (2, 4) if c % n == 0), c if c < 9 else 1))
    k = rng.choice((1, 3, 4, 8, 16))
    r, s = rng.choice(((2, 2), (3, 1), (3, 2), (4, 2), (3, 3), (1, 1)))
    w = d.floats(c, k, *(r,) * ndim, scale=1.2 / math.sqrt(c // groups * r**ndim))
    bias = [d.floats(k * groups, scale=0.3)] if d.chance(0.6) else []
    attributes: dict[str, Any] = {"strides": (s,) * ndim, "group": groups}
    if d.chance(0.5):
        attributes["pads"] = [rng.randint(0, (r - 1) // 2) for _ in range(2 * ndim)]
    if s > 1 and d.chance(0.3):
        attributes["output_padding"] = [rng.randint(0, s - 1) for _ in range(ndim)]
    finished(d, d.node("ConvTranspose", x, w, *bias, **attributes))


def pooling(d: Drawing) -> None:
    x, rng = d.map(), d.rng
    ndim = d.rank(x) - 2
    r = (
        tuple(rng.choice((2, 3)) for _ in range(ndim))
        if d.chance(0.3)
        else (rng.choice((1, 2, 3, 5)),) * ndim
    )
    attributes: dict[str, Any] = {"kernel_shape": r, "strides": (rng.choice((1, 2, 2, 3)),) * ndim}
    if d.chance(0.5):
        attributes["pads"] = (
            [rng.randint(0, n // 2) for n in r + r] if d.chance(0.3) else [n // 2 for n in r + r]
        )
    elif d.chance(0.2):
        attributes["auto_pad"] = rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    if d.chance(0.3) and "auto_pad" not in attributes:
        attributes["ceil_mode"] = 1
    most, counted = d.chance(0.5), rng.randint(0, 1)
    if d.quantisable and "ceil_mode" in attributes:
        counted = 0  # else ONNX Runtime's mean of integers differs from its own of floats
    pads = attributes.get("pads", [0] * 2 * ndim)
    apart = 2 if most and not any(pads) and d.chance(0.3) else 1  # no window lies in padding
    for i, n in enumerate(r):  # ONNX Runtime has a window that does not fit by rounding towards zero
        size = min(shape[2 + i] for shape in d.shapes[x])
        if size + pads[i] + pads[ndim + i] < (n - 1) * apart + 1 and "ceil_mode" not in attributes:
            raise DoesNotFit("the window is larger than the map")
        step, room = attributes["strides"][i], size + pads[i]
        free = room + pads[ndim + i] - (n - 1) * apart - 1
        if "ceil_mode" in attributes and -(-free // step) * step >= room:
            raise DoesNotFit("ONNX infers a window behind the map, which no library has")
    if most:
        if apart > 1:
            attributes["dilations"] = (apart,) * ndim
        d.node("MaxPool", x, **attributes)
    else:
        d.node("AveragePool", x, count_include_pad=counted, **attributes)


def whole_pooling(d: Drawing) -> None:
    d.node(d.rng.choice(("GlobalAveragePool", "GlobalMaxPool")), d.map())


def addition(d: Drawing) -> None:
    """Of maps of one shape, the same map, one number for each map or channel, or one that is broadcast."""
    x, rng = d.map(), d.rng
    op, shape = rng.choice(("Add", "Add", "Add", "Mul", "Sub")), d.shapes[x][0]
    way = rng.random()
    if way < 0.6:
        y = d.node(op, *rng.sample((x, rng.choice(d.like(x))), 2))
    elif way < 0.75:
        ones = (1,) * (len(shape) - 2)
        y = d.node(
            op, x, d.floats(1, shape[1], *ones) if d.chance(0.7) else np.float32(rng.choice((2, -0.5)))
        )
    elif way < 0.9:
        small = d.node("GlobalAveragePool", x)
        y = d.node(op, *rng.sample((x, small), 2))
    else:
        y = d.node(op, x, d.node("ReduceMean", x, np.int64([1])) if d.opset >= 18 else x)
    if d.chance(0.4):
        activation(d, y)


def residual_block(d: Drawing) -> None:
    """A convolution of the same shape, added to what it reads or to another map."""
    x = d.map()
    ndim = d.rank(x) - 2
    r = d.rng.choice((1, 3, 3))
    y = convolution(d, x, d.channels(x), (r,) * ndim, stride=(1,) * ndim, dilations=(1,) * ndim,
                    pads=[r // 2] * 2 * ndim)  # fmt: skip
    other = d.rng.choice([n for n in d.like(x) if n != y]) if d.chance(0.5) else x
    y = d.node("Add", *d.rng.sample((y, other), 2))
    if d.chance(0.6):
        activation(d, y)


def concatenation(d: Drawing) -> None:
    x = d.map()
    found = d.like(x, channels=False)
    parts = [d.rng.choice(found) if d.chance(0.7) else x for _ in range(d.rng.choice((2, 2, 3, 4)))]
    if d.chance(0.5):  # of convolutions side by side
        ndim = d.rank(x) - 2
        parts = [
            finished(d, convolution(d, x, None, (r,) * ndim, stride=(1,) * ndim, dilations=(1,) * ndim,
                                    pads=[r // 2] * 2 * ndim))
            for r in d.rng.choices((1, 3, 5), k=d.rng.choice((1, 2, 3)))
        ] + parts[:1]  # fmt: skip
    d.rng.shuffle(parts)
    if sum(map(d.channels, parts)) > 200:
        raise DoesNotFit("too many channels")
    y = d.node("Concat", *parts, axis=1)
    if d.chance(0.4):
        d.node("Concat", *d.rng.sample((y, d.rng.choice(found)), 2), axis=1)


def selection(d: Drawing) -> None:
    x, rng = d.map(), d.rng
    c = d.channels(x)
    if c < 2:
        raise DoesNotFit("one channel")
    way = rng.random()
    if way < 0.35:
        first = rng.randint(1, c - 1)
        d.node("Split", x, np.int64([first, c - first]), count=2, axis=1)
    elif way < 0.6:
        first = rng.randint(0, c - 1)
        d.node("Slice", x, np.int64([first]), np.int64([rng.randint(first + 1, c)]), np.int64([1]),
               np.int64([rng.choice((1, 1, 2))]))  # fmt: skip
    elif way < 0.75:
        d.node("Gather", x, np.int64([rng.randrange(c) for _ in range(rng.randint(1, c))]), axis=1)
    else:
        groups, sizes = rng.choice([n for n in (2, 3, 4, 5, 7, c) if c % n == 0]), d.shapes[x]
        if len({s[2:] for s in sizes}) > 1:
            raise DoesNotFit("sizes are open")
        rest = [*range(3, d.rank(x) + 1)]
        parts = d.node("Reshape", x, np.int64([0, groups, c // groups, *sizes[0][2:]]))
        d.node("Reshape", d.node("Transpose", parts, perm=[0, 2, 1, *rest]), np.int64([0, c, *sizes[0][2:]]))


def resizing(d: Drawing) -> None:
    x, rng = d.map(), d.rng
    ndim = d.rank(x) - 2
    mode = rng.choice(("nearest", "nearest", "linear"))
    scales = [1, 1, *(rng.choice((1, 2, 2, 3) if mode == "nearest" else (0.5, 1.5, 2)) for _ in range(ndim))]
    coordinates = rng.choice(("asymmetric", "half_pixel") if mode == "nearest" else
                             ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"))  # fmt: skip
    more = {"nearest_mode": "floor"} if coordinates == "asymmetric" and mode == "nearest" else {}
    d.node("Resize", x, "", np.float32(scales), mode=mode, coordinate_transformation_mode=coordinates, **more)


def padding(d: Drawing) -> None:
    x, rng = d.map(), d.rng
    ndim = d.rank(x) - 2
    mode = rng.choice(("constant", "constant", "reflect", "edge", *(["wrap"] if d.opset >= 19 else [])))
    most = min(min(shape[2:]) for shape in d.shapes[x])
    ends = [rng.randint(0, min(3, most - 1)) for _ in range(2 * ndim)]
    pads = np.int64([0, 0, *ends[:ndim], 0, 0, *ends[ndim:]])
    value = [np.float32(rng.choice((0, 0, 0.5)))] if mode == "constant" else []
    y = d.node("Pad", x, pads, *value, mode=mode)
    if d.chance(0.7):
        finished(d, convolution(d, y))


def head(d: Drawing) -> None:
    x = d.map()
    if d.chance(0.7):
        x = d.node("GlobalAveragePool", x)
    c = math.prod(d.shapes[x][0][1:])
    flat = d.node("Flatten", x) if d.chance(0.6) else d.node("Reshape", x, np.int64([0, -1]))
    if len({s[1:] for s in d.shapes[flat]}) > 1 or c > 3000:
        raise DoesNotFit("sizes are open")
    k = d.rng.choice((1, 3, 10, 33))
    if d.chance(0.5):
        w = d.floats(k, c, scale=1 / math.sqrt(c))
        y = d.node("Gemm", flat, w, *([d.floats(k)] if d.chance(0.6) else []), transB=1)
    else:
        y = d.node("MatMul", flat, d.floats(c, k, scale=1 / math.sqrt(c)))
    if d.chance(0.4):
        activation(d, y)


def channels_last_block(d: Drawing) -> None:
    """Norm and layers over the last dimension, as ConvNeXt has them."""
    x = d.map()
    rank, c = d.rank(x), d.channels(x)
    y = d.node("Transpose", x, perm=[0, *range(2, rank), 1])
    if c > 2 and d.opset >= 17 and d.chance(0.7):
        y = d.node("LayerNormalization", y, d.floats(c), *([d.floats(c)] if d.chance(0.7) else []), axis=-1)
    k = d.rng.choice((c, 8, 20))
    y = activation(d, d.node("Add", d.node("MatMul", y, d.floats(c, k, scale=1 / math.sqrt(c))), d.floats(k)))
    y = d.node("Transpose", y, perm=[0, rank - 1, *range(1, rank - 1)])
    if k == c and d.chance(0.7):
        d.node("Add", x, y)


def group_norm(d: Drawing) -> None:
    """Of instances, or of groups; maps that differ by one number, too."""
    x = d.map()
    c = d.channels(x)
    groups = d.rng.choice([g for g in (1, 2, 4, c) if c % g == 0])
    if groups == c:
        y = d.node("InstanceNormalization", x, d.floats(c), d.floats(c))
    elif d.opset >= 21:
        y = d.node("GroupNormalization", x, d.floats(c), d.floats(c), num_groups=groups)
    else:
        parts = d.node("Reshape", x, np.int64([0, groups, -1]))
        parts = d.node("InstanceNormalization", parts, np.ones(groups, "f4"), np.zeros(groups, "f4"))
        y = d.node("Reshape", parts, d.node("Shape", x))
    y = activation(d, y) if d.chance(0.6) else y
    if d.chance(0.3):
        d.node("Add", y, d.node("GlobalMaxPool", x))


def recurrent_block(d: Drawing) -> None:
    """A layer over time, or along the rows of maps, of one direction or both."""
    x, rng = d.map(), d.rng
    if d.quantisable:
        raise DoesNotFit("states are no integers")
    if d.rank(x) == 4:
        highest = d.node("MaxPool", x, kernel_shape=(d.shapes[x][0][2], 1))
        x = d.node("Squeeze", highest, np.int64([2]))
    if d.rank(x) != 3 or len({shape[1] for shape in d.shapes[x]}) > 1:
        raise DoesNotFit("no lines of channels")
    op, gates = rng.choice((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    way = rng.choice(("forward", "reverse", "bidirectional"))
    directions, hidden, c = 1 + (way == "bidirectional"), rng.choice((3, 8, 16, 21)), d.channels(x)
    w = d.floats(directions, gates * hidden, c, scale=1 / math.sqrt(c))
    r = d.floats(directions, gates * hidden, hidden, scale=1 / math.sqrt(hidden))
    bias = [d.floats(directions, 2 * gates * hidden)] if d.chance(0.7) else []
    more = {"linear_before_reset": int(d.chance(0.8))} if op == "GRU" else {}
    lines = d.node("Transpose", x, perm=[2, 0, 1])
    y = d.node(op, lines, w, r, *bias, hidden_size=hidden, direction=way, **more)
    y = d.node("Reshape", d.node("Transpose", y, perm=[0, 2, 1, 3]), np.int64([0, 0, directions * hidden]))
    d.node("Transpose", y, perm=[1, 2, 0])


def other_block(d: Drawing) -> None:
    """What the library leaves to ONNX Runtime, and what is rare."""
    x, way = d.map(), d.rng.randrange(6)
    rank = d.rank(x)
    if way == 0:
        activation(d, x)
    elif way == 1:
        d.node(d.rng.choice(("Softmax", "LogSoftmax")), x, axis=1)
    elif way == 2:
        d.node("Transpose", x, perm=[0, 1, *range(rank - 1, 1, -1)])
    elif way == 3:
        norm(d, d.node(d.rng.choice(("Sin", "Abs", "Neg")), x))
    elif way == 4 and rank == 4:
        d.node("LRN", x, size=d.rng.choice((3, 5)), alpha=1e-2)
    else:
        norm(d, x)


BLOCKS = {  # and how often they are drawn
    plain_block: 6, depthwise_block: 3, inverted_residual: 4, excitation: 1, transposed_block: 2, pooling: 3,
    whole_pooling: 0.7, addition: 3, residual_block: 4, concatenation: 4, selection: 2, resizing: 1,
    padding: 1.5, head: 1, channels_last_block: 1, group_norm: 1, recurrent_block: 0.7,
    other_block: 1.5,
}  # fmt: skip
