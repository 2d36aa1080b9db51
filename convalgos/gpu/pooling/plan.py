"""A pooling problem fixed to kernels of a GPU: maxima and means of windows, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np

from convalgos.core.errors import Unsupported
from convalgos.core.plan import numpy_dtype
from convalgos.core.pool_problem import DTYPES, PoolProblem, PoolWindows
from convalgos.gpu.compile.module import ELEMENTS, Build
from convalgos.gpu.device import Device, current
from convalgos.gpu.launch.grid import COUNTED, GRID_X, ceil_div
from convalgos.gpu.launch.kernel_records import DIVISOR, record_of

THREADS = 256  # of a block, as in pooling.cu
OF_INTEGERS: dict[str, str] = {"int8": "signed char", "uint8": "unsigned char"}
WINDOW = np.dtype([(name, np.int32) for name in ("first", "taps", "divisor")])
SIZES = ("size", "out", "stride", "dilation", "before", "extent")
# `Params` of pooling.cu.
PARAMS = np.dtype(
    [
        *((name, np.int64) for name in ("x_image", "y_image")),
        *((name, DIVISOR) for name in ("blocks", "channels", "columns", "rows", "depth")),
        *((name, np.int32) for name in ("threads", "x_channel", "y_channel", "x_pixel", "y_pixel")),
        *((name, np.int32, 3) for name in SIZES),
    ]
)


def pooling_build(dtype: str, reduction: str, layout: str) -> Build:
    integers = dtype in OF_INTEGERS
    return Build.of(
        "pooling.cu", element_t=OF_INTEGERS[dtype] if integers else ELEMENTS[dtype], INTEGERS=int(integers),
        MAXIMUM=int(reduction == "max"), CHANNELS_LAST=int(layout == "channels_last"),
    )  # fmt: skip


def pooling_builds() -> Iterable[Build]:
    """All that a plan may ask for."""
    for reduction, dtypes in DTYPES.items():
        for dtype, layout in product(dtypes, ("channels_first", "channels_last")):
            yield pooling_build(dtype, reduction, layout)


class GpuPoolPlan:
    """Windows of a problem, on the current device. Runs go to the current stream, and never wait.

    Raises:
        Unsupported: an image has more elements than the kernels number; says how many.
    """

    def __init__(self, problem: PoolProblem):
        self.problem = problem
        self.device: Device = current()
        self._build = pooling_build(problem.dtype, problem.reduction, problem.layout)
        self._dtype = numpy_dtype(problem.dtype)
        table = np.concatenate([_table(windows) for windows in _in_three(problem)])
        self._windows = self.device.table(table.view(np.int32).reshape(-1))
        self._forward = self._record(problem.y_shape)
        self._backward = self._record(problem.x_shape)

    def run(self, x: Any, y: Any, places: Any = None) -> None:
        """Write y and, of maxima, their places in the map, int32; all contiguous, in the problem's layout."""
        self._launch("pool", self._forward, (x, y, places, self._windows))

    def mean_gradient(self, dy: Any, dx: Any) -> None:
        self._launch("pool_gradient", self._backward, (dy, None, dx, self._windows))

    def max_gradient(self, x: Any, dy: Any, dx: Any) -> None:
        """Each dy goes to the maximum of its window, whose place is found anew."""
        xp = self.device.xp
        places = xp.empty(dy.shape, np.int32)
        self.run(x, xp.empty(dy.shape, self._dtype), places)
        self._launch("pool_gradient", self._backward, (dy, places, dx, self._windows))

    def _launch(self, name: str, record: np.ndarray, arguments: tuple[Any, ...]) -> None:
        blocks = self.problem.x_shape[0] * int(record["blocks"]["by"][0])
        if not int(record["threads"][0]) or not blocks:
            return
        if blocks > GRID_X:
            raise Unsupported(f"{self.problem.x_shape} takes {blocks} blocks of threads, more than {GRID_X}")
        function = self.device.function(self._build, name, 0)
        function((blocks,), (THREADS,), (*arguments, self.device.by_value(record)), shared_mem=0)

    def _record(self, numbered: tuple[int, ...]) -> np.ndarray:
        """(1,) The sizes, for threads that are numbered by the elements of an array (N, C, *spatial)."""
        p = self.problem
        threads = math.prod(numbered[1:])
        if max(math.prod(p.x_shape[1:]), threads) >= COUNTED:
            raise Unsupported(f"images of {p.x_shape} have {COUNTED} elements or more, which kernels number")
        windows, channels, last = _in_three(p), p.x_shape[1], p.layout == "channels_last"
        sizes, outs = [w.size for w in windows], [len(w.first) for w in windows]
        pixels, pixels_out = math.prod(sizes), math.prod(outs)
        depth, rows, columns = (max(1, n) for n in (*(1,) * (5 - len(numbered)), *numbered[2:]))
        return record_of(PARAMS, {
            "x_image": channels * pixels, "y_image": channels * pixels_out,
            "blocks": max(1, ceil_div(threads, THREADS)), "channels": max(1, channels), "columns": columns,
            "rows": rows, "depth": depth, "threads": threads,
            "x_channel": 1 if last else pixels, "y_channel": 1 if last else pixels_out,
            "x_pixel": channels if last else 1, "y_pixel": channels if last else 1,
            "size": sizes, "out": outs, "stride": [w.stride for w in windows],
            "dilation": [w.dilation for w in windows], "before": [w.before for w in windows],
            "extent": [w.dilation * (w.kernel - 1) + 1 for w in windows],
        })  # fmt: skip


def _in_three(problem: PoolProblem) -> list[PoolWindows]:
    """The windows of three dimensions, leading ones of one element put in front."""
    one = np.ones(1, np.int64)
    point = PoolWindows(1, 1, 1, 0, 1, np.zeros(1, np.int64), one, one)
    return [point] * (3 - len(problem.windows)) + list(problem.windows)


def _table(windows: PoolWindows) -> np.ndarray:
    """(outputs,) of WINDOW."""
    table = np.zeros(len(windows.first), WINDOW)
    for name in WINDOW.names or ():
        table[name] = getattr(windows, name)
    return table
