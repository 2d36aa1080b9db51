"""Operators of torch on whole maps: pooling, joining, upsampling, and other shapes of the same elements."""

from __future__ import annotations

from typing import Any

from torch import fx

from convalgos.network.graph import Concatenation, Pooling, Resizing, Upsampling
from convalgos.network.torch_reader.conversion import Arguments, Conversion, Convert, Left, module_name
from convalgos.network.torch_reader.convolutions import only_first_read
from convalgos.network.torch_reader.region import TensorPlace
from convalgos.network.torch_reader.selections import dealt, regrouped
from convalgos.network.torch_reader.shapes import map_shape, shape_of_tensor, sizes_of, spatial_dimensions


def pooling_step(reduction: str, ndim: int) -> Convert:
    def convert(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
        x = a["self"]
        if spatial_dimensions(x) != ndim:
            raise Left("takes one map without a batch")
        if a.get("divisor_override"):
            raise Left("divides by a number of its own")
        c.form_of(x)
        only_first_read(node)
        kernel = sizes_of(a["kernel_size"], ndim)
        stride = sizes_of(a["stride"], ndim) if a["stride"] else kernel
        step = Pooling(
            module_name(node), (c.value(x),), node.name, reduction, kernel, stride,
            tuple((n, n) for n in sizes_of(a["padding"], ndim)), sizes_of(a.get("dilation", 1), ndim),
            bool(a["ceil_mode"]), bool(a.get("count_include_pad", False)),
        )  # fmt: skip
        c.steps.append(step)
        return TensorPlace(node.name)

    return convert


def adaptive_pooling_step(reduction: str) -> Convert:
    def convert(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
        x, ndim = a["self"], spatial_dimensions(a["self"])
        sizes = sizes_of(a["output_size"], ndim)
        c.form_of(x)
        only_first_read(node)
        if sizes == shape_of_tensor(x)[2:]:
            return TensorPlace(c.value(x))
        if set(sizes) != {1}:
            raise Left("divides maps into windows of several sizes")
        c.steps.append(Pooling(module_name(node), (c.value(x),), node.name, reduction))
        return TensorPlace(node.name)

    return convert


def mean_step(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    """Over all pixels of maps."""
    x = a["self"]
    form, rank = c.form_of(x), len(shape_of_tensor(x))
    ndim = spatial_dimensions(x, form)
    pixels = range(1, rank - 1) if form == "last" else range(2, rank)
    if sorted(d % rank for d in a["dim"] or ()) != list(pixels) or form == "pixel":
        raise Left("is not over the pixels of maps")
    c.steps.append(Pooling(module_name(node), (c.value(x, form),), node.name, "mean"))
    if a["keepdim"]:
        return TensorPlace(node.name, form)
    return TensorPlace(node.name if ndim == 2 else c.view(node.name, f"{node.name}/pixel", 2), "pixel")


def concatenation_step(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    tensors = a["tensors"]
    form, rank = c.form_of(*tensors), len(shape_of_tensor(node))
    if a["dim"] % rank != (rank - 1 if form == "last" else 1):
        raise Left("is not along the channels")
    inputs = tuple(c.value(t, form) for t in tensors)
    c.steps.append(Concatenation(module_name(node), inputs, node.name))
    return TensorPlace(node.name, form)


def upsampling_step(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    x = a.get("input", a.get("self"))
    assert isinstance(x, fx.Node)
    c.form_of(x)
    before, after = shape_of_tensor(x)[2:], shape_of_tensor(node)[2:]
    factors: list[Any] = a.get("scale_factors") or []
    if not factors and all(type(n) is int for n in (*before, *after)):
        factors = [m / n for n, m in zip(before, after, strict=True)]
    if not factors or any(f != int(f) or f < 1 for f in factors):
        raise Left("is by no whole factors")
    step = Upsampling(module_name(node), (c.value(x),), node.name, tuple(map(int, factors)))
    c.steps.append(step)
    return TensorPlace(node.name)


def resizing_step(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    """By linear interpolation."""
    x = a["input"]
    assert isinstance(x, fx.Node)
    c.form_of(x)
    scales = tuple(map(float, a.get("scale_factors") or ()))
    sizes = () if scales else shape_of_tensor(node)[2:]
    if not all(type(n) is int for n in sizes):
        raise Left("has sizes that are computed")
    coordinates = "align_corners" if a["align_corners"] else "half_pixel"
    c.steps.append(Resizing(module_name(node), (c.value(x),), node.name, sizes, scales, coordinates))
    return TensorPlace(node.name)


def permuted(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    """Channels to the last dimension or from there; nothing is moved."""
    x, rank = a["self"], len(shape_of_tensor(a["self"]))
    if "dims" in a:
        order = [d % rank for d in a["dims"]]
    else:
        order = list(range(rank))
        i, j = a["dim0"] % rank, a["dim1"] % rank
        order[i], order[j] = order[j], order[i]
    if place := dealt(c, x, order):
        return place
    form = c.form_of(x)
    if order == list(range(rank)):
        return TensorPlace(c.value(x, form), form)
    if form == "same" and rank > 2 and order == [0, *range(2, rank), 1]:
        return TensorPlace(c.value(x), "last")
    if form == "last" and order == [0, rank - 1, *range(1, rank - 1)]:
        return TensorPlace(c.value(x, form))
    raise Left("moves other dimensions than that of the channels")


def reshaped_tensor(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    """Maps to one vector each, pixels to maps, channels to groups and back, or nothing."""
    x = a["self"]
    if place := regrouped(c, node, x):
        return place
    form, before, after = c.form_of(x), [*map(str, shape_of_tensor(x))], [*map(str, shape_of_tensor(node))]
    value = c.value(x, form)
    if before == after:
        return TensorPlace(value, form)
    if form == "pixel" and after == [*before, "1", "1"]:
        return TensorPlace(value)
    if len(after) != 2 or after[0] != before[0] or form == "pixel":
        raise Left("changes shapes")
    if len(before) == 4 and list(map(str, map_shape(x, form)))[2:] == ["1", "1"]:
        return TensorPlace(value, "pixel")
    if form == "last":
        raise Left("changes shapes")
    return TensorPlace(c.view(value, f"{node.name}/pixel", 2), "pixel")


def unchanged(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    """What changes nothing in eval."""
    x = a.get("self", a.get("input"))
    if a.get("train"):
        raise Left("is in training")
    if x in c.places:
        return c.places[x]
    raise Left("stands among operators of torch")
