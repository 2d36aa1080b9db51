"""The gradient of the filter as a forward convolution of x with dy in the place of the filter.

dw[k, c, r] = sum over images n and outputs p of dy[n, k, p] * x[n, c, p * stride + r * dilation - low]: a
convolution in which images are the channels that are summed, the channels of a group are the images, dy is
the filter, and stride and dilation have changed places. It has as many outputs as the kernel has taps.

Source: Mathieu et al. 2014, arXiv:1312.5851, who use it with Fourier transforms.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from convalgos.core.algorithm import Figures
from convalgos.core.backward.by_forward import ByForward
from convalgos.core.problem import ConvProblem, Shape


class SwappedRoles(NamedTuple):
    """A backward_weights problem that is not empty, as a forward one, channels first."""

    forward: ConvProblem  # x (C/groups, groups*N, *sizes), w (K, N, *spatial_out), y (C/groups, K, *kernel)
    sizes: Shape  # of x that meet dy: behind them lie inputs that no output reads

    def input(self, x: Any, problem: ConvProblem) -> Any:
        """x of the forward problem: a view, or a copy where the groups need one."""
        x = x[(slice(None), slice(None), *(slice(size) for size in self.sizes))]
        parts = x.reshape(problem.N, problem.groups, problem.w_shape[1], *self.sizes)
        return parts.swapaxes(0, 2).reshape(self.forward.x_shape)

    def filter(self, dy: Any) -> Any:
        """w of the forward problem, a view."""
        return dy.swapaxes(0, 1)

    def result(self, y: Any) -> Any:
        """dw (K, C/groups, *kernel), a view."""
        return y.swapaxes(0, 1)


class BySwappedRoles(ByForward):
    """What stands in for forward algorithms that compute the gradient of the filter so."""

    directions: ClassVar[tuple[str, ...]] = ("backward_weights",)

    def forwards(self, problem: ConvProblem) -> list[ConvProblem]:
        return [swapped_roles(problem).forward]

    def prepare_cost(self, problem: ConvProblem, machine: Figures) -> float:
        return 0.0  # dy is prepared in the run

    def workspace_bytes(self, problem: ConvProblem) -> int:
        """The copies of x and dy, the prepared dy, dw, and what the forward algorithm needs."""
        if problem.is_empty:
            return 0
        copies = problem.x_bytes + 2 * problem.y_bytes + problem.w_bytes
        return copies + self.inner.workspace_bytes(swapped_roles(problem).forward)


@lru_cache(1024)
def swapped_roles(problem: ConvProblem) -> SwappedRoles:
    """The forward problem of a backward_weights problem that is not empty."""
    p = problem
    sizes, padding = [], []
    for size, out, kernel, stride, dilation, (low, _) in zip(
        p.spatial, p.spatial_out, p.kernel, p.stride, p.dilation, p.padding, strict=True
    ):
        high = (kernel - 1) * dilation + (out - 1) * stride + 1 - low - size  # for as many outputs as taps
        sizes.append(size + min(0, high))
        padding.append((low, max(0, high)))
    forward = ConvProblem(
        (p.w_shape[1], p.groups * p.N, *sizes),
        (p.K, p.N, *p.spatial_out),
        stride=p.dilation,
        padding=tuple(padding),
        dilation=p.stride,
        groups=p.groups,
        dtype=p.dtype,
        compute_dtype=p.compute_dtype,
    )
    assert forward.spatial_out == p.kernel, (problem, forward)
    return SwappedRoles(forward, tuple(sizes))
