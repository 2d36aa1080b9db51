"""The backend `convalgos` of `torch.compile`: graphs that dynamo finds, run as whole networks.

`torch.compile(model, backend="convalgos")` finds it where the package is installed, or after this module was
imported. What it leaves to torch, and why, it tells the logger "convalgos.torch".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends import registry

from convalgos.torch.whole_networks import WholeNetwork

NAME = "convalgos"
LOG = logging.getLogger("convalgos.torch")


class _Bound(nn.Module):
    """A graph whose parameters and buffers are its own, so that they are constants where it is read."""

    def __init__(self, graph: fx.GraphModule, parameters: dict[int, Tensor]):
        super().__init__()
        self.graph = graph
        self.places = tuple(parameters)
        for i, tensor in parameters.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(f"of_{i}", tensor)
            else:
                self.register_buffer(f"of_{i}", tensor)

    def forward(self, *given: Any) -> Any:
        arguments = list(given)
        for i in self.places:  # in order
            arguments.insert(i, getattr(self, f"of_{i}"))
        return self.graph(*arguments)


class CompiledGraph:
    """Calls of a graph of dynamo: (parameters, buffers and inputs in its order) -> a tuple."""

    def __init__(self, graph: fx.GraphModule):
        self.graph = graph
        nodes = graph.graph.find_nodes(op="placeholder")
        self._fixed = tuple(i for i, node in enumerate(nodes) if _is_parameter(node))
        self._given = tuple(i for i in range(len(nodes)) if i not in self._fixed)
        self._known: list[Tensor] = []
        self._versions: list[int] = []
        self._calls: WholeNetwork | None = None

    def __call__(self, *arguments: Any) -> Any:
        known = [arguments[i] for i in self._fixed]
        calls = self._calls
        if calls is None or not self._same(known):
            calls = self._bind(known)
        before = len(calls.networks), len(calls.left_whole)
        found = calls(*[arguments[i] for i in self._given])
        if before != (len(calls.networks), len(calls.left_whole)):
            LOG.info("%s", calls.report())
        return found

    def _same(self, known: Sequence[Tensor]) -> bool:
        """Whether the parameters are those that the networks were read with, and nobody wrote to them."""
        return all(
            a is b and a._version == version
            for a, b, version in zip(known, self._known, self._versions, strict=True)
        )

    def _bind(self, known: list[Tensor]) -> WholeNetwork:
        bound = _Bound(self.graph, dict(zip(self._fixed, known, strict=True))).eval()
        calls = WholeNetwork(bound, bound)
        self._known, self._versions, self._calls = known, [t._version for t in known], calls
        return calls


def _is_parameter(node: fx.Node) -> bool:
    """Whether an input of a graph is a parameter or a buffer of a module."""
    return "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})


def compile_backend(graph: fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
    """What `torch.compile` runs in the place of a graph.

    Args:
        graph: of dynamo.
        example: its inputs, parameters and buffers among them.
    """
    if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in example):
        LOG.info("a graph of %d nodes is left to torch: gradients are recorded", len(graph.graph.nodes))
        return graph.forward
    return CompiledGraph(graph)


if NAME not in registry.list_backends(exclude_tags=None):
    registry.register_backend(compile_backend, NAME)
