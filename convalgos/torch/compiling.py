"""The backend `convalgos` of `torch.compile`: graphs that dynamo finds, run as whole networks.

`torch.compile(model, backend="convalgos")` finds it where the package is installed, or after this module was
imported. What it leaves to torch, and why, it tells the logger "convalgos.torch".
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import attrgetter, is_
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends import registry

from convalgos.torch.eager import plain_values
from convalgos.torch.sampled_memory import SampledMemory
from convalgos.torch.shared_memory import PartedGraph, part_views
from convalgos.torch.whole_networks import WholeNetwork

NAME = "convalgos"
CHANGES = 2  # calls in a row in which a parameter or buffer is another one: then it is no constant
VERSION = attrgetter("_version")
LOG = logging.getLogger("convalgos.torch")
OF_ITS_OWN = ("get_attr", "call_module")  # nodes by which a graph is more than its code


class _Inputs(NamedTuple):
    """The inputs of a graph of dynamo, by their places."""

    all: int
    fixed: tuple[int, ...]  # parameters and buffers
    sizes: dict[int, tuple[int, int]]  # numbers that are (a dimension of, the place of a tensor)
    given: tuple[int, ...]  # all others
    open: tuple[frozenset[int], ...]  # dimensions of each tensor among these whose sizes are no numbers


class _Bound(nn.Module):
    """A graph of the inputs that are given: parameters and buffers are its own, so that they are constants
    where it is read, and sizes are those of tensors."""

    writes_are_seen = True  # into arguments: dynamo gives back these themselves

    def __init__(self, graph: fx.GraphModule, inputs: _Inputs, parameters: Sequence[Tensor]):
        super().__init__()
        self.graph, self.inputs = graph, inputs
        for i, tensor in zip(inputs.fixed, parameters, strict=True):
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(f"of_{i}", tensor)
            else:
                self.register_buffer(f"of_{i}", tensor)

    def forward(self, *given: Any) -> Any:
        arguments: list[Any] = [None] * self.inputs.all
        for i, value in zip(self.inputs.given, given, strict=True):
            arguments[i] = value
        for i in self.inputs.fixed:
            arguments[i] = getattr(self, f"of_{i}")
        for i, (dimension, place) in self.inputs.sizes.items():
            arguments[i] = arguments[place].shape[dimension]
        return self.graph(*arguments)


class _Fixed:
    """The parameters and buffers that a network is of, and what tells that nobody has written to them: writes
    through `data`, or NumPy, are in no version, and found in some elements of each."""

    def __init__(self, tensors: Sequence[Tensor]):
        held = [(t, values) for t in tensors if (values := plain_values(t)) is not None and values.size]
        self._tensors, self._plain = tensors, [tensor for tensor, _ in held]
        self._told = self._now()
        self._sampled = SampledMemory([values for _, values in held])

    def are(self, tensors: Sequence[Any]) -> bool:
        """Whether others are the same, as they were."""
        if len(tensors) != len(self._tensors) or not all(map(is_, tensors, self._tensors)):
            return False
        if self._now() != self._told:
            return False
        return self._sampled.is_as_it_was()

    def others(self, tensors: Sequence[Any]) -> list[int]:
        """The places of those that are other tensors, or that somebody wrote to."""
        pairs = zip(tensors, self._tensors, self._told[0], strict=True)
        return [i for i, (t, known, told) in enumerate(pairs) if t is not known or t._version != told]

    def _now(self) -> tuple[list[int], list[int]]:
        return [*map(VERSION, self._tensors)], [*map(Tensor.data_ptr, self._plain)]


class _Binding(NamedTuple):
    """A network, and the parameters and buffers that it is of."""

    inputs: _Inputs
    calls: WholeNetwork
    fixed: _Fixed


class CompiledGraph:
    """Calls of a graph of dynamo: (parameters, buffers and inputs in its order) -> a tuple."""

    def __init__(self, graph: fx.GraphModule):
        self.graph = graph
        self.__name__ = NAME  # dynamo asks for it in each call
        self._inputs = _inputs_of(graph.graph.find_nodes(op="placeholder"))
        self._code = None if any(n.op in OF_ITS_OWN for n in graph.graph.nodes) else graph.code
        self._binding: _Binding | None = None
        self._changing: dict[int, int] = {}  # parameters and buffers: calls in a row in which they changed
        self._released: set[int] = set()  # those that are inputs like others by now
        _all.add(self)

    def __call__(self, *arguments: Any) -> Any:
        binding = self._binding or self._bind(arguments)
        fixed = [arguments[i] for i in binding.inputs.fixed]
        if not binding.fixed.are(fixed):  # somebody wrote to one
            self._release([binding.inputs.fixed[i] for i in binding.fixed.others(fixed)])
            binding = self._bind(arguments)
        elif self._changing:
            self._changing = {}
        return binding.calls(*[arguments[i] for i in binding.inputs.given])

    def _release(self, changed: Sequence[int]) -> None:
        """Take what changes from call to call for inputs like others: a network of its numbers would be made
        anew each time.

        Args:
            changed: places of parameters and buffers.
        """
        before = self._changing
        self._changing = {place: before.get(place, 0) + 1 for place in changed}
        self._released |= {place for place, count in self._changing.items() if count >= CHANGES}
        self._inputs = _inputs_of(self.graph.graph.find_nodes(op="placeholder"), self._released)

    def _calls_of(
        self, code: str | None, inputs: _Inputs, parameters: Sequence[Tensor]
    ) -> WholeNetwork | None:
        """The network, if it is one of the same code: dynamo makes a graph for each answer to a question
        about sizes."""
        binding = self._binding
        if code is None or code != self._code or binding is None or inputs.fixed != binding.inputs.fixed:
            return None
        return binding.calls if binding.fixed.are(parameters) else None

    def _bind(self, arguments: Sequence[Any]) -> _Binding:
        inputs = self._inputs
        parameters = [arguments[i] for i in inputs.fixed]
        alike = (other._calls_of(self._code, inputs, parameters) for other in list(_all))
        calls = next(filter(None, alike), None)
        if calls is None:
            bound = _Bound(self.graph, inputs, parameters).eval()
            calls = WholeNetwork(bound, bound, inputs.open, partial(LOG.info, "%s"))
        binding = self._binding = _Binding(inputs, calls, _Fixed(parameters))
        return binding  # while other threads may bind tensors of their own


_all: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()


def _inputs_of(nodes: Sequence[fx.Node], released: Collection[int] = ()) -> _Inputs:
    """Of a graph: sizes that dynamo leaves open, once it has met others, are numbers of their own.

    Args:
        released: places of parameters and buffers that are no constants.
    """
    values = [node.meta.get("example_value") for node in nodes]
    where: dict[str, tuple[int, int]] = {}
    for place, value in enumerate(values):
        for dimension, size in enumerate(value.shape if isinstance(value, Tensor) else ()):
            if isinstance(size, torch.SymInt):
                where.setdefault(str(size), (dimension, place))
    fixed = tuple(i for i, node in enumerate(nodes) if _is_parameter(node) and i not in released)
    sizes = {
        i: where[str(value)]
        for i, value in enumerate(values)
        if isinstance(value, torch.SymInt) and str(value) in where
    }
    given = tuple(i for i in range(len(nodes)) if i not in fixed and i not in sizes)
    tensors = [value for i in given if isinstance(value := values[i], Tensor)]
    free = tuple(
        frozenset(i for i, size in enumerate(t.shape) if isinstance(size, torch.SymInt)) for t in tensors
    )
    return _Inputs(len(nodes), fixed, sizes, given, free)


def _is_parameter(node: fx.Node) -> bool:
    """Whether an input of a graph is a parameter or a buffer of a module."""
    return "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})


class _WithViews:
    """Calls of a graph some of whose outputs share memory."""

    def __init__(self, parted: PartedGraph):
        self._calls, self._views = CompiledGraph(parted.graph), parted.views.forward
        self.__name__ = NAME  # dynamo asks for it in each call

    def __call__(self, *arguments: Any) -> Any:
        return self._views(*arguments, *self._calls(*arguments))


def compile_backend(graph: fx.GraphModule, example: Sequence[Any], **others: Any) -> Callable[..., Any]:
    """What `torch.compile` runs in the place of a graph.

    Args:
        graph: of dynamo.
        example: its inputs, parameters and buffers among them.
        others: the mode and the options of `torch.compile`, which are torch's compiler's own.
    """
    if others:
        LOG.info("%s are not for this backend", others)
    if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in example):
        LOG.info("a graph of %d nodes is left to torch: gradients are recorded", len(graph.graph.nodes))
        return graph.forward
    try:
        parted = part_views(graph)
    except ValueError as error:
        LOG.info("a graph of %d nodes is left to torch: %s", len(graph.graph.nodes), error)
        return graph.forward
    if parted is None:
        return CompiledGraph(graph)
    views_alone = not parted.graph.graph.output_node().args[0]
    return graph.forward if views_alone else _WithViews(parted)


if NAME not in registry.list_backends(exclude_tags=None):
    registry.register_backend(compile_backend, NAME)
