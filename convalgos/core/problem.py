"""The problem: what to convolve, never how.

`ConvProblem` is the one place that knows output sizes, padding, flops, bytes and the GEMM view of a
convolution. It is immutable and hashable, so it serves as the key of every cache, and it has a short
text form that parses and prints back (`ConvProblem.parse`, `str`).

Shapes are logical: x (N, C, *spatial), w (K, C/groups, *kernel), y (N, K, *spatial_out), with one to
three spatial dimensions. `layout` says in which order x and y lie in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from convalgos.core import arguments, element_types, problem_checks, problem_text, problem_views, taps
from convalgos.core.arguments import DIRECTIONS, LAYOUTS, MODES, IntsLike, PaddingLike, Pads, Shape
from convalgos.core.boundaries import ZERO, checked_border
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.element_types import COMPUTE_DTYPES, DTYPES
from convalgos.core.layouts import array_shape

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

__all__ = ["COMPUTE_DTYPES", "DIRECTIONS", "DTYPES", "LAYOUTS", "MODES", "ConvProblem", "Shape"]


@dataclass(frozen=True, init=False, eq=False)
class ConvProblem:
    """One convolution, from shapes and parameters.

    Args:
        x_shape: (N, C, *spatial), one to three spatial dimensions; any of them may be zero.
        w_shape: (K, C/groups, *kernel).
        stride, dilation: one int of at least 1, or one per spatial dimension.
        padding: one int, one per spatial dimension, (low, high) pairs, or "valid", "same", "full".
            "same" gives ceil(size / stride) outputs, with the odd element of padding on the high side.
        groups: divides C and K.
        mode: "cross_correlation" (no flip) or "convolution" (the filter is flipped).
        layout: memory order of x: "channels_first", "channels_last" or, as `core.layouts` tells, "blocked16".
        y_layout: that of y; by default the same.
        dtype: element type of x, and of w and y where they are not given: a floating-point one, "int8",
            "uint8", or "binary" (+1 and -1). `w_dtype` may be the other of two integers or 8-bit floats.
        direction: "forward", "backward_data" or "backward_weights".
        compute_dtype: what the products are summed in; by default float64 for float64, int32 for integers and
            binary values, else float32.
        y_dtype: of integers "int32" (the default), "int8" or "uint8" (requantised), or "float32"; of 16-bit
            floats themselves or "float32"; of 8-bit floats these or "float32" (the default); of binary values
            "int32" or "float32".
        scales: whether the filter has one scale and zero point, "per_tensor", or "per_channel".
        boundary, fill_value: what lies beyond the edges of x, as `core.boundaries` tells, one name or one per
            spatial dimension: "zero", "constant", "edge", "reflect", "symmetric" or "wrap".
        density, pattern: share of the filter's elements that are not zero, and how they lie: "unstructured",
            "N:M" such as "2:4" along input channels, "blockRxC", or as `core.filter_patterns` tells.

    Raises:
        ValueError: names the argument, its value and what would be valid.

    Example:
        >>> p = ConvProblem((8, 64, 56, 56), (64, 64, 3, 3), padding=1)
        >>> p.y_shape, p.flops
        ((8, 64, 56, 56), 1849688064)
        >>> str(p)
        'n8 c64 h56 w56 k64 r3 s3 p1'
    """

    x_shape: Shape
    w_shape: Shape
    stride: Shape
    padding: Pads  # (low, high) of each spatial dimension
    dilation: Shape
    groups: int
    mode: str
    layout: str
    y_layout: str
    dtype: str
    direction: str
    compute_dtype: str
    w_dtype: str
    y_dtype: str
    scales: str
    density: float
    pattern: str
    boundary: tuple[str, ...]
    fill_value: float

    def __init__(
        self, x_shape: Sequence[int], w_shape: Sequence[int], stride: IntsLike = 1, padding: PaddingLike = 0,
        dilation: IntsLike = 1, groups: int = 1, *, mode: str = "cross_correlation",
        layout: str = "channels_first", dtype: DTypeLike = "float32", direction: str = "forward",
        compute_dtype: DTypeLike | None = None, w_dtype: DTypeLike | None = None,
        y_dtype: DTypeLike | None = None, scales: str = "per_tensor", density: float | None = None,
        pattern: str = "unstructured", y_layout: str | None = None, boundary: str | Sequence[str] = ZERO,
        fill_value: float = 0.0,
    ):  # fmt: skip
        given = (x_shape, w_shape, stride, padding, dilation, groups, mode, layout, y_layout, direction)
        self.__dict__.update(problem_checks.checked_fields(*given))
        self.__dict__.update(element_types.checked_types(dtype, w_dtype, y_dtype, compute_dtype, direction))
        self.__dict__.update(problem_checks.checked_filter(scales, density, pattern))
        self.__dict__.update(checked_border(boundary, fill_value, self.spatial, self.padding))
        problem_checks.check_together(self)

    def __hash__(self) -> int:
        return self._hash

    @cached_attribute
    def _hash(self) -> int:
        """A problem is the key of many caches, and asked for its hash a hundred times in one choice."""
        return hash((self.x_shape, self._layer_hash))

    _layer_hash = cached_attribute(problem_views.layer_hash)

    def __eq__(self, other: object) -> bool:
        return type(other) is ConvProblem and problem_views.are_equal(self, other)

    def __getstate__(self) -> dict[str, Any]:
        """The fields: a hash is good for one process only."""
        known = self.__dict__
        return {name: known[name] for name in self.__dataclass_fields__}

    # --- sizes -------------------------------------------------------------------------------

    @cached_attribute
    def ndim(self) -> int:
        """Number of spatial dimensions: 1, 2 or 3."""
        return len(self.x_shape) - 2

    @cached_attribute
    def N(self) -> int:
        return self.x_shape[0]

    @cached_attribute
    def C(self) -> int:
        return self.x_shape[1]

    @cached_attribute
    def K(self) -> int:
        return self.w_shape[0]

    @cached_attribute
    def spatial(self) -> Shape:
        return self.x_shape[2:]

    @cached_attribute
    def kernel(self) -> Shape:
        return self.w_shape[2:]

    @cached_attribute
    def kernel_extent(self) -> Shape:
        """Input elements that the dilated kernel spans, per dimension."""
        return tuple(d * (r - 1) + 1 for r, d in zip(self.kernel, self.dilation, strict=True))

    @cached_attribute
    def spatial_out(self) -> Shape:
        return tuple(
            max(0, (size + low + high - reach) // step + 1)
            for size, (low, high), reach, step in zip(
                self.spatial, self.padding, self.kernel_extent, self.stride, strict=True
            )
        )

    @cached_attribute
    def y_shape(self) -> Shape:
        """(N, K, *spatial_out)."""
        return (self.N, self.K, *self.spatial_out)

    def array_shape(self, shape: Shape) -> Shape:
        """The shape of the array that holds a logical (N, C, *spatial) shape in x's layout."""
        return array_shape(self.layout, shape)

    @property
    def arrays(self) -> tuple[str, str, str]:
        """Names of the arrays of a run: what it reads first and second, and what it writes."""
        return arguments.ARRAYS[self.direction]

    @cached_attribute
    def array_shapes(self) -> tuple[Shape, Shape, Shape]:
        """Shapes of these arrays in memory; a gradient has the shape of what it is the gradient of."""
        return problem_views.array_shapes(self)

    @property
    def result_shape(self) -> Shape:
        """Of the array that a run writes, logical."""
        return {"y": self.y_shape, "dx": self.x_shape, "dw": self.w_shape}[self.arrays[2]]

    def logical(self, which: int, array: Any) -> Any:
        """One of these three arrays with its channels first: a view, or of blocked layouts a copy."""
        return problem_views.logical_array(self, self.arrays[which], array)

    @property
    def reduction(self) -> int:
        """Products that are summed for an element of the result, at most."""
        return problem_views.reduction(self)

    @property
    def bias_size(self) -> int:
        """Elements of a bias: one for each channel of the result."""
        return self.C if self.direction == "backward_data" else self.K

    @property
    def is_depthwise(self) -> bool:
        """One input channel per group, one or more filters for each."""
        return self.groups > 1 and self.groups == self.C

    @cached_attribute
    def is_pointwise(self) -> bool:
        return all(r == 1 for r in self.kernel)

    @cached_attribute
    def is_plain_product(self) -> bool:
        """Pointwise without stride or padding: x as it lies is the matrix that the filter multiplies."""
        return self.is_pointwise and set(self.stride) == {1} and set(self.padding) == {(0, 0)}

    @cached_attribute
    def is_zero_padded(self) -> bool:
        """Whether what lies beyond the edges is zero, in every dimension."""
        return set(self.boundary) <= {ZERO}

    @cached_attribute
    def is_empty(self) -> bool:
        """Nothing to sum: y is empty, or every one of its elements is a sum of nothing, or of padding."""
        empty = 0 in self.x_shape or 0 in self.w_shape or 0 in self.y_shape
        return empty or (self.is_zero_padded and taps.meets_padding_only(self))

    @property
    def x_dtype(self) -> str:
        """`dtype`."""
        return self.dtype

    @cached_attribute
    def itemsize(self) -> int:
        """Bytes of an element of x."""
        return element_types.ITEM_BYTES[self.dtype]

    def dtype_of(self, name: str) -> str:
        """Element type of "x", "w" or "y", or of a gradient of it, such as "dx"."""
        return {"x": self.dtype, "w": self.w_dtype, "y": self.y_dtype}[name[-1]]

    @property
    def sums_integers(self) -> bool:
        """Whether products are exact and summed in int32."""
        return self.compute_dtype == "int32"

    @property
    def eps(self) -> float:
        """Spacing at 1 of the numbers that products and y are rounded to; 0 where both are integers."""
        bits = element_types.EXPLICIT_BITS.get(self.dtype) or element_types.EXPLICIT_BITS.get(self.y_dtype)
        return 2.0**-bits if bits else 0.0  # products of 8 bits are exact

    # --- work --------------------------------------------------------------------------------

    @cached_attribute
    def gemm_m(self) -> int:
        """N*P*Q: rows of the GEMM view, of one group."""
        return self.N * math.prod(self.spatial_out)

    @cached_attribute
    def gemm_n(self) -> int:
        """K/groups."""
        return self.K // self.groups

    @cached_attribute
    def gemm_k(self) -> int:
        """C/groups*R*S."""
        return math.prod(self.w_shape[1:])

    @cached_attribute
    def flops(self) -> int:
        """Multiplications and additions of the direct convolution (padding counted as data)."""
        return 2 * self.gemm_m * self.K * self.gemm_k

    @cached_attribute
    def x_bytes(self) -> int:
        return math.prod(self.x_shape) * self.itemsize

    @cached_attribute
    def w_bytes(self) -> int:
        return math.prod(self.w_shape) * element_types.ITEM_BYTES[self.w_dtype]

    @cached_attribute
    def y_bytes(self) -> int:
        return math.prod(self.y_shape) * element_types.ITEM_BYTES[self.y_dtype]

    @cached_attribute
    def bytes(self) -> int:
        """Least traffic: x and w read once, y written once."""
        return self.x_bytes + self.w_bytes + self.y_bytes

    # --- other views -------------------------------------------------------------------------

    def replace(self, **changes: Any) -> ConvProblem:
        """The same problem with some fields changed, checked again.

        Types that were left to their defaults follow a change of dtype.
        """
        if "layout" in changes and self.y_layout == self.layout:
            changes.setdefault("y_layout", None)
        if "dtype" in changes:
            for name, default in element_types.defaults(self.dtype).items():
                if getattr(self, name) == default:
                    changes.setdefault(name, None)
        return replace(self, **changes)

    def with_valid(self, **changes: Any) -> ConvProblem:
        """`replace` by fields that are known to be valid, in their final form: nothing is checked."""
        return problem_views.made_of(self, self.__getstate__() | changes)  # type: ignore[no-any-return]

    @cached_attribute
    def relaid(self) -> ConvProblem:
        """The same problem in the other of the two plain layouts."""
        other = LAYOUTS[self.layout == "channels_first"]
        return self.with_valid(layout=other, y_layout=other)

    @cached_attribute
    def reread(self) -> ConvProblem:
        """The problem of the same memory that is faster to compute: `merged`, in the other layout, or itself.

        Maps of one channel or of one pixel are the same in both layouts; rows, or channels, fill vectors.
        """
        return problem_views.reread(self)  # type: ignore[no-any-return]

    @cached_attribute
    def as_3d(self) -> ConvProblem:
        """The same work with three spatial dimensions, leading ones of size 1 put in front."""
        return problem_views.in_3d(self)  # type: ignore[no-any-return]

    of_layer = cached_attribute(problem_views.of_layer)

    # --- text --------------------------------------------------------------------------------

    def __str__(self) -> str:
        return problem_text.written(self)

    @classmethod
    def parse(cls, text: str) -> ConvProblem:
        """Read the short text form.

        Words in any order: sizes `n8 c64 d16 h56 w56 k64 t3 r3 s3` (1-D uses `w` and `s`, 2-D `h w` and
        `r s`), padding `p1`, `p1,2`, `p0:1,2:2` or `psame`, then `stride2`, `dilation2`, `groups32`
        (one number, or one per dimension as in `stride2,1`), a boundary such as `reflect`, `wrap,zero` or
        `constant fill0.5`, a layout, a mode, a direction, a dtype, `w_DTYPE`, `y_DTYPE`, `compute_DTYPE`,
        `per_channel`, `density0.1` and a pattern. `n` defaults to 1.

        Raises:
            ValueError: says which word is not understood, given twice or missing.
        """
        return cls(**problem_text.read(text))
