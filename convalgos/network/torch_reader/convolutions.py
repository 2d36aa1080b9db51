"""Convolutions, matrix products and batch norms of torch, as convolutions of a network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import fx

from convalgos.core.boundaries import ZERO
from convalgos.network.channel_scaling import channel_scaling
from convalgos.network.graph import Convolution, LayerNormalization, TransposedConvolution
from convalgos.network.group_norms import GroupNormalization
from convalgos.network.pads import Pad
from convalgos.network.torch_reader.conversion import Arguments, Conversion, Left, arguments_of, module_name
from convalgos.network.torch_reader.region import TensorPlace
from convalgos.network.torch_reader.shapes import map_shape, shape_of_tensor, sizes_of, spatial_dimensions

PADS = torch.ops.aten.pad.default, torch.ops.aten.constant_pad_nd.default
PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}

# --- convolutions ----------------------------------------------------------------------------


def convolution_step(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    w, bias = c.constant(a["weight"]), c.constant(a["bias"])
    x, ndim = a["input"], 0 if w is None else w.ndim - 2
    if w is None or spatial_dimensions(x) != ndim:
        raise Left("takes one map without a batch")
    padding, boundary, fill_value = a["padding"], ZERO, 0.0
    if not isinstance(padding, str):
        padding = tuple((n, n) for n in sizes_of(padding, ndim))
        pad = pad_of(x)
        if pad is not None and (border := pad.around(padding)) is not None:
            x, (padding, boundary, fill_value) = x.args[0], border
    step = Convolution(
        module_name(node), (c.value(x),), node.name, w, bias, sizes_of(a["stride"], ndim), padding,
        sizes_of(a["dilation"], ndim), a["groups"], boundary=boundary, fill_value=fill_value,
    )  # fmt: skip
    if any(a.get("output_padding", ())) or a.get("transposed"):
        raise Left("is a transposed convolution in ATen's general form")
    c.steps.append(step)
    return TensorPlace(node.name)


def pad_of(node: fx.Node) -> Pad | None:
    """What a node puts around maps, where it does."""
    if node.op != "call_function" or node.target not in PADS:
        return None
    a = arguments_of(node)
    sizes, mode, value = a["pad"], a.get("mode", "constant"), a.get("value") or 0.0
    ndim = len(shape_of_tensor(a["self"])) - 2
    known = all(type(n) is int and n >= 0 for n in sizes) and isinstance(value, int | float)
    if not known or len(sizes) > 2 * ndim or not 1 <= ndim <= 3:
        return None
    low, high = (list(sizes[side::2]) + [0] * (ndim - len(sizes) // 2) for side in (0, 1))
    return Pad(tuple(zip(low, high, strict=True))[::-1], PAD_MODES[mode], float(value))


def pad_step(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    """A pad that more than convolutions read."""
    pad, x = pad_of(node), a["self"]
    if pad is None or type(channels := shape_of_tensor(x)[1]) is not int:
        raise Left("pads other dimensions than those of maps, or by sizes that are computed")
    if c.form_of(x) != "same":
        raise Left("pads a tensor with its channels last")
    c.steps.append(pad.step(module_name(node), c.value(x), node.name, channels))
    return TensorPlace(node.name)


def transposed_step(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    w, bias, x = c.constant(a["weight"]), c.constant(a["bias"]), a["input"]
    ndim = spatial_dimensions(x)
    if w is None or w.ndim != ndim + 2:
        raise Left("takes one map without a batch")
    step = TransposedConvolution(
        module_name(node), (c.value(x),), node.name, w, bias, sizes_of(a["stride"], ndim),
        tuple((n, n) for n in sizes_of(a["padding"], ndim)), sizes_of(a["dilation"], ndim),
        sizes_of(a["output_padding"], ndim), a["groups"],
    )  # fmt: skip
    c.steps.append(step)
    return TensorPlace(node.name)


def linear_step(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    """A product of each pixel with a matrix is a convolution of one tap."""
    x, w, bias = a["input"], c.constant(a["weight"]), c.constant(a["bias"])
    rank = len(shape_of_tensor(x))
    if w is None or w.ndim != 2 or rank == 1:
        raise Left("is of a vector")
    form = "pixel" if rank == 2 else "last"
    if rank == 3 and x not in c.places:
        raise Left("is of matrices among operators of torch")
    ndim = spatial_dimensions(x, form)
    ones = (1,) * ndim
    filters = w.reshape(*w.shape, *ones)  # (K, C, 1, ...)
    c.steps.append(
        Convolution(
            module_name(node), (c.value(x, form),), node.name, filters, bias, ones, ((0, 0),) * ndim, ones
        )
    )
    return TensorPlace(node.name, form)


# --- factors and shifts of channels ----------------------------------------------------------


def scaling_step(
    c: Conversion, node: fx.Node, x: fx.Node, scale: Any, shift: Any, output: str = ""
) -> TensorPlace:
    """x * scale + shift, of numbers or of vectors (C,)."""
    form = c.form_of(x)
    channels = map_shape(x, form)[1]
    if type(channels) is not int:
        raise Left("is of a number of channels that is computed")
    by, plus = (np.broadcast_to(np.asarray(v, np.float64), (channels,)) for v in (scale, shift))
    y = output or node.name
    ndim = spatial_dimensions(x, form)
    c.steps.append(channel_scaling(module_name(node), c.value(x, form), y, by, plus, ndim))
    return TensorPlace(y, form)


def batch_norm_step(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    if a.get("training"):
        raise Left("is in training")
    mean, var = c.constant(a["running_mean"]), c.constant(a["running_var"])
    if mean is None or var is None:
        raise Left("normalises by the batch at hand")
    gamma, beta = c.constant(a["weight"]), c.constant(a["bias"])
    scale = 1 / np.sqrt(var.astype(np.float64) + a["eps"])
    scale = scale if gamma is None else scale * gamma
    shift = -mean * scale if beta is None else beta - mean * scale
    only_first_read(node)
    return scaling_step(c, node, a["input"], scale, shift)


def layer_norm_step(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    """Over the last dimension of a tensor that has its channels there."""
    x, channels = a["input"], tuple(a["normalized_shape"])
    form = c.form_of(x)
    if len(channels) > 1 or form == "same" or map_shape(x, form)[1] != channels[0]:
        raise Left("is over other dimensions than that of the channels")
    only_first_read(node)
    scale, shift = c.constant(a["weight"]), c.constant(a["bias"])
    value = c.value(x, form)
    c.steps.append(LayerNormalization(module_name(node), (value,), node.name, scale, shift, a["eps"]))
    return TensorPlace(node.name, form)


def group_norm_step(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    """Over groups of the channels of maps, or each channel by itself."""
    x = a["input"]
    if c.form_of(x) != "same":
        raise Left("is over other dimensions than that of the channels")
    if a.get("use_input_stats") is False:
        raise Left("normalises by means of earlier batches")
    only_first_read(node)
    channels = shape_of_tensor(x)[1]
    groups = a.get("num_groups", a.get("group", channels))
    scale, shift = c.constant(a["weight"]), c.constant(a["bias"])
    if type(channels) is not int or not 3 <= len(shape_of_tensor(x)) <= 5:
        raise Left("is of other tensors than maps")
    step = GroupNormalization(
        module_name(node), (c.value(x, "same"),), node.name, groups, scale, shift, a["eps"]
    )
    c.steps.append(step)
    return TensorPlace(node.name, "same")


def only_first_read(node: fx.Node) -> None:
    """Of an operator that gives several tensors, only the first may be read."""
    if isinstance(node.meta["val"], tuple | list) and any(u.args[1:] != (0,) for u in node.users):
        raise Left("gives more than one tensor that is read")


def first_of_several(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    """What `only_first_read` allows to be read."""
    if node.args[0] not in c.places:
        raise Left("is of an operator of torch")
    return c.places[node.args[0]]  # type: ignore[index]


def vector_of(c: Conversion, x: fx.Node, other: Any) -> Any:
    """A number, or a constant that has one number for each channel of x, as (C,)."""
    if not isinstance(other, fx.Node):
        return other
    array = c.constant(other)
    if array is None or array.size == 1:
        return 0.0 if array is None else array.reshape(())
    form = c.form_of(x)
    rank = len(shape_of_tensor(x))
    sizes = (1,) * (rank - array.ndim) + array.shape
    channel = 1 if form == "same" else rank - 1
    if array.ndim > rank or any(n != 1 for i, n in enumerate(sizes) if i != channel):
        raise Left("takes a constant that differs among pixels")
    return array.reshape(-1)
