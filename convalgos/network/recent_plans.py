"""Plans of a network by the shapes of its inputs: those that came last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, Protocol, TypeVar

from convalgos.core.arguments import Shape
from convalgos.core.forks import guarded
from convalgos.network.layout_choice import LayoutChoice
from convalgos.network.planned import Planned

STEPS = 1 << 16  # of all plans that are kept, which take 5 KB each
Shapes = tuple[Shape, ...]  # of the inputs, in their order


class OfNetwork(Protocol):
    """A plan of a network."""

    planned: Planned
    choice: LayoutChoice


AnyPlan = TypeVar("AnyPlan", bound=OfNetwork)


class RecentPlans(Generic[AnyPlan]):
    """Plans that the calls of a network run by. Any number of threads may ask and add at a time."""

    def __init__(self) -> None:
        self._all: OrderedDict[Shapes, AnyPlan] = OrderedDict()
        self._chosen: dict[Shapes, AnyPlan] = {}
        self._rough: set[Shapes] = set()
        self._last: tuple[Shapes | None, AnyPlan | None] = None, None  # of `_all`
        self._lock = guarded(threading.Lock())

    def get(self, shapes: Shapes) -> AnyPlan | None:
        """That for these shapes, which goes the last from now on."""
        last, found = self._last
        if last != shapes:
            with self._lock:
                found = self._all.get(shapes)
                if found is not None:
                    self._all.move_to_end(shapes)
                    self._last = shapes, found
        return found

    def is_rough(self, shapes: Shapes) -> bool:
        """Whether the plan has the algorithms of much more, or less, work."""
        return bool(self._rough) and shapes in self._rough

    def add(self, shapes: Shapes, plan: AnyPlan, rough: bool) -> None:
        """Keep a plan, and let go of those that are then too many: those that others are made like stay the
        longest."""
        most = max(1, STEPS // max(1, len(plan.planned.steps)))
        with self._lock:
            self._all[shapes] = plan
            self._all.move_to_end(shapes)
            self._last = shapes, plan
            (self._rough.add if rough else self._rough.discard)(shapes)
            self._chosen.pop(shapes, None)
            if not plan.choice.of_other_shapes:
                self._chosen[shapes] = plan
            while len(self._all) > most:
                others = (key for key in self._all if key != shapes and key not in self._chosen)
                gone = next(others, None) or next(key for key in self._all if key != shapes)
                del self._all[gone]
                self._chosen.pop(gone, None)
                self._rough.discard(gone)

    def all(self) -> list[AnyPlan]:
        """Every plan; with hundreds of them it takes half a millisecond."""
        with self._lock:
            return list(self._all.values())

    def chosen(self) -> list[AnyPlan]:
        """The few that were chosen for their own shapes, and that others are made like."""
        with self._lock:
            return list(self._chosen.values())
