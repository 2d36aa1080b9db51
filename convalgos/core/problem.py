"""The problem: what to convolve, never how.

`ConvProblem` is the one place that knows output sizes, padding, flops, bytes and the GEMM view of a
convolution. It is immutable and hashable, so it serves as the key of every cache, and it has a short
text form that parses and prints back (`ConvProblem.parse`, `str`).

Shapes are logical: x (N, C, *spatial), w (K, C/groups, *kernel), y (N, K, *spatial_out), with one to
three spatial dimensions. `layout` says in which order x and y lie in memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from convalgos.core import arguments, problem_text
from convalgos.core.arguments import COMPUTE_DTYPES, DIRECTIONS, DTYPES, LAYOUTS, MODES, Shape
from convalgos.core.cached_attribute import kept

EXPLICIT_BITS = {"float32": 23, "float64": 52, "float16": 10, "bfloat16": 7}  # of the significand
LARGEST_COUNT = 2**63 - 1
ARRAYS = {  # direction -> what a run reads first and second, and what it writes
    "forward": ("x", "w", "y"),
    "backward_data": ("dy", "w", "dx"),
    "backward_weights": ("x", "dy", "dw"),
}


@dataclass(frozen=True)
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
        layout: "channels_first" or "channels_last", the memory order of x and y.
        dtype: element type of x, w and y.
        direction: "forward", "backward_data" or "backward_weights".
        compute_dtype: what the products are computed in; by default float64 for float64, else float32.

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
    stride: Any = 1  # Shape once constructed
    padding: Any = 0  # Pads once constructed
    dilation: Any = 1  # Shape once constructed
    groups: int = 1
    mode: str = field(default="cross_correlation", kw_only=True)
    layout: str = field(default="channels_first", kw_only=True)
    dtype: str = field(default="float32", kw_only=True)
    direction: str = field(default="forward", kw_only=True)
    compute_dtype: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("x_shape", arguments.shape("x_shape", self.x_shape))
        put("w_shape", arguments.shape("w_shape", self.w_shape))
        if not 3 <= len(self.x_shape) <= 5:
            raise ValueError(
                f"x_shape={self.x_shape} must be (N, C, *spatial) with 1, 2 or 3 spatial dimensions"
            )
        if len(self.w_shape) != len(self.x_shape):
            raise ValueError(
                f"w_shape={self.w_shape} must be (K, C/groups, *kernel) with as many dimensions as "
                f"x_shape={self.x_shape}"
            )
        if min(self.w_shape[2:]) < 1:
            raise ValueError(f"w_shape={self.w_shape} must have kernel sizes of at least 1")
        put("stride", arguments.per_dim("stride", self.stride, self.ndim, 1))
        put("dilation", arguments.per_dim("dilation", self.dilation, self.ndim, 1))
        put("groups", arguments.integer("groups", self.groups, 1))
        self._check_channels()
        for name, allowed in (("mode", MODES), ("layout", LAYOUTS), ("direction", DIRECTIONS)):
            arguments.one_of(name, getattr(self, name), allowed)
        put("dtype", arguments.one_of("dtype", arguments.dtype_name(self.dtype), tuple(DTYPES)))
        compute = arguments.default_compute(self.dtype) if self.compute_dtype is None else self.compute_dtype
        put("compute_dtype", arguments.one_of("compute_dtype", arguments.dtype_name(compute), COMPUTE_DTYPES))
        put("padding", arguments.pads(self.padding, self.spatial, self.kernel, self.stride, self.dilation))
        self._check_extent()
        self._check_counts()

    def __hash__(self) -> int:
        """Kept: a problem is the key of many caches, and asked for its hash a hundred times in one choice."""
        kept = self.__dict__.get("_hash")
        if kept is None:
            kept = hash(tuple(self.__dict__[f] for f in self.__dataclass_fields__))
            object.__setattr__(self, "_hash", kept)
        return kept

    def __getstate__(self) -> dict[str, Any]:
        """The fields: a hash is good for one process only."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def _check_channels(self) -> None:
        if self.C % self.groups:
            raise ValueError(f"groups={self.groups} must divide the C={self.C} channels of x")
        if self.K % self.groups:
            raise ValueError(f"groups={self.groups} must divide the K={self.K} filters of w")
        if self.w_shape[1] != self.C // self.groups:
            raise ValueError(
                f"w_shape={self.w_shape} must have C/groups = {self.C}/{self.groups} = "
                f"{self.C // self.groups} input channels in its second dimension"
            )

    def _check_extent(self) -> None:
        for size, (low, high), reach in zip(self.spatial, self.padding, self.kernel_extent, strict=True):
            if size and size + low + high < reach:
                raise ValueError(
                    f"padding={self.padding} must make x_shape={self.x_shape} at least as large as "
                    f"the (dilated) kernel, which spans {self.kernel_extent}"
                )

    def _check_counts(self) -> None:
        """Addresses and counts are 64-bit integers in compiled code."""
        padded = [size + low + high for size, (low, high) in zip(self.spatial, self.padding, strict=True)]
        for what, shape in (
            (f"x_shape={self.x_shape}", self.x_shape),
            (f"w_shape={self.w_shape}", self.w_shape),
            (f"padding={self.padding} of x_shape={self.x_shape}", (self.N, self.C, *padded)),
            (f"y of shape {self.y_shape}", self.y_shape),
        ):
            if math.prod(shape) > arguments.LARGEST:
                raise arguments.TooLarge(
                    f"{what} has more elements than an array can have, {arguments.LARGEST}"
                )
        if self.flops > LARGEST_COUNT:
            raise arguments.TooLarge(
                f"x_shape={self.x_shape} and w_shape={self.w_shape} take {self.flops:.1e} flops, more than "
                "any computer does in a year"
            )

    # --- sizes -------------------------------------------------------------------------------

    @kept
    def ndim(self) -> int:
        """Number of spatial dimensions: 1, 2 or 3."""
        return len(self.x_shape) - 2

    @kept
    def N(self) -> int:
        return self.x_shape[0]

    @kept
    def C(self) -> int:
        return self.x_shape[1]

    @kept
    def K(self) -> int:
        return self.w_shape[0]

    @kept
    def spatial(self) -> Shape:
        return self.x_shape[2:]

    @kept
    def kernel(self) -> Shape:
        return self.w_shape[2:]

    @kept
    def kernel_extent(self) -> Shape:
        """Input elements that the dilated kernel spans, per dimension."""
        return tuple(d * (r - 1) + 1 for r, d in zip(self.kernel, self.dilation, strict=True))

    @kept
    def spatial_out(self) -> Shape:
        return tuple(
            max(0, (size + low + high - reach) // step + 1)
            for size, (low, high), reach, step in zip(
                self.spatial, self.padding, self.kernel_extent, self.stride, strict=True
            )
        )

    def taps_met(self, dimension: int) -> int:
        """Kernel elements that meet the input and not its padding, summed over the outputs of a dimension."""
        low, stride, dilation = self.padding[dimension][0], self.stride[dimension], self.dilation[dimension]
        size, outputs, met = self.spatial[dimension], self.spatial_out[dimension], 0
        for tap in range(self.kernel[dimension]):
            before = low - tap * dilation  # elements of padding before the one under the first output
            first = max(0, -(-before // stride))
            met += max(0, min(outputs, (size + before - 1) // stride + 1) - first)
        return met

    def taps_meeting(self, dimension: int, output: int) -> tuple[int, int, int]:
        """(input under the first kernel element of an output that meets the input, that one, their end)."""
        start = output * self.stride[dimension] - self.padding[dimension][0]
        size, taps, dilation = self.spatial[dimension], self.kernel[dimension], self.dilation[dimension]
        first = min(taps, -(min(0, start) // dilation))
        end = min(taps, (size - 1 - start) // dilation + 1)
        return start + first * dilation, first, max(first, end)

    @kept
    def y_shape(self) -> Shape:
        """(N, K, *spatial_out)."""
        return (self.N, self.K, *self.spatial_out)

    def array_shape(self, shape: Shape) -> Shape:
        """The shape of the array that holds a logical (N, C, *spatial) shape in this layout."""
        if self.layout == "channels_first":
            return shape
        return (shape[0], *shape[2:], shape[1])

    @property
    def arrays(self) -> tuple[str, str, str]:
        """Names of the arrays of a run: what it reads first and second, and what it writes."""
        return ARRAYS[self.direction]

    @kept
    def array_shapes(self) -> tuple[Shape, Shape, Shape]:
        """Shapes of these arrays in memory; a gradient has the shape of what it is the gradient of."""
        shapes = {
            "x": self.array_shape(self.x_shape),
            "w": self.w_shape,
            "y": self.array_shape(self.y_shape),
        }
        first, second, result = (shapes[name[-1]] for name in self.arrays)
        return first, second, result

    @property
    def result_shape(self) -> Shape:
        """Of the array that a run writes, logical."""
        return {"y": self.y_shape, "dx": self.x_shape, "dw": self.w_shape}[self.arrays[2]]

    def logical(self, which: int, array: Any) -> Any:
        """A view of one of these three arrays with its channels first."""
        if self.layout == "channels_first" or self.arrays[which][-1] == "w":  # of filters there is one form
            return array
        return array.transpose(0, -1, *range(1, array.ndim - 1))

    @property
    def reduction(self) -> int:
        """Products that are summed for an element of the result, at most."""
        if self.direction == "backward_weights":
            return self.gemm_m
        if self.direction == "backward_data":
            return self.gemm_n * math.prod(self.kernel)
        return self.gemm_k

    @property
    def bias_size(self) -> int:
        """Elements of a bias: one for each channel of the result."""
        return self.C if self.direction == "backward_data" else self.K

    @property
    def is_depthwise(self) -> bool:
        """One input channel per group, one or more filters for each."""
        return self.groups > 1 and self.groups == self.C

    @property
    def is_pointwise(self) -> bool:
        return all(r == 1 for r in self.kernel)

    @kept
    def is_empty(self) -> bool:
        """Nothing to sum: y is empty, or every one of its elements is a sum of nothing, or of padding."""
        if 0 in self.x_shape or 0 in self.w_shape or 0 in self.y_shape:
            return True
        return any(
            (out - 1) * step + reach <= low  # where the last output ends, from the first element of padding
            for out, step, reach, (low, _) in zip(
                self.spatial_out, self.stride, self.kernel_extent, self.padding, strict=True
            )
        )

    @kept
    def itemsize(self) -> int:
        return DTYPES[self.dtype]

    @property
    def eps(self) -> float:
        """Spacing of the dtype's numbers at 1."""
        return 2.0 ** -EXPLICIT_BITS[self.dtype]

    # --- work --------------------------------------------------------------------------------

    @kept
    def gemm_m(self) -> int:
        """N*P*Q: rows of the GEMM view, of one group."""
        return self.N * math.prod(self.spatial_out)

    @kept
    def gemm_n(self) -> int:
        """K/groups."""
        return self.K // self.groups

    @kept
    def gemm_k(self) -> int:
        """C/groups*R*S."""
        return math.prod(self.w_shape[1:])

    @kept
    def flops(self) -> int:
        """Multiplications and additions of the direct convolution (padding counted as data)."""
        return 2 * self.gemm_m * self.K * self.gemm_k

    @kept
    def x_bytes(self) -> int:
        return math.prod(self.x_shape) * self.itemsize

    @kept
    def w_bytes(self) -> int:
        return math.prod(self.w_shape) * self.itemsize

    @kept
    def y_bytes(self) -> int:
        return math.prod(self.y_shape) * self.itemsize

    @kept
    def bytes(self) -> int:
        """Least traffic: x and w read once, y written once."""
        return self.x_bytes + self.w_bytes + self.y_bytes

    # --- other views -------------------------------------------------------------------------

    def replace(self, **changes: Any) -> ConvProblem:
        """The same problem with some fields changed, checked again.

        A compute_dtype that was left to its default follows a change of dtype.
        """
        if "dtype" in changes and self.compute_dtype == arguments.default_compute(self.dtype):
            changes.setdefault("compute_dtype", None)
        return replace(self, **changes)

    def with_valid(self, **changes: Any) -> ConvProblem:
        """`replace` by fields that are known to be valid, in their final form: nothing is checked."""
        made = object.__new__(ConvProblem)
        made.__dict__.update(self.__getstate__(), **changes)
        return made

    @kept
    def relaid(self) -> ConvProblem:
        """The same problem in the other layout."""
        first = self.layout == "channels_first"
        return self.with_valid(layout="channels_last" if first else "channels_first")

    @kept
    def reread(self) -> ConvProblem:
        """The problem in the layout in which the same memory is faster to compute, or itself.

        Maps of one channel are the same memory in both layouts, and rows of pixels fill vectors. So are maps
        of one pixel, where channels do.
        """
        if math.prod(self.spatial) == math.prod(self.spatial_out) == 1:
            return self if self.layout == "channels_last" else self.relaid
        if self.C == self.K == 1 and self.layout == "channels_last":
            return self.relaid
        return self

    @kept
    def as_3d(self) -> ConvProblem:
        """The same work with three spatial dimensions, leading ones of size 1 put in front."""
        missing = 3 - self.ndim
        if not missing:
            return self
        ones = (1,) * missing
        return self.with_valid(
            x_shape=(*self.x_shape[:2], *ones, *self.spatial),
            w_shape=(*self.w_shape[:2], *ones, *self.kernel),
            stride=(*ones, *self.stride),
            dilation=(*ones, *self.dilation),
            padding=(*(((0, 0),) * missing), *self.padding),
        )

    # --- text --------------------------------------------------------------------------------

    def __str__(self) -> str:
        return problem_text.written(self)

    @classmethod
    def parse(cls, text: str) -> ConvProblem:
        """Read the short text form.

        Words in any order: sizes `n8 c64 d16 h56 w56 k64 t3 r3 s3` (1-D uses `w` and `s`, 2-D `h w` and
        `r s`), padding `p1`, `p1,2`, `p0:1,2:2` or `psame`, then `stride2`, `dilation2`, `groups32`
        (one number, or one per dimension as in `stride2,1`), a layout, a mode, a direction, a dtype and
        `compute_DTYPE`. `n` defaults to 1.

        Raises:
            ValueError: says which word is not understood, given twice or missing.
        """
        return cls(**problem_text.read(text))


# --- transposed convolution ---------------------------------------------------------------


def transposed_spatial(
    sizes: Shape, kernel: Shape, stride: Any, padding: Any, dilation: Any, output_padding: Any
) -> Shape:
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


def transposed_rows(stride: Any, output_padding: Any, ndim: int) -> Shape:
    """Rows of zeros that x of a transposed convolution lacks on the high side, per dimension.

    A map of `transposed_spatial` has a whole stride more, and the convolution an output, for each of them.
    """
    steps = arguments.per_dim("stride", stride, ndim, 1)
    more = arguments.per_dim("output_padding", output_padding, ndim, 0)
    return tuple(m // s for m, s in zip(more, steps, strict=True))
