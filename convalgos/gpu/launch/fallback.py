"""Where a plan finds no memory for its workspace, the next one takes over, for good."""

from __future__ import annotations

import threading
import warnings
from typing import Any

from convalgos.core.prepared_filter import FilterKey, PreparedFilter


class GpuFilter(PreparedFilter):
    """A filter in the form of a plan and, where another plan may have to take over, as it came."""

    __slots__ = ("original", "other")

    def __init__(self, key: FilterKey, data: Any, original: Any):
        super().__init__(key, data)
        self.original = original
        self.other: GpuFilter | None = None  # in the form of the other plan, once that has taken over


class Fallback:
    """The plan that takes over from another one; many threads may find that out at once."""

    def __init__(self) -> None:
        self.plan: Any = None  # once it has taken over
        self._lock = threading.Lock()

    def serves(self, w: GpuFilter) -> bool:
        """Whether another plan has taken over, and this filter can be brought into its form."""
        return self.plan is not None and w.original is not None

    def take_over(self, failed: Any, w: GpuFilter, error: Exception) -> None:
        """Let the next plan take over; that is told once. Raises the error where there is none."""
        if failed.choice.next_plan is None or w.original is None:
            raise error
        with self._lock:
            if self.plan is not None:
                return
            self.plan = failed.choice.next_plan()
        warnings.warn(
            f"{failed.algorithm} found no memory for its workspace of {failed.workspace_bytes} bytes on "
            f"{failed.device.name}; {self.plan.algorithm} runs {failed.problem} from now on",
            RuntimeWarning,
            stacklevel=5,  # the call of the plan
        )

    def of(self, w: GpuFilter) -> tuple[Any, GpuFilter]:
        """The plan that has taken over, with the filter in its form."""
        with self._lock:
            if w.other is None:
                w.other = self.plan.in_own_form(w.original, w.original)
                self.plan.device.synchronize()  # calls on other streams will read it, too
        return self.plan, w.other
