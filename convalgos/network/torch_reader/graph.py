"""A network's graph from a module of torch: operators that this library has as steps, the rest in regions.

The graph of torch is put in the operators of ONNX, whose reader finds attention, norms and the like in them
and makes the steps. What it leaves goes back to torch, by whole operators of torch.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from convalgos.network.graph import Foreign, NetworkGraph
from convalgos.network.network import Network
from convalgos.network.onnx_reader.graph import graph_with
from convalgos.network.onnx_reader.model import OnnxNode
from convalgos.network.torch_reader.export import Exported, any_sizes, export_module
from convalgos.network.torch_reader.memory_orders import Order
from convalgos.network.torch_reader.operators import OPERATORS
from convalgos.network.torch_reader.region import TorchRegion
from convalgos.network.torch_reader.translation import TORCH, Translation, operator_name, tensors_read


class TorchGraph(NamedTuple):
    """The graph of a module, and how it stands for it."""

    graph: NetworkGraph
    exported: Exported
    left: dict[str, str]  # node that torch runs -> why


def from_torch(module: nn.Module, *example: Any, any_size: bool = False) -> Network:
    """The network of a module of torch: its convolutions, and what stands between them, run by this library.

    Operators that it does not compute are left to torch, in regions as large as can be. Batch norms,
    activations and residual sums become part of convolutions. The numbers of the parameters are taken now.

    Args:
        module: in eval.
        example: its arguments, tensors of float32 on the CPU.
        any_size: whether the network takes every batch and every spatial size that the module takes; by
            default those of the example. Reading the module then takes longer.

    Raises:
        ValueError: the module is in training, or `torch.export` cannot follow it; says where.

    Example:
        >>> import torch
        >>> net = from_torch(torch.nn.Conv2d(3, 4, 3).eval(), torch.ones(1, 3, 8, 8))
        >>> net(torch.ones(1, 3, 8, 8)).shape
        torch.Size([1, 4, 6, 6])
    """
    free = any_sizes([t for t in pytree.tree_leaves(example) if isinstance(t, torch.Tensor)])
    return Network(graph_of_module(module, example, {}, free if any_size else None).graph)


def graph_of_module(
    module: nn.Module, arguments: Sequence[Any], keywords: Mapping[str, Any],
    free: Sequence[Collection[int]] | None = None, seconds: float = math.inf,
    orders: Sequence[Order | None] | None = None,
) -> TorchGraph:  # fmt: skip
    """The graph of a module, fused; see `from_torch` and `export_module`."""
    if module.training:
        raise ValueError("module is in training: call module.eval() first")
    with torch.no_grad():
        exported = export_module(module, arguments, keywords, free, seconds, orders)
        left: dict[fx.Node, str] = {}
        reader = _Reader(exported.graph, left)
        while (graph := reader.graph()) is None:
            reader = _Reader(exported.graph, left)
    _check_types(graph)
    _check_sizes(graph)
    graph = replace(graph, shapes={name: exported.shapes[name] for name in graph.inputs})
    return TorchGraph(graph, exported, {node.name: why for node, why in left.items()})


class _Reader:
    """One attempt at a graph.

    Args:
        left: nodes that torch is to run, and why; those are added of which no steps can be made.
    """

    def __init__(self, module: fx.GraphModule, left: dict[fx.Node, str]):
        self._module, self._left = module, left
        self._translation = Translation(module, left)
        self._model = self._translation.model(OPERATORS)
        self._before = len(left)
        self._sources: dict[str, fx.Node] = {}  # first output of a foreign step -> the node of torch

    def graph(self) -> NetworkGraph | None:
        """The graph; None where more than was known is left, with the reasons in `left`."""
        graph = graph_with(self._model, self._foreign, self._joined)
        return graph if len(self._left) == self._before else None

    def _foreign(self, node: OnnxNode) -> Foreign:
        outputs = tuple(filter(None, node.outputs))
        if node.op.startswith(TORCH):
            self._sources[outputs[0]] = node.protos[0]
        for source in node.protos:
            self._left.setdefault(source, f"{operator_name(source)} stands among operators of torch")
        inputs = (name for name in node.inputs if name and name not in self._translation.constants)
        return Foreign(node.name, tuple(dict.fromkeys(inputs)), outputs[0], None, outputs[1:])

    def _joined(self, steps: Sequence[Foreign], inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Foreign:
        """Neighbouring steps of torch as one."""
        name = steps[-1].name
        if len(self._left) > self._before:  # this attempt is in vain
            return Foreign(name, inputs, outputs[0], None, outputs[1:])
        own = {self._sources[step.output] for step in steps}
        nodes = [n for n in self._module.graph.nodes if n in own or _is_part_of(n, own)]
        names = self._translation.names
        tensors = dict.fromkeys(t for node in nodes for t in tensors_read(node))
        read = {value: [t for t in tensors if names[t] == value] for value in inputs}
        made = {names[node]: node for node in nodes if isinstance(names[node], str)}
        same = {t: made[key] for t in tensors if isinstance(key := names[t], str) and key in made}
        region = TorchRegion(self._module, nodes, read, [made[value] for value in outputs], same)
        return Foreign(name, inputs, outputs[0], region, outputs[1:])


def _is_part_of(node: fx.Node, nodes: set[fx.Node]) -> bool:
    """Whether it takes a tensor of what one of these gives."""
    return node.target is operator.getitem and node.args[0] in nodes


def _check_types(graph: NetworkGraph) -> None:
    """Raise ValueError where arrays of a type that NumPy has not are moved."""
    for name in (*graph.inputs, *(name for step in graph.steps for name in step.outputs)):
        if not hasattr(np, dtype := graph.dtypes.get(name, "float32")):
            raise ValueError(f"{name} is of {dtype}, which NumPy has not")


def _check_sizes(graph: NetworkGraph) -> None:
    """Raise ValueError where torch gives arrays whose sizes follow from numbers."""
    for step in graph.steps:
        region = step.region if isinstance(step, Foreign) else None
        if isinstance(region, TorchRegion) and region.sizes_follow_from_numbers:
            raise ValueError(f"torch's {region.what} give sizes that follow from numbers")
