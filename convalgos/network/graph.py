"""A network as a graph: values, and the steps that compute them.

A value is an array that one step writes and others read, by name; its shape is logical, (N, C, *spatial) of
maps. Steps are in an order in which each reads what was written before it. What this library does not compute
itself is a `Foreign` step, a region that another library runs. Shapes are not part of the graph: `shapes_of`
finds them for those of its inputs, so that one graph serves every batch and every size of image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from convalgos.core.arguments import Pads, Shape
from convalgos.core.boundaries import ZERO
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.epilogue import Activation
from convalgos.core.moves import broadcast_together, scaled_size, viewed_shape
from convalgos.core.pool_problem import PoolProblem
from convalgos.core.problem import ConvProblem
from convalgos.core.transposed_sizes import transposed_spatial
from convalgos.network.layer_problems import convolution_problem, pool_problem
from convalgos.network.reached_taps import of_reached_taps
from convalgos.network.sizes_of_run import naming_step

Shapes = Mapping[str, Shape]  # of values by name
Sizes = Shape | np.ndarray  # the shape of a value, or of a few integers what they are


@dataclass(frozen=True, eq=False)
class Step:
    """Computes one value from others. Steps are compared by identity: two may compute the same."""

    name: str  # of the node that it comes from, for reports
    inputs: tuple[str, ...]
    output: str

    @property
    def outputs(self) -> tuple[str, ...]:
        """Values that it writes: one, but for regions of another library."""
        return (self.output,)

    def output_shape(self, shapes: Shapes) -> Shape:
        """The shape of its output, from those of its inputs.

        Raises:
            ValueError: the inputs do not go together.
        """
        raise NotImplementedError

    def add_shapes(self, shapes: dict[str, Shape], sizes: dict[str, np.ndarray]) -> None:
        """Add the shapes of its outputs to those of all values before it.

        Args:
            sizes: values that are sizes, which steps compute of shapes and others read.

        Raises:
            ValueError: the inputs do not go together.
        """
        shapes[self.output] = self.output_shape(shapes)


@dataclass(frozen=True, eq=False)
class Convolution(Step):
    """activation(conv(x, w) + bias + residual); inputs: (x,) or (x, residual)."""

    w: np.ndarray  # (K, C/groups, *kernel)
    bias: np.ndarray | None = None  # (K,)
    stride: Shape = ()
    padding: Pads | str = ()  # "same" is known with the size of the map only
    dilation: Shape = ()
    groups: int = 1
    activation: Activation | None = None
    boundary: str | tuple[str, ...] = ZERO
    fill_value: float = 0.0

    def problem(self, x_shape: Shape) -> ConvProblem:
        """What is convolved of an x of this shape: `reached_filter` gives the taps of w that it has."""
        for known in self._last:
            if known.x_shape == x_shape:
                return known
        problem = convolution_problem(
            x_shape, self.w.shape, self.stride, self.padding, self.dilation, self.groups, self.w.dtype,
            "forward", self.boundary, self.fill_value,
        )  # fmt: skip
        if self.groups == 1 and problem.is_zero_padded:
            problem = of_reached_taps(problem)
        self._last[:] = [problem]
        return problem

    @cached_attribute
    def _last(self) -> list[ConvProblem]:
        """The problem that was asked for last, if any."""
        return []

    def output_shape(self, shapes: Shapes) -> Shape:
        return self.problem(shapes[self.inputs[0]]).y_shape


@dataclass(frozen=True, eq=False)
class TransposedConvolution(Step):
    """activation(conv_transpose(x, w) + bias + residual); inputs: (x,) or (x, residual)."""

    w: np.ndarray  # (channels of x, channels of y / groups, *kernel)
    bias: np.ndarray | None = None
    stride: Shape = ()
    padding: Pads | str = ()
    dilation: Shape = ()
    output_padding: Shape = ()
    groups: int = 1
    activation: Activation | None = None

    def output_shape(self, shapes: Shapes) -> Shape:
        x, w = shapes[self.inputs[0]], self.w.shape
        geometry = self.stride, self.padding, self.dilation, self.output_padding
        return (x[0], w[1] * self.groups, *transposed_spatial(x[2:], w[2:], *geometry))

    def problem(self, x_shape: Shape) -> ConvProblem:
        """The convolution whose transpose this is, in direction backward_data, for an x of this shape."""
        y_shape = self.output_shape({self.inputs[0]: x_shape})
        return convolution_problem(
            y_shape, self.w.shape, self.stride, self.padding, self.dilation, self.groups, self.w.dtype,
            "backward_data",
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Pooling(Step):
    """The maximum or the mean of windows; kernel None takes the whole of x."""

    reduction: str = "max"
    kernel: Shape | None = None
    stride: Shape | None = None
    padding: Pads | str = ()
    dilation: Shape = ()
    ceil_mode: bool = False
    count_padding: bool = False

    def problem(self, x_shape: Shape, dtype: str = "float32") -> PoolProblem:
        return pool_problem(
            x_shape, self.kernel, stride=self.stride, padding=self.padding or 0, dilation=self.dilation or 1,
            ceil_mode=self.ceil_mode, reduction=self.reduction, count_padding=self.count_padding, dtype=dtype,
        )  # fmt: skip

    def output_shape(self, shapes: Shapes) -> Shape:
        return self.problem(shapes[self.inputs[0]]).y_shape


@dataclass(frozen=True, eq=False)
class Elementwise(Step):
    """activation(a + b), (a * b), (a - b), (a / b), of a, or a slope (`ElementwisePlan`); b of all but "add"
    may have one number a map: (N, C, 1, 1)."""

    operation: str = "identity"  # "add", "shift", "multiply", "subtract", "divide", "slope" or "identity"
    activation: Activation | None = None
    constant: np.ndarray | None = None  # b where it is not computed; any part of a, as where b `broadcasts`
    broadcasts: bool = False

    def output_shape(self, shapes: Shapes) -> Shape:
        known = [] if self.constant is None else [self.constant.shape]
        return broadcast_together(*[shapes[name] for name in self.inputs], *known)


@dataclass(frozen=True, eq=False)
class LayerNormalization(Step):
    """Each pixel less the mean of its channels, over their deviation; then times scale, plus shift."""

    scale: np.ndarray | None = None  # (C,)
    shift: np.ndarray | None = None
    epsilon: float = 1e-5
    centred: bool = True  # else no mean is taken away, and the deviation is the root mean square
    largest: float = math.inf  # that 1 / deviation may be

    def output_shape(self, shapes: Shapes) -> Shape:
        return shapes[self.inputs[0]]


@dataclass(frozen=True, eq=False)
class LocalResponseNormalization(Step):
    """x / (bias + alpha / size * sum of the squares of a window of channels) ^ beta."""

    size: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0

    def output_shape(self, shapes: Shapes) -> Shape:
        return shapes[self.inputs[0]]


@dataclass(frozen=True, eq=False)
class Transpose(Step):
    """Dimension i is `order[i]` of x: the channels go to the last one, or come from there. Nothing is moved:
    (N, C, *spatial) in channels_last is the very array (N, *spatial, C)."""

    order: Shape = ()

    def output_shape(self, shapes: Shapes) -> Shape:
        x = shapes[self.inputs[0]]
        return tuple(x[i] for i in self.order)


def channels_to_last(rank: int) -> Shape:
    """The order of a transpose (N, C, *spatial) -> (N, *spatial, C)."""
    return (0, *range(2, rank), 1)


def channels_from_last(rank: int) -> Shape:
    """The order of a transpose (N, *spatial, C) -> (N, C, *spatial)."""
    return (0, rank - 1, *range(1, rank - 1))


@dataclass(frozen=True, eq=False)
class Concatenation(Step):
    """Its inputs side by side along the channels."""

    def output_shape(self, shapes: Shapes) -> Shape:
        first = shapes[self.inputs[0]]
        return (first[0], sum(shapes[name][1] for name in self.inputs), *first[2:])


@dataclass(frozen=True, eq=False)
class ChannelSelection(Step):
    """Chosen channels of its inputs, which are side by side: slices, shuffles."""

    order: np.ndarray | None = None  # (K,), of the channels of all inputs

    def output_shape(self, shapes: Shapes) -> Shape:
        first, count = shapes[self.inputs[0]], sum(shapes[name][1] for name in self.inputs)
        assert self.order is not None
        if self.order.size and self.order.max() >= count:
            raise ValueError(f"channel {self.order.max()} is chosen of {count}")
        return (first[0], len(self.order), *first[2:])


@dataclass(frozen=True, eq=False)
class Upsampling(Step):
    """Each element of x repeated by a whole factor along each spatial dimension (nearest neighbour)."""

    factors: Shape = ()

    def output_shape(self, shapes: Shapes) -> Shape:
        x = shapes[self.inputs[0]]
        return (*x[:2], *(n * f for n, f in zip(x[2:], self.factors, strict=True)))


@dataclass(frozen=True, eq=False)
class Resizing(Step):
    """x in another size, by linear interpolation: `sizes`, or those of x times `scales`, rounded down."""

    sizes: Shape = ()
    scales: tuple[float, ...] = ()  # by which coordinates are divided, too; () for what sizes make
    coordinates: str = "half_pixel"  # see `cpu.elementwise.resizing.resized_coordinates`

    def output_shape(self, shapes: Shapes) -> Shape:
        x = shapes[self.inputs[0]]
        scaled = tuple(scaled_size(n, s) for n, s in zip(x[2:], self.scales, strict=False))
        return (*x[:2], *(self.sizes or scaled))


@dataclass(frozen=True, eq=False)
class View(Step):
    """The same elements, in channels_first, in another shape: 0 keeps a size, -1 takes the rest."""

    shape: Shape = ()
    back: Shape = ()  # in which they are seen as they were; none where it is not known

    def output_shape(self, shapes: Shapes) -> Shape:
        return viewed_shape(shapes[self.inputs[0]], self.shape)


class ForeignRegion(Protocol):
    """What another library runs: it takes and gives arrays in channels_first, without copies where it can."""

    library: str  # "onnxruntime", "torch"
    what: str  # it computes, in few words: names of its operators
    operators: Sequence[str]  # their names, in the order in which they run

    def shapes(self, inputs: Sequence[Sizes]) -> Sequence[Sizes]:
        """Of its outputs; of values that are sizes, the values."""

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Write the outputs, whose arrays are given."""


