"""Operators of torch that have weights: convolutions, products with matrices, norms, embeddings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import fx

from convalgos.network.onnx_reader.einsum import order_or_product
from convalgos.network.torch_reader.model import sizes_in
from convalgos.network.torch_reader.moves import permuted, seen_as, turned_matrices
from convalgos.network.torch_reader.shapes import (
    known_sizes,
    only_first_read,
    rank_of_tensor,
    shape_of_tensor,
    sizes_of,
    spatial_dimensions,
)
from convalgos.network.torch_reader.translation import Arguments, Left, Translation, Value


def _weights(t: Translation, given: Any) -> list[Value]:
    """A filter or a bias, which has to be constant; none of None."""
    if given is None:
        return []
    name = t.value(given)
    if name not in t.constants:
        raise Left("has weights that are computed")
    if t.dtype(name) != "float32":
        raise Left(f"has weights of torch.{t.dtype(name)}")
    return [name]


def convolution_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    if a.get("transposed"):
        return transposed_convolution_nodes(t, node, a)
    weights = [t.value(a[key]) for key in ("weight", "bias") if a[key] is not None]
    ndim, kernel = spatial_dimensions(a["input"]), known_sizes(t.shape(weights[0])[2:])
    if len(kernel) != ndim:
        raise Left("takes one map without a batch")
    stride, dilation = sizes_of(a["stride"], ndim), sizes_of(a["dilation"], ndim)
    padding = a["padding"]
    if isinstance(padding, str):  # an odd element more comes behind
        total = [d * (n - 1) if padding == "same" else 0 for d, n in zip(dilation, kernel, strict=True)]
        pads = [n // 2 for n in total] + [n - n // 2 for n in total]
    else:
        pads = sizes_of(padding, ndim) * 2
    return t.emit(
        "Conv", [t.value(a["input"]), *weights], strides=stride, pads=pads, dilations=dilation,
        group=a["groups"],
    )  # fmt: skip


def transposed_convolution_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    ndim = spatial_dimensions(a["input"])
    weights = [t.value(a[key]) for key in ("weight", "bias") if a[key] is not None]
    if len(t.shape(weights[0])) != ndim + 2:
        raise Left("takes one map without a batch")
    strides, more = sizes_of(a["stride"], ndim), sizes_of(a["output_padding"], ndim)
    if any(n >= stride for n, stride in zip(more, strides, strict=True)):
        raise Left("has outputs that no window reaches")
    return t.emit(
        "ConvTranspose", [t.value(a["input"]), *weights], strides=strides,
        pads=sizes_of(a["padding"], ndim) * 2, dilations=sizes_of(a["dilation"], ndim),
        output_padding=more, group=a["groups"],
    )  # fmt: skip


# --- products with matrices ------------------------------------------------------------------


def linear_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """x times the transpose of a matrix."""
    x, w = t.value(a["input"]), t.value(a["weight"])
    if rank_of_tensor(a["input"]) < 2 or len(t.shape(w)) != 2:
        raise Left("is of a vector")
    bias = [] if a["bias"] is None else [t.value(a["bias"])]
    if w in t.constants and len(t.shape(x)) == 2 and all(name in t.constants for name in bias):
        return t.emit("Gemm", [x, w, *bias], transB=1)
    turned = t.constant(t.constants[w].T) if w in t.constants else turned_matrices(t, w)
    return _with_sum(t, [x, turned], bias)


def _with_sum(t: Translation, factors: list[Value], bias: list[Value]) -> Value:
    """A product, and a sum where there is one."""
    if not bias:
        return t.emit("MatMul", factors)
    return t.emit("Add", [t.between("MatMul", factors, t.result().shape), *bias])


def product_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """Of two matrices, or arrays of them."""
    factors = [t.value(a[key]) for key in ("self", "mat2" if "mat2" in a else "other")]
    if min(len(t.shape(name)) for name in factors) < 2:
        raise Left("is of a vector")
    return t.emit("MatMul", factors)


def sum_with_product_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    if (a["alpha"], a["beta"]) != (1, 1):
        raise Left("has factors of its own")
    keys = ("mat1", "mat2") if "mat1" in a else ("batch1", "batch2")
    return _with_sum(t, [t.value(a[key]) for key in keys], [t.value(a["self"])])


def lettered_product_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """A sum that letters name, where it is a product of matrices, or only moves elements."""
    names = [t.value(x) for x in a["tensors"]]
    product = order_or_product(a["equation"], len(names))
    if isinstance(product, list):
        return t.emit("Transpose", names, perm=product)
    if product is None or product.vector is not None:
        raise Left("is no product of matrices")
    names = names[::-1] if product.swapped else names
    operands = [permuted(t, name, order) for name, order in zip(names, product.orders, strict=True)]
    if product.result == sorted(product.result):
        return t.emit("MatMul", operands)
    after = shape_of_tensor(node)
    made = t.between("MatMul", operands, [after[product.result.index(i)] for i in range(len(after))])
    return t.emit("Transpose", [made], perm=product.result)


# --- norms -----------------------------------------------------------------------------------


def batch_norm_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value | list[Value]:
    if a.get("training"):
        raise Left("is in training")
    if a["running_mean"] is None or a["running_var"] is None:
        raise Left("normalises by the batch at hand")
    only_first_read(node)
    mean, variance = (*_weights(t, a["running_mean"]), *_weights(t, a["running_var"]))
    channels = t.shape(mean)
    scale, shift = _scale_and_shift(t, a, channels)
    return _first(t, node, "BatchNormalization", [t.value(a["input"]), scale, shift, mean, variance], a)


def _scale_and_shift(t: Translation, a: Arguments, shape: Any) -> list[Value]:
    """Those of a norm, as constants."""
    scale, shift = _weights(t, a.get("weight")), _weights(t, a.get("bias"))
    return [
        *(scale or [t.constant(np.ones(shape, np.float32))]),
        *(shift or [t.constant(np.zeros(shape, np.float32))]),
    ]


def _first(
    t: Translation, node: fx.Node, op: str, inputs: list[Value], a: Arguments, **attributes: Any
) -> Value | list[Value]:
    """A norm, of whose outputs only the first is read where there are more."""
    tensors = node.meta["val"]
    if isinstance(tensors, tuple | list):
        shape = sizes_in(tensors[0])
        return [t.between(op, inputs, shape, epsilon=a["eps"], **attributes)]
    return t.emit(op, inputs, epsilon=a["eps"], **attributes)


def layer_norm_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value | list[Value]:
    """Over the last dimension; over the last ones as if they were one."""
    sizes = known_sizes(a["normalized_shape"])
    only_first_read(node)
    x, shape = t.value(a["input"]), shape_of_tensor(a["input"])
    norm = _scale_and_shift(t, a, sizes)
    if len(sizes) == 1:
        return _first(t, node, "LayerNormalization", [x, *norm], a, axis=-1)
    lead = len(shape) - len(sizes)
    flat = (*shape[:lead], math.prod(sizes))
    rows = [t.constant(t.constants[name].reshape(-1)) for name in norm]
    y = t.between("LayerNormalization", [seen_as(t, x, flat), *rows], flat, epsilon=a["eps"], axis=-1)
    y = seen_as(t, y, shape)
    return [y] if isinstance(node.meta["val"], tuple | list) else y


def group_norm_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value | list[Value]:
    """Over groups of the channels of maps, or each channel by itself."""
    if a.get("use_input_stats") is False:
        raise Left("normalises by means of earlier batches")
    only_first_read(node)
    channels = shape_of_tensor(a["input"])[1]
    if type(channels) is not int:
        raise Left("is of a number of channels that is computed")
    inputs = [t.value(a["input"]), *_scale_and_shift(t, a, channels)]
    groups = a.get("num_groups", a.get("group", channels))
    return _first(t, node, "GroupNormalization", inputs, a, num_groups=groups)


def embedding_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """Rows of a matrix by their numbers."""
    return t.emit("Gather", [t.value(a["weight"]), t.value(a["indices"])], axis=0)


def root_norm_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """By the root of the mean of the squares."""
    x, own, (_, *more) = t.value(a["input"]), t.result(), known_sizes(a["normalized_shape"])
    if more:
        raise Left("is over several dimensions")
    epsilon = float(np.finfo(np.float32).eps) if a["eps"] is None else float(a["eps"])
    ones = (*own.shape[:-1], 1)
    square = t.between("Mul", [x, x], own.shape)
    mean = t.between("ReduceMean", [square], ones, axes=[len(ones) - 1], keepdims=1)
    plus = t.between("Add", [mean, t.constant(np.array(epsilon, np.float32))], ones)
    root = t.between("Sqrt", [plus], ones)
    if a["weight"] is None:
        return t.emit("Div", [x, root])
    return t.emit("Mul", [t.between("Div", [x, root], own.shape), t.value(a["weight"])])
