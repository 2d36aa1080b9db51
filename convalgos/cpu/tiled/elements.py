"""The bytes of what boxes of tiles hold: by default all is of the problem's element type."""

from __future__ import annotations

from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import Machine
from convalgos.core.problem import ConvProblem
from convalgos.cpu.vectors import simd


class Elements:
    """Of gathered pixels, transformed inputs V and filters U, and sums M."""

    problem: ConvProblem

    @property
    def size(self) -> int:
        """Bytes of a channel of a gathered pixel, of which `lanes` fill a vector."""
        return self.problem.itemsize

    @property
    def v_size(self) -> int:
        """Bytes of an element of V and of U."""
        return self.problem.itemsize

    @property
    def sum_size(self) -> int:
        """Bytes of an element of M, of which `sum_lanes` fill a vector."""
        return self.problem.itemsize

    @cached_attribute
    def lanes(self) -> int:
        return simd.lanes(self.problem.itemsize)

    @property
    def sum_lanes(self) -> int:
        return self.lanes

    def peak(self, machine: Machine) -> float:
        """flop/s of the products on all threads."""
        return machine.peak(self.problem.dtype)
