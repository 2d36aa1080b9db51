"""A pooling problem: windows over the spatial dimensions of x, each reduced to its maximum or its mean.

Windows lie as the kernels of a convolution do: size, stride, padding and dilation for each dimension. Padding
holds nothing: a maximum is over the elements of x alone, and a mean counts padding, as zeros, where asked to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np

from convalgos.core import arguments
from convalgos.core.arguments import IntsLike, PaddingLike, Pads, Shape, shown
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.element_types import ITEM_BYTES
from convalgos.core.layouts import LAYOUTS, array_shape

REDUCTIONS = ("max", "mean")
DTYPES = {  # that each serves
    "max": ("float32", "float64", "float16", "bfloat16", "int8", "uint8"),
    "mean": ("float32", "float64", "float16", "bfloat16"),
}


class PoolWindows(NamedTuple):
    """The windows along one dimension: `taps[o]` elements of x from `first[o]` on, `dilation` apart.

    Only taps inside x are there; `divisor[o]` is what a mean divides by. Windows are equal only to
    themselves, which problems share, so that tables that are made of them can be found again.
    """

    size: int  # elements of x
    stride: int
    dilation: int
    before: int  # padding before the first element
    kernel: int  # taps of a window that lies inside
    first: np.ndarray
    taps: np.ndarray
    divisor: np.ndarray

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def over_rows_of(self, inner: PoolWindows) -> PoolWindows | None:
        """The windows over both dimensions as one, where each covers the whole of the inner one.

        None where the elements of a window would not lie side by side.
        """
        if not inner.is_whole or self.dilation != 1:
            return None
        n = inner.size
        return PoolWindows(
            self.size * n, self.stride * n, 1, self.before * n, self.kernel * n, self.first * n,
            self.taps * n, self.divisor * int(inner.divisor[0]),
        )  # fmt: skip

    @property
    def is_whole(self) -> bool:
        """Whether one window covers all elements, and nothing else."""
        return len(self.first) == 1 and self.dilation == 1 and self.kernel == self.size and not self.before


@dataclass(frozen=True)
class PoolProblem:
    """What is pooled; `of` makes it from what callers write."""

    x_shape: Shape
    kernel: Shape
    stride: Shape
    padding: Pads
    dilation: Shape
    ceil_mode: bool
    reduction: str
    count_padding: bool
    layout: str
    y_layout: str
    dtype: str

    @classmethod
    def of(
        cls,
        x_shape: Sequence[int],
        kernel: IntsLike | None = None,
        *,
        stride: IntsLike | None = None,
        padding: PaddingLike = 0,
        dilation: IntsLike = 1,
        ceil_mode: bool = False,
        reduction: str = "max",
        count_padding: bool = True,
        layout: str = "channels_first",
        y_layout: str | None = None,
        dtype: str = "float32",
    ) -> Self:
        """The problem of arguments that are checked.

        Args:
            x_shape: (N, C, *spatial), whatever the layout.
            kernel: size of a window, one for all dimensions or one for each; None for the whole of x.
            stride: None for that of windows side by side.
            padding: as that of `ConvProblem`; less than a window on each side.
            ceil_mode: whether a last window may reach beyond the padding, as torch's and ONNX's may; one that
                begins behind x is left out.
            reduction: "max" or "mean".
            count_padding: whether a mean counts padding as zeros.
            layout: of x. y_layout: of y, None for the same; it may be another where y has one pixel.
            dtype: float32, float64, float16 or bfloat16; of a maximum int8 and uint8 as well.

        Raises:
            ValueError: an argument is invalid, or no window fits. TypeError: dtype cannot be pooled.

        Example:
            >>> PoolProblem.of((1, 64, 112, 112), 3, stride=2, padding=1).y_shape
            (1, 64, 56, 56)
        """
        shape = arguments.shape("x_shape", x_shape)
        if not 3 <= len(shape) <= 5:
            raise ValueError(f"x has shape {shape}: it must have 3, 4 or 5 dimensions, (N, C, *spatial)")
        spatial = shape[2:]
        ndim, whole = len(spatial), [max(1, n) for n in spatial]
        sizes = arguments.per_dim("kernel", whole if kernel is None else kernel, ndim, 1)
        steps = arguments.per_dim("stride", sizes if stride is None else stride, ndim, 1)
        apart = arguments.per_dim("dilation", dilation, ndim, 1)
        arguments.one_of("reduction", reduction, REDUCTIONS)
        if dtype not in DTYPES[reduction]:
            *others, last = DTYPES[reduction]
            raise TypeError(f"x has dtype {dtype}; a {reduction} is taken of {', '.join(others)} or {last}")
        problem = cls(
            shape, sizes, steps, arguments.pads(padding, spatial, sizes, steps, apart), apart,
            bool(ceil_mode), reduction, bool(count_padding),
            arguments.one_of("layout", layout, LAYOUTS),
            arguments.one_of("y_layout", y_layout or layout, LAYOUTS), dtype,
        )  # fmt: skip
        sides = zip(spatial, problem.extent, problem.padding, strict=True)
        for dim, (size, extent, pads) in enumerate(sides):
            if max(pads) >= extent:
                raise ValueError(
                    f"padding={shown(padding)} must be less than a window, which is {extent} long"
                )
            if problem._count(dim) < 1:
                raise ValueError(
                    f"kernel={shown(kernel)} with dilation={shown(dilation)} is {extent} long, but x has "
                    f"{size} elements and {sum(pads)} of padding there"
                )
        if problem.y_layout != problem.layout and set(problem.y_shape[2:]) != {1}:
            raise ValueError(
                f"y_layout={y_layout!r} is another than layout={layout!r}: it may be where y has one pixel, "
                f"and y has shape {problem.y_shape}"
            )
        return problem

    def of_shape(self, x_shape: Shape) -> Self | None:
        """The same windows over another x of as many dimensions, without a look at them again.

        None where `of` might refuse it.
        """
        made = self._with({"x_shape": x_shape, "extent": self.extent})
        fits = min(made.y_shape[2:]) > 0 and self.layout == self.y_layout
        return made if fits else None

    def of_whole(self, x_shape: Shape) -> Self | None:
        """The one window over the whole of another x of as many dimensions, where this is over the whole of
        its own; else None."""
        own, spatial = self.x_shape[2:], x_shape[2:]
        if self.kernel != own or self.stride != own or len(own) != len(spatial) or not min(spatial):
            return None
        if any(map(any, self.padding)) or max(self.dilation) > 1:
            return None
        y_shape = *x_shape[:2], *(1,) * len(spatial)
        sizes = {"x_shape": x_shape, "kernel": spatial, "stride": spatial, "extent": spatial}
        return self._with(sizes | {"y_shape": y_shape})

    def _with(self, attributes: dict[str, Any]) -> Self:
        """The same with other attributes, in a fifth of the time that `replace` takes."""
        made: Self = type(self).__new__(type(self))
        made.__dict__.update(self._fields)
        made.__dict__.update(attributes)
        return made

    @cached_attribute
    def _fields(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def in_layout(self, layout: str) -> Self:
        """The same in a layout of x and y; windows that are known are not found again."""
        found: dict[str, Any] = {"layout": layout, "y_layout": layout}
        found |= {name: self.__dict__[name] for name in ("windows", "y_shape") if name in self.__dict__}
        return self._with(found)

    def of_slices(self) -> Self:
        """The windows within the slices of the first dimension, each a plane or an image of its own."""
        return self._slices

    @cached_attribute
    def _slices(self) -> Self:
        n, channels, slices, *spatial = self.x_shape
        last = self.layout == "channels_last"
        shape = (n * slices, channels, *spatial) if last else (n, channels * slices, *spatial)
        later = {name: getattr(self, name)[1:] for name in ("kernel", "stride", "padding", "dilation")}
        return self._with({"x_shape": shape, **later})

    @property
    def within_slices(self) -> bool:
        """Whether each slice of the first of three dimensions has its windows alone."""
        return len(self.kernel) == 3 and self.kernel[0] == self.stride[0] == 1 and not any(self.padding[0])

    @cached_attribute
    def extent(self) -> Shape:
        """Elements from the first to the last tap of a window, in each dimension."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    @property
    def tiles(self) -> bool:
        """Whether each element of x belongs to one window, and all windows lie inside."""
        sides = zip(self.x_shape[2:], self.y_shape[2:], self.kernel, self.stride, strict=True)
        inside = not any(map(any, self.padding)) and set(self.dilation) <= {1}
        return inside and all(n == outputs * k and (k == s or outputs == 1) for n, outputs, k, s in sides)

    @cached_attribute
    def windows(self) -> tuple[PoolWindows, ...]:
        """Those of each dimension."""
        return tuple(map(self._along, range(len(self.kernel))))

    @cached_attribute
    def y_shape(self) -> Shape:
        """(N, K, *spatial_out), whatever the layout."""
        return (*self.x_shape[:2], *map(self._count, range(len(self.kernel))))

    def laid(self, shape: Shape) -> Shape:
        """A shape (N, C, *spatial) in x's layout."""
        return array_shape(self.layout, shape)

    @property
    def array_shapes(self) -> tuple[Shape, Shape]:
        """Of x and of y in memory."""
        return self.laid(self.x_shape), array_shape(self.y_layout, self.y_shape)

    @property
    def itemsize(self) -> int:
        return ITEM_BYTES[self.dtype]

    def _count(self, dim: int) -> int:
        """Windows along a dimension; none or less where no window fits."""
        size, stride, (before, after) = self.x_shape[2 + dim], self.stride[dim], self.padding[dim]
        free = size + before + after - self.extent[dim]
        number = free // stride + 1
        further = self.ceil_mode and free % stride and number * stride < size + before
        return number + bool(further)

    def _along(self, dim: int) -> PoolWindows:
        sizes = self.x_shape[2 + dim], self.kernel[dim], self.stride[dim], self.dilation[dim]
        return _windows(*sizes, *self.padding[dim], self._count(dim), self.count_padding)


@lru_cache(512)  # layers of one map size share them
def _windows(
    size: int, kernel: int, stride: int, dilation: int, before: int, after: int, number: int, padded: bool
) -> PoolWindows:
    """So many windows along a dimension. padded: whether a mean counts padding."""
    extent = dilation * (kernel - 1) + 1
    begin = np.arange(number) * stride - before  # of each window, padding included
    skipped = np.maximum(0, -(begin // dilation))  # taps before x
    first = begin + skipped * dilation
    taps = np.clip(-((first - size) // dilation), 0, kernel - skipped)
    counted = np.minimum(begin + extent, size + after) - begin
    divisor = -(-counted // dilation) if padded else taps
    for table in (first, taps, divisor):  # which problems share
        table.flags.writeable = False
    return PoolWindows(size, stride, dilation, before, kernel, first, taps, divisor)
