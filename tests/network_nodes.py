"""The nodes that the blocks of drawn networks share: convolutions, norms and activations of every form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from network_drawing import DoesNotFit, Drawing

MOST_FLOPS = 2e7  # of a convolution
CHANNELS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 32, 33, 48, 64, 70)


def convolution(d: Drawing, x: str, filters: int | None = None, kernel: Any = None, groups: int = 1,
                stride: Any = None, **more: Any) -> str:  # fmt: skip
    """A Conv with padding of some kind, and all that may differ by dimension."""
    rng, ndim, c = d.rng, d.rank(x) - 2, d.channels(x)
    k = filters or rng.choice(CHANNELS)
    r = kernel or (rng.choice((1, 1, 3, 3, 3, 3, 5, 7, 2, 4)),) * ndim
    if kernel is None and d.chance(0.15):
        r = tuple(rng.choice((1, 2, 3, 5)) for _ in range(ndim))
    if stride is None:
        stride = (rng.choice((1, 1, 1, 1, 2, 2, 3)),) * ndim
        stride = tuple(rng.choice((1, 1, 2, 3)) for _ in range(ndim)) if d.chance(0.1) else stride
    dilation = (rng.choice((1, 1, 1, 1, 1, 2, 3)),) * ndim
    reach = max((n - 1) * e + 1 for n, e in zip(r, dilation, strict=True))
    if reach > 3 and reach > 2 * min(min(shape[2:]) for shape in d.shapes[x]):
        raise DoesNotFit("the kernel is larger than the map")
    attributes: dict[str, Any] = {
        "strides": stride,
        "dilations": dilation,
        "group": groups,
        "kernel_shape": r,
    }
    way = rng.random()
    if way < 0.6:
        both = [(n - 1) * e // 2 for n, e in zip(r, dilation, strict=True)]
        attributes["pads"] = [*both, *((n - 1) * e - b for n, e, b in zip(r, dilation, both, strict=True))]
    elif way < 0.75:
        attributes["pads"] = [rng.randint(0, n) for n in r + r]
    elif way < 0.85 and "pads" not in more:
        attributes["auto_pad"] = rng.choice(("SAME_UPPER", "SAME_UPPER", "SAME_LOWER", "VALID"))
        attributes["dilations"] = (1,) * ndim
    attributes |= more
    fan = c // groups * math.prod(r)
    w = d.floats(k, c // groups, *r, scale=1.2 / math.sqrt(fan))
    bias = [d.floats(k, scale=0.3)] if d.chance(0.7) else []
    y = d.node("Conv", x, w, *bias, **attributes)
    if max(math.prod(shape) for shape in d.shapes[y]) * fan * 2 > MOST_FLOPS:
        d.nodes.pop()
        del d.shapes[y]
        raise DoesNotFit("too much work")
    return y


def norm(d: Drawing, x: str) -> str:
    c = d.channels(x)
    var = d.constant(d.numbers.uniform(0.5, 2, c).astype("f4"))
    scale = d.constant(d.numbers.uniform(0.5, 1.5, c).astype("f4"))
    return d.node("BatchNormalization", x, scale, d.floats(c, scale=0.3), d.floats(c, scale=0.3), var)


def activation(d: Drawing, x: str) -> str:
    f4 = np.float32
    kind = d.rng.choice(("relu", "relu", "relu6", "clip", "leaky", "sigmoid", "silu", "swish", "swish_long",
                         "gelu", "gelu_tanh", "hard_sigmoid", "tanh", "elu",
                         "selu", "softplus", "mish"))  # fmt: skip
    if kind == "relu":
        return d.node("Relu", x)
    if kind == "relu6":
        return d.node("Clip", x, f4(0), f4(6))
    if kind == "clip":
        return d.node("Clip", x, f4(-0.5), f4(d.rng.choice((0.7, 3))))
    if kind == "leaky":
        return d.node("LeakyRelu", x, alpha=d.rng.choice((0.01, 0.2)))
    if kind == "silu":
        return d.node("Mul", x, d.node("Sigmoid", x))
    if kind == "swish":
        return d.node("HardSwish", x)
    if kind == "swish_long":
        return d.node("Div", d.node("Mul", x, d.node("Clip", d.node("Add", x, f4(3)), f4(0), f4(6))), f4(6))
    if kind == "gelu" and d.opset >= 20:
        return d.node("Gelu", x, approximate=d.rng.choice(("none", "tanh")))
    if kind.startswith("gelu"):
        gate = d.node("Add", d.node("Erf", d.node("Div", x, f4(2**0.5))), f4(1))
        return d.node("Mul", d.node("Mul", x, gate), f4(0.5))
    if kind == "hard_sigmoid":
        return d.node("HardSigmoid", x, alpha=d.rng.choice((0.2, 1 / 6)))
    if kind == "mish":
        return d.node("Mul", d.node("Tanh", d.node("Softplus", x)), x)
    return d.node(kind.capitalize(), x)


def finished(d: Drawing, y: str) -> str:
    """Perhaps with a norm, an activation, and a scale and a shift of all channels."""
    if d.chance(0.35):
        y = norm(d, y)
    y = activation(d, y) if d.chance(0.6) else y
    if d.quantisable or not d.chance(0.1):
        return y
    scale, shift = (np.float32(d.rng.uniform(*ends)) for ends in ((-1.5, 1.5), (-0.5, 0.5)))
    return d.node("Add", d.node("Mul", y, scale), shift)
