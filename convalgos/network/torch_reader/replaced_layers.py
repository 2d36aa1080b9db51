"""This library's own operators of torch, which modules have after `convalgos.torch.replace`."""

from __future__ import annotations

import numpy as np
from torch import fx

from convalgos.network.torch_reader.shapes import known_sizes, shape_of_tensor
from convalgos.network.torch_reader.translation import Arguments, Left, Translate, Translation, Value

BORDERS = {"edge": b"edge", "reflect": b"reflect", "wrap": b"wrap"}  # boundary -> mode of ONNX's Pad


def _replaced_conv_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """Its pads are (low, high) of each dimension in turn."""
    pads, x = known_sizes([*a["pads"][::2], *a["pads"][1::2]]), t.value(a["x"])
    if a["boundary"] != "zero" and any(pads):
        ndim = len(pads) // 2
        sizes = zip(shape_of_tensor(a["x"])[2:], pads[:ndim], pads[ndim:], strict=True)
        shape = (*shape_of_tensor(a["x"])[:2], *(n + low + high for n, low, high in sizes))
        ends = t.constant(np.array([0, 0, *pads[:ndim], 0, 0, *pads[ndim:]], np.int64))
        x = t.between("Pad", [x, ends, t.value(0.0)], shape, mode=BORDERS[a["boundary"]])
        pads = [0] * len(pads)
    weights = [t.value(a[key]) for key in ("w", "bias") if a[key] is not None]
    return t.emit(
        "Conv", [x, *weights], strides=known_sizes(a["stride"]), pads=pads,
        dilations=known_sizes(a["dilation"]), group=a["groups"],
    )  # fmt: skip


def _replaced_transposed_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """A gradient of the input, whose sizes are given."""
    w = t.value(a["w"])
    stride, dilation = known_sizes(a["stride"]), known_sizes(a["dilation"])
    low, high = known_sizes(a["pads"][::2]), known_sizes(a["pads"][1::2])
    given = (
        known_sizes(shape_of_tensor(a["dy"])[2:]),
        known_sizes(t.shape(w)[2:]),
        known_sizes(t.result().shape[2:]),
    )
    more = [
        m - ((n - 1) * s + d * (r - 1) + 1 - before - after)
        for n, r, m, s, d, before, after in zip(*given, stride, dilation, low, high, strict=True)
    ]
    if not all(0 <= n < s for n, s in zip(more, stride, strict=True)):
        raise Left("has outputs that no window reaches")
    return t.emit(
        "ConvTranspose", [t.value(a["dy"]), w], strides=stride, pads=[*low, *high], dilations=dilation,
        output_padding=more, group=a["groups"],
    )  # fmt: skip


REPLACED: dict[str, Translate] = {  # by name: they exist once `convalgos.torch` is imported
    "convalgos::conv": _replaced_conv_nodes,
    "convalgos::conv_backward_data": _replaced_transposed_nodes,
}
