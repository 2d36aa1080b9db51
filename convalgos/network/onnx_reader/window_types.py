"""Types of what ONNX's convolutions, poolings and resizings write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from convalgos.core.moves import scaled_size
from convalgos.network.onnx_reader.messages import Dim
from convalgos.network.onnx_reader.types import INT64, NotInferred, TensorType, TypedNode, dim_times

SAME = (b"SAME_UPPER", b"SAME_LOWER")


def _convolution(node: TypedNode) -> list[TensorType]:
    """Conv."""
    x, w = node.dims(0), node.dims(1)
    if len(x) < 3 or len(x) != len(w):
        raise NotInferred
    kernel = node.attributes.get("kernel_shape", w[2:])
    return [TensorType(node.type(0).kind, (x[0], w[0], *_windows(node, x[2:], kernel, False)))]


def pads_as_undilated(attributes: Mapping[str, Any]) -> bool:
    """Whether ONNX Runtime finds the padding of a pooling as of windows that are not dilated, which makes
    fewer of them than ONNX infers."""
    pools = "kernel_shape" in attributes and attributes.get("auto_pad") in SAME
    return pools and any(dilation > 1 for dilation in attributes.get("dilations", ()))


def _pooling(node: TypedNode) -> list[TensorType]:
    """MaxPool, AveragePool and LpPool."""
    x = node.dims(0)
    dims = (*x[:2], *_windows(node, x[2:], node.attributes["kernel_shape"], True))
    made = [TensorType(node.type(0).kind, dims)]
    return made if node.outputs == 1 else [*made, TensorType(INT64, dims)]


def _global_pooling(node: TypedNode) -> list[TensorType]:
    """GlobalAveragePool and GlobalMaxPool."""
    x = node.dims(0)
    return [TensorType(node.type(0).kind, (*x[:2], *(1 for _ in x[2:])))]


def _windows(node: TypedNode, sizes: Sequence[Dim], kernel: Sequence[Dim], pools: bool) -> list[Dim]:
    """The sizes of an output from those of an input."""
    rank = len(sizes)
    strides, dilations = (node.attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    auto = node.attributes.get("auto_pad", b"NOTSET")
    pads = node.attributes.get("pads", [0] * 2 * rank) if auto == b"NOTSET" else [0] * 2 * rank
    if not len(kernel) == len(strides) == len(dilations) == len(pads) // 2 == rank or min(strides) < 1:
        raise NotInferred
    ceil = pools and node.attributes.get("ceil_mode", 0)
    made: list[Dim] = []
    for i, (n, k, stride, dilation) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        if not isinstance(n, int) or not isinstance(k, int):
            made.append(None)
            continue
        if auto in SAME:
            if pools and dilation > 1:
                raise NotInferred  # as `pads_as_undilated` says
            made.append(-(-n // stride))
            continue
        left = n + pads[i] + pads[rank + i] - (k - 1) * dilation - 1
        if left < 0:
            raise NotInferred
        count = (-(-left // stride) if ceil else left // stride) + 1
        begins_behind = ceil and (count - 1) * stride >= n + pads[i]
        made.append(count - 1 if begins_behind else count)
    return made


def _transposed_convolution(node: TypedNode) -> list[TensorType]:
    """ConvTranspose."""
    x, w = node.dims(0), node.dims(1)
    rank = len(x) - 2
    if rank < 1 or len(x) != len(w) or node.attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise NotInferred
    if "output_shape" in node.attributes:
        raise NotInferred
    kernel = node.attributes.get("kernel_shape", w[2:])
    strides, dilations = (node.attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    pads, more = (
        node.attributes.get("pads", [0] * 2 * rank),
        node.attributes.get("output_padding", [0] * rank),
    )
    made: list[Dim] = []
    for i, (n, k) in enumerate(zip(x[2:], kernel, strict=True)):
        known = isinstance(n, int) and isinstance(k, int)
        reach = (n - 1) * strides[i] + (k - 1) * dilations[i] + 1 if known else 0  # type: ignore[operator]
        made.append(reach + more[i] - pads[i] - pads[rank + i] if known else None)
    filters = dim_times(w[1], node.attributes.get("group", 1))
    return [TensorType(node.type(0).kind, (x[0], filters, *made))]


def _resizing(node: TypedNode) -> list[TensorType]:
    """Resize: by factors, or to sizes."""
    x = node.dims(0)
    if "axes" in node.attributes or node.attributes.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        raise NotInferred
    if node.opset > 10 and node.has(3):
        made: list[Dim] = node.sizes(3)
    else:
        factors = node.numbers(1 if node.opset < 11 else 2)
        if len(factors) != len(x):
            raise NotInferred
        made = [
            scaled_size(n, factor) if isinstance(n, int) else None
            for n, factor in zip(x, factors, strict=True)
        ]
    if len(made) != len(x):
        raise NotInferred
    return [TensorType(node.type(0).kind, tuple(made))]


def _from_depth(node: TypedNode) -> list[TensorType]:
    """DepthToSpace."""
    x, block = node.dims(0), node.attributes["blocksize"]
    if len(x) != 4:
        raise NotInferred
    channels = x[1] // block**2 if isinstance(x[1], int) else None
    return [TensorType(node.type(0).kind, (x[0], channels, *(dim_times(n, block) for n in x[2:])))]


def _to_depth(node: TypedNode) -> list[TensorType]:
    """SpaceToDepth."""
    x, block = node.dims(0), node.attributes["blocksize"]
    if len(x) != 4:
        raise NotInferred
    sizes = (n // block if isinstance(n, int) else None for n in x[2:])
    return [TensorType(node.type(0).kind, (x[0], dim_times(x[1], block**2), *sizes))]


WINDOWS = {
    "Conv": _convolution, "ConvTranspose": _transposed_convolution, "Resize": _resizing,
    "DepthToSpace": _from_depth, "SpaceToDepth": _to_depth,
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pooling),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _global_pooling),
}  # fmt: skip
