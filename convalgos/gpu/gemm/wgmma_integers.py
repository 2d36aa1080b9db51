"""Plans of `gpu.implicit_gemm.wgmma_int8`: zero points, and padding that holds x's.

The instruction takes int8 or uint8 for either factor, both as rows along the sum: of 8 bits it has no form
that reads columns. So x lies with its channels last, or is copied to lie so, as for the other types. The copy
engine fills the padding with zeros. Where x's zero point is another number, x is copied with its padding
written out, and what is read has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from convalgos.core.algorithm import Algorithm
from convalgos.core.problem import ConvProblem
from convalgos.gpu.gemm.wgmma_forms import WgmmaForm, WgmmaTile
from convalgos.gpu.gemm.wgmma_plan import WgmmaPlan
from convalgos.gpu.launch.integer_plan import IntegerGpuPlan


def with_padding_in_x(problem: ConvProblem) -> ConvProblem:
    """The problem without padding of the same y, whose x has it."""
    spatial = (size + low + high for size, (low, high) in zip(problem.spatial, problem.padding, strict=True))
    return problem.replace(x_shape=(*problem.x_shape[:2], *spatial), padding=0)


def is_padded(problem: ConvProblem) -> bool:
    return any(pair != (0, 0) for pair in problem.padding)


class WgmmaIntegers(WgmmaPlan, IntegerGpuPlan):
    flips = False

    def __init__(
        self, problem: ConvProblem, algorithm: Algorithm, form: WgmmaForm, tile: WgmmaTile, splits: int
    ):
        copied = with_padding_in_x(problem) if is_padded(problem) else None
        super().__init__(problem, algorithm, form, tile, splits, copied=copied)

    def prepare_filter(self, w: Any) -> Any:
        return IntegerGpuPlan.prepare_filter(self, w)

    def pack(self, terms: Sequence[Any]) -> tuple[Any, Any]:
        """The filter as stages hold it, and the parameters of a sum over so many terms."""
        return self.rows(terms), self.params(len(terms))

    def run(self, x: Any, w: Any, bias: Any, activation: Any, y: Any, workspace: Any) -> None:
        packed, params = w.packed
        fills = self._copied is not self.problem and int(w.quantization.x_zero_point) != 0
        of_copy = self.record(w, activation, self._copied) if fills or self._in_place is None else None
        self.multiply(x, packed, bias, y, workspace, self.record(w, activation), params, of_copy)
