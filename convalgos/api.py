"""The public calls: arguments -> problem -> plan cache -> result. The only reader of raw input."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from convalgos import measure, select
from convalgos.algorithm import Algorithm, Plan, PreparedFilter, Unsupported
from convalgos.arrays import as_numpy, device_of, like, writable_view
from convalgos.problem import DTYPES, ConvProblem

CACHED_PLANS = 256
EFFORTS = ("estimate", "measure", "exhaustive")


def conv(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    mode: str = "cross_correlation",
    layout: str = "channels_first",
    algorithm: str = "auto",
    activation: str | None = None,
    out: Any = None,
) -> Any:
    """Convolve x with w, in 1, 2 or 3 dimensions by x.ndim.

    Args:
        x: (N, C, *spatial). With layout="channels_last": (N, *spatial, C), or an (N, C, *spatial) view of
            such memory (as torch's channels_last tensors are); y then comes back the same way.
        w: (K, C/groups, *kernel), or what `plan.prepare` returned for the same problem.
        bias: (K,), added to every output, or None.
        stride, padding, dilation, groups, mode, layout: see `ConvProblem`.
        algorithm: "auto", or an id from `algorithms()`, which is then used or refused, never replaced.
        activation: None or "relu", applied after the bias.
        out: array for y; it may be of any strides, and may overlap x.

    Returns:
        y (N, K, *spatial_out), of x's kind of array and dtype.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names it.
        Unsupported: the forced algorithm cannot serve this problem; the message says why.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> x, w = np.ones((1, 3, 8, 8), "f4"), np.ones((4, 3, 3, 3), "f4")
        >>> ca.conv(x, w, padding=1).shape
        (1, 4, 8, 8)
    """
    if device_of(x) != "cpu":
        raise Unsupported(f"x lies on {device_of(x)}: no GPU algorithm is available yet")
    x_view = as_numpy("x", x)
    if isinstance(w, PreparedFilter):
        w_shape = w.key[1].w_shape
    else:
        w = as_numpy("w", w)
        w_shape = w.shape
        if w.dtype != x_view.dtype:
            raise TypeError(f"w has dtype {w.dtype}, but x has {x_view.dtype}; they must be the same")
    if x_view.ndim != len(w_shape) or not 3 <= x_view.ndim <= 5:
        raise ValueError(
            f"x has shape {x_view.shape} and w {w_shape}: both must have 3, 4 or 5 dimensions, "
            "(N, C, *spatial) and (K, C/groups, *kernel)"
        )
    logical = layout != "channels_last"
    if not logical and _is_logical_view(x_view, w_shape[1] * groups):
        # (N, C, *spatial) over channels-last memory: run on the (N, *spatial, C) view of it
        y = conv(
            np.moveaxis(x_view, 1, -1), w, bias, stride=stride, padding=padding, dilation=dilation,
            groups=groups, mode=mode, layout=layout, algorithm=algorithm, activation=activation,
            out=None if out is None else np.moveaxis(writable_view("out", out), 1, -1),
        )  # fmt: skip
        return out if out is not None else like(np.moveaxis(y, -1, 1), x)
    shape = x_view.shape if logical else (x_view.shape[0], x_view.shape[-1], *x_view.shape[1:-1])
    arguments = (shape, w_shape, stride, padding, dilation, groups, mode, layout, x_view.dtype, algorithm)
    try:
        cached = _plan_for(*arguments)
    except TypeError:  # a list among the arguments
        cached = _plan_for(*map(_hashable, arguments))
    return cached(x, w, bias=bias, out=out, activation=activation)


def plan(
    problem: ConvProblem,
    device: str = "cpu",
    algorithm: str = "auto",
    *,
    effort: str = "estimate",
    workspace_limit: int | None = None,
    max_rel_error: float | None = None,
    deterministic: bool = False,
    time_budget: float | None = None,
) -> Plan:
    """Choose an algorithm for a problem and build everything that does not depend on the data.

    Args:
        device: "cpu" or "cuda:N".
        algorithm: "auto", or an id from `algorithms()`.
        effort: "estimate" picks by predicted cost, "measure" times the candidates that are predicted
            within 10x of the best, "exhaustive" times them all.
        workspace_limit: bytes of scratch that a call may take.
        max_rel_error: largest acceptable error bound, relative to max|y|.
        deterministic: same bits on every run. Every CPU algorithm is; the argument is for the GPU.
        time_budget: seconds that measuring may take.

    Raises:
        ValueError: an argument is invalid. Unsupported: nothing can serve the problem; says why.

    Example:
        >>> import convalgos as ca
        >>> ca.plan(ca.ConvProblem.parse("n1 c8 h8 w8 k8 r1 s1")).problem.gemm_k
        8
    """
    if not isinstance(problem, ConvProblem):
        raise TypeError(f"problem={problem!r} must be a ConvProblem")
    if effort not in EFFORTS:
        raise ValueError(f"effort={effort!r} must be one of {', '.join(map(repr, EFFORTS))}")
    for name, limit in (
        ("workspace_limit", workspace_limit),
        ("max_rel_error", max_rel_error),
        ("time_budget", time_budget),
    ):
        if limit is not None and not limit >= 0:
            raise ValueError(f"{name}={limit!r} must be None or at least 0")
    if device != "cpu":
        raise Unsupported(f"device={device!r}: no GPU algorithm is available yet; 'cpu' is")
    if algorithm != "auto":
        return select.serve(
            select.find_algorithm(algorithm),
            problem,
            workspace_limit=workspace_limit,
            max_rel_error=max_rel_error,
        )
    if effort == "estimate" or problem.is_empty:
        return select.pick(problem, device, workspace_limit=workspace_limit, max_rel_error=max_rel_error)
    within = 10.0 if effort == "measure" else float("inf")
    ranking = select.rank(problem, device, workspace_limit=workspace_limit, max_rel_error=max_rel_error)
    return select.explained(measure.measured(ranking, within=within, time_budget=time_budget))


def find(problem: ConvProblem, *, device: str = "cpu", time_budget: float | None = None) -> measure.Table:
    """Time every candidate on a problem.

    Returns:
        A table, fastest first: id, median seconds with spread, workspace, error against float64, or the
        reason why not. It prints as text; `table.rows` are the entries.

    Example:
        >>> import convalgos as ca
        >>> table = ca.find(ca.ConvProblem.parse("n1 c4 h9 w9 k4 r3 s3 p1"))
        >>> table.rows[0].median_s > 0
        True
    """
    if device != "cpu":
        raise Unsupported(f"device={device!r}: no GPU algorithm is available yet; 'cpu' is")
    return measure.table(select.rank(problem, device), time_budget=time_budget)


def explain(problem: ConvProblem, *, device: str = "cpu") -> select.Ranking:
    """The ranking as the selector sees it: predicted times, rejections with reasons. Prints as text."""
    if device != "cpu":
        raise Unsupported(f"device={device!r}: no GPU algorithm is available yet; 'cpu' is")
    return select.rank(problem, device)


def algorithms() -> tuple[Algorithm, ...]:
    """Every algorithm, ordered by id: the one list that selector, tests and benchmarks read."""
    return select.algorithms()


# --- inside ----------------------------------------------------------------------------------


@lru_cache(maxsize=CACHED_PLANS, typed=True)
def _plan_for(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    mode: str,
    layout: str,
    dtype: np.dtype,
    algorithm: str,
) -> Plan:
    """The plan of raw arguments; the cache is bounded and thread-safe, and errors are not kept."""
    if dtype.name not in DTYPES:
        raise TypeError(f"x has dtype {dtype}, which must be one of {', '.join(DTYPES)}")
    problem = ConvProblem(
        x_shape, w_shape, stride, padding, dilation, groups, mode=mode, layout=layout, dtype=dtype.name
    )
    return plan(problem, algorithm=algorithm)


def _hashable(value: Any) -> Any:
    """Lists and arrays of arguments as tuples."""
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return value
    return tuple(_hashable(v) for v in value)


def _is_logical_view(x: np.ndarray, channels: int) -> bool:
    """Whether x is (N, C, *spatial) rather than (N, *spatial, C); strides decide where both would fit."""
    if x.shape[1] != channels:
        return False
    if x.shape[-1] != channels:
        return True
    return channels > 1 and x.strides[1] == x.itemsize and x.strides[-1] != x.itemsize
