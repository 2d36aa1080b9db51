"""Channels that become pixels, and pixels that become channels: steps, and filters that take up their orders.

A super-resolution network ends in what is called sub-pixel convolution or pixel shuffle: the channels of a
convolution are dealt out to the pixels of a larger map. Source: Shi et al. 2016, arXiv:1609.05158.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.network.graph import Convolution, NetworkGraph, Shapes, Step
from convalgos.network.mapped_weights import let_go, put_in_file
from convalgos.network.read_once import read_once


@dataclass(frozen=True, eq=False)
class PixelMove(Step):
    """Between maps (N, C, H * a, W * b) and deep maps (N, a * b * C, H, W), whose channel (i * b + j) * C + c
    has the pixels (h * a + i, w * b + j) of channel c.

    Where there is an `order`, channel k of what `SpaceToDepth` writes is channel order[k] of such deep maps,
    and channel k of those that `DepthToSpace` moves is channel order[k] of what it reads.
    """

    factors: Shape = (1, 1)
    order: np.ndarray | None = None  # (a * b * C,)


@dataclass(frozen=True, eq=False)
class DepthToSpace(PixelMove):
    """From deep maps to larger ones."""

    def output_shape(self, shapes: Shapes) -> Shape:
        images, channels, *sizes = shapes[self.inputs[0]]
        parts = math.prod(self.factors)
        if channels % parts or (self.order is not None and len(self.order) != channels):
            raise ValueError(f"{channels} channels are not dealt out to {self.factors} pixels")
        return (images, channels // parts, *(n * f for n, f in zip(sizes, self.factors, strict=True)))


@dataclass(frozen=True, eq=False)
class SpaceToDepth(PixelMove):
    """From maps to deeper ones."""

    def output_shape(self, shapes: Shapes) -> Shape:
        images, channels, *sizes = shapes[self.inputs[0]]
        deep = channels * math.prod(self.factors)
        if any(n % f for n, f in zip(sizes, self.factors, strict=True)):
            raise ValueError(f"maps of {sizes} are not cut into parts of {self.factors} pixels")
        if self.order is not None and len(self.order) != deep:
            raise ValueError(f"an order of {len(self.order)} channels is given for {deep}")
        return (images, deep, *(n // f for n, f in zip(sizes, self.factors, strict=True)))


def orders_in_filters(graph: NetworkGraph) -> NetworkGraph:
    """Convolutions write, and read, channels in the order in which they are moved fastest."""
    readers, makers = graph.readers(), read_once(graph)
    made: dict[Step, Step] = {}
    for step in graph.steps:
        if not isinstance(step, PixelMove) or step.order is None:
            continue
        if isinstance(step, DepthToSpace):
            of = makers.get(step.inputs[0])
            if not isinstance(of, Convolution) or of.groups > 1 or len(of.inputs) > 1 or of in made:
                continue
            bias = None if of.bias is None else of.bias[step.order]
            made[of] = _with_filter(of, of.w[step.order], bias)
        elif _all_take_orders(readers[step.output], step, graph.outputs, made):
            back = np.argsort(step.order)
            for reader in readers[step.output]:
                assert isinstance(reader, Convolution)
                made[reader] = _with_filter(reader, reader.w[:, back], reader.bias)
        else:
            continue
        made[step] = replace(step, order=None)
    return replace(graph, steps=tuple(made.get(step, step) for step in graph.steps))


def _all_take_orders(
    readers: Sequence[Step], step: Step, outputs: Sequence[str], made: dict[Step, Step]
) -> bool:
    """Whether what a step writes is read by filters alone, which nothing else changes."""
    y = step.output
    return bool(readers) and y not in outputs and all(
        isinstance(reader, Convolution) and reader.groups == 1 and reader not in made
        and reader.inputs.count(y) == 1 and reader.inputs[0] == y
        for reader in readers
    )  # fmt: skip


def _with_filter(step: Convolution, w: np.ndarray, bias: np.ndarray | None) -> Convolution:
    let_go(step.w)
    return replace(step, w=put_in_file(np.ascontiguousarray(w)), bias=bias)
