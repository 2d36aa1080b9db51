"""Operators of torch on whole maps: pooling, pads, other sizes, channels as pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import fx

from convalgos.network.torch_reader.sampling import nearest_nodes
from convalgos.network.torch_reader.shapes import (
    known_sizes,
    rank_of_tensor,
    shape_of_tensor,
    sizes_of,
    spatial_dimensions,
)
from convalgos.network.torch_reader.translation import Arguments, Left, Translate, Translation, Value

PAD_MODES = {"constant": b"constant", "reflect": b"reflect", "replicate": b"edge", "circular": b"wrap"}


def pooling_nodes(op: str, ndim: int) -> Translate:
    def translate(t: Translation, node: fx.Node, a: Arguments) -> Value:
        if spatial_dimensions(a["self"]) != ndim:
            raise Left("takes one map without a batch")
        if a.get("divisor_override"):
            raise Left("divides by a number of its own")
        kernel = sizes_of(a["kernel_size"], ndim)
        attributes: dict[str, Any] = {
            "kernel_shape": kernel, "strides": sizes_of(a["stride"], ndim) if a["stride"] else kernel,
            "pads": sizes_of(a["padding"], ndim) * 2, "ceil_mode": int(a["ceil_mode"]),
        }  # fmt: skip
        if op == "MaxPool":
            attributes["dilations"] = sizes_of(a["dilation"], ndim)
        else:
            attributes["count_include_pad"] = int(a["count_include_pad"])
        return t.emit(op, [t.value(a["self"])], **attributes)

    return translate


def upsampling_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """The nearest element."""
    x = a.get("input", a.get("self"))
    assert isinstance(x, fx.Node)
    before, after = shape_of_tensor(x)[2:], shape_of_tensor(node)[2:]
    factors: list[Any] = list(a.get("scale_factors") or [])
    if not factors and all(type(n) is int for n in (*before, *after)):
        factors = [m / n for n, m in zip(before, after, strict=True)]
    if not factors or any(f != int(f) or f < 1 for f in factors):
        if a.get("scale_factors"):
            raise Left("is by no whole factors")
        return nearest_nodes(t, t.value(x), tuple(known_sizes(before)), node)
    scales = t.constant(np.array([1, 1, *factors], np.float32))
    how = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
    return t.emit("Resize", [t.value(x), "", scales], mode=b"nearest", **how)


def resizing_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """By linear interpolation."""
    scales = [float(f) for f in a.get("scale_factors") or ()]
    if not scales:
        known_sizes(shape_of_tensor(node)[2:])
    more = ["", t.constant(np.array([1, 1, *scales]))] if scales else []
    coordinates = b"align_corners" if a["align_corners"] else b"half_pixel"
    return t.emit(
        "Resize", [t.value(a["input"]), *more], mode=b"linear", coordinate_transformation_mode=coordinates
    )


def padding_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    sizes, mode, value = a["pad"], a.get("mode", "constant"), a.get("value") or 0.0
    if not all(type(n) is int for n in sizes) or not isinstance(value, int | float):
        raise Left("pads by sizes that are computed")
    if mode != "constant" and any(n < 0 for n in sizes):
        raise Left("cuts maps, and goes on beyond what is left")
    low, high = (list(sizes[side::2])[::-1] for side in (0, 1))
    before = [0] * (rank_of_tensor(a["self"]) - len(low))
    pads = t.constant(np.array([*before, *low, *before, *high], np.int64))
    number = t.value(value, t.result().dtype)
    return t.emit("Pad", [t.value(a["self"]), pads, number], mode=PAD_MODES[mode])


def pixel_shuffle_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    if rank_of_tensor(a["self"]) != 4:
        raise Left("takes one map without a batch")
    return t.emit("DepthToSpace", [t.value(a["self"])], blocksize=a["upscale_factor"], mode=b"CRD")


def pixel_unshuffle_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    n, factor, (images, *shape) = a["self"], a["downscale_factor"], shape_of_tensor(a["self"])
    if len(shape) != 3:
        raise Left("takes one map without a batch")
    channels, height, width = known_sizes(shape)
    if not channels * height * width:
        raise Left("is of no elements")
    parts = (channels, height // factor, factor, width // factor, factor)
    split = t.between("Reshape", [t.value(n), t.constant(np.array([0, *parts]))], (images, *parts))
    order = [0, 1, 3, 5, 2, 4]
    turned = t.between("Transpose", [split], [(images, *parts)[i] for i in order], perm=order)
    target = [0, channels * factor * factor, height // factor, width // factor]
    return t.emit("Reshape", [turned, t.constant(np.array(target))])


def channel_shuffle_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    images, channels, *sizes = shape_of_tensor(a["self"])
    if type(channels) is not int:
        raise Left("divides a number of channels that is not known")
    groups, behind = (a["groups"], channels // a["groups"]), known_sizes(sizes)
    split = t.between(
        "Reshape",
        [t.value(a["self"]), t.constant(np.array([0, *groups, *behind]))],
        (images, *groups, *sizes),
    )
    order = [0, 2, 1, *range(3, len(sizes) + 3)]
    turned = t.between("Transpose", [split], (images, *groups[::-1], *sizes), perm=order)
    return t.emit("Reshape", [turned, t.constant(np.array([0, channels, *behind]))])
