"""Correlations of arrays along their axes, one after the other, in as few passes over memory as can be.

Neighbouring axes share a pass where the lines that the first one sums lie in the second cache, and all three
of a volume where its planes lie in the third.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.arguments import Shape
from convalgos.cpu.filtering.byte_passes import BytePass, why_not_bytes
from convalgos.cpu.filtering.line_endings import PLAIN
from convalgos.cpu.filtering.line_passes import SINGLE, LinePass
from convalgos.cpu.filtering.line_steps import EXACT, LineStep, way_of_sums
from convalgos.cpu.filtering.line_sums import ROWS
from convalgos.cpu.filtering.short_passes import ShortPass, why_not_short
from convalgos.cpu.filtering.volume_passes import VolumePass, why_not_volume
from convalgos.cpu.runtime.threads import cached_by_threads

CACHED = 640 << 10  # bytes of lines that one pass sums across and along: what the second cache holds; Zen 4


def filter_lines(x: np.ndarray, steps: Sequence[LineStep], y: np.ndarray) -> None:
    """y = x correlated by each step in turn, rounded to the type of y after each.

    Args:
        x, y: of one shape and at least one element, C-contiguous, apart in memory, of real types that
            `line_elements.KINDS` names.
        steps: at least one.

    Source: of what is summed, and in which order, scipy.ndimage; of band by band, Halide's local Laplacian
    and blur schedules (Ragan-Kelley et al. 2013, doi:10.1145/2491956.2462176).
    """
    run_passes(passes_of(x.shape, x.dtype, y.dtype, tuple(steps)), x, y)


def run_passes(passes: Sequence[LinePass], x: np.ndarray, y: np.ndarray) -> None:
    """One after the other, from x to y."""
    for each in passes[:-1]:
        target = aligned_empty(y.size, y.dtype, idles=True).reshape(y.shape)
        each.run(x, target)
        x = target
    passes[-1].run(x, y)


@cached_by_threads(128)
def passes_of(
    shape: Shape, x: np.dtype, y: np.dtype, steps: tuple[LineStep, ...], ending: int = PLAIN
) -> list[LinePass]:
    """What filters arrays of a shape and of two types, as `filter_lines` has them.

    ending: how the last sums meet y, which are floats, as `line_endings` has it.
    """
    shape, steps = _single_first(shape, steps)
    ordered = sorted(steps, key=lambda step: step.axis) if _commute(steps, x, y) else steps
    if why_not_volume(shape, x, y, ordered) is None:
        return [VolumePass(shape, x, y, ordered, ending)]
    kind, size = LinePass, 4 if y.name in SINGLE else 8
    if why_not_short(x, y, ordered) is None:
        kind, size = ShortPass, 2
    elif why_not_bytes(x, y, ordered) is None:
        kind, size = BytePass, 1
    together = _passes(shape, ordered, size)
    last = len(together) - 1
    return [
        kind(shape, y if number else x, y, part, ending if number == last else PLAIN)
        for number, part in enumerate(together)
    ]


def _single_first(shape: Shape, steps: Sequence[LineStep]) -> tuple[Shape, tuple[LineStep, ...]]:
    """The same with filtered axes of one element before all others: lines along them would be of one, too."""
    filtered = {step.axis for step in steps if shape[step.axis] == 1}
    order = sorted(range(len(shape)), key=lambda axis: axis not in filtered)
    moved = [step._replace(axis=order.index(step.axis)) for step in steps]
    return tuple(shape[axis] for axis in order), tuple(moved)


def _commute(steps: Sequence[LineStep], x: np.dtype, y: np.dtype) -> bool:
    """Whether steps may be made in any order: if all that is rounded is floats."""
    if any(step.window.boundary == "constant" and step.fill != 0 for step in steps):
        return False
    small = x.name in SINGLE and y.name in SINGLE  # which wrap around alike in any order
    exact = small and all(way_of_sums(step, each, 4) == EXACT for step in steps for each in (x, y))
    return exact or y.kind == "f"


def _passes(shape: Shape, steps: Sequence[LineStep], size: int) -> list[list[LineStep]]:
    """Steps by the pass that they are made in: one across lines may be followed by one along them.

    size: bytes of an element of sums.
    """
    found: list[list[LineStep]] = []
    for step in steps:
        if found and len(found[-1]) == 1 and found[-1][0].axis < step.axis:
            line = math.prod(shape[step.axis :]) * size
            if (len(found[-1][0].weights) + 2 * ROWS) * line <= CACHED:
                found[-1].append(step)
                continue
        found.append([step])
    return found
