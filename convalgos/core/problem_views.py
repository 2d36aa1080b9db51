"""The same work as a `ConvProblem` of other spatial dimensions, for what is written once for all of them."""

from __future__ import annotations

import math
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from convalgos.core import layouts, problem_checks
from convalgos.core.arguments import Shape
from convalgos.core.boundaries import ZERO
from convalgos.core.layouts import PLAIN
from convalgos.core.merged_dimensions import merged

# What stays as it is: fields, and what need not be counted again.
KEPT = (
    *(
        "stride",
        "padding",
        "dilation",
        "groups",
        "mode",
        "layout",
        "y_layout",
        "dtype",
        "direction",
        "compute_dtype",
    ),
    *("w_dtype", "y_dtype", "scales", "density", "pattern", "boundary", "fill_value"),
    *("x_shape", "w_shape", "kernel_extent"),
    *("N", "C", "K", "gemm_m", "gemm_n", "gemm_k", "flops", "x_bytes", "w_bytes", "y_bytes", "itemsize"),
    *("is_pointwise", "is_plain_product"),
)
_kept = attrgetter(*KEPT)
OF_LAYER = (  # what it is on maps of any size
    *("w_shape", "stride", "padding", "dilation", "groups", "mode", "layout", "y_layout", "dtype"),
    *("direction", "compute_dtype", "w_dtype", "y_dtype", "scales", "density", "pattern", "boundary"),
    *("fill_value", "C", "K", "kernel", "kernel_extent", "ndim", "gemm_n", "gemm_k", "w_bytes", "itemsize"),
    *("is_pointwise", "is_plain_product", "is_zero_padded", "_layer_hash"),
)
_of_layer = attrgetter(*OF_LAYER)
SMALL, SMALL_WORK = 1 << 40, 1 << 52  # elements, and operations, that need not be counted more closely
OF_MAPS = ("x_shape", "spatial_out", "y_shape", "gemm_m", "flops")  # and what it has of their sizes
_of_maps = attrgetter(*OF_MAPS)


def made_of(problem: Any, known: dict[str, Any]) -> Any:
    """The problem of these fields, and attributes that need not be computed again; nothing is checked."""
    kind: Any = type(problem)
    made = kind.__new__(kind)
    made.__dict__.update(known)
    return made


def layer_hash(problem: Any) -> int:
    """The hash of all fields but the sizes of the maps."""
    known = problem.__dict__
    return hash(tuple(known[name] for name in problem.__dataclass_fields__ if name != "x_shape"))


def are_equal(problem: Any, other: Any) -> bool:
    """Whether all fields of two problems are the same: those of one layer differ in sizes alone."""
    own, its = problem.__dict__, other.__dict__
    if own is its:
        return True
    if own["x_shape"] != its["x_shape"]:
        return False
    layer = own.get("of_layer")
    if layer is not None and layer is its.get("of_layer"):
        return True
    return all(own[name] == its[name] for name in problem.__dataclass_fields__)


def logical_array(problem: Any, name: str, array: Any) -> Any:
    """An array of a problem with its channels first: a view, or of blocked layouts a copy."""
    if name[-1] == "w":  # of filters there is one form
        return array
    layout, channels = (problem.layout, problem.C) if name[-1] == "x" else (problem.y_layout, problem.K)
    return layouts.to_logical(array, layout, channels)


def array_shapes(problem: Any) -> tuple[Shape, Shape, Shape]:
    """Of what a run reads first and second, and of what it writes, as they lie in memory."""
    p = problem
    x, y = layouts.array_shape(p.layout, p.x_shape), layouts.array_shape(p.y_layout, p.y_shape)
    if p.direction == "forward":
        return x, p.w_shape, y
    shapes = {"x": x, "w": p.w_shape, "y": y}
    first, second, result = (shapes[name[-1]] for name in p.arrays)
    return first, second, result


def reduction(problem: Any) -> int:
    """Products that are summed for an element of the result, at most."""
    if problem.direction == "backward_weights":
        return int(problem.gemm_m)
    if problem.direction == "backward_data":
        return int(problem.gemm_n * math.prod(problem.kernel))
    return int(problem.gemm_k)


def reread(problem: Any) -> Any:
    """The problem of the same memory that is faster to compute: see `ConvProblem.reread`."""
    if problem.layout not in PLAIN or problem.y_layout != problem.layout:
        return problem
    read = merged(problem)
    if math.prod(problem.spatial) == math.prod(problem.spatial_out) == 1:
        return read if problem.layout == "channels_last" else read.relaid
    if problem.C == problem.K == 1 and problem.layout == "channels_last":
        return read.relaid
    return read


def reshaped(problem: Any, **changes: Any) -> Any:
    """The problem with other fields and known attributes: its spatial dimensions are seen another way."""
    return made_of(problem, dict(zip(KEPT, _kept(problem), strict=True)) | changes)


def on_map(problem: Any, x_shape: Shape) -> Any:
    """The same layer, of zeros around its maps, on maps of other sizes and another batch.

    What the sizes do not change is neither found nor checked again.

    Raises:
        ValueError: the filter does not fit into the padded map, or has too much to count.
    """
    found = map_counts(problem, x_shape)
    made = made_of(problem, problem.of_layer)
    made.__dict__.update(
        x_shape=x_shape, N=x_shape[0], spatial=x_shape[2:], spatial_out=found.spatial_out,
        y_shape=(x_shape[0], problem.K, *found.spatial_out), gemm_m=found.gemm_m, flops=found.flops,
    )  # fmt: skip
    if not found.small:
        problem_checks.check_sizes(made)  # which tells what is wrong, if anything is
    elif found.meets_map:
        made.__dict__["is_empty"] = False
    return made


