"""The public calls: arguments -> problem -> plan cache -> result. Raw input is read here and in gradients."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from convalgos.core import allocator, arguments, plan_cache, profiles, workspaces
from convalgos.core.algorithm import Algorithm
from convalgos.core.arrays import (
    Facts,
    as_cupy,
    as_numpy,
    device_of,
    facts,
    is_tensor,
    like,
    moveaxis,
    same_dtype,
    writable_view,
)
from convalgos.core.errors import Unsupported
from convalgos.core.machine import memory_bytes
from convalgos.core.plan import Plan, PreparedFilter
from convalgos.core.plan_cache import PlanCache
from convalgos.core.problem import DTYPES, ConvProblem
from convalgos.select import choose, devices, registry, shape_buckets
from convalgos.select.constraints import Constraints
from convalgos.select.measured import Entry
from convalgos.select.ranker import Ranker, find_ranker
from convalgos.select.ranking import Ranking

if TYPE_CHECKING:
    from convalgos.measure.table import Table

MOST_MEMORIES = 4  # times the memory of the machine that the arrays of a plan may take
EFFORTS = ("estimate", "measure", "exhaustive")
ON_MISS = ("estimate", "error")


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
    activation: Any = None,
    residual: Any = None,
    out: Any = None,
    strict_nan: bool = False,
    max_rel_error: float | None = None,
    selector: str | None = None,
) -> Any:
    """Convolve x with w, in 1, 2 or 3 dimensions by x.ndim.

    Args:
        x: (N, C, *spatial), of float32, float64, float16 or bfloat16. With layout="channels_last":
            (N, *spatial, C), or an (N, C, *spatial) view of such memory (as torch's channels_last tensors
            are); y then comes back the same way.
        w: (K, C/groups, *kernel), or what `plan.prepare` returned for the same problem.
        bias: (K,), added to every output, or None.
        stride, padding, dilation, groups, mode, layout: see `ConvProblem`.
        algorithm: "auto", or an id from `algorithms()`, which is then used or refused, never replaced.
            "auto" counts the time of preparing the filter, which a call with a bare w pays.
        activation: applied last: None, "relu", "relu6", "leaky_relu", "sigmoid", "silu", "hard_swish",
            "gelu", "gelu_tanh", or one with its numbers: ("leaky_relu", slope), ("clip", low, high). All keep
            NaN.
        residual: an array like y that is added before the activation, as at the end of a residual block.
        out: array for y; it may be of any strides, and may overlap x and residual.
        strict_nan, max_rel_error, selector: those of `plan`.

    Returns:
        y (N, K, *spatial_out), of x's dtype and kind of array: NumPy, CuPy, torch, or one of the array API
        standard, such as JAX. Of what NumPy only reads, such as lists, a NumPy array.

    Raises:
        ValueError, TypeError: an argument is invalid, or holds what would be lost, such as a mask or what
            torch needs for gradients (`convalgos.torch` has them); the message names it.
        Unsupported: the forced algorithm cannot serve this problem; the message says why.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> x, w = np.ones((1, 3, 8, 8), "f4"), np.ones((4, 3, 3, 3), "f4")
        >>> ca.conv(x, w, padding=1).shape
        (1, 4, 8, 8)
    """
    device = device_of(x)
    target = writable_view if device == "cpu" else as_cupy
    given = x
    x = _array("x", x, device)
    of_x = facts("x", x)
    if isinstance(w, PreparedFilter):
        w_shape = w.key.problem.w_shape
        if algorithm == "auto":
            algorithm = w.key.algorithm  # the choice was made when the filter was prepared
    else:
        w = _array("w", w, device)
        w_shape, _, w_dtype = facts("w", w)
        if not same_dtype(w_dtype, of_x.dtype):
            check_dtype("x", of_x.dtype)
            raise TypeError(f"w has dtype {w_dtype}, but x has {of_x.dtype}; they must be the same")
    if len(of_x.shape) != len(w_shape) or not 3 <= len(w_shape) <= 5:
        raise ValueError(
            f"x has shape {of_x.shape} and w {w_shape}: both must have 3, 4 or 5 dimensions, "
            f"(N, C, *spatial) and (K, C/groups, *kernel){instead('x', of_x.shape, w_shape)}"
        )
    if not isinstance(layout, str):
        arguments.one_of("layout", layout, arguments.LAYOUTS)
    logical = layout != "channels_last"
    if not logical and is_logical_view(of_x, w_shape[1] * groups):
        # (N, C, *spatial) over channels-last memory: run on the (N, *spatial, C) view of it
        y = conv(
            moveaxis(x, 1, -1), w, bias, stride=stride, padding=padding, dilation=dilation,
            groups=groups, mode=mode, layout=layout, algorithm=algorithm, activation=activation,
            residual=None if residual is None else moveaxis(_array("residual", residual, device), 1, -1),
            out=None if out is None else moveaxis(target("out", out), 1, -1),
            strict_nan=strict_nan, max_rel_error=max_rel_error, selector=selector,
        )  # fmt: skip
        y = moveaxis(y, -1, 1) if out is None else out
        return y if x is given or out is not None else like(y, given)
    shape = of_x.shape if logical else (of_x.shape[0], of_x.shape[-1], *of_x.shape[1:-1])
    made = plan_for(
        shape, w_shape, stride, padding, dilation, groups, mode, layout, of_x.dtype, algorithm, device,
        "forward", *limits(strict_nan, max_rel_error, selector),
    )  # fmt: skip
    y = made(x, w, bias=bias, out=out, activation=activation, residual=residual)
    return y if x is given or out is not None else like(y, given)


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
    allow: str | Iterable[str] | None = None,
    deny: str | Iterable[str] | None = None,
    strict_nan: bool = False,
    expected_calls: int | None = None,
    weights_constant: bool = True,
    on_miss: str = "estimate",
    selector: str | None = None,
) -> Plan:
    """Choose an algorithm for a problem and build everything that does not depend on the data.

    Args:
        device: "cpu", "cuda:N", or "cuda" for CuPy's current device.
        algorithm: "auto", or an id from `algorithms()`.
        effort: "estimate" times nothing: it goes by what was measured before on this problem or a near one,
            else by the cost models. "measure" times the candidates that may be the fastest, in about twenty
            times a run, unless that was done before. "exhaustive" times and checks them all, and other
            settings of the best. What is measured is remembered (`convalgos.wisdom`).
        workspace_limit: bytes of scratch that a call may take.
        max_rel_error: largest acceptable error bound, relative to max|y|.
        deterministic: same bits on every run. Every CPU algorithm is; the argument is for the GPU.
        time_budget: seconds that measuring may take, compiling included.
        allow, deny: families or ids to choose from, or not to: "cpu.winograd", ["cpu.fft", "cpu.direct"].
        strict_nan: a NaN in x reaches only the outputs under whose filter it lies: no Winograd, no FFT.
        expected_calls: how often the plan will run, where that is not often: each run then counts its share
            of preparing the filter, and measuring takes no longer than the runs.
        weights_constant: False where the filter is another in each call, and is prepared each time.
        on_miss: what to do where this problem was not measured before: "estimate", or "error", which replays
            only what is known and says what that is.
        selector: the name of a ranker from `select.register`, whose predictions then decide alone.

    Raises:
        ValueError: an argument is invalid. Unsupported: nothing can serve the problem; says why.

    Example:
        >>> import convalgos as ca
        >>> ca.plan(ca.ConvProblem.parse("n1 c8 h8 w8 k8 r1 s1")).problem.gemm_k
        8
    """
    device = _check(problem, device)
    for name, value, valid in (("effort", effort, EFFORTS), ("on_miss", on_miss, ON_MISS)):
        arguments.one_of(name, value, valid)
    if time_budget is not None:
        arguments.check_number("time_budget", time_budget, 0)
    if not isinstance(selector, str | None):
        raise ValueError(f"selector={arguments.shown(selector)} must be None or the name of a ranker")
    if on_miss == "error" and (effort != "estimate" or selector is not None):
        raise ValueError("on_miss='error' replays what is known: it goes with effort='estimate', no selector")
    constraints = Constraints(
        workspace_limit, max_rel_error, deterministic, strict_nan, allow, deny, expected_calls,
        weights_constant,
    )  # fmt: skip
    if algorithm != "auto":
        made = choose.serve(registry.find_algorithm(algorithm, problem), problem, constraints, device)
    elif on_miss == "error":
        made = replay(problem, device, constraints)
    elif effort != "estimate" and not problem.is_empty:
        made = _measured(problem, device, constraints, effort, time_budget, selector)
    elif selector is None and device == "cpu":
        made = shape_buckets.plan(problem, device, constraints)
    else:
        made = choose.explained(choose.rank(problem, device, constraints, selector=selector), device)
    return made


def find(
    problem: ConvProblem,
    *,
    device: str = "cpu",
    effort: str = "exhaustive",
    time_budget: float | None = None,
    **limits: Any,
) -> Table:
    """Time every candidate on a problem, and remember the result (`convalgos.wisdom`).

    Args:
        device: "cpu", "cuda:N", or "cuda" for CuPy's current device. On a GPU the times are its own, of calls
            whose data are in L2 where they fit, and the wisdom is that of GPUs of its kind.
        effort: "exhaustive" times every candidate that is not hopeless, and other settings of the best,
            checks each result against float64 and takes its time; "measure" races the promising ones, as
            `plan` does, and checks them more briefly. Wrong results and times that other programs disturbed
            are not used, which a RuntimeWarning says.
        time_budget: seconds that it may take. Without one the machine is measured first, where it never was.
        limits: those of `plan`: workspace_limit, max_rel_error, deterministic, allow, deny, strict_nan.

    Returns:
        A table, fastest first: id, median seconds with spread, workspace, error against float64, or the
        reason why not. It prints as text; `table.rows` are the entries.

    Example:
        >>> import convalgos as ca
        >>> table = ca.find(ca.ConvProblem.parse("n1 c4 h9 w9 k4 r3 s3 p1"))
        >>> table.rows[0].median_s > 0
        True
    """
    from convalgos.measure import accuracy, race, remembered
    from convalgos.measure.backends import backend
    from convalgos.measure.table import known_table, time_candidates

    device = _check(problem, device)
    if effort not in EFFORTS[1:]:
        raise ValueError(f"effort={effort!r} must be one of {', '.join(map(repr, EFFORTS[1:]))}")
    if time_budget is None:
        devices.measured_figures(device)
    ranking = choose.rank(problem, device, Constraints(**limits), exhaustive=_tries_variants(effort, device))
    if effort == "exhaustive":
        check = accuracy.AccuracyCheck(problem, backend(device))
        table = time_candidates(ranking, time_budget=time_budget, check=check)
        remember(problem, remembered.of_table(table), device)
        return table
    found = race.race(problem, ranking.candidates, time_budget=time_budget, backend=backend(device))
    remember(problem, found, device)
    return known_table(ranking, found)


def explain(
    problem: ConvProblem,
    *,
    device: str = "cpu",
    selector: str | None = None,
    exhaustive: bool = False,
    **limits: Any,
) -> Ranking:
    """The ranking as the selector sees it. Prints as text.

    It gives the predicted and, where there is one, the measured time of each candidate, the reason of each
    rejection, the margin of the first over the second, and what each limit costs: the time of the pick over
    that of the pick without this limit.

    Args:
        exhaustive: with the other settings that an exhaustive search would try, as each plan of cuDNN.
        selector, limits: those of `plan`: workspace_limit, max_rel_error, deterministic, allow, deny,
            strict_nan, expected_calls, weights_constant.
    """
    device = _check(problem, device, runs=False)
    return choose.rank(problem, device, Constraints(**limits), selector=selector, exhaustive=exhaustive)


def replay(problem: ConvProblem, device: str, constraints: Constraints) -> Plan:
    """The plan of what was measured fastest on this very problem.

    Raises:
        Unsupported: nothing was measured, or nothing within the limits; says what is known.
    """
    ranking = choose.rank(problem, device, constraints, measured_only=True)
    if ranking.candidates:
        return choose.explained(ranking, device)
    store = devices.store(device)
    known = store.lookup(problem)
    if known:
        out = "; ".join(f"{r.id}: {r.why_not}" for r in ranking.rejected if r.id in known)
        told = f"of the {len(known)} candidates that were measured none may be used: {out}"
    else:
        told = f"it was not measured on this machine, of which {len(store.entries())} problems are known"
        if near := store.near(problem):
            told += f", the most similar being {near[0]}"
        told += "; ca.plan(problem, effort='measure') measures it"
    raise Unsupported(f"on_miss='error' and {problem}: {told}")


def algorithms() -> tuple[Algorithm, ...]:
    """Every algorithm, ordered by id: the one list that selector, tests and benchmarks read."""
    return registry.algorithms()


# --- inside ----------------------------------------------------------------------------------


def _array(name: str, array: Any, device: str) -> Any:
    """A tensor as it is; of all else a view of the device's kind."""
    if is_tensor(array):
        return array
    return as_numpy(name, array) if device == "cpu" else as_cupy(name, array)


