"""Two arrays that are convolved along some axes, as one problem of ours: `arrangements`.

Real and imaginary parts become a second batch entry and a second filter. Plans are kept from call to call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from convalgos.core.errors import Unsupported
from convalgos.core.later_search import searching_later
from convalgos.core.plan import Plan
from convalgos.core.plan_cache import PlanCache
from convalgos.core.problem import ConvProblem
from convalgos.select import choose
from convalgos.select.constraints import Constraints
from convalgos.signal.arrangements import Sides, arranged, sides_of
from convalgos.signal.line_plans import filtered_lines
from convalgos.signal.modes import MODES
from convalgos.signal.new_sizes import calls_by_size, is_nearly_as_long, is_new, is_new_with_such_taps
from convalgos.signal.outputs import holds_result
from convalgos.signal.whole_transforms import transformed_whole

SUMS = ("cpu.direct", "cpu.depthwise", "cpu.im2col")
TRANSFORMS = ("cpu.fft", "cpu.fft_lines", "cpu.fft_tiles")
# Families of algorithms, by method: those of SciPy's names, and for integers, which are finite: of what
# rounds them least
FAMILIES = {"direct": SUMS, "fft": TRANSFORMS, "exact": SUMS + TRANSFORMS}
SMALL = 1 << 14  # elements of an array whose sum takes no less time than to look at each
TAPS_OF_COMPLEX = 32  # of lines of complex numbers, from which on transforms are faster than sums; Zen 5
BYTES_BY_FILTER = 1 << 22  # of what lines give by both parts of a complex filter, one after the other; Zen 4
PLANS = 2048  # that are kept at most
# Elements of a size that has a plan at once, as transforms without one take longer than planning, and in its
# second call, of lines; Zen 4 and 5
AT_ONCE, AT_SECOND = 1 << 17, 1 << 14
# Elements of several axes that are transformed without a plan in the time that one takes, and calls of small
# sizes in which they are, whose plans take less; Zen 5
PLANNED, MOST_CALLS = 1 << 19, 16


def convolved_along(
    x: np.ndarray, w: np.ndarray, mode: str, axes: set[int] | None, method: str, out: np.ndarray | None = None
) -> np.ndarray | None:
    """The convolution of two arrays of one precision over some axes, all by default.

    `out` itself where its shape and its type allow a plan to write there at once, else a new array.
    """
    if mode not in MODES or axes == set():
        return None
    sides = sides_of(x.shape, w.shape, mode, None if axes is None else frozenset(axes))
    if sides is None:
        return None
    if sides.single:
        turned = tuple(slice(None, None, -1 if i in sides.convolved else 1) for i in range(x.ndim))
        single: np.ndarray = (x * w[turned]).sum(sides.convolved, keepdims=True)  # one output per line
        return single
    return run_on_sides(x, w, sides, method, out)


def run_on_sides(
    x: np.ndarray, w: np.ndarray, sides: Sides, method: str, out: np.ndarray | None = None
) -> np.ndarray | None:
    """`convolved_along` of two arrays whose shapes have these sides."""
    if sides.turned:
        x, w = w, x
    y = run_as_problem(x, w, sides.convolved, sides.others, sides.wanted, method, None if sides.cut else out)
    if y is not None:
        for i, first, count in sides.cut:
            y = y.take(range(first, first + count), i)
    return y


def run_as_problem(
    x: np.ndarray,
    w: np.ndarray,
    convolved: Sequence[int],
    others: Sequence[int],
    wanted: Sequence[tuple[int, int]],
    method: str,
    out: np.ndarray | None = None,
) -> np.ndarray | None:
    """Elements `wanted` of the full convolution of a map with a filter, as one problem of ours.

    `out` itself where it is laid as the plan writes, else a new array.
    """
    of_lines = tuple(convolved) == (x.ndim - 1,) and w.size == w.shape[-1] and method in ("auto", "fft")
    if of_lines and (y := filtered_lines(x, w.reshape(-1), *wanted[0], out)) is not None:
        return y
    finite = method != "auto" or (all_finite(x) and all_finite(w))
    if finite and method == "auto" and _are_complex_lines(x, w, convolved):
        method = "fft"
    if finite and method != "direct" and _is_new(x, w, convolved, wanted, method):
        return transformed_whole(x, w, convolved, wanted)
    to = arranged(x.shape, w.shape, tuple(convolved), tuple(others), tuple(wanted))
    image = x[to.kept].transpose(to.order).reshape(to.images)  # (N, G, *spatial)
    kernel = w.transpose(to.kernel_order).reshape(to.kernels)  # (G*K, 1, *kernel)
    images, kernels = real_parts(image, 0), real_parts(kernel, 1)
    parts_x, parts_w = len(images) // len(image), len(kernels) // len(kernel)
    plan = signal_plan(images.shape, kernels.shape, to.padding, to.groups, images.dtype.name, method, finite)
    if plan is None:
        return None
    if parts_x * parts_w == 1 and to.in_order and holds_result(out, to.whole, images.dtype):
        assert out is not None
        plan(images, kernels, out=out.reshape(len(images), len(kernels), *to.whole[len(others) :]))
        return out
    of_lines = parts_w == len(kernels) == 2 and len(convolved) == 1 and plan.algorithm.startswith("cpu.fft")
    if of_lines and math.prod(plan.problem.y_shape) * images.itemsize <= BYTES_BY_FILTER:
        parts = _by_each_filter(images, kernels, to.padding)
    else:
        parts = plan(images, kernels)  # (parts of x * N, G*K * parts of w, *spatial_out)
    parts = parts.reshape(parts_x, len(image), len(kernel), parts_w, *parts.shape[2:])
    y = parts[0, :, :, 0]  # (N, G*K, *spatial_out)
    if parts_x * parts_w > 1:
        y = np.empty(y.shape, np.result_type(x, w))
        y.real = parts[0, :, :, 0] - (parts[1, :, :, 1] if parts_x == parts_w else 0)
        y.imag = (parts[1, :, :, 0] if parts_x == 2 else 0) + (parts[0, :, :, 1] if parts_w == 2 else 0)
    return np.ascontiguousarray(y.reshape(to.whole).transpose(to.back))


def _are_complex_lines(x: np.ndarray, w: np.ndarray, convolved: Sequence[int]) -> bool:
    """Whether lines are filtered by transforms, where sums would take both parts of all numbers apart."""
    one = len(convolved) == 1 and w.size == w.shape[convolved[0]] >= TAPS_OF_COMPLEX
    return one and "c" in x.dtype.kind + w.dtype.kind


def _is_new(
    x: np.ndarray, w: np.ndarray, convolved: Sequence[int], wanted: Sequence[tuple[int, int]], method: str
) -> bool:
    """Whether a size has not come so often that a plan is worth its making."""
    n, taps = x.shape[convolved[0]], w.shape[convolved[0]]
    if len(convolved) == 1 and is_nearly_as_long(taps, n):
        return is_new_with_such_taps(n, taps, x.dtype.char)
    elements = math.prod([max(n, k) for n, k in zip(x.shape, w.shape, strict=True)])
    key = x.shape, w.shape, x.dtype.char, w.dtype.char, *convolved, *wanted, method
    if len(convolved) > 1:
        return is_new(key, min(MOST_CALLS, -(-PLANNED // elements)))
    return is_new(key, calls_by_size(elements, AT_ONCE, AT_SECOND))


def real_parts(array: np.ndarray, axis: int) -> np.ndarray:
    """(2 * first, ...): real and imaginary parts along a new axis, which is then joined with the first."""
    if array.dtype.kind != "c":
        return array
    parts = np.stack([array.real, array.imag], axis)
    return parts.reshape(2 * array.shape[0], *array.shape[1:])


def _by_each_filter(
    images: np.ndarray, kernels: np.ndarray, padding: tuple[tuple[int, int], ...]
) -> np.ndarray:
    """(L, K, outputs) of lines (L, 1, n) and filters (K, 1, k): transforms of lines take one filter."""
    one = (1, *kernels.shape[1:])
    plan = signal_plan(images.shape, one, padding, 1, images.dtype.name, "fft", True)
    assert plan is not None  # as there is one for all filters
    y = np.empty((len(kernels), *plan.problem.y_shape), images.dtype)  # (K, L, 1, outputs)
    for kernel, lines in zip(kernels, y, strict=True):
        plan(images, kernel.reshape(one), out=lines)
    return y[:, :, 0].swapaxes(0, 1)


def all_finite(x: np.ndarray) -> bool:
    """False where an element is not a number or infinite (or the sum is, which then costs only time)."""
    if x.size <= SMALL:
        return bool(np.isfinite(x).all())
    with np.errstate(all="ignore"):
        return bool(np.isfinite(x.sum()))


plans = PlanCache(PLANS)


def signal_plan(*key: Any) -> Plan | None:
    """The plan of what `_made` takes, kept with those of `conv`'s calls in the bounds of `PlanCache`."""
    found = plans.find(key)
    if found is None and (found := _made(*key)) is not None:
        plans.add(key, found)
    return found


def _made(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    groups: int,
    dtype: str,
    method: str,
    finite: bool,
    stride: int = 1,
) -> Plan | None:
    """The plan of the best algorithm of a method, or None where that is only the reference.

    Transforms spread what is not finite over whole blocks, so that "auto" then stays with direct sums.
    """
    problem = ConvProblem(
        x_shape, w_shape, stride=stride, padding=padding, groups=groups, mode="convolution", dtype=dtype
    )
    if method == "auto" and not finite:
        method = "direct"
    try:
        with searching_later():
            return choose.choose_plan(problem, "cpu", limits_of_method(method))
    except Unsupported:
        return None


@cache
def limits_of_method(method: str) -> Constraints:
    """Those of a choice for a method: every call prepares its filter."""
    return Constraints(allow=FAMILIES.get(method), deny="cpu.reference", weights_constant=False)
