"""What a call of `pooling` asks for of windows, apart from the array that they lie over."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any, NamedTuple

from convalgos.core.arguments import is_sequence, shown
from convalgos.core.pool_problem import PoolProblem


class PoolKind(NamedTuple):
    """The arguments of a call, as they were given."""

    kernel: Any
    stride: Any
    padding: Any
    dilation: Any
    ceil_mode: bool
    reduction: str
    count_padding: bool = True

    def problem(self, shape: tuple[int, ...], layout: str, dtype: str) -> PoolProblem:
        """The problem of an x of a logical shape (N, C, *spatial); kept for the next call."""
        hashable = self._replace(**{n: _tuples(v) for n, v in self._asdict().items()})
        return _problem(hashable, shape, layout, dtype)


def _tuples(value: Any) -> Any:
    """What has a hash: lists as tuples, and of what has none, its text, which is refused then."""
    if is_sequence(value):
        return tuple(map(_tuples, value))
    return value if isinstance(value, Hashable) else shown(value)


@lru_cache(256)
def _problem(kind: PoolKind, shape: tuple[int, ...], layout: str, dtype: str) -> PoolProblem:
    return PoolProblem.of(
        shape, kind.kernel, stride=kind.stride, padding=kind.padding, dilation=kind.dilation,
        ceil_mode=kind.ceil_mode, reduction=kind.reduction, count_padding=kind.count_padding, layout=layout,
        dtype=dtype,
    )  # fmt: skip
