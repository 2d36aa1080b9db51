"""A network's graph from an ONNX model: nodes that this library computes as steps, others left to ORT."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from convalgos.core.errors import Unsupported, missing
from convalgos.network.array_functions import without_unread
from convalgos.network.attention import Rearrangement
from convalgos.network.functions import ElementFunction
from convalgos.network.graph import (
    ChannelSelection,
    Concatenation,
    Elementwise,
    Foreign,
    LayerNormalization,
    NetworkGraph,
    Step,
    Transpose,
    View,
)
from convalgos.network.network import Network
from convalgos.network.onnx_reader.attention import with_attention_named
from convalgos.network.onnx_reader.bags import with_bags_named
from convalgos.network.onnx_reader.channels import Steps
from convalgos.network.onnx_reader.decided_branches import decided_branches
from convalgos.network.onnx_reader.distributed_norms import with_distributed_norms_named
from convalgos.network.onnx_reader.group_norms import with_group_norms_named
from convalgos.network.onnx_reader.loading import folded_model, given_model, naming_file_of
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode
from convalgos.network.onnx_reader.no_arrays import NO_NUMBERS, no_array_of_numbers
from convalgos.network.onnx_reader.norms import with_norms_named
from convalgos.network.onnx_reader.patterns import with_activations_named
from convalgos.network.onnx_reader.pixels import with_pixel_moves_named
from convalgos.network.onnx_reader.region import foreign_step, join_regions
from convalgos.network.onnx_reader.root_norms import with_root_norms_named
from convalgos.network.onnx_reader.selections import with_shuffles_named
from convalgos.network.onnx_reader.softplus import with_softplus_named
from convalgos.network.onnx_reader.steps import steps_of_node
from convalgos.network.onnx_reader.whole_regions import whole_region
from convalgos.network.passes import fused, needed
from convalgos.network.quantized_graph import Dequantize, Lookup, Quantize
from convalgos.network.quantized_passes import on_integers
from convalgos.network.regions import Join, with_regions
from convalgos.network.softmax import Softmax

LIGHT = (
    *(Elementwise, View, Concatenation, ChannelSelection, Transpose, LayerNormalization, Rearrangement),
    *(ElementFunction, Softmax, Quantize, Dequantize, Lookup),
)


def from_onnx(model: Any) -> Network:
    """The network of an ONNX model: its convolutions, and what stands between them, run by this library.

    Nodes that it does not compute are left to ONNX Runtime, in regions as large as can be. Batch norms,
    activations and residual sums become part of convolutions. Sizes that the model leaves open stay so.

    Args:
        model: a path, the bytes of a model, or an `onnx.ModelProto`.

    Raises:
        ValueError: it is no valid model.
        Unsupported: onnx is not installed, or the model has nodes for which onnxruntime must be.

    Example:
        >>> net = from_onnx("model.onnx")  # doctest: +SKIP
        >>> y = net(x)  # doctest: +SKIP
    """
    given = given_model(model)
    if others := no_array_of_numbers(given.proto):
        raise Unsupported(f"the network {others}, and can only do so with arrays of numbers")
    with naming_file_of(given):
        return network_of_read(folded_model(given))


def network_of_read(model: OnnxModel) -> Network:
    """The network of a model that was read."""
    graph = graph_of(model)
    instead = decided_branches(graph, model, from_onnx), whole_region(graph)
    return Network(graph, [other for other in instead if other is not None])


def graph_of(model: OnnxModel) -> NetworkGraph:
    """The graph of a model, fused; ONNX Runtime runs what is left, and all where steps would move other
    things than arrays of numbers."""
    graph = graph_with(model, partial(foreign_step, model), join_regions)
    regions = [step for step in graph.steps if isinstance(step, Foreign)]
    moved = {name for step in regions for name in (*step.inputs, *step.outputs)}
    if any(model.maker(name) is not None and model.dtype(name) in NO_NUMBERS for name in moved):
        graph = _of_one_region(model)
    for step in graph.steps:
        if isinstance(step, Foreign) and (reason := missing("onnxruntime")):
            assert step.region is not None
            raise Unsupported(f"the network has {step.region.what}, which {reason}")
    return graph


def _of_one_region(model: OnnxModel) -> NetworkGraph:
    """The graph of a model all of which ONNX Runtime runs."""
    known = [model.constant_node(name) for name in model.outputs if model.is_constant(name)]
    steps = [foreign_step(model, node) for node in (*known, *model.nodes)]
    made = {name for step in steps for name in step.outputs}
    inputs = dict.fromkeys(name for step in steps for name in step.inputs if name not in made)
    whole = join_regions(steps, tuple(inputs), tuple(name for name in model.outputs if name in made))
    dtypes = {name: model.dtype(name) for name in (*model.inputs, *whole.outputs)}
    shapes = {name: shape for name in model.inputs if (shape := model.shape(name)) is not None}
    return NetworkGraph(model.inputs, model.outputs, (whole,), shapes, dtypes)


def graph_with(model: OnnxModel, foreign: Callable[[OnnxNode], Foreign], join: Join) -> NetworkGraph:
    """The graph of a model, fused.

    Args:
        foreign: makes a step of a node that another library is to run.
        join: makes one of several; see `with_regions`.
    """
    model.nodes = with_pixel_moves_named(model)
    model.nodes = with_softplus_named(model)
    model.nodes = with_activations_named(model)
    model.nodes = with_norms_named(model)
    model.nodes = with_distributed_norms_named(model)
    model.nodes = with_root_norms_named(model)
    model.nodes = with_group_norms_named(model)
    model.nodes = with_attention_named(model)
    model.nodes = with_shuffles_named(model)
    model.nodes = with_bags_named(model)
    found = [_steps(node, model) for node in model.nodes]
    if None in found:
        found = [_steps(node, model, of_arrays=False) for node in model.nodes]  # one region of them
    made: list[list[Step]] = [
        [foreign(n)] if s is None else s for n, s in zip(model.nodes, found, strict=True)
    ]
    for i in _alone(made, model):
        made[i] = [foreign(model.nodes[i])]
    steps = _with_constants([step for of_node in made for step in of_node], model, foreign)
    names = {name for step in steps for name in step.outputs} | {*model.inputs}
    dtypes = {name: model.dtype(name) for name in sorted(names) if model.dtype(name) not in ("float32", "")}
    shapes = {name: shape for name in model.inputs if (shape := model.shape(name)) is not None}
    graph = needed(NetworkGraph(model.inputs, model.outputs, tuple(steps), shapes, dtypes))
    graph = on_integers(fused(graph), model.dequantized.made)
    return without_unread(with_regions(graph, join))


def _with_constants(
    steps: list[Step], model: OnnxModel, foreign: Callable[[OnnxNode], Foreign]
) -> list[Step]:
    """Steps, and before them one for each constant that they read as an array, or that is an output."""
    read = [name for step in steps for name in step.inputs]
    known = [name for name in dict.fromkeys((*read, *model.outputs)) if model.is_constant(name)]
    before: list[Step] = []
    for node in map(model.constant_node, known):
        found = _steps(node, model)
        before += [foreign(node)] if found is None else found
    return [*before, *steps]


def _steps(node: OnnxNode, model: OnnxModel, of_arrays: bool = True) -> Steps:
    """See `steps_of_node`; errors name the node, whose inputs or attributes may be invalid."""
    try:
        return steps_of_node(node, model, of_arrays)
    except (ValueError, TypeError, LookupError) as error:
        raise ValueError(f"node {node.name!r} ({node.op}) cannot be read: {error}") from None


def _alone(made: list[list[Step]], model: OnnxModel) -> list[int]:
    """Which nodes of little work would be ours between foreign ones alone, and only divide their region."""
    foreign = {i for i, steps in enumerate(made) if isinstance(steps[0], Foreign)}
    neighbours: list[set[int]] = [set() for _ in made]
    makers = {name: i for i, node in enumerate(model.nodes) for name in node.outputs}
    for i, node in enumerate(model.nodes):
        for name in node.inputs:
            if name in makers:
                neighbours[i].add(makers[name])
                neighbours[makers[name]].add(i)
    light = {
        i for i, steps in enumerate(made) if i not in foreign and all(isinstance(s, LIGHT) for s in steps)
    }
    found: list[int] = []
    while light:
        connected = _component(min(light), light, neighbours)
        light -= connected
        around = {j for i in connected for j in neighbours[i]} - connected
        if around and around <= foreign:
            found += sorted(connected)
    return found


def _component(first: int, among: set[int], neighbours: list[set[int]]) -> set[int]:
    """The connected component of a node among those of its kind."""
    found, more = {first}, [first]
    while more:
        new = (neighbours[more.pop()] & among) - found
        found |= new
        more += new
    return found
