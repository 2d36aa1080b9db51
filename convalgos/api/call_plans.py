"""Plans for calls with raw arguments, such as those of `conv`: found again by the arguments, or made."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any

import numpy as np

from convalgos.api import planning
from convalgos.api.known_filters import pattern_in_call
from convalgos.api.types import Boundary
from convalgos.core import arguments, boundaries
from convalgos.core.boundaries import ZERO
from convalgos.core.element_types import DTYPES, FLOAT8_DTYPES, INTEGERS
from convalgos.core.filter_patterns import UNSTRUCTURED
from convalgos.core.later_search import searching_later
from convalgos.core.plan import Plan
from convalgos.core.plan_cache import PlanCache
from convalgos.core.problem import ConvProblem, Shape
from convalgos.core.problem_views import on_map
from convalgos.core.setting import setting
from convalgos.select.ranker import Ranker, find_ranker

LAYERS = 1024  # of which a problem is kept
COMPUTED = (*DTYPES, *FLOAT8_DTYPES, *INTEGERS)  # types of x


def plan_for(
    x_shape: Any, w_shape: Any, stride: Any, padding: Any, dilation: Any, groups: Any, *others: Any
) -> Plan:
    """The plan of raw arguments, in the order of `_made`; errors are not kept.

    Of arrays of two types the type is (x's, w's).
    """
    # 1.0 and True are equal to 1, and not what it is
    ints = type(stride) is type(padding) is type(dilation) is type(groups) is int
    if not ints:
        ints = are_ints(stride) and are_ints(padding) and are_ints(dilation) and type(groups) is int
    kinds = "" if ints else repr((stride, padding, dilation, groups))
    key = (x_shape, w_shape, stride, padding, dilation, groups, others, kinds)
    try:
        kept = _kept.get((key, setting()))
    except TypeError:  # a list among the arguments
        hashable = map(_hashable, (*key[:6], *others))
    else:
        if kept is not None:
            kept.used = next(_clock)
            return kept.plan
        layer = _layer(len(x_shape), x_shape[1], *key[1:])
        made = _made(layer, x_shape, w_shape, stride, padding, dilation, groups, *others)
        _plans.add(key, made)
        return made
    return plan_for(*hashable)  # outside of the handler: what this refuses is one error, not two


def are_ints(value: Any) -> bool:
    """Whether it is an int or a tuple of ints, and of nothing that is only equal to one."""
    if type(value) is not tuple:
        return type(value) is int
    for v in value:  # noqa: SIM110 (a generator takes three times as long)
        if type(v) is not int:
            return False
    return True


_plans = PlanCache()
_kept, _clock = _plans.kept, _plans.clock


@lru_cache(LAYERS)
def _layer(*arguments: Any) -> list[ConvProblem]:
    """Of arguments of calls but the sizes of the maps: the problem of the first of them, once it is there."""
    return []


def _made(
    layer: list[ConvProblem],
    x_shape: Shape,
    w_shape: Shape,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    mode: str,
    layout: str,
    dtypes: np.dtype[Any] | tuple[np.dtype[Any], np.dtype[Any]],
    algorithm: str,
    device: str,
    direction: str,
    strict_nan: bool = False,
    max_rel_error: float | None = None,
    ranker: tuple[str, Ranker] | None = None,
    boundary: Boundary = ZERO,
    fill_value: float = 0.0,
    weights_constant: bool = False,
    pattern: str = UNSTRUCTURED,
) -> Plan:
    if layer:
        problem = on_map(layer[0], x_shape)
    else:
        of_x, of_w = dtypes if isinstance(dtypes, tuple) else (dtypes, dtypes)
        check_dtype("x", of_x)
        problem = ConvProblem(
            x_shape, w_shape, stride, padding, dilation, groups,
            mode=mode, layout=layout, dtype=of_x.name, direction=direction, w_dtype=of_w.name,
            boundary=boundary, fill_value=fill_value, pattern=pattern,
        )  # fmt: skip
        if problem.is_zero_padded and not isinstance(padding, str):  # else sizes may change the padding
            layer.append(problem)
    with searching_later():
        return planning.plan(
            problem, device, algorithm, weights_constant=weights_constant,
            strict_nan=strict_nan, max_rel_error=max_rel_error, selector=ranker[0] if ranker else None,
        )  # fmt: skip


def limits(
    strict_nan: bool, max_rel_error: float | None, selector: str | None, boundary: Any = ZERO,
    fill_value: Any = 0.0, w: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    """The last arguments of `_made`: none where nothing is limited and zeros lie beyond the edges. A ranker
    may be registered anew. w: a filter whose pattern may help.

    Raises:
        ValueError: names the argument, its value and what would be valid.
    """
    fills = type(fill_value) is not float or fill_value != 0
    if strict_nan is False and max_rel_error is None and selector is None and boundary is ZERO and not fills:
        return ()
    if not isinstance(strict_nan, bool):
        raise ValueError(f"strict_nan={strict_nan!r} must be True or False")
    ranker = None if selector is None else (selector, find_ranker(selector))
    fill = boundaries.checked_fill(fill_value)
    if fill != 0 and "constant" not in (boundary if arguments.is_sequence(boundary) else (boundary,)):
        raise ValueError(f"fill_value={fill:g} needs boundary='constant', not {arguments.shown(boundary)}")
    known = strict_nan, max_rel_error, ranker, boundary, fill
    return *known, *pattern_in_call(w, max_rel_error)


def check_dtype(name: str, dtype: np.dtype[Any]) -> None:
    """TypeError for what is not computed, with what computes it."""
    if dtype.name in COMPUTED:
        return
    told = {
        "b": f"; give {name}.astype('float32')",
        "i": f"; give {name}.astype('float32'), or 'float64' where sums exceed 2**24",
        "c": "; convolve the real and the imaginary parts, or, where there is one channel, call "
        "ca.signal.convolve, which takes complex arrays",
    }.get(dtype.kind.replace("u", "i"), "")
    if dtype.kind in "iu":
        told += "; ca.signal.convolve computes integers of one channel exactly"
    raise TypeError(f"{name} has dtype {dtype}, which must be one of {', '.join(COMPUTED)}{told}")


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
