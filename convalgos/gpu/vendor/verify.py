"""Run-time verification of a library's kernels: what is silently wrong is not used.

A library's kernel is run once per class of problem before its results are used, on random data, and its
output is compared with that of `gpu.direct`. The problem that is checked is the one that will run, so that
its kernel, its tails and its scratch are those that are checked. Of the batch, the first and the last image
are compared; a class is all of a problem but its batch. A check costs one run of the kernel, and one of
`gpu.direct` on two images.

Gradients are compared by what defines them, for some random x' or w':

    <dx, x'> = <dy, conv(x', w)>        <dw, w'> = <dy, conv(x, w')>

What a check found lasts as long as the process: the next one may find another version of the library.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from convalgos.core.element_types import FLOAT8_DTYPES
from convalgos.core.plan import numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.gpu.device import Device, use
from convalgos.gpu.launch.algorithm import GpuAlgorithm

ALL_BITS = 0xFF  # of a byte; numbers of such bytes are NaN in every type
PROBES = 4  # of a gradient: a wrong one agrees with as many by chance once in ten thousand times
SLACK = 4.0  # deviations of a sum of random errors
PERIOD = 16381  # numbers of the data, after which they repeat: a prime, so that no row or channel does

# (x, w, bias, y): writes y, and may leave the bias (K,) alone.
KernelCall = Callable[[Any, Any, Any, Any], None]

REFERENCE = "convalgos.gpu.direct"  # the module of the algorithm that results are compared with
_faults: dict[tuple[Any, ...], str | None] = {}  # what was checked -> why it is not used, or None
_checking = threading.RLock()


@cache
def reference_algorithm() -> GpuAlgorithm:
    """The algorithm that results are compared with, which always serves.

    Loaded when a first kernel is checked: algorithms lie above the rooms that they share.
    """
    (algorithm,) = import_module(REFERENCE).ALGORITHMS
    assert isinstance(algorithm, GpuAlgorithm)
    return algorithm


def known_fault(device: Device, name: str, problem: ConvProblem) -> str | None:
    """Why a kernel is not to be used for a problem, as far as that was found; None where it may be."""
    return _faults.get(_case(device, name, problem))


def check_kernel(
    device: Device,
    name: str,
    problem: ConvProblem,
    bound: float,
    run: KernelCall,
    *,
    bias: bool = False,
    relu: bool = False,
) -> str | None:
    """Why a kernel is not to be used for a problem, found by a run where it was not before; or None.

    What is found is told in a warning. The run waits for the device: nothing must be captured meanwhile.

    Args:
        name: of the kernel, with all that tells it from others.
        bound: its largest error, relative to max|y|.
        run: called with arrays of the device as a plan reads and writes them, the last filled with NaN.
        bias: whether it adds the bias; forward only.
        relu: whether it computes max(.., 0), in which NaNs must stay; forward only.
    """
    case = _case(device, name, problem)
    with _checking:
        if case in _faults:
            return _faults[case]
        try:
            with use(device):
                found = _compare(device, problem, bound, run, bias, relu)
        except device.out_of_memory as error:
            return f"there is no memory to check it ({error})"  # now; another time there may be
        _faults[case] = found
    if found is not None:
        told = f"{name} is not used for {problem} on {device.name}: {found}"
        warnings.warn(told, RuntimeWarning, stacklevel=2)
    return found


def forget_checks() -> None:
    """Check everything again."""
    _faults.clear()


# --- inside ----------------------------------------------------------------------------------


def _case(device: Device, name: str, problem: ConvProblem) -> tuple[Any, ...]:
    """Problems that differ in their batch alone are one case, but for a single image."""
    return device, name, _ends(problem)


@lru_cache(1024)
def _ends(problem: ConvProblem) -> ConvProblem:
    """The problem of the first and the last image."""
    return problem.replace(x_shape=(min(problem.N, 2), *problem.x_shape[1:]))


def _compare(
    device: Device, problem: ConvProblem, bound: float, run: KernelCall, bias: bool, relu: bool
) -> str | None:
    # Kernels take a filter as it lies; that they compute in TF32 is in their bound.
    problem = problem.replace(mode="cross_correlation")
    few = _ends(problem).replace(direction="forward", compute_dtype=None)
    if problem.direction != "forward" or problem.dtype in FLOAT8_DTYPES:
        few = few.replace(dtype="float32", w_dtype=None, y_dtype=None)
    if reason := reference_algorithm().why_not(few):
        return f"it cannot be checked: {reason}"
    try:
        if problem.direction == "forward":
            return _forward(device, problem, few, bound, run, bias, relu)
        return _gradient(device, problem, few, bound, run)
    except device.out_of_memory:
        raise
    except Exception as failure:  # what the library calls it
        return f"it fails ({failure})"


def _forward(
    device: Device,
    problem: ConvProblem,
    few: ConvProblem,
    bound: float,
    run: KernelCall,
    bias: bool,
    relu: bool,
) -> str | None:
    xp, dtype = device.xp, numpy_dtype(problem.dtype)
    plan, activation = reference_algorithm().serve(few), "relu" if relu else None
    of_w, of_y = numpy_dtype(problem.w_dtype), numpy_dtype(problem.y_dtype)
    x_shape, w_shape, _ = problem.array_shapes
    x, w = numbers(device, x_shape, dtype, 0), numbers(device, w_shape, of_w, 1)
    added = numbers(device, (problem.K,), dtype, 2)
    wide = _widened(xp, w, of_w)

    def answers() -> tuple[np.ndarray, np.ndarray]:
        """Outputs of the first and the last image, by the kernel and by the reference."""
        y = _unwritten(xp, problem, of_y)
        run(x, w, added, y)
        few_x = _widened(xp, _outer(xp, x), dtype)
        right = plan(few_x, wide, bias=added if bias else None, activation=activation)
        return _host(xp, _outer(xp, y)), _host(xp, right)

    found, right = answers()
    scale = max(float(np.abs(right).max()), math.sqrt(problem.gemm_k))  # the deviation of one output
    error, limit = float(np.abs(found - right).max()) / scale, bound + reference_algorithm().error_bound(few)
    if not error <= limit:  # also where it is no number
        return f"its error is {error:.1e}, over {limit:.1e}, against {reference_algorithm().id}"
    if relu:
        x.view(np.uint8).fill(ALL_BITS)
        found, right = answers()
        if not np.isnan(found[np.isnan(right)]).all():
            return "its ReLU turns NaN into a number"
    return None


def _gradient(
    device: Device, problem: ConvProblem, few: ConvProblem, bound: float, run: KernelCall
) -> str | None:
    xp, dtype = device.xp, numpy_dtype(problem.dtype)
    plan, of_filter = reference_algorithm().serve(few), problem.direction == "backward_weights"
    first, second = (
        numbers(device, shape, dtype, seed) for seed, shape in enumerate(problem.array_shapes[:2])
    )
    if of_filter:  # which sums over all images: those in between have no dy
        second.view(f"u{dtype.itemsize}")[1:-1] = 0
    result = _unwritten(xp, problem, dtype)
    run(first, second, None, result)
    found = _host(xp, result if of_filter else _outer(xp, result))
    dy = _host(xp, _outer(xp, second if of_filter else first))
    # The other array of the forward pass, with the same numbers in float32.
    given = xp.asarray(_host(xp, _outer(xp, first) if of_filter else second))
    # Errors are those of elements as large as a sum of products is in the mean, each times a random number.
    sums = few.gemm_m if of_filter else problem.reduction
    errors = bound * math.sqrt(sums * found.size) + reference_algorithm().error_bound(few) * math.sqrt(
        few.gemm_k * dy.size
    )
    for probe in range(PROBES):
        x_shape, w_shape, _ = few.array_shapes
        other = numbers(device, w_shape if of_filter else x_shape, np.dtype(np.float32), 3 + probe)
        y = _host(xp, plan(given, other) if of_filter else plan(other, given))
        error = abs(_dot(found, _host(xp, other)) - _dot(dy, y))
        if not error <= SLACK * errors:  # also where it is no number
            return f"<result, r> is off by {error:.1e}, over {SLACK * errors:.1e}, for a random r"
    return None


def numbers(device: Device, shape: tuple[int, ...], dtype: np.dtype, seed: int) -> Any:
    """An array of the device with normal random numbers, or any integers, made at the speed of a copy; of
    8-bit floats, which CuPy has not, their bits."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "i":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        values = rng.integers(low, high, PERIOD, dtype, endpoint=True)
    else:
        values = rng.standard_normal(PERIOD, np.float32).astype(dtype)
    size, xp = math.prod(shape), device.xp
    bits = xp.asarray(values.view(f"u{dtype.itemsize}"))  # which every library can repeat
    repeated = xp.tile(bits, -(-size // PERIOD))[:size]
    return (repeated if dtype.name in FLOAT8_DTYPES else repeated.view(dtype)).reshape(shape)


def _widened(xp: Any, array: Any, dtype: np.dtype) -> Any:
    """The bits of 8-bit floats as float32; any other array as it is."""
    if dtype.name not in FLOAT8_DTYPES:
        return array
    return xp.asarray(_host(xp, array).view(dtype).astype(np.float32))


def _unwritten(xp: Any, problem: ConvProblem, dtype: np.dtype) -> Any:
    """The result of a problem, full of NaN."""
    y = xp.empty(problem.array_shapes[2], dtype)
    y.view(np.uint8).fill(ALL_BITS)
    return y


def _outer(xp: Any, array: Any) -> Any:
    """The first and the last image of an array, or the only one."""
    found = xp.empty((min(2, len(array)), *array.shape[1:]), array.dtype)
    found[0], found[-1] = array[0], array[-1]
    return found


def _host(xp: Any, array: Any) -> np.ndarray:
    """On the host, at least in float32; integers, whose differences may not fit, in float64."""
    found: np.ndarray = array if xp is np else xp.asnumpy(array)
    if found.dtype.kind == "i":
        return found.astype(np.float64)
    return found.astype(np.float32) if found.dtype.itemsize == 2 else found


def _dot(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.vdot(a.astype(np.float64), b.astype(np.float64)))