def _check(problem: Any, device: str, runs: bool = True) -> str:
    """The device's full name: "cuda" is another one for another thread, or later."""
    if not isinstance(problem, ConvProblem):
        raise TypeError(f"problem={arguments.shown(problem)} must be a ConvProblem")
    if not isinstance(device, str):
        raise ValueError(f"device={arguments.shown(device)} must be 'cpu', 'cuda' or 'cuda:N'")
    if runs and device in profiles.of_gpus():
        raise Unsupported(f"device={device!r} is known by its figures only, for ca.explain")
    if device == "cpu":
        if runs:
            _check_room(problem)
        return device
    from convalgos.gpu import device as gpu

    return gpu.named(device).name


def _check_room(problem: ConvProblem) -> None:
    """Arrays may lie in files larger than memory, but not in such that planning alone would take hours."""
    room = memory_bytes()
    if room is not None and problem.bytes > MOST_MEMORIES * room:
        needed, there = (f"{nbytes / 2**30:,.1f} GiB" for nbytes in (problem.bytes, room))
        names = ", ".join(problem.arrays)
        raise Unsupported(f"{problem}: {names} take {needed}, and this machine has {there} of memory")


def _measured(
    problem: ConvProblem,
    device: str,
    constraints: Constraints,
    effort: str,
    time_budget: float | None,
    selector: str | None,
) -> Plan:
    """The plan of what is measured fastest, measuring what is not known yet."""
    from convalgos.measure import accuracy, race, remembered
    from convalgos.measure.backends import backend
    from convalgos.measure.table import time_candidates

    exhaustive = _tries_variants(effort, device) and selector is None
    ranking = choose.rank(problem, device, constraints, selector=selector, exhaustive=exhaustive)
    if effort == "exhaustive":
        check = accuracy.AccuracyCheck(problem, backend(device))
        table = time_candidates(ranking, within=float("inf"), time_budget=time_budget, check=check)
        found = remembered.of_table(table)
    else:
        best = ranking.candidates[0].seconds if ranking.candidates else 0.0
        calls = constraints.expected_calls
        found = race.race(
            problem,
            race.open_questions(ranking.candidates),
            time_budget=time_budget,
            runs_budget=None if calls is None else calls * best,
            backend=backend(device),
        )
    remember(problem, found, device)
    decided = choose.rank(problem, device, constraints, measured_only=True)
    if not decided.candidates:  # all that was tried has failed: the rest, without them
        decided = choose.rank(problem, device, constraints, selector=selector)
    return choose.explained(decided, device)


