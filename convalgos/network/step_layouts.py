"""In which layouts steps that are no convolutions may lie."""

from __future__ import annotations

from convalgos.core.layouts import BLOCKS, PLAIN
from convalgos.network.graph import Concatenation, Elementwise, Shapes, Step
from convalgos.network.pixel_moves import DepthToSpace, PixelMove

FIRST = "channels_first"


def is_laid_alike(step: Step, shapes: Shapes) -> bool:
    """Whether an elementwise step reads maps of one shape, or one number for each map or pixel."""
    if not isinstance(step, Elementwise):
        return False
    y = shapes[step.output]
    per_map, per_pixel = (*y[:2], *(1,) * (len(y) - 2)), (*y[:1], 1, *y[2:])
    return all(shapes[name] in (y, per_map, per_pixel) for name in step.inputs)


def serves(step: Step, layout: str, shapes: Shapes) -> bool:
    """Whether all that a step reads may lie in a layout, and be computed in it."""
    if layout == FIRST:
        return True
    read = [shapes[name] for name in step.inputs]
    if isinstance(step, PixelMove):
        larger = shapes[step.output] if isinstance(step, DepthToSpace) else read[0]
        return step.order is None and not larger[1] % BLOCKS.get(layout, 1)
    if isinstance(step, Elementwise):
        constants = [] if step.constant is None else [step.constant.shape]
        return layout in PLAIN or len({shape[1] for shape in (*read, *constants)}) == 1
    whole_blocks = not any(shape[1] % BLOCKS.get(layout, 1) for shape in read[:-1])
    return whole_blocks or not isinstance(step, Concatenation)
