"""Windows of arrays whose numbers are converted on the way: axis by axis, in blocks that caches hold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.axis_windows import AxisWindow
from convalgos.cpu.filtering.line_conversions import conversion
from convalgos.cpu.runtime.array_steps import ArrayStep, array_steps_of, chained
from convalgos.cpu.sliding.passes import Slides
from convalgos.ndimage.conversions import cast

BLOCK = 1 << 16  # elements of a block, of which two arrays lie in a second cache,
NARROWEST = 64  # and of each row of one of columns; Sapphire Rapids


class ConvertedStep(NamedTuple):
    """Windows along one axis, of numbers of a dtype, beyond whose edges `fill` lies."""

    axis: int
    window: AxisWindow
    dtype: np.dtype
    fill: float


class ConvertedSlides:
    """Reductions of windows along some axes, in a type each, whose results are cast to y's after each.

    A call as f(x, y) fills y.

    Args:
        shape, into: of y, and its type.
        of: x's type.
    """

    def __init__(
        self, shape: Shape, of: np.dtype, into: np.dtype, reduction: int, steps: Sequence[ConvertedStep]
    ):
        self._of, self._into, self._count = of, into, math.prod(shape)
        self._steps = []
        for step in steps:
            self._steps.append((step.dtype, _by_blocks(shape, step, reduction, of != step.dtype)))
            of = into

    @property
    def array_steps(self) -> list[ArrayStep] | None:
        """What a call does in one block, for `array_steps.array_steps_of`."""
        of, parts = self._of, list[list[ArrayStep] | None]()
        for dtype, blocks in self._steps:
            if len(blocks) > 1:
                return None
            ends = conversion(of, dtype, self._count), conversion(dtype, self._into, self._count)
            parts += [ends[0], array_steps_of(blocks[0][1]), ends[1]]
            of = self._into
        return chained([part for part in parts if part != []])

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        known, y = x.view(self._of), y.view(self._into)
        for dtype, blocks in self._steps:
            for at, slide in blocks:
                source = np.ascontiguousarray(known[at], dtype)  # apart from y, or not written
                found = np.empty_like(source)
                slide(source, found)
                for part, values in zip(_rows(y[at]), _rows(found), strict=True):
                    part[...] = cast(values, self._into)
            known = y


class SlidesOfOther:
    """`Slides` of numbers that are converted to their type first, which holds them."""

    def __init__(self, slides: Slides, of: np.dtype, into: np.dtype, count: int):
        self._slides, self._of, self._into, self._count = slides, of, into, count

    @property
    def array_steps(self) -> list[ArrayStep] | None:
        """What a call does, for `array_steps.array_steps_of`."""
        parts = [conversion(self._of, self._into, self._count), array_steps_of(self._slides)]
        return chained([part for part in parts if part != []])

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        self._slides(np.ascontiguousarray(x.view(self._of), self._into), y.view(self._into))


def _rows(array: np.ndarray) -> list[np.ndarray]:
    """An array in parts along its first axis, which caches hold."""
    count = max(1, len(array) * BLOCK // max(1, array.size))
    return [array[i : i + count] for i in range(0, len(array), count)]


def _by_blocks(
    shape: Shape, step: ConvertedStep, reduction: int, converted: bool
) -> list[tuple[tuple[slice, ...], Slides]]:
    """Blocks of whole lines along the step's axis, and what slides over each.

    Of columns of images only where the source is converted: else to copy them costs more than caches save.
    """
    slides: dict[Shape, Slides] = {}
    found = []
    for at in _blocks(shape, step.axis, columns=converted):
        size = tuple(len(range(n)[part]) for n, part in zip(shape, at, strict=True))
        if size not in slides:
            slides[size] = Slides(size, step.dtype, reduction, [(step.axis, step.window)], step.fill)
        found.append((at, slides[size]))
    return found


def _blocks(shape: Shape, axis: int, columns: bool) -> Iterator[tuple[slice, ...]]:
    """Parts of an array along its first other axis that has many elements, if need be one behind `axis`."""
    whole = [slice(None)] * len(shape)
    others = [i for i, n in enumerate(shape) if i != axis and n > 1]
    if math.prod(shape) <= BLOCK or not others or (others == [axis + 1] and not columns):
        yield tuple(whole)
        return
    along = others[0]
    behind = math.prod(shape[along + 1 :])
    count = -(-math.prod(shape) // BLOCK)
    width = max(-(-shape[along] // count), -(-NARROWEST // behind) if along > axis else 1)
    for begin in range(0, shape[along], width):
        whole[along] = slice(begin, min(begin + width, shape[along]))
        yield tuple(whole)
