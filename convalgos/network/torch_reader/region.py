"""A region of a network that torch runs: nodes of its graph, between arrays of ours."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx

from convalgos.network.graph import Sizes

SPLIT, DEALT = "split ", "dealt "  # begin forms


class TensorPlace(NamedTuple):
    """The value of a network that has the numbers of a tensor.

    `form` says how they lie: "same", in the shape of the tensor; "last", of a tensor (N, *spatial, C) as the
    map (N, C, *spatial); "pixel", of a tensor (N, C) as the map (N, C, 1, 1); SPLIT and a number of groups,
    of a tensor (N, groups, C / groups, *spatial) as the map (N, C, *spatial); DEALT, of one with these two
    dimensions exchanged.
    """

    value: str
    form: str = "same"


Tensors = tuple[fx.Node, str]  # a node and the form of its tensor


class TorchRegion:
    """Nodes of a graph of torch, run one after the other.

    Args:
        module: of the whole network, which has the constants.
        nodes: in order.
        inputs: the values that it reads, with the tensors that each has the numbers of, and in which form.
        outputs: the nodes that others read, and in which form.
    """

    library = "torch"

    def __init__(
        self, module: fx.GraphModule, nodes: Sequence[fx.Node],
        inputs: Mapping[str, Sequence[Tensors]], outputs: Sequence[Tensors],
    ):  # fmt: skip
        called = (node for node in nodes if node.target is not operator.getitem)
        self.operators: Sequence[str] = [operator_name(node) for node in called]
        self.what = ", ".join(dict.fromkeys(self.operators)) or "permute"
        self.nodes = len(nodes)
        self._dtypes = [tensors[0][0].meta["val"].dtype for tensors in inputs.values()]
        self._module = _cut_out(module, nodes, inputs, outputs)

    def shapes(self, inputs: Sequence[Sizes]) -> Sequence[Sizes]:
        """Of its outputs; nothing here takes the values of sizes.

        Raises:
            ValueError: the region does not take these.
        """
        from torch._subclasses.fake_tensor import FakeTensorMode

        try:
            with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
                given = [torch.empty(tuple(s), dtype=d) for s, d in zip(inputs, self._dtypes, strict=True)]
                return [tuple(map(int, y.shape)) for y in self._module(*given)]
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise ValueError(f"torch's {self.what} do not take {inputs}: {error}") from None

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Write the outputs."""
        with torch.inference_mode():
            results = self._module(*(torch.from_numpy(x) for x in inputs))
            for y, result in zip(outputs, results, strict=True):
                torch.from_numpy(y).copy_(result)


def operator_name(node: fx.Node) -> str:
    """torch.ops.aten.layer_norm.default -> layer_norm."""
    name = getattr(node.target, "__name__", None) or str(node.target)
    return str(name).partition(".")[0]


def _cut_out(
    module: fx.GraphModule, nodes: Sequence[fx.Node], inputs: Mapping[str, Sequence[Tensors]],
    outputs: Sequence[Tensors],
) -> fx.GraphModule:  # fmt: skip
    """A module of some nodes, with the constants and the sizes that they read."""
    graph = fx.Graph()
    known: dict[fx.Node, fx.Node] = {}

    def of(node: fx.Node) -> fx.Node:
        if node not in known:  # a constant, or what is computed of sizes
            known[node] = graph.node_copy(node, of)
        return known[node]

    for i, tensors in enumerate(inputs.values()):
        value = graph.placeholder(f"value_{i}")
        known |= {node: _as_tensor(graph, value, form, node.meta["val"]) for node, form in tensors}
    for node in nodes:
        known[node] = graph.node_copy(node, of)
    graph.output(tuple(_as_map(graph, known[node], form, node.meta["val"]) for node, form in outputs))
    return fx.GraphModule(module, graph)


def _as_tensor(graph: fx.Graph, value: fx.Node, form: str, tensor: Tensor) -> fx.Node:
    """The tensor of a map."""
    if form == "last":
        return _call(graph, "permute", value, [0, *range(2, tensor.dim()), 1])
    if form.startswith((SPLIT, DEALT)):
        groups = int(form.removeprefix(SPLIT).removeprefix(DEALT))
        parts = _call(graph, "unflatten", value, 1, (groups, -1))
        return parts if form.startswith(SPLIT) else _call(graph, "transpose", parts, 1, 2)
    return _call(graph, "flatten", value, 1) if form == "pixel" else value


def _as_map(graph: fx.Graph, node: fx.Node, form: str, tensor: Tensor) -> fx.Node:
    """The map of a tensor."""
    if form == "last":
        return _call(graph, "permute", node, [0, tensor.dim() - 1, *range(1, tensor.dim() - 1)])
    return _call(graph, "unflatten", node, 1, (-1, 1, 1)) if form == "pixel" else node


def _call(graph: fx.Graph, name: str, *arguments: Any) -> fx.Node:
    return graph.call_function(getattr(torch, name), arguments)
