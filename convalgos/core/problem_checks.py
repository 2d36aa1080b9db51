"""Whether the parameters of a convolution go together, and the form in which a `ConvProblem` keeps them."""

from __future__ import annotations

import math
from typing import Any

from convalgos.core import arguments, boundaries
from convalgos.core.arguments import DIRECTIONS, MODES, Pads, Shape
from convalgos.core.element_types import DTYPES, SCALES
from convalgos.core.layouts import LAYOUTS, PLAIN
from convalgos.core.sparsity import checked_zeros

LARGEST_COUNT = 2**63 - 1


def checked_fields(
    x_shape: Any, w_shape: Any, stride: Any, padding: Any, dilation: Any, groups: Any, mode: Any, layout: Any,
    y_layout: Any, direction: Any,
) -> dict[str, Any]:  # fmt: skip
    """The sizes and parameters of a problem from its arguments, each checked by itself.

    Raises:
        ValueError: names the argument, its value and what would be valid.
    """
    x_shape, w_shape = arguments.shape("x_shape", x_shape), arguments.shape("w_shape", w_shape)
    _check_shapes(x_shape, w_shape)
    ndim = len(x_shape) - 2
    stride = arguments.per_dim("stride", stride, ndim, 1)
    dilation = arguments.per_dim("dilation", dilation, ndim, 1)
    groups = arguments.integer("groups", groups, 1)
    _check_channels(x_shape[1], w_shape, groups)
    y_layout = layout if y_layout is None else y_layout
    for name, value, allowed in (
        ("mode", mode, MODES),
        ("layout", layout, LAYOUTS),
        ("y_layout", y_layout, LAYOUTS),
        ("direction", direction, DIRECTIONS),
    ):
        arguments.one_of(name, value, allowed)
    return {
        "x_shape": x_shape,
        "w_shape": w_shape,
        "stride": stride,
        "padding": arguments.pads(padding, x_shape[2:], w_shape[2:], stride, dilation),
        "dilation": dilation,
        "groups": groups,
        "mode": mode,
        "layout": layout,
        "y_layout": y_layout,
        "direction": direction,
    }


def checked_filter(scales: Any, density: Any, pattern: Any) -> dict[str, Any]:
    """What a problem tells of its filter beside its shape and type.

    Raises:
        ValueError: names the argument, its value and what would be valid.
    """
    density, pattern = checked_zeros(density, pattern)
    return {"scales": arguments.one_of("scales", scales, SCALES), "density": density, "pattern": pattern}


def check_together(problem: Any) -> None:
    """ValueError where the checked fields of a `ConvProblem` do not go with each other."""
    p = problem
    _check_layouts(p.layout, p.y_layout, p.dtype, p.direction)
    check_sizes(p)
    boundaries.check_fill_of(p.dtype, p.fill_value)


def check_sizes(problem: Any) -> None:
    """ValueError where a layer does not go with the sizes of its maps."""
    p = problem
    _check_extent(p.x_shape, p.padding, p.kernel_extent)
    _check_counts(p.x_shape, p.w_shape, p.padding, p.y_shape, p.flops)


def _check_layouts(layout: str, y_layout: str, dtype: str, direction: str) -> None:
    """ValueError where layouts do not go with the rest: floating-point maps lie in blocks, going forward."""
    for name, value in (("layout", layout), ("y_layout", y_layout)):
        if value in PLAIN and layout == y_layout:
            continue
        if dtype not in DTYPES:
            raise ValueError(
                f"{name}={value!r}: maps of {dtype} must lie in one of {', '.join(PLAIN)}, alike"
            )
        if direction != "forward":
            raise ValueError(f"{name}={value!r} must be plain, and that of x, where direction={direction!r}")


def _check_extent(x_shape: Shape, padding: Pads, extent: Shape) -> None:
    """ValueError where the filter does not fit into the padded input."""
    for size, (low, high), reach in zip(x_shape[2:], padding, extent, strict=True):
        if size and size + low + high < reach:
            raise ValueError(
                f"padding={padding} must make x_shape={x_shape} at least as large as the (dilated) kernel, "
                f"which spans {extent}"
            )


def _check_counts(x_shape: Shape, w_shape: Shape, padding: Pads, y_shape: Shape, flops: int) -> None:
    """`TooLarge` for what 64 bits do not count, as addresses and counts of compiled code are."""
    padded = [size + low + high for size, (low, high) in zip(x_shape[2:], padding, strict=True)]
    most = max(map(math.prod, (x_shape, w_shape, (*x_shape[:2], *padded), y_shape)))
    if most <= arguments.LARGEST and flops <= LARGEST_COUNT:
        return  # before any word is made
    for what, shape in (
        (f"x_shape={x_shape}", x_shape),
        (f"w_shape={w_shape}", w_shape),
        (f"padding={padding} of x_shape={x_shape}", (*x_shape[:2], *padded)),
        (f"y of shape {y_shape}", y_shape),
    ):
        if math.prod(shape) > arguments.LARGEST:
            raise arguments.TooLarge(f"{what} has more elements than an array can have, {arguments.LARGEST}")
    if flops > LARGEST_COUNT:
        raise arguments.TooLarge(
            f"x_shape={x_shape} and w_shape={w_shape} take {flops:.1e} flops, more than any computer does "
            "in a year"
        )


def _check_shapes(x_shape: Shape, w_shape: Shape) -> None:
    if not 3 <= len(x_shape) <= 5:
        raise ValueError(f"x_shape={x_shape} must be (N, C, *spatial) with 1, 2 or 3 spatial dimensions")
    if len(w_shape) != len(x_shape):
        raise ValueError(
            f"w_shape={w_shape} must be (K, C/groups, *kernel) with as many dimensions as x_shape={x_shape}"
        )
    if min(w_shape[2:]) < 1:
        raise ValueError(f"w_shape={w_shape} must have kernel sizes of at least 1")


def _check_channels(channels: int, w_shape: Shape, groups: int) -> None:
    if channels % groups:
        raise ValueError(f"groups={groups} must divide the C={channels} channels of x")
    if w_shape[0] % groups:
        raise ValueError(f"groups={groups} must divide the K={w_shape[0]} filters of w")
    if w_shape[1] != channels // groups:
        raise ValueError(
            f"w_shape={w_shape} must have C/groups = {channels}/{groups} = {channels // groups} input "
            "channels in its second dimension"
        )
