"""What a peer is: one way to call one library, on the data of a problem as its users would give them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from convalgos.core.errors import Unsupported, missing
from convalgos.core.plan import flipped
from convalgos.core.problem import DIRECTIONS, ConvProblem

TOO_LONG = 15.0  # seconds
DENSE_RATE, THIN_RATE = 1e11, 2e10  # flop/s that peers reach at least, seen on 2 cores with AVX-512
GPU_RATE = 20  # times these rates on a GPU
THIN = 4  # channels or filters per group, below which a problem runs at the thin rate

PeerCall = Callable[[], Any]  # returns y or a gradient, channels first, as the peer's kind of array
BuildCall = Callable[[ConvProblem, np.ndarray, np.ndarray, int], PeerCall]
BuildBackward = Callable[[ConvProblem, np.ndarray, np.ndarray, np.ndarray, int], PeerCall]


@dataclass(frozen=True)
class Peer:
    """One way to call one library.

    `build(problem, x, w, threads)` gives the call to time, from logical x (N, C, *spatial), and w
    (K, C/groups, *kernel) with any flip done; for gradients from what `problem.arrays` says.
    `backward(problem, x, w, dy, threads)` gives that of both gradients, (dx, dw), of a forward problem.
    """

    name: str  # "package", or "package.variant"
    build: BuildCall
    refuses: Callable[[ConvProblem], str | None] = lambda problem: None
    needs: tuple[str, ...] = ()  # modules beside the package
    direct: bool = True  # its time grows as the flops do
    backward: BuildBackward | None = None  # of those that compute gradients
    dtypes: tuple[str, ...] = ("float32", "float64", "float16", "bfloat16")  # of x, that are compared
    on_gpu: bool = False
    absent: str | None = None  # what must be installed first, of one that is told of and not run

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    def missing(self) -> str | None:
        """What must be installed first, or None."""
        return next(filter(None, map(missing, (self.package, *self.needs))), None)

    def why_not(self, problem: ConvProblem) -> str | None:
        """Why the peer is not run on a problem, in one sentence, or None."""
        if problem.dtype not in self.dtypes:
            return f"compared on {', '.join(self.dtypes)}, not on {problem.dtype}"
        if self.absent:
            return self.absent
        if problem.direction != "forward" and self.backward is None:
            return f"compared on forward problems only, not on {problem.direction}"
        if problem.direction == "backward_weights" and problem.mode == "convolution":
            return "has no gradient of a flipped filter"
        if problem.is_empty:
            return "there is nothing to compute"
        rate = THIN_RATE if min(problem.w_shape[1], problem.gemm_n) < THIN else DENSE_RATE
        rate *= GPU_RATE if self.on_gpu else 1
        if self.direct and problem.flops > TOO_LONG * rate:
            return f"not timed: a direct convolution would take about {problem.flops / rate:.0f} s"
        return self.refuses(problem)

    def why_not_trained(self, problem: ConvProblem) -> str | None:
        """Why the peer has no training step of a forward problem, in one sentence, or None."""
        reasons = (self.why_not(problem.replace(direction=direction)) for direction in DIRECTIONS)
        return next(filter(None, reasons), None)

    def call(self, problem: ConvProblem, x: np.ndarray, w: np.ndarray, threads: int) -> PeerCall:
        """The call to time, from x in the problem's layout and w."""
        first, second, _ = problem.arrays
        x, w = _theirs(problem, {first: x, second: w})
        return self.build(problem, x, w, threads)

    def call_backward(
        self, problem: ConvProblem, x: np.ndarray, w: np.ndarray, dy: np.ndarray, threads: int
    ) -> PeerCall:
        """The call of both gradients, (dx, dw), of a forward problem; arrays in its layout.

        Raises:
            Unsupported: it computes no gradients.
        """
        if self.backward is None:
            raise Unsupported(f"{self.name} computes no gradients")
        x, w, dy = _theirs(problem, {"x": x, "w": w, "dy": dy})
        return self.backward(problem, x, w, dy, threads)


def _theirs(problem: ConvProblem, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Arrays by their names as peers take them: channels first, and the filter not to be flipped."""
    found = []
    for name, array in arrays.items():
        if name != "w" and problem.layout == "channels_last":
            array = np.ascontiguousarray(np.moveaxis(array, -1, 1))
        elif name == "w" and problem.mode == "convolution":
            array = np.ascontiguousarray(flipped(array))
        found.append(array)
    return found