class MapCounts(NamedTuple):
    """What a layer has of the sizes of its maps."""

    spatial_out: Shape
    gemm_m: int
    flops: int
    small: bool  # none is empty, and none has too much to count
    meets_map: bool  # whether the last outputs are not of padding alone


def map_counts(problem: Any, x_shape: Shape) -> MapCounts:
    """Of a layer of zeros around its maps."""
    p, spatial, outputs, meets_map = problem, x_shape[2:], [], True
    elements = math.prod(x_shape)  # of x, and of x with its padding
    padded = x_shape[0] * x_shape[1]
    for size, (low, high), reach, step in zip(spatial, p.padding, p.kernel_extent, p.stride, strict=True):
        count = max(0, (size + low + high - reach) // step + 1)
        outputs.append(count)
        meets_map = meets_map and (count - 1) * step + reach > low
        padded *= size + low + high
    gemm_m = x_shape[0] * math.prod(outputs)
    flops = 2 * gemm_m * p.K * p.gemm_k
    small = 0 < gemm_m * p.K <= SMALL and 0 < elements <= padded <= SMALL and 0 < flops <= SMALL_WORK
    return MapCounts(tuple(outputs), gemm_m, flops, small, meets_map)


def y_shape_on(problem: Any, x_shape: Shape) -> Shape | None:
    """The shape of what a layer writes on other maps; None of those that `on_map` looks at closely."""
    if problem.is_plain_product:
        elements, (images, channels, *spatial) = math.prod(x_shape), x_shape
        outputs = elements // (channels or 1) * problem.K
        small = (
            0 < elements <= SMALL and 0 < outputs <= SMALL and 0 < 2 * outputs * problem.gemm_k <= SMALL_WORK
        )
        return (images, problem.K, *spatial) if small else None
    found = map_counts(problem, x_shape)
    return (x_shape[0], problem.K, *found.spatial_out) if found.small and found.meets_map else None


def laid_as(problem: Any, other: Any) -> Any:
    """The problem in the layouts of another one of its layer."""
    if (problem.layout, problem.y_layout) == (other.layout, other.y_layout):
        return problem
    if problem.of_layer["kernel"] != other.kernel or problem.padding != other.padding:
        return problem.with_valid(layout=other.layout, y_layout=other.y_layout)
    return made_of(problem, other.of_layer | dict(zip(OF_MAPS, _of_maps(problem), strict=True)))


def of_layer(problem: Any) -> dict[str, Any]:
    """The attributes that a problem has on maps of all sizes: one dictionary for all of them."""
    found = dict(zip(OF_LAYER, _of_layer(problem), strict=True))
    found["of_layer"] = found
    return found


def in_3d(problem: Any) -> Any:
    """The same work with three spatial dimensions, leading ones of size 1 put in front."""
    if problem.ndim == 3:
        return problem
    ones = (1,) * (3 - problem.ndim)
    layer = problem.of_layer
    if "in_3d" not in layer:  # in the dictionary that the layer has on maps of all sizes
        layer["in_3d"] = of_layer(_in_3d(problem, ones))
    return made_of(
        problem,
        layer["in_3d"]
        | {
            "x_shape": problem.x_shape[:2] + ones + problem.spatial,
            "spatial_out": ones + problem.spatial_out,
            "gemm_m": problem.gemm_m,
            "flops": problem.flops,
        },
    )


def _in_3d(problem: Any, ones: Shape) -> Any:
    return reshaped(
        problem,
        x_shape=problem.x_shape[:2] + ones + problem.spatial,
        w_shape=problem.w_shape[:2] + ones + problem.kernel,
        stride=ones + problem.stride,
        dilation=ones + problem.dilation,
        padding=((0, 0),) * len(ones) + problem.padding,
        boundary=(ZERO,) * len(ones) + problem.boundary,
        spatial_out=ones + problem.spatial_out,
        kernel_extent=ones + problem.kernel_extent,
    )


def in_a_row(problem: Any, spatial: tuple[int, int, int]) -> Any:
    """The pixels of a plain product in other dimensions, one of which holds them all.

    Args:
        spatial: of x and y.
    """
    layer = problem.of_layer
    if "in_a_row" not in layer:  # as above
        layer["in_a_row"] = of_layer(_in_a_row(problem, spatial))
    sizes = {"x_shape": (*problem.x_shape[:2], *spatial), "spatial_out": spatial}
    return made_of(problem, layer["in_a_row"] | sizes | {"gemm_m": problem.gemm_m, "flops": problem.flops})


def _in_a_row(problem: Any, spatial: tuple[int, int, int]) -> Any:
    ones = (1, 1, 1)
    return reshaped(
        problem,
        x_shape=(*problem.x_shape[:2], *spatial),
        w_shape=(*problem.w_shape[:2], *ones),
        stride=ones,
        dilation=ones,
        padding=((0, 0),) * 3,
        boundary=(ZERO,) * 3,
        spatial_out=spatial,
        kernel_extent=ones,
    )


@lru_cache(256)
def one_group(problem: Any) -> Any:
    """The same layer of one of its groups: what is alike for any number of them is found once."""
    if problem.groups == 1:
        return problem
    x_shape = problem.N, problem.w_shape[1], *problem.spatial
    layer = problem.of_layer
    if "one_group" not in layer:  # as above
        w_shape = problem.gemm_n, *problem.w_shape[1:]
        layer["one_group"] = problem.with_valid(x_shape=x_shape, w_shape=w_shape, groups=1)
    return on_map(layer["one_group"], x_shape)
