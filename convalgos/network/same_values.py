"""Values that are the same as others: what reads one can read the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from convalgos.network.graph import Foreign, Step


def reading_same(step: Step, same: Mapping[str, str]) -> Step:
    """A step that reads the same values by other names; regions know theirs by name, and keep them."""
    if isinstance(step, Foreign) or not any(name in same for name in step.inputs):
        return step
    return replace(step, inputs=tuple(same.get(name, name) for name in step.inputs))