@dataclass(frozen=True, eq=False)
class Foreign(Step):
    """A region of the network that another library runs; of its outputs, `output` is the first."""

    region: ForeignRegion | None = None
    others: tuple[str, ...] = ()
    opens: bool = False  # only a run knows the shapes of its outputs

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.output, *self.others)

    def add_shapes(self, shapes: dict[str, Shape], sizes: dict[str, np.ndarray]) -> None:
        assert self.region is not None
        found = self.region.shapes([sizes.get(name, shapes[name]) for name in self.inputs])
        for name, own in zip(self.outputs, found, strict=True):
            if isinstance(own, np.ndarray):
                sizes[name] = own
            shapes[name] = own.shape if isinstance(own, np.ndarray) else tuple(own)


@dataclass(frozen=True)
class NetworkGraph:
    """Inputs and outputs by name, and the steps between them, each behind those whose outputs it reads."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[Step, ...]
    shapes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)  # of the inputs, as declared
    dtypes: Mapping[str, str] = field(default_factory=dict)  # of values that are not float32

    def shapes_of(self, inputs: Shapes) -> dict[str, Shape]:
        """The shape of every value, from those of the inputs.

        Raises:
            ValueError: an input is missing, or shapes do not go together; names the step.
        """
        if missing := [name for name in self.inputs if name not in inputs]:
            raise ValueError(f"inputs lack {', '.join(map(repr, missing))}; the network has {self.inputs}")
        shapes = {name: tuple(inputs[name]) for name in self.inputs}
        sizes: dict[str, np.ndarray] = {}
        for step in self.steps:
            try:
                step.add_shapes(shapes, sizes)
            except ValueError as error:
                raise naming_step(step.name, error) from None
        return shapes

    def input_elements(self, shapes: Shapes) -> int:
        """Of all inputs; the work on other sizes of them is about as many times as much."""
        return sum(math.prod(shapes[name]) for name in self.inputs)

    def readers(self) -> dict[str, list[Step]]:
        """The steps that read each value; none for outputs of the network that nobody reads."""
        found: dict[str, list[Step]] = {name: [] for name in self.inputs}
        for step in self.steps:
            found |= {name: [] for name in step.outputs}
            for name in step.inputs:
                found[name].append(step)
        return found
