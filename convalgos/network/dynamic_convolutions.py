"""Convolutions whose filters are computed in each run: modulated, mixed, correlated."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from convalgos.core.arguments import Pads, Shape
from convalgos.core.epilogue import Activation
from convalgos.core.problem import ConvProblem
from convalgos.core.transposed_sizes import transposed_spatial
from convalgos.network.graph import Shapes, Step
from convalgos.network.layer_problems import convolution_problem

FLOAT = np.dtype(np.float32)


@dataclass(frozen=True, eq=False)
class DynamicConvolution(Step):
    """activation(conv(x, w) + bias), or conv_transpose, in channels_first; inputs: (x, w) or (x, w, bias)."""

    stride: Shape = ()
    padding: Pads | str = ()
    dilation: Shape = ()
    groups: int = 1
    bias: np.ndarray | None = None  # that is constant
    activation: Activation | None = None
    transposed: bool = False  # w: (channels of x, channels of y / groups, *kernel)
    output_padding: Shape = ()  # of a transposed one

    def problem(self, shapes: Shapes) -> ConvProblem:
        """What is convolved for these shapes of all values: of a transposed one that of which it is."""
        x, w = (shapes[name] for name in self.inputs[:2])
        more = self.stride, self.padding, self.dilation
        if not self.transposed:
            return convolution_problem(x, w, *more, self.groups, FLOAT)
        spatial = transposed_spatial(x[2:], w[2:], *more, self.output_padding)
        y = (x[0], w[1] * self.groups, *spatial)
        return convolution_problem(y, w, *more, self.groups, FLOAT, "backward_data")

    def sizes(self, shapes: Shapes) -> tuple[int, int, int, int]:
        """(products, rows, depth, width) of the same work as products of matrices."""
        problem = self.problem(shapes)
        return problem.N * problem.groups, problem.gemm_n, problem.gemm_k, math.prod(problem.spatial_out)

    def output_shape(self, shapes: Shapes) -> Shape:
        problem = self.problem(shapes)
        return problem.x_shape if self.transposed else problem.y_shape
