"""Networks that are left to ONNX Runtime as a whole: run by a session as a program itself would make it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from convalgos.network.graph import Foreign, NetworkGraph
from convalgos.network.onnx_reader.region import OnnxRegion
from convalgos.network.sizes_of_run import SizesOfRun


class WholeRegion:
    """Runs a network that is one region, without a plan of its own. Any number of threads may run it."""

    def __init__(self, region: OnnxRegion, graph: NetworkGraph):
        region.is_alone = True
        self._region = region
        self._reads = [graph.inputs.index(name) for name in region.inputs]
        self._gives = [region.outputs.index(name) for name in graph.outputs]

    def run(self, views: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """All outputs, new arrays; None where ONNX Runtime refuses the inputs: a plan tells why."""
        try:
            found = self._region.opened([views[i] for i in self._reads])
        except SizesOfRun:
            return None
        return [found[i] for i in self._gives]


def whole_region(graph: NetworkGraph) -> WholeRegion | None:
    """What runs a network of nothing but one region; None of others."""
    if len(graph.steps) != 1 or not isinstance(step := graph.steps[0], Foreign):
        return None
    region = step.region
    if not isinstance(region, OnnxRegion) or region.has_others_types:
        return None
    if len({*graph.outputs}) < len(graph.outputs):
        return None
    is_whole = {*region.inputs} <= {*graph.inputs} and {*graph.outputs} <= {*region.outputs}
    return WholeRegion(region, graph) if is_whole else None
