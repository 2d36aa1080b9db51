"""What the benchmarks share: their parameters, and a convolution or a gradient that is ready to be timed."""

import math
import os
import sys
import time

import numpy as np

import convalgos as ca

from .layers import LAYERS

INTEGERS = ("int8", "uint8")
JUDGE = "cpu.reference"  # in float64, written to be read: it is not raced


def _words(variable: str, default: str) -> list[str]:
    return os.environ.get(variable, default).replace(",", " ").split()


ALGORITHMS = ["auto", *(a.id for a in ca.algorithms() if a.id != JUDGE)]
DTYPES = _words("CONVALGOS_HISTORY_DTYPES", "float32")
THREADS = _words("CONVALGOS_HISTORY_THREADS", "all")


def serving(direction: str) -> list[str]:
    """ "auto" and the algorithms that compute a gradient; "auto" alone in a version that has none."""
    try:
        from convalgos.select import facing
    except ImportError:
        return ["auto"]
    known = [a.id for a in ca.algorithms() if direction in facing(a, direction).directions]
    return ["auto", *(i for i in known if i != JUDGE)]


def synchronised() -> float:
    """A clock that waits for the GPU where one is in use."""
    if cupy := sys.modules.get("cupy"):
        cupy.cuda.get_current_stream().synchronize()
    return time.perf_counter()


def use_threads(threads: str) -> None:
    """Let the kernels run on so many threads, or on all.

    Raises:
        NotImplementedError: there are fewer.
    """
    if threads == "all":
        return
    import numba

    if int(threads) > numba.config.NUMBA_NUM_THREADS:
        raise NotImplementedError(f"this machine has {numba.config.NUMBA_NUM_THREADS} threads")
    numba.set_num_threads(int(threads))


def problem_of(layer: str, dtype: str, direction: str) -> ca.ConvProblem:
    """A layer in an element type; in integers as quantised networks have it.

    Raises:
        NotImplementedError: this version has no integers.
    """
    changes = {"dtype": dtype, "compute_dtype": None, "direction": direction}
    if dtype in INTEGERS:
        if not hasattr(ca.ConvProblem, "dtype_of"):
            raise NotImplementedError("this version has no integers")
        changes |= {"w_dtype": "int8", "y_dtype": dtype, "scales": "per_channel"}
    return LAYERS[layer].replace(**changes)


def numpy_dtype(name: str) -> np.dtype:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def served(problem: ca.ConvProblem, algorithm: str = "auto"):
    """The plan of an algorithm on its device.

    Raises:
        NotImplementedError: it cannot serve the problem here, or its library or device is missing.
    """
    device = "cuda" if algorithm.startswith("gpu.") else "cpu"
    try:
        return ca.plan(problem, device=device, algorithm=algorithm)
    except ca.Unsupported as reason:
        raise NotImplementedError(str(reason)) from None


def arrays(problem: ca.ConvProblem, algorithm: str = "auto") -> tuple:
    """What a run reads first and second, and room for its result, on the device of an algorithm.

    (x, w, y), (dy, w, dx) or (x, dy, dw): random data whose result is of order 1, and all integers.
    """
    x, w, y = problem.array_shape(problem.x_shape), problem.w_shape, problem.array_shape(problem.y_shape)
    first, second, result, summed = {
        "forward": (x, w, y, problem.gemm_k),
        "backward_data": (y, w, x, problem.gemm_n * math.prod(problem.kernel)),
        "backward_weights": (x, y, w, problem.gemm_m),
    }[problem.direction]
    rng = np.random.default_rng(0)
    scale = 1 / np.sqrt(max(1, summed))
    if problem.dtype in INTEGERS:
        x = rng.integers(0, 256, first).astype(problem.dtype)
        w = rng.integers(-128, 128, second).astype(problem.w_dtype)
        return x, w, np.empty(result, problem.y_dtype)
    dtype = numpy_dtype(problem.dtype)
    x = rng.standard_normal(first).astype(dtype)
    w = (rng.standard_normal(second) * scale).astype(dtype)
    y = np.full(result, np.nan, dtype)
    if algorithm.startswith("gpu."):
        import cupy

        return tuple(map(cupy.asarray, (x, w, y)))
    return x, w, y


class Prepared:
    """The parameters of most benchmarks, and a setup that asv may repeat before every sample at no cost."""

    version = "1"
    timer = staticmethod(synchronised)
    param_names = ("algorithm", "layer", "dtype", "threads")
    direction = "forward"
    key: tuple | None = None

    def setup(self, algorithm: str, layer: str, dtype: str, threads: str) -> None:
        key = (algorithm, layer, dtype, threads)
        if self.key == key:
            return
        use_threads(threads)
        self.problem = problem_of(layer, dtype, self.direction)
        self.plan = served(self.problem, algorithm)
        self.x, self.w, self.y = arrays(self.problem, algorithm)
        self.prepared = self.plan.prepare(self.w)
        self.plan(self.x, self.prepared, out=self.y)
        self.key = key
