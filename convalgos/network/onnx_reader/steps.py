"""What a node of an ONNX model computes, as steps of a network.

Each function below takes a node and gives its steps, or None where this library does not compute what it
says: other types than float32, filters that are not constant, attributes out of the ordinary.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convalgos.core.boundaries import BOUNDARIES, ZERO
from convalgos.core.element_types import INTEGERS
from convalgos.network.graph import (
    Concatenation,
    Convolution,
    Pooling,
    Transpose,
    TransposedConvolution,
    channels_from_last,
    channels_to_last,
)
from convalgos.network.onnx_reader.array_functions import array_functions, follows_from_shapes
from convalgos.network.onnx_reader.attention import ATTENTION, attention
from convalgos.network.onnx_reader.bags import BAG, embedding_bag
from convalgos.network.onnx_reader.channels import (
    Maker,
    Steps,
    by_last_dimension,
    by_rows,
    layer_norm,
    local_response_norm,
    moved_channels,
    of_one_pixel,
    rank_of,
    softmax,
)
from convalgos.network.onnx_reader.dynamic_convolutions import dynamic_convolution
from convalgos.network.onnx_reader.elementwise import ELEMENTWISE, named_activation
from convalgos.network.onnx_reader.group_norms import GROUP_NORM, group_norm
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode
from convalgos.network.onnx_reader.moves import moved_elements, rolled_elements
from convalgos.network.onnx_reader.norms import CHANNEL_NORM
from convalgos.network.onnx_reader.patterns import ACTIVATION
from convalgos.network.onnx_reader.pixels import PIXELS, pixels_moved, pixels_named
from convalgos.network.onnx_reader.products import computed_product
from convalgos.network.onnx_reader.quantized import QUANTIZED
from convalgos.network.onnx_reader.recurrent import GATES, recurrent
from convalgos.network.onnx_reader.reductions import REDUCTIONS, reduced
from convalgos.network.onnx_reader.resizing import resized
from convalgos.network.onnx_reader.root_norms import ROOT_NORM, root_norm
from convalgos.network.onnx_reader.selections import (
    SHUFFLE,
    channel_gather,
    channel_shuffle,
    channel_slice,
    channel_split,
)
from convalgos.network.onnx_reader.tokens import with_tokens
from convalgos.network.onnx_reader.views import concatenated_rows, view
from convalgos.network.onnx_reader.window_types import pads_as_undilated
from convalgos.network.pads import Pad as PadOfMaps

FLOATS = ("float32",)
TYPES = {"DequantizeLinear": INTEGERS} | dict.fromkeys(  # of the first input
    ("Identity", "MaxPool", "Flatten", "Reshape", "Squeeze", "Unsqueeze"), (*FLOATS, *INTEGERS)
)
AUTO_PADS = {"NOTSET": None, "VALID": "valid", "SAME_UPPER": "same"}


def steps_of_node(node: OnnxNode, model: OnnxModel, of_arrays: bool = True) -> Steps:
    """The steps of a node, of which the last writes its output; None where another library is to run it.

    Args:
        of_arrays: whether they may be functions of whole arrays.
    """
    if of_arrays and all(follows_from_shapes(name, model) for name in node.outputs if name):
        made = array_functions(node, model)  # others read its numbers as sizes
        if made is not None:
            return made
    make = MAKERS.get(node.op)
    if make is not None and node.inputs and model.dtype(node.inputs[0]) in TYPES.get(node.op, FLOATS):
        made = make(node, model) or moved_elements(node, model)
        if made is not None:
            return made
    return array_functions(node, model) if of_arrays else None


def _conv(node: OnnxNode, model: OnnxModel) -> Steps:
    found = _filter_and_bias(node, model)
    if found is None:
        return dynamic_convolution(node, model, _padding(node, rank_of(node, model) - 2))
    w, bias = found
    x, padding = node.inputs[0], _padding(node, w.ndim - 2)
    if padding is None:
        return None
    before, border = model.maker(x), None
    if before is not None and before.op == "Pad" and not isinstance(padding, str):
        pad = _pad_of(before, model, w.ndim)
        border = None if pad is None else pad.around(padding)
    boundary, fill_value = ZERO, 0.0
    if border is not None and before is not None:
        x, (padding, boundary, fill_value) = before.inputs[0], border
    given, ones = node.attributes.get, (1,) * (w.ndim - 2)
    return [
        Convolution(
            node.name, (x,), node.outputs[0], w, bias, tuple(given("strides", ones)), padding,
            tuple(given("dilations", ones)), given("group", 1), boundary=boundary, fill_value=fill_value,
        )
    ]  # fmt: skip


def _filter_and_bias(node: OnnxNode, model: OnnxModel) -> tuple[np.ndarray, np.ndarray | None] | None:
    """Those of a node, where they are constant."""
    w, bias = model.constant(node.inputs[1]), None
    if len(node.inputs) > 2 and node.inputs[2]:
        bias = model.constant(node.inputs[2])
        if bias is None:
            return None
    return None if w is None or not 3 <= w.ndim <= 5 else (w, bias)


def _padding(node: OnnxNode, ndim: int) -> Any:
    """The padding of a window; None where it is of a kind that steps do not know."""
    kind = node.attributes.get("auto_pad", b"NOTSET").decode()
    if kind != "NOTSET":
        return AUTO_PADS.get(kind)
    pads = node.attributes.get("pads", (0,) * (2 * ndim))
    return tuple(zip(pads[:ndim], pads[ndim:], strict=True)) if min(pads, default=0) >= 0 else None


def _pad_of(node: OnnxNode, model: OnnxModel, rank: int, channels: int = 1) -> PadOfMaps | None:
    """What a Pad puts around maps; None where its sizes are computed, or not those of maps.

    Args:
        channels: the dimension that they are in.
    """
    pads, value = node.attributes.get("pads"), node.attributes.get("value", 0.0)
    if pads is None and len(node.inputs) > 1:
        pads = model.constant(node.inputs[1])
    if len(node.inputs) > 2 and node.inputs[2]:
        array = model.constant(node.inputs[2])
        value = np.nan if array is None else float(array.reshape(-1)[0])
    boundary = node.attributes.get("mode", b"constant").decode()
    if boundary not in BOUNDARIES or (boundary == "constant" and np.isnan(value)) or pads is None:
        return None
    if len(node.inputs) > 3 or len(pads) != 2 * rank or min(pads) < 0:
        return None
    low, high = (list(map(int, ends)) for ends in (pads[:rank], pads[rank:]))
    ends = list(zip(low, high, strict=True))
    if any((*ends.pop(channels), *ends.pop(0))):
        return None
    return PadOfMaps(tuple(ends), boundary, float(value))


def _pad(node: OnnxNode, model: OnnxModel) -> Steps:
    """A Pad that more than convolutions read."""
    shape = model.shape(node.inputs[0])
    if shape is None or not 3 <= len(shape) <= 5 or type(shape[1]) is not int:
        return None
    pad, x = _pad_of(node, model, len(shape)), node.inputs[0]
    last = _pad_of(node, model, len(shape), channels=len(shape) - 1) if pad is None else None
    if last is not None and any(map(any, last.padding)) and type(shape[-1]) is int:
        maps, channels = last, shape[-1]
        return by_last_dimension(node, model, lambda of, y: [maps.step(node.name, of, y, channels)])
    if pad is None or not any(map(any, pad.padding)):  # nothing is padded: the same elements
        return None
    return [pad.step(node.name, x, node.outputs[0], shape[1])]


def _conv_transpose(node: OnnxNode, model: OnnxModel) -> Steps:
    found = _filter_and_bias(node, model)
    given = node.attributes.get
    if given("output_shape") or given("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    if found is None:
        return dynamic_convolution(node, model, _padding(node, rank_of(node, model) - 2), transposed=True)
    w, bias = found
    padding, ones = _padding(node, w.ndim - 2), (1,) * (w.ndim - 2)
    if padding is None:
        return None
    more = tuple(given("output_padding", (0,) * len(ones)))
    strides, dilations = tuple(given("strides", ones)), tuple(given("dilations", ones))
    return [
        TransposedConvolution(
            node.name, (node.inputs[0],), node.outputs[0], w, bias, strides, padding, dilations, more,
            given("group", 1),
        )
    ]  # fmt: skip


def _global_pool(reduction: str) -> Maker:
    def make(node: OnnxNode, model: OnnxModel) -> Steps:
        if not 3 <= rank_of(node, model) <= 5:
            return None
        return [Pooling(node.name, (node.inputs[0],), node.outputs[0], reduction)]

    return make


def _pool(reduction: str) -> Maker:
    def make(node: OnnxNode, model: OnnxModel) -> Steps:
        given = node.attributes.get
        kernel = tuple(given("kernel_shape", ()))
        ones, padding = (1,) * len(kernel), _padding(node, len(kernel))
        known = padding is not None and not pads_as_undilated(node.attributes)
        if not 1 <= len(kernel) <= 3 or not known or any(node.outputs[1:]):
            return None
        return [
            Pooling(
                node.name, (node.inputs[0],), node.outputs[0], reduction, kernel,
                tuple(given("strides", ones)), padding, tuple(given("dilations", ones)),
                bool(given("ceil_mode", 0)), bool(given("count_include_pad", 0)),
            )
        ]  # fmt: skip

    return make


def _gemm(node: OnnxNode, model: OnnxModel) -> Steps:
    """A product of (N, C) with a constant matrix is a convolution of maps of one pixel."""
    given = node.attributes.get
    w = model.constant(node.inputs[1])
    if w is None or w.ndim != 2 or given("transA", 0) or rank_of(node, model) != 2:
        return None
    w = w if given("transB", 0) else w.T  # (K, C)
    w = w * np.float32(given("alpha", 1.0)) if given("alpha", 1.0) != 1 else w
    bias = None
    if len(node.inputs) > 2 and node.inputs[2]:
        bias = model.constant(node.inputs[2])
        if bias is None or math.prod(bias.shape[:-1]) != 1:
            return None
        bias = np.broadcast_to(bias.reshape(-1), len(w))
        bias = bias * np.float32(given("beta", 1.0)) if given("beta", 1.0) != 1 else bias
    return _linear(node, w, bias)


def _matmul(node: OnnxNode, model: OnnxModel) -> Steps:
    w = model.constant(node.inputs[1])
    if w is None:
        return _mixed_channels(node, model) or computed_product(node, model)
    rank = rank_of(node, model)
    if 2 < w.ndim <= rank and {*w.shape[:-2]} == {1}:
        w = w.reshape(w.shape[-2:])
    if w.ndim > 2:
        return computed_product(node, model)
    if w.ndim < 2 or model.is_constant(node.inputs[0]):
        return None
    if rank == 2:
        return _linear(node, w.T, None)

    def product(x: str, y: str, ndim: int) -> Steps:
        ones, filters = (1,) * ndim, w.T[(..., *(None,) * ndim)]  # (K, C, 1, ...)
        return [Convolution(node.name, (x,), y, filters, None, ones, ((0, 0),) * ndim, ones)]

    return by_rows(node, model, product)


def _mixed_channels(node: OnnxNode, model: OnnxModel) -> Steps:
    """A constant matrix times each of (N, C, L), as a filter bank of spectrograms, is a 1x1 convolution."""
    w, x = model.constant(node.inputs[0]), node.inputs[1]
    shape = model.shape(x)
    if w is None or w.ndim != 2 or shape is None or len(shape) != 3 or type(shape[1]) is not int:
        return None
    return [Convolution(node.name, (x,), node.outputs[0], w[:, :, None], None, (1,), ((0, 0),), (1,))]


def _linear(node: OnnxNode, w: np.ndarray, bias: np.ndarray | None) -> Steps:
    """w (K, C) times each row of (N, C), as steps."""
    filters = w[:, :, None, None]  # (K, C, 1, 1)
    return of_one_pixel(
        node,
        lambda x, y: [Convolution(node.name, (x,), y, filters, bias, (1, 1), ((0, 0), (0, 0)), (1, 1))],
    )


def _concat(node: OnnxNode, model: OnnxModel) -> Steps:
    rank = rank_of(node, model)
    if (found := rolled_elements(node, model) or with_tokens(node, model)) is not None:
        return found
    if rank < 2 or any(map(model.is_constant, node.inputs)):
        return None
    if rank in (3, 4, 5) and node.attributes["axis"] in (rank - 1, -1):
        return _concat_last(node, rank)
    if node.attributes["axis"] not in (1, 1 - rank):
        return concatenated_rows(node, model)
    return [Concatenation(node.name, tuple(node.inputs), node.outputs[0])]


def _concat_last(node: OnnxNode, rank: int) -> Steps:
    """Arrays side by side along the last dimension, as maps along their channels."""
    y = node.outputs[0]
    parts = tuple(f"{y}/{i}" for i in range(len(node.inputs)))
    return [
        *(
            Transpose(node.name, (x,), part, channels_from_last(rank))
            for x, part in zip(node.inputs, parts, strict=True)
        ),
        Concatenation(node.name, parts, f"{y}/maps"),
        Transpose(node.name, (f"{y}/maps",), y, channels_to_last(rank)),
    ]


MAKERS: dict[str, Maker] = {
    **ELEMENTWISE,
    **QUANTIZED,
    ACTIVATION: named_activation,
    ATTENTION: attention,
    "Conv": _conv,
    "Pad": _pad,
    "ConvTranspose": _conv_transpose,
    "GlobalAveragePool": _global_pool("mean"),
    "GlobalMaxPool": _global_pool("max"),
    "MaxPool": _pool("max"),
    "AveragePool": _pool("mean"),
    **dict.fromkeys(REDUCTIONS, reduced),
    "Resize": resized,
    "Upsample": resized,
    "Identity": view,
    "Cast": view,
    "Flatten": view,
    "Reshape": view,
    "Squeeze": view,
    "Unsqueeze": view,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Concat": _concat,
    "DepthToSpace": pixels_moved,
    "SpaceToDepth": pixels_moved,
    PIXELS: pixels_named,
    SHUFFLE: channel_shuffle,
    "Slice": channel_slice,
    "Split": channel_split,
    "Gather": channel_gather,
    "Transpose": moved_channels,
    "InstanceNormalization": group_norm,
    "GroupNormalization": group_norm,
    GROUP_NORM: group_norm,
    "LayerNormalization": layer_norm,
    CHANNEL_NORM: layer_norm,
    ROOT_NORM: root_norm,
    "LRN": local_response_norm,
    "Softmax": softmax,
    "LogSoftmax": softmax,
    **dict.fromkeys(GATES, recurrent),
    BAG: embedding_bag,
}
