"""A filter in the form that a plan runs on, and what it was prepared for."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.problem import ConvProblem


class FilterForm(NamedTuple):
    """All that a prepared filter depends on but its values. Sizes of maps are no part of it."""

    direction: str
    mode: str
    groups: int
    w_shape: tuple[int, ...]  # (K, C/groups, *kernel)
    dtype: str  # of x
    w_dtype: str
    compute_dtype: str
    laid: Hashable  # by what figures the plan lays it

    @classmethod
    def of(cls, problem: ConvProblem, *laid: Hashable) -> FilterForm:
        """That of the filters of a problem.

        Args:
            laid: every figure of the plan that the order of its prepared filter depends on.
        """
        p = problem
        return cls(p.direction, p.mode, p.groups, p.w_shape, p.dtype, p.w_dtype, p.compute_dtype, laid)

    def __str__(self) -> str:
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        return f"{self.direction} filters {self.w_shape}{groups} of {self.w_dtype}, laid as {self.laid}"


@dataclass(frozen=True)
class FilterKey:
    """What a filter was prepared for: it serves plans of the same key."""

    algorithm: str
    form: FilterForm | ConvProblem  # the problem, where the filter may depend on all of it
    device: str = "cpu"

    def __hash__(self) -> int:
        return self._hash

    @cached_attribute
    def _hash(self) -> int:
        """Found once: plans for other sizes of the maps share their key."""
        return hash((self.algorithm, self.form, self.device))

    def __getstate__(self) -> dict[str, Any]:
        """The fields: a hash is good for one process only."""
        return {"algorithm": self.algorithm, "form": self.form, "device": self.device}

    def __str__(self) -> str:
        return f"{self.algorithm} on {self.form}" + ("" if self.device == "cpu" else f" on {self.device}")


def shared_key(algorithm: str, form: FilterForm | ConvProblem, device: str) -> FilterKey:
    """The one key that all plans of a form have: what was prepared for one of them is found by the next."""
    key = FilterKey(algorithm, form, device)
    return _shared(key) if type(form) is FilterForm else key


@lru_cache(4096)
def _shared(key: FilterKey) -> FilterKey:
    return key


class PreparedFilter:
    """A filter in the form that plans of its key run on; `Plan.prepare` makes it. For backward_weights it is
    dy."""

    __slots__ = ("data", "key", "read")

    def __init__(self, key: FilterKey, data: Any, read: Any = None):
        self.key = key
        self.data = data
        self.read = read  # the array that runs may read: dy. Of filters the data are copies, and it is None
