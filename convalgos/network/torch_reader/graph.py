"""A network's graph from a module of torch: operators that this library has as steps, the rest in regions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from convalgos.network.graph import NetworkGraph
from convalgos.network.network import Network
from convalgos.network.passes import fused
from convalgos.network.torch_reader.conversion import Conversion
from convalgos.network.torch_reader.export import Exported, export_module
from convalgos.network.torch_reader.operators import OPERATORS


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
    return Network(graph_of_module(module, example, {}, any_size=any_size).graph)


def graph_of_module(
    module: nn.Module, arguments: Sequence[Any], keywords: Mapping[str, Any], *, any_size: bool = False
) -> TorchGraph:
    """The graph of a module, fused; see `from_torch`."""
    if module.training:
        raise ValueError("module is in training: call module.eval() first")
    with torch.no_grad():
        exported = export_module(module, arguments, keywords, any_size)
        conversion = Conversion(exported.graph)
        graph = conversion.network(OPERATORS)
    graph = replace(graph, shapes={name: exported.shapes[name] for name in graph.inputs})
    return TorchGraph(fused(graph), exported, conversion.left)
