"""Convolutions, matrix products and batch norms of torch, as convolutions of a network."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import fx

from convalgos.network.channel_scaling import channel_scaling
from convalgos.network.graph import Convolution, LayerNormalization, TransposedConvolution
from convalgos.network.torch_conversion import Arguments, Conversion, Left, module_name
from convalgos.network.torch_region import TensorPlace
from convalgos.network.torch_shapes import map_shape, shape_of_tensor, sizes_of, spatial_dimensions

# --- convolutions ----------------------------------------------------------------------------


def convolution_step(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    w, bias = c.constant(a["weight"]), c.constant(a["bias"])
    x, ndim = a["input"], 0 if w is None else w.ndim - 2
    if w is None or spatial_dimensions(x) != ndim:
        raise Left("takes one map without a batch")
    padding = a["padding"]
    if not isinstance(padding, str):
        padding = tuple((n, n) for n in sizes_of(padding, ndim))
    step = Convolution(
        module_name(node), (c.value(x),), node.name, w, bias, sizes_of(a["stride"], ndim), padding,
        sizes_of(a["dilation"], ndim), a["groups"],
    )  # fmt: skip
    if any(a.get("output_padding", ())) or a.get("transposed"):
        raise Left("is a transposed convolution in ATen's general form")
    c.steps.append(step)
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