def _tries_variants(effort: str, device: str) -> bool:
    """Whether measuring tries other settings, too: on a GPU always, as cuDNN's can only be measured."""
    return effort == "exhaustive" or device != "cpu"


def remember(problem: ConvProblem, found: Entry, device: str = "cpu") -> None:
    """Add to the wisdom what was measured, and let `conv` choose by it."""
    if found:
        devices.store(device).record(problem, found)
        forget_plans()


def forget_plans() -> None:
    """Let go of all that is kept for later calls of `conv` and its kin, so that they choose and plan anew.

    The memory goes back to the system: plans, their tables and workspaces, and that of results which were
    dropped. What was measured, and compiled kernels, stay. Of plans and workspaces the least recently used go
    by themselves where they take more than a sixteenth of the memory, or than CONVALGOS_KEPT_BYTES says.

    Example:
        >>> import convalgos as ca
        >>> ca.forget_plans()
    """
    plan_cache.forget()
    shape_buckets.forget()
    workspaces.forget()
    allocator.forget()


def plan_for(
    x_shape: Any, w_shape: Any, stride: Any, padding: Any, dilation: Any, groups: Any, *others: Any
) -> Plan:
    """The plan of raw arguments, in the order of `_made`; errors are not kept."""
    # 1.0 and True are equal to 1, and not what it is
    if type(stride) is type(padding) is type(dilation) is type(groups) is int:
        kinds = ""
    else:
        kinds = repr((stride, padding, dilation, groups))
    key = (x_shape, w_shape, stride, padding, dilation, groups, others, kinds)
    try:
        kept = _kept.get(key)
    except TypeError:  # a list among the arguments
        hashable = map(_hashable, (*key[:6], *others))
    else:
        if kept is not None:
            kept.used = next(_clock)
            return kept.plan
        made = _made(x_shape, w_shape, stride, padding, dilation, groups, *others)
        _plans.add(key, made)
        return made
    return plan_for(*hashable)  # outside of the handler: what this refuses is one error, not two


