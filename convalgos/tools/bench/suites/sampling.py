"""Some layers of many, drawn so that they stand for all."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from convalgos.tools.bench.suites import Layer

WEIGHTS = ("layers", "macs", "unique")
"""What a layer counts by: how many layers of networks are like it, these times their products, or 1."""


def layer_weight(layer: Layer, by: str) -> float:
    """How much a layer counts, by one of WEIGHTS."""
    if by == "unique":
        return 1.0
    return float(layer.count) if by == "layers" else float(layer.count) * layer.problem.flops / 2


def sample(layers: Sequence[Layer], number: int, seed: int = 0, by: str = "layers") -> tuple[Layer, ...]:
    """Draw distinct layers, in their order. The same seed draws the same ones on every machine.

    Args:
        number: of them; all layers where there are no more.
        by: one of WEIGHTS; a layer of weight 0 is never drawn.

    Raises:
        ValueError: by is none of WEIGHTS.

    Example:
        >>> from convalgos.tools.bench.suites import suite
        >>> [layer.name for layer in sample(suite("alexnet"), 2, by="macs")]
        ['conv3', 'conv4']

    Source: Efraimidis and Spirakis 2006, doi:10.1016/j.ipl.2005.11.003 (drawing by weights without
    replacement: the largest log(u) / weight, with u uniform in (0, 1]).
    """
    if by not in WEIGHTS:
        raise ValueError(f"by={by!r} must be one of {', '.join(WEIGHTS)}")
    draw = random.Random(seed)
    weights = [layer_weight(layer, by) for layer in layers]
    keys = [math.log(1 - draw.random()) / w if w > 0 else -math.inf for w in weights]
    chosen = sorted(range(len(layers)), key=lambda i: -keys[i])[:number]
    return tuple(layers[i] for i in sorted(chosen) if weights[i] > 0)
