"""What a choice must respect. Limits apply when a choice is made, never to what is measured or remembered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from convalgos.core import arguments
from convalgos.core.algorithm import Algorithm
from convalgos.core.borders.bordered import Bordered
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.element_types import PRECISIONS
from convalgos.core.near_names import did_you_mean
from convalgos.core.planner import Composite
from convalgos.core.problem import ConvProblem
from convalgos.core.wrapped_plans import CastPlan

UNSET = {  # limit -> what does not limit
    "workspace_limit": None,
    "max_rel_error": None,
    "deterministic": False,
    "strict_nan": False,
    "equal_bits": False,
    "allow": None,
    "deny": (),
}


@dataclass(frozen=True)
class Constraints:
    """Limits on a choice, and what its cost is spread over.

    Args:
        workspace_limit: bytes of scratch that a call may take.
        max_rel_error: largest acceptable error bound, relative to max|y|.
        deterministic: the same bits on every run.
        strict_nan: a NaN or an infinity of x reaches only the outputs under whose filter it lies, which
            excludes Winograd and Fourier transforms.
        allow, deny: a family or an id, or several: "cpu.winograd", ["cpu.fft", "cpu.im2col.mkl"]. A name
            stands for all whose id goes on from it: "cpu.direct" for "cpu.direct.pixels", too, and an id for
            its other settings. None allows all, and denies none.
        expected_calls: how often the plan will run: preparing the filter counts 1 / expected_calls of its
            time in each run, and measuring may take no longer than the runs themselves. None: very often.
        weights_constant: False where every call brings another filter, which is then prepared each time.
        precisions: number formats to compute in, one or several of "float32", "bfloat16", "float16" and
            "int8", of float32 problems; conversions are then priced. None: the problem's own.
        equal_bits: filters that are equal give outputs of equal bits, wherever they stand.

    Raises:
        ValueError: names the argument, its value, and what is valid.

    Example:
        >>> Constraints(deny="cpu.fft").deny
        ('cpu.fft',)
    """

    workspace_limit: int | None = None
    max_rel_error: float | None = None
    deterministic: bool = False
    strict_nan: bool = False
    allow: Any = None  # tuple of str, or None, once constructed
    deny: Any = ()  # tuple of str once constructed
    expected_calls: int | None = None
    weights_constant: bool = True
    precisions: Any = None  # tuple of str, or None, once constructed
    equal_bits: bool = False

    def __post_init__(self) -> None:
        for name, least in (("workspace_limit", 0), ("max_rel_error", 0), ("expected_calls", 1)):
            if (value := getattr(self, name)) is not None:
                arguments.check_number(name, value, least)
        for name in ("deterministic", "strict_nan", "equal_bits", "weights_constant"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={arguments.shown(getattr(self, name))} must be True or False")
        for name in ("allow", "deny", "precisions"):
            given = getattr(self, name)
            unset = () if name == "deny" else None
            object.__setattr__(self, name, unset if given is None else _names(name, given))
        for name in self.precisions or ():
            arguments.one_of("precisions", name, PRECISIONS)

    @cached_attribute
    def active(self) -> tuple[str, ...]:
        """Names of the limits that are set."""
        return tuple(name for name, unset in UNSET.items() if getattr(self, name) != unset)

    def check_names(self, known: Iterable[Algorithm], more: Iterable[Algorithm] = ()) -> None:
        """ValueError where `allow` or `deny` names what is no algorithm nor family of them.

        Args:
            more: algorithms that may be named, too, but are not listed.
        """
        known = tuple(known)
        names = {name for a in known for name in (a.family, a.id)}
        ids = [a.id for a in (*known, *more)]
        for argument in ("allow", "deny"):
            for name in getattr(self, argument) or ():
                if not any(covers(name, i) for i in ids):
                    hint = did_you_mean(name, sorted(names)) or ", as `convalgos algorithms` lists them"
                    raise ValueError(f"{argument}={name!r} must be a family or an id{hint}")

    def violations(self, algorithm: Algorithm, workspace_bytes: int, error_bound: float) -> dict[str, str]:
        """The limits that a candidate does not keep, each with the reason in words."""
        found = {}
        if self.workspace_limit is not None and workspace_bytes > self.workspace_limit:
            found["workspace_limit"] = (
                f"needs {workspace_bytes} bytes of workspace, over workspace_limit={self.workspace_limit}"
            )
        if self.max_rel_error is not None and error_bound > self.max_rel_error:
            found["max_rel_error"] = (
                f"its error bound {error_bound:.1e} is over max_rel_error={self.max_rel_error:.1e}"
            )
        if self.deterministic and not algorithm.deterministic:
            found["deterministic"] = "its sums differ in their last bits from run to run"
        if self.strict_nan and algorithm.spreads_nan:
            found["strict_nan"] = "a NaN in x would reach outputs beyond its footprint"
        if self.equal_bits and not algorithm.equal_bits:
            found["equal_bits"] = "equal filters would give unequal bits"
        if self.allow is not None and not any(covers(name, algorithm.id) for name in self.allow):
            found["allow"] = f"is not among allow={', '.join(self.allow)}"
        if denied := [name for name in self.deny if covers(name, algorithm.id)]:
            found["deny"] = f"is denied by deny={denied[0]}"
        return found

    def refusals(
        self, algorithm: Algorithm, problem: ConvProblem, workspace_bytes: int, error_bound: float
    ) -> dict[str, str]:
        """Why a candidate is not chosen: `violations`, and what only a call by name takes without them."""
        found = self.violations(algorithm, workspace_bytes, error_bound)
        if not self.admits(algorithm, problem):
            found["max_rel_error"] = "is not as exact as its types: it asks for max_rel_error=..."
        return found

    def admits(self, algorithm: Algorithm, problem: ConvProblem) -> bool:
        """Whether it may be as exact as it is: what approximates asks for an error to stay within."""
        return self.max_rel_error is not None or not algorithm.approximates_on(problem)

    def prepare_share(self) -> float:
        """The share of preparing a filter that each run pays."""
        if not self.weights_constant:
            return 1.0
        return 0.0 if self.expected_calls is None else 1.0 / self.expected_calls


def within(algorithm: Algorithm, computed: ConvProblem, constraints: Constraints | None) -> Algorithm:
    """The algorithm in the setting that keeps the limits; of one of sub-problems, these keep them."""
    if isinstance(algorithm, Bordered):
        return replace(algorithm, inner=within(algorithm.inner, algorithm.alone(computed), constraints))
    if isinstance(algorithm, Composite) and algorithm.planner is not None:
        algorithm = algorithm.planned_by(algorithm.planner.under(constraints, algorithm.id))
    if constraints is None or not constraints.active:
        return algorithm
    return algorithm.within(
        computed,
        workspace_limit=constraints.workspace_limit,
        deterministic=constraints.deterministic,
        strict_nan=constraints.strict_nan,
    )


def keeps(algorithm: Algorithm, problem: ConvProblem, constraints: Constraints) -> bool:
    """Whether an algorithm is within the limits on a problem."""
    bounded = constraints.workspace_limit is not None or constraints.max_rel_error is not None
    return not constraints.refusals(algorithm, problem, *(needs(algorithm, problem) if bounded else (0, 0.0)))


def needs(algorithm: Algorithm, problem: ConvProblem) -> tuple[int, float]:
    """(bytes of workspace, error bound), those of converting 16-bit data among them."""
    computed = algorithm.computed(problem)
    workspace_bytes = 0 if computed.is_empty else algorithm.workspace_bytes(computed)
    error_bound = algorithm.error_bound(computed)
    if computed.dtype == problem.dtype:
        return workspace_bytes, error_bound
    return workspace_bytes + CastPlan.converted_bytes(problem), error_bound + problem.eps


def _names(argument: str, value: Any) -> tuple[str, ...]:
    several = isinstance(value, Iterable) and not isinstance(value, str) and getattr(value, "ndim", 1) != 0
    names = tuple(value) if several else (value,)
    if not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{argument}={arguments.shown(value)} must be a name or a list of names")
    return names


def covers(name: str, algorithm_id: str) -> bool:
    """Whether a name is the id, or a family that the id is of."""
    return algorithm_id == name or algorithm_id.startswith(name + ".")