_plans = PlanCache()
_kept, _clock = _plans.kept, _plans.clock


def _made(
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
    device: str,
    direction: str,
    strict_nan: bool = False,
    max_rel_error: float | None = None,
    ranker: tuple[str, Ranker] | None = None,
    weights_constant: bool = False,
) -> Plan:
    check_dtype("x", dtype)
    problem = ConvProblem(
        x_shape, w_shape, stride, padding, dilation, groups,
        mode=mode, layout=layout, dtype=dtype.name, direction=direction,
    )  # fmt: skip
    return plan(
        problem, device, algorithm, weights_constant=weights_constant,
        strict_nan=strict_nan, max_rel_error=max_rel_error, selector=ranker[0] if ranker else None,
    )  # fmt: skip


def limits(strict_nan: bool, max_rel_error: float | None, selector: str | None) -> tuple[Any, ...]:
    """The last arguments of `_made`: none where nothing is limited. A ranker may be registered anew."""
    if strict_nan is False and max_rel_error is None and selector is None:
        return ()
    if not isinstance(strict_nan, bool):
        raise ValueError(f"strict_nan={strict_nan!r} must be True or False")
    return strict_nan, max_rel_error, None if selector is None else (selector, find_ranker(selector))


def check_dtype(name: str, dtype: np.dtype) -> None:
    """TypeError for what is not computed, with what computes it."""
    if dtype.name in DTYPES:
        return
    told = {
        "b": f"; give {name}.astype('float32')",
        "i": f"; give {name}.astype('float32'), or 'float64' where sums exceed 2**24",
        "c": "; convolve the real and the imaginary parts, or, where there is one channel, call "
        "ca.signal.convolve, which takes complex arrays",
    }.get(dtype.kind.replace("u", "i"), "")
    if dtype.kind in "iu":
        told += "; ca.signal.convolve computes integers of one channel exactly"
    raise TypeError(f"{name} has dtype {dtype}, which must be one of {', '.join(DTYPES)}{told}")


def instead(name: str, shape: tuple[int, ...], w_shape: tuple[int, ...]) -> str:
    """What to give in the place of an array that has not the dimensions of the filter."""
    if len(shape) == len(w_shape) - 1 and len(w_shape) <= 5:
        return f"; {name} has no batch dimension: give {name}[None], and take the first of the result"
    if len(shape) == len(w_shape) < 3:
        return "; ca.signal.convolve and correlate take arrays without batch and channels"
    return ""


def _hashable(value: Any) -> Any:
    """Lists and arrays of arguments as tuples."""
    if arguments.is_sequence(value):
        return tuple(_hashable(v) for v in value)
    if isinstance(value, np.ndarray):  # of one number
        return value.item()
    return value if isinstance(value, Hashable) else arguments.shown(value)  # which is then refused


def is_logical_view(x: Facts | np.ndarray, channels: int) -> bool:
    """Whether x is (N, C, *spatial) rather than (N, *spatial, C); strides decide where both would fit."""
    if x.shape[1] != channels:
        return False
    if x.shape[-1] != channels:
        return True
    return channels > 1 and x.strides[1] == x.dtype.itemsize != x.strides[-1]
