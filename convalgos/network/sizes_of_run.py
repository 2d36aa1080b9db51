"""What is raised where only a run tells the sizes of what a step gives."""

from __future__ import annotations

from typing import Any


class SizesOfRun(ValueError):
    """A `ForeignRegion` gives other sizes than planning found, or it found none: a run may tell them."""

    def __init__(self, told: str, region: Any):
        super().__init__(told)
        self.region = region


def naming_step(name: str, error: ValueError) -> ValueError:
    """The same error, whose words begin with the name of a step."""
    told = f"step {name!r}: {error}"
    return SizesOfRun(told, error.region) if isinstance(error, SizesOfRun) else ValueError(told)
