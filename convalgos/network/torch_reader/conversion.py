"""From a graph of torch to the steps of a network: where each tensor lies, and what torch is left to run."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from convalgos.network.graph import Foreign, ForeignRegion, NetworkGraph, Step, View
from convalgos.network.passes import needed
from convalgos.network.regions import with_regions
from convalgos.network.torch_reader.export import constant_of
from convalgos.network.torch_reader.region import TensorPlace, TorchRegion, operator_name

Arguments = dict[str, Any]  # of an operator, by name
FORMS = "same", "last", "pixel"  # in which steps read tensors


class Left(Exception):
    """Why an operator is left to torch."""


Convert = Callable[["Conversion", fx.Node, Arguments], TensorPlace]


class Conversion:
    """Makes steps of the nodes of a graph, in order.

    Each tensor that a step computes has a place; those that torch computes get one where a step asks.
    """

    def __init__(self, module: fx.GraphModule):
        self.module = module
        self.steps: list[Step] = []
        self.places: dict[fx.Node, TensorPlace] = {}
        self.left: dict[str, str] = {}  # node that torch runs -> why
        self._foreign: dict[str, tuple[fx.Node, str]] = {}  # value that torch gives -> tensor, its form

    def network(self, operators: Mapping[Any, Convert]) -> NetworkGraph:
        """The whole graph."""
        nodes = list(self.module.graph.nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        for node in nodes:
            if node in inputs:
                self.places[node] = TensorPlace(node.name)
            elif node.op == "call_function" and is_tensors(node):
                self._convert(node, operators)
        outputs = [self._output(node) for node in nodes[-1].args[0]]
        steps = tuple(self._with_outputs(step) for step in self.steps)
        graph = NetworkGraph(tuple(n.name for n in inputs), tuple(outputs), steps)
        graph = with_regions(needed(graph), self._joined)
        return replace(graph, dtypes=self._dtypes(graph))

    # --- for the operators -------------------------------------------------------------------

    def form_of(self, *nodes: Any) -> str:
        """The form in which steps read some tensors, at least one of which a step computes."""
        forms = {self.places[node].form for node in nodes if node in self.places}
        if not forms:
            raise Left("stands among operators of torch")
        if len(forms) > 1:
            raise Left("takes tensors of which some lie with their channels last")
        form = forms.pop()
        if form not in FORMS:
            raise Left("takes a tensor whose channels are divided into groups")
        return form

    def value(self, node: Any, form: str = "same") -> str:
        """The value that has a tensor in a form."""
        if not isinstance(node, fx.Node) or node.op == "get_attr":
            raise Left("takes a constant")
        place = self.places.get(node)
        if place is None:
            value = node.name if form == "same" else f"{node.name}/{form}"
            self._foreign[value] = node, form
            return value
        if place.form == form:
            return place.value
        if {place.form, form} == {"same", "pixel"}:
            return self.view(place.value, f"{place.value}/{form}", 0 if form == "same" else 2)
        raise Left("takes a tensor with its channels last as one with its channels first")

    def view(self, value: str, name: str, ndim: int) -> str:
        """A value as (N, C), or with ndim spatial dimensions of one pixel."""
        if all(step.output != name for step in self.steps):
            self.steps.append(View(name, (value,), name, (0, -1, *(1,) * ndim)))
        return name

    def constant(self, node: Any) -> np.ndarray | None:
        """The numbers of a parameter, None of None."""
        if node is None:
            return None
        if not isinstance(node, fx.Node) or node.op != "get_attr":
            raise Left("has weights that are computed")
        tensor = constant_of(self.module, str(node.target))
        if tensor.dtype != torch.float32:
            raise Left(f"has weights of {tensor.dtype}")
        array: np.ndarray = tensor.detach().numpy()
        return array

    # --- inside ------------------------------------------------------------------------------

    def _parts(self, node: fx.Node) -> list[fx.Node]:
        """The nodes that take a tensor each of what an operator gives, where it gives several."""
        several = isinstance(node.meta["val"], tuple | list)
        return [user for user in node.users if user.target is operator.getitem] if several else []

    def _convert(self, node: fx.Node, operators: Mapping[Any, Convert]) -> None:
        if node.target is operator.getitem and node.args[0] not in self.places:
            return  # a part of an operator that is left
        if node in self.places:
            return  # a part that came with its operator
        before = len(self.steps)
        try:
            convert = operators.get(node.target)
            if convert is None:
                raise Left("has no step here")
            if types := {str(v.dtype) for v in tensors_of(node) if v.dtype != torch.float32}:
                raise Left(f"computes in {', '.join(sorted(types))}")
            self.places[node] = convert(self, node, arguments_of(node))
        except Left as reason:
            del self.steps[before:]
            self.left[node.name] = f"{operator_name(node)} {reason}"
            read = (self.places[n].value if n in self.places else n.name for n in tensors_read(node))
            tensors = [node, *self._parts(node)]
            self._foreign |= {n.name: (n, "same") for n in tensors}
            names = [n.name for n in tensors[len(tensors) > 1 :]]
            self.steps.append(
                Foreign(node.name, tuple(dict.fromkeys(read)), names[0], None, tuple(names[1:]))
            )

    def _dtypes(self, graph: NetworkGraph) -> dict[str, str]:
        """Those of values that are not float32."""
        tensors = {value: node.meta["val"] for value, (node, _) in self._foreign.items()}
        tensors |= {place.value: node.meta["val"] for node, place in self.places.items()}
        found = {}
        for name in dict.fromkeys((*graph.inputs, *(n for step in graph.steps for n in step.outputs))):
            dtype = str(getattr(tensors.get(name), "dtype", "torch.float32")).removeprefix("torch.")
            if not hasattr(np, dtype):
                raise ValueError(f"{name} is of {dtype}, which NumPy has not")
            if dtype != "float32":
                found[name] = dtype
        return found

    def _output(self, node: Any) -> str:
        """The value of an output of the network."""
        if not isinstance(node, fx.Node):
            raise ValueError(f"module returns {node!r}, which is no tensor")
        place = self.places.get(node)
        if node.op == "get_attr":
            raise ValueError(f"module returns its parameter {node.target}")
        if place is None or place.form in ("same", "pixel"):
            return self.value(node)
        turned = TorchRegion(self.module, (), {place.value: [(node, place.form)]}, [(node, "same")])
        self.steps.append(Foreign(node.name, (place.value,), f"{node.name}/same", turned))
        return f"{node.name}/same"

    def _with_outputs(self, step: Step) -> Step:
        """A foreign step with the forms that others ask of its tensor."""
        if not isinstance(step, Foreign) or step.region is not None:
            return step
        forms = [v for v, (n, form) in self._foreign.items() if form != "same" and n.name in step.outputs]
        return replace(step, others=(*step.others, *forms))

    def _joined(self, steps: Sequence[Foreign], inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Foreign:
        """Neighbouring steps of torch as one."""
        region = self._region(steps, inputs, outputs)
        return Foreign(steps[-1].name, inputs, outputs[0], region, outputs[1:])

    def _region(
        self, steps: Sequence[Foreign], inputs: Sequence[str], outputs: Sequence[str]
    ) -> ForeignRegion:
        if steps[0].region is not None:
            return steps[0].region
        own = {step.name for step in steps}
        nodes = [n for n in self.module.graph.nodes if n.name in own or _is_part_of(n, own)]
        read: dict[str, list[tuple[fx.Node, str]]] = {name: [] for name in inputs}
        for tensor in dict.fromkeys(t for node in nodes for t in tensors_read(node)):
            place = self.places.get(tensor, TensorPlace(tensor.name))
            if place.value in read:
                read[place.value].append((tensor, place.form))
        return TorchRegion(self.module, nodes, read, [self._foreign[name] for name in outputs])


def _is_part_of(node: fx.Node, names: set[str]) -> bool:
    """Whether it takes a tensor of what one of these nodes gives."""
    return node.target is operator.getitem and node.args[0].name in names  # type: ignore[union-attr, operator]


def is_tensors(node: fx.Node) -> bool:
    """Whether a node gives tensors, and not a size."""
    value = node.meta.get("val")
    return isinstance(value, Tensor | tuple | list)


def tensors_of(node: fx.Node) -> Iterator[Any]:
    """What is known of the tensors that a node reads and of the first that it gives."""
    for n in (node, *node.all_input_nodes):
        value = n.meta.get("val")
        value = value[0] if isinstance(value, tuple | list) and value else value
        if isinstance(value, Tensor):
            yield value


def tensors_read(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes whose tensors a node reads, also by their sizes alone; not constants."""
    for n in node.all_input_nodes:
        if n.op == "get_attr":
            continue
        if n.op == "placeholder" or is_tensors(n):
            yield n
        else:
            yield from tensors_read(n)


def arguments_of(node: fx.Node) -> Arguments:
    """The arguments of an operator by name, with its defaults."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return dict(enumerate(node.args))  # type: ignore[arg-type]
    found = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    names = [a.name for a in schema.arguments]
    return found | dict(zip(names, node.args, strict=False)) | node.kwargs


def module_name(node: fx.Node) -> str:
    """The name of the module that a node comes from, or its own."""
    stack = node.meta.get("nn_module_stack") or {}
    names = [name for name, _ in stack.values()]
    return (names[-1].removeprefix("module").removeprefix(".") if names else "") or node.name
