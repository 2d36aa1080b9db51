"""Convolutions whose filters are computed in each run: modulated, mixed, correlated."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from convalgos.core.arguments import Pads, Shape
from convalgos.core.problem import ConvProblem
from convalgos.network.graph import Shapes, Step
from convalgos.network.layer_problems import convolution_problem

FLOAT = np.dtype(np.float32)


@dataclass(frozen=True, eq=False)
class DynamicConvolution(Step):
    """conv(x, w) + bias, in channels_first; inputs: (x, w) or (x, w, bias)."""

    stride: Shape = ()
    padding: Pads | str = ()
    dilation: Shape = ()
    groups: int = 1

    def problem(self, shapes: Shapes) -> ConvProblem:
        """What is convolved for these shapes of all values."""
        x, w = (shapes[name] for name in self.inputs[:2])
        return convolution_problem(x, w, self.stride, self.padding, self.dilation, self.groups, FLOAT)

    def sizes(self, shapes: Shapes) -> tuple[int, int, int, int]:
        """(products, rows, depth, width) of the same work as products of matrices."""
        problem = self.problem(shapes)
        return problem.N * problem.groups, problem.gemm_n, problem.gemm_k, math.prod(problem.spatial_out)

    def output_shape(self, shapes: Shapes) -> Shape:
        return self.problem(shapes).y_shape
