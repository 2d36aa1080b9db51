"""What a check finds: one record for each thing that was tried, as the report has it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

LONGEST = 2000  # characters of a failure: the words of a compiler with the line that they are about


@dataclass(frozen=True)
class Result:
    """One check of an algorithm on a problem. Errors are relative to the largest output."""

    case: str  # "suite/layer"
    problem: str
    algorithm: str
    what: str  # that was checked: "y", "bias and relu", "the same bits", ...
    error: float | None = None
    bound: float | None = None
    where: tuple[int, ...] | None = None  # (n, k, *position) of the largest error, or of the first NaN
    nans: int = 0  # outputs that were not written
    failure: str | None = None  # what it raised, or did that it should not
    builds: tuple[str, ...] = ()  # the kernels that ran, where the result is wrong

    @property
    def wrong(self) -> bool:
        if self.failure is not None:
            return True
        return self.error is not None and self.bound is not None and not self.error <= self.bound

    def __str__(self) -> str:
        """A line that tells enough to look for the cause without the GPU."""
        where = f"{self.algorithm} on `{self.problem}`," if self.problem else self.case
        parts = [f"{where} {self.what}:"]
        if self.failure is not None:
            parts.append(self.failure)
        elif self.error is not None and self.bound is not None:
            parts.append(f"error {self.error:.2e}, bound {self.bound:.1e}")
        if self.nans:
            parts.append(f"{self.nans} outputs not written")
        if self.where is not None:
            parts.append(f"at (n, k, *position) = {self.where}")
        if self.builds:
            parts.append(f"[{'; '.join(self.builds)}]")
        return " ".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Without what is not there."""
        found = {k: v for k, v in asdict(self).items() if v not in (None, (), 0)}
        if self.error is not None:
            found["error"] = self.error if math.isfinite(self.error) else None
        return found


@dataclass(frozen=True)
class OutOfTime:
    """The time was spent before all was done."""

    left: int  # problems
    running: str = ""  # what was under way


def told(error: BaseException) -> str:
    """An exception in words, on one line."""
    lines = f"{type(error).__name__}: {error}".splitlines()
    return " | ".join(filter(None, map(str.strip, lines)))[:LONGEST]
