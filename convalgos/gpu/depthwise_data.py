"""dgrad of depthwise layers of stride 2 on the GPU: the gradient of the input.

A stride of 2 has four phases. `backward/data.py` would compute each as a convolution that reads all of dy,
and then copy it into places two apart: by prediction 3.5 to 8.6 times what it takes to read dy and to write
dx once, for the layers of MobileNetV2 on an H200. Here a thread computes four rows of 16 bytes of dx, all
phases together. The same prediction is 1.0 to 1.7 times that floor (48 us on 96 channels of 112x112, 32
images in float32). Wins wherever it serves; without a stride the forward algorithm writes dx itself.

Source: own; phases as in Shi et al. 2016, arXiv:1609.07009.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np

from convalgos.core.algorithm import error_of_sums
from convalgos.core.problem import DTYPES, ConvProblem
from convalgos.gpu.compile.module import ELEMENTS, Build
from convalgos.gpu.device import GpuMachine, current
from convalgos.gpu.dwconv.launch_forms import DECODE, NUMBERED_BELOW, LaunchForm, issue_seconds
from convalgos.gpu.launch.algorithm import GpuAlgorithm
from convalgos.gpu.launch.grid import NO_BIAS, ceil_div
from convalgos.gpu.launch.kernel_records import DIVISOR
from convalgos.gpu.launch.plan import GpuPlan

TAPS = (4, 6, 8)  # of a filter that is filled up, along each of its last two dimensions
ROWS = 4  # of dx to a thread
LAST_COLUMNS = 4  # of them, channels last
THREADS = 128  # of a block
RESIDENT = {4: 5, 6: 3, 8: 3}  # blocks that share the registers, by TAPS

# --- shapes ----------------------------------------------------------------------------------

DEPTHWISE_DATA_PARAMS = np.dtype(
    [
        ("threads", np.int32),
        ("low", np.int32, 2),
        ("spare", np.int32),
        *((name, DIVISOR) for name in ("columns", "rows", "depth", "channels", "stride_d")),
    ]
)


def is_row(p: ConvProblem) -> bool:
    """Whether a 3-D view has a single row, of which only the last dimension counts."""
    return p.spatial[1] == p.kernel[1] == p.spatial_out[1] == 1 and p.padding[1] == (0, 0)


def taps_of(p: ConvProblem) -> int:
    """Taps along rows and columns of a 3-D view's filter, with a zero in front where padding is odd."""
    taps: int = max(r + low % 2 for r, (low, _) in zip(p.kernel[1:], p.padding[1:], strict=True))
    return taps


def build_of(dtype: str, taps: int, last: bool) -> Build:
    columns = LAST_COLUMNS if last else 16 // DTYPES[dtype]
    macros = {"TAPS": taps, "TX": columns, "TY": ROWS, "CHANNELS_LAST": int(last)}
    return Build.of("depthwise_data.cu", element_t=ELEMENTS[dtype], **macros)


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class DepthwiseData(GpuAlgorithm):
    family: ClassVar[str] = "gpu.depthwise"
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float16", "bfloat16")
    directions: ClassVar[tuple[str, ...]] = ("backward_data",)

    @property
    def variant(self) -> str:
        return "data"

    def builds(self) -> Iterable[Build]:
        for dtype, taps, last in product(self.dtypes, TAPS, (False, True)):
            yield build_of(dtype, taps, last)

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if problem.groups != problem.C:
            return f"takes one input channel per group, not {problem.w_shape[1]}"
        p = problem.as_3d
        if p.stride[2] != 2 or (p.stride[1] != 2 and not is_row(p)):
            return f"takes stride 2 along rows and columns, not {problem.stride}"
        if p.dilation[1:] != (1, 1) and not (is_row(p) and p.dilation[2] == 1):
            return f"takes no dilation of rows and columns, not {problem.dilation}"
        if taps_of(p) > max(TAPS):
            return f"takes up to {max(TAPS)} taps, one less where padding is odd, not {problem.kernel}"
        if not problem.is_empty and form_of(problem, current().figures).blocks * THREADS >= NUMBERED_BELOW:
            return "needs more threads than a launch may have"
        return None

    def cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        return form_of(problem, machine).seconds + machine.launch

    def error_bound(self, problem: ConvProblem) -> float:
        """Sums are float32; 16-bit results are rounded once more."""
        return error_of_sums(problem.replace(dtype="float32")) + (problem.itemsize == 2) * problem.eps

    def plan(self, problem: ConvProblem) -> GpuPlan:
        return DepthwiseDataPlan(problem, self, form_of(problem, current().figures))


def form_of(problem: ConvProblem, machine: GpuMachine) -> LaunchForm:
    """The launch for a problem that is not empty."""
    p, last = problem.as_3d, problem.layout == "channels_last"
    taps = next(n for n in TAPS if n >= taps_of(p))
    columns = LAST_COLUMNS if last else 16 // p.itemsize
    params = {"columns": ceil_div(p.spatial[2], columns), "rows": ceil_div(p.spatial[1], ROWS)}
    params |= {"depth": p.spatial[0], "channels": p.C, "stride_d": p.stride[0]}
    threads = p.N * math.prod(params[name] for name in ("columns", "rows", "depth", "channels"))
    blocks, met = ceil_div(threads, THREADS), taps // 2
    loads = (ROWS // 2 + met - 1) * (columns // 2 + met - 1)
    weights = taps**2 if last else taps**2 // 4
    of_filter = ROWS * columns * met**2 + 4 * loads + 2 * weights + 20
    met_planes = ceil_div(p.kernel[0], p.stride[0]) * p.gemm_n
    instructions = met_planes * of_filter + 4 * ROWS * columns + DECODE
    issued = issue_seconds(blocks, THREADS, instructions, RESIDENT[taps], machine)
    build = build_of(p.dtype, taps, last)
    params |= {"threads": threads}
    return LaunchForm(build, "squares", blocks, THREADS, 0, params, max(issued, machine.stream(p.bytes)))


# --- the plan ----------------------------------------------------------------------------------


class DepthwiseDataPlan(GpuPlan):
    def __init__(self, problem: ConvProblem, algorithm: DepthwiseData, form: LaunchForm):
        super().__init__(problem, algorithm)
        self._pads = [low for low, _ in problem.as_3d.padding[1:]]
        self._taps = next(n for n in TAPS if n >= taps_of(problem.as_3d))
        params = form.record(DEPTHWISE_DATA_PARAMS)
        params["low"] = [(low + 1) // 2 for low in self._pads]
        self._params = self.by_value(params)
        self._kernel = self.launch(form.build, form.kernel, (form.blocks,), form.threads)

    def prepare_filter(self, w: Any) -> Any:
        """float32, (K, T, taps, taps) with the filter's own taps behind a zero where padding is odd."""
        xp, p, taps = self.device.xp, self.problem.as_3d, self._taps
        padded = xp.zeros((p.K, p.kernel[0], taps, taps), np.float32)
        rows, columns = (slice(low % 2, low % 2 + r) for low, r in zip(self._pads, p.kernel[1:], strict=True))
        padded[:, :, rows, columns] = w.reshape(p.K, *p.kernel).astype(np.float32)
        last = p.layout == "channels_last"  # then (T, taps, taps, K)
        return xp.ascontiguousarray(padded.transpose(1, 2, 3, 0)) if last else padded

    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        bias = NO_BIAS if bias is None else bias
        self._kernel(x, w, bias, y, self.conv[activation is not None], self._params)


ALGORITHMS = (DepthwiseData(),)
