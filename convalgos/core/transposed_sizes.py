"""Sizes of a transposed convolution, which depend on more than those of the convolution that it transposes.

Source: Dumoulin and Visin 2016, arXiv:1603.07285, section 4.
"""

from __future__ import annotations

from convalgos.core import arguments
from convalgos.core.arguments import IntsLike, PaddingLike, Shape


def transposed_spatial(
    sizes: Shape, kernel: Shape, stride: IntsLike, padding: PaddingLike, dilation: IntsLike,
    output_padding: IntsLike,
) -> Shape:  # fmt: skip
    """Sizes of the map that a transposed convolution makes of a map of `sizes`.

    A convolution with these parameters makes a map of `sizes` of each of `stride` maps; `output_padding`
    says which. Where the dilation is larger it may reach up to that: then see `transposed_rows`.
    padding="same" makes a map of size * stride.

    Raises:
        ValueError: names the argument, its value and what would be valid.
    """
    ndim = len(sizes)
    steps, spread = (
        arguments.per_dim("stride", stride, ndim, 1),
        arguments.per_dim("dilation", dilation, ndim, 1),
    )
    more = arguments.per_dim("output_padding", output_padding, ndim, 0)
    if any(m >= max(s, d) for m, s, d in zip(more, steps, spread, strict=True)):
        raise ValueError(
            f"output_padding={output_padding!r} must be less than stride={stride!r} or dilation={dilation!r}"
        )
    if isinstance(padding, str) and padding == "same":
        if any(more):
            raise ValueError(f"output_padding={output_padding!r} must be 0 with padding='same'")
        return tuple(n * s for n, s in zip(sizes, steps, strict=True))
    pads = arguments.pads(padding, sizes, kernel, steps, spread)
    spatial = tuple(
        (n - 1) * s + d * (r - 1) + 1 + m - low - high
        for n, s, d, r, m, (low, high) in zip(sizes, steps, spread, kernel, more, pads, strict=True)
    )
    if min(spatial) < 0 or any(n and not size for n, size in zip(spatial, sizes, strict=True)):
        raise ValueError(f"padding={padding!r} leaves no output of an input of sizes {sizes}")
    return spatial


def transposed_rows(stride: IntsLike, output_padding: IntsLike, ndim: int) -> Shape:
    """Rows of zeros that x of a transposed convolution lacks on the high side, per dimension.

    A map of `transposed_spatial` has a whole stride more, and the convolution an output, for each of them.
    """
    steps = arguments.per_dim("stride", stride, ndim, 1)
    more = arguments.per_dim("output_padding", output_padding, ndim, 0)
    return tuple(m // s for m, s in zip(more, steps, strict=True))
