"""A depthwise convolution and the ones around it: what is computed in one step."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple, Self

from convalgos.core.arguments import Shape
from convalgos.core.layouts import BLOCKS
from convalgos.core.problem import ConvProblem
from convalgos.core.problem_views import SMALL, on_map, y_shape_on
from convalgos.cpu.gemm.blocked_cut import lies_in_blocks
from convalgos.cpu.vectors import simd


class BlockSizes(NamedTuple):
    """The sizes of the maps of a block."""

    x_shape: Shape
    read: tuple[int, int]  # rows and columns of what its depthwise convolution reads,
    written: tuple[int, int]  # and of what it writes

    @property
    def images(self) -> int:
        return self.x_shape[0]


class BlockShapes:
    """The shapes of what the convolutions of a block write, on maps of any size."""

    def __init__(self, block: SeparableBlock):
        self._block, problems = block, block.problems
        self._steps = [(p.K, None if p.is_plain_product else _steps_of(p)) for p in problems]
        self._pads = tuple([sum(sum(p.padding[axis]) for p in problems) for axis in (0, 1)])
        widest = max(problems[0].C, *[p.K for p in problems])
        self._work = 2 * widest * max(p.gemm_k for p in problems)  # of a pixel, at most

    def on(self, x_shape: Shape) -> list[Shape] | None:
        """`SeparableBlock.shapes_on`, of usual sizes by few steps."""
        images, _, h, w = x_shape
        if not 0 < images * h * w <= (h + self._pads[0]) * (w + self._pads[1]) * images * self._work <= SMALL:
            return self._block.shapes_on(x_shape)
        found = [x_shape]
        for filters, steps in self._steps:
            if steps is not None:
                (pad_h, reach_h, stride_h, low_h), (pad_w, reach_w, stride_w, low_w) = steps
                h, w = (h + pad_h - reach_h) // stride_h, (w + pad_w - reach_w) // stride_w
                if h < 0 or w < 0 or h * stride_h + reach_h <= low_h or w * stride_w + reach_w <= low_w:
                    return self._block.shapes_on(x_shape)
                h, w = h + 1, w + 1
            found.append((images, filters, h, w))
        return found


def _steps_of(problem: ConvProblem) -> tuple[tuple[int, int, int, int], ...]:
    """Padding, reach, stride and padding in front of a convolution along each dimension."""
    of_axes = zip(problem.padding, problem.kernel_extent, problem.stride, strict=True)
    return tuple([(sum(pads), reach, step, pads[0]) for pads, reach, step in of_axes])


class SeparableBlock(NamedTuple):
    """y = projection(depthwise(expansion(x))); at least one of the outer two is there.

    MobileNetV2's inverted residuals have all three, other networks leave out the first or the last. These are
    pointwise; or the expansion is the first layer of a network, which `reads_planes`.
    """

    expansion: ConvProblem | None
    depthwise: ConvProblem
    projection: ConvProblem | None

    @property
    def problems(self) -> tuple[ConvProblem, ...]:
        """Of the convolutions, in order."""
        return tuple(problem for problem in self if problem is not None)

    @property
    def parts(self) -> tuple[str, ...]:
        """Which convolutions there are, in order."""
        return tuple(name for name in self._fields if getattr(self, name) is not None)

    @property
    def sizes(self) -> BlockSizes:
        """Of its maps."""
        (h, w), (h_out, w_out) = self.depthwise.spatial, self.depthwise.spatial_out
        return BlockSizes(self.problems[0].x_shape, (h, w), (h_out, w_out))

    def shapes_on(self, x_shape: Shape) -> list[Shape] | None:
        """Those of x and of what each convolution writes, on maps of other sizes; None where one has to be
        looked at closely."""
        found = [x_shape]
        for problem in self.problems:
            y_shape = y_shape_on(problem, found[-1])
            if y_shape is None:
                return None
            found.append(y_shape)
        return found

    def on_map(self, x_shape: Shape) -> Self:
        """The same layers on maps of other sizes.

        Raises:
            ValueError: a filter does not fit into its padded map.
        """
        found: list[ConvProblem] = []
        for problem in self.problems:
            found.append(on_map(problem, x_shape))
            x_shape = found[-1].y_shape
        return self._replace(**dict(zip(self.parts, found, strict=True)))


def reads_planes(expansion: ConvProblem | None) -> bool:
    """Whether a convolution reads a map whose channels lie apart, as that of the first layer of a network."""
    p = expansion
    if p is None or p.layout != "channels_first" or p.groups > 1:
        return False
    return lies_in_blocks(p)


def why_not_joined(block: SeparableBlock, mean: bool = False) -> str | None:
    """Why convolutions cannot be computed in one step, or None.

    Args:
        mean: whether the means of the filtered maps are wanted, too, which no projection follows.
    """
    deep, every = block.depthwise, block.problems
    planes = block.expansion if reads_planes(block.expansion) else None
    lanes = simd.lanes(4)
    if mean and block.projection is not None:
        return "has the means of what the depthwise convolution writes, which a projection does not leave"
    if len(every) < 2 and not mean:
        return "is a single convolution"
    if any(p.dtype != "float32" or p.ndim != 2 or p.direction != "forward" or p.is_empty for p in every):
        return "joins float32 maps of two dimensions, going forward"
    layouts = {p.y_layout for p in every} | {p.layout for p in every if p is not planes}
    if {BLOCKS.get(layout) for layout in layouts} != {lanes}:
        return f"reads and writes blocks of {lanes} channels"
    if not deep.is_zero_padded or (planes and not planes.is_zero_padded):
        return "has zeros around its maps"
    if deep.groups != deep.C or deep.K != deep.C:
        return "filters each channel by itself, once"
    outer = (None if planes else block.expansion, block.projection)  # one of which may be as `deep` is
    if any(p is not None and (not p.is_plain_product or p.groups > 1) for p in outer):
        return "is 1x1 around the depthwise convolution, without stride or padding, but for a first layer"
    if any(a.y_shape != b.x_shape for a, b in pairwise(every)):
        return "joins convolutions each of which reads what the one before it writes"
    return None
