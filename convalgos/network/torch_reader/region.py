"""A region of a network that torch runs: nodes of its graph, between arrays of ours."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from convalgos.network.graph import Sizes
from convalgos.network.torch_reader.strided_reads import BY_STRIDES
from convalgos.network.torch_reader.translation import operator_name

ATEN = torch.ops.aten


class TorchRegion:
    """Nodes of a graph of torch, run one after the other.

    Args:
        module: of the whole network, which has the constants.
        nodes: in order.
        inputs: the values that it reads, each with the nodes whose tensors have its numbers.
        outputs: the nodes that others read.
        same: of nodes that are not in it, those in it that give the same tensor.
    """

    library = "torch"

    def __init__(
        self, module: fx.GraphModule, nodes: Sequence[fx.Node],
        inputs: Mapping[str, Sequence[fx.Node]], outputs: Sequence[fx.Node],
        same: Mapping[fx.Node, fx.Node],
    ):  # fmt: skip
        called = (node for node in nodes if node.target is not operator.getitem)
        self.operators: Sequence[str] = [operator_name(node) for node in called]
        self.what = ", ".join(dict.fromkeys(self.operators))
        self.nodes = len(nodes)
        self.sizes_follow_from_numbers = any(free_unbacked_symbols(node.meta["val"]) for node in outputs)
        self._dtypes = [tensors[0].meta["val"].dtype for tensors in inputs.values()]
        self._module = _cut_out(module, nodes, inputs, outputs, same)

    def shapes(self, inputs: Sequence[Sizes]) -> Sequence[Sizes]:
        """Of its outputs; nothing here takes the values of sizes.

        Raises:
            ValueError: the region does not take these.
        """
        from torch._subclasses import fake_tensor

        of_numbers = fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException
        try:
            try:
                with fake_tensor.FakeTensorMode(allow_non_fake_inputs=True):
                    return self._shapes_on_zeros(inputs)
            except of_numbers:  # an operator looks at numbers, as istft at its window
                with torch.random.fork_rng(devices=[]):
                    return self._shapes_on_zeros(inputs)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise ValueError(f"torch's {self.what} do not take {inputs}: {error}") from None

    def _shapes_on_zeros(self, inputs: Sequence[Sizes]) -> Sequence[Sizes]:
        with torch.no_grad():
            given = [torch.zeros(tuple(s), dtype=d) for s, d in zip(inputs, self._dtypes, strict=True)]
            return [tuple(map(int, y.shape)) for y in self._module(*given)]

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Write the outputs."""
        with torch.inference_mode():
            results = self._module(*(torch.from_numpy(x) for x in inputs))
            for y, result in zip(outputs, results, strict=True):
                torch.from_numpy(y).copy_(result)


def _cut_out(
    module: fx.GraphModule, nodes: Sequence[fx.Node], inputs: Mapping[str, Sequence[fx.Node]],
    outputs: Sequence[fx.Node], same: Mapping[fx.Node, fx.Node],
) -> fx.GraphModule:  # fmt: skip
    """A module of some nodes, with the constants and the sizes that they read."""
    graph = fx.Graph()
    known: dict[fx.Node, fx.Node] = {}

    def of(node: fx.Node) -> fx.Node:
        node = same.get(node, node)
        if node not in known:  # a constant, or what is computed of sizes
            known[node] = graph.node_copy(node, of)
        return known[node]

    for i, tensors in enumerate(inputs.values()):
        value = graph.placeholder(f"value_{i}")
        known |= dict.fromkeys(tensors, value)
    for node in nodes:
        known[node] = graph.node_copy(node, of)
        if node.target is ATEN.view.default:  # its input lies as an array of ours, perhaps in another order
            known[node].target = ATEN.reshape.default
        elif node.target in BY_STRIDES:
            with graph.inserting_before(known[node]):
                laid = graph.call_function(ATEN.contiguous.default, known[node].args[:1])
            known[node].update_arg(0, laid)
    graph.output(tuple(known[node] for node in outputs))
    return fx.GraphModule(module, graph)
