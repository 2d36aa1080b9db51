"""Random networks as ONNX models: the blocks that networks are made of, in an order that nobody chose.

`random_network` draws one from a seed; a block that does not fit is left out. Shapes are those that ONNX
infers, for every size of the inputs at once, so that a model that leaves sizes open is right for all of them.
`quantised` is such a network in one of the forms that ONNX Runtime's quantiser writes.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from network_blocks import BLOCKS, plain_block
from network_drawing import DoesNotFit, Drawing, Shapes
from onnx import TensorProto, helper

NEVER_QUANTISED = {"Sin", "Elu"}


class NotAModel(Exception):
    """ONNX Runtime does not take what was drawn."""


@dataclass
class RandomNetwork:
    """A model, and inputs of all sizes that it is to be run with."""

    model: onnx.ModelProto
    feeds: list[dict[str, np.ndarray]]


def _input_shapes(rng: random.Random, ndim: int) -> tuple[list[Any], Shapes]:
    """(as declared, of each run): sizes that are open have a word, and are others in each run."""
    most = {1: 120, 2: 40, 3: 10}[ndim]
    batch, c = rng.choice((1, 1, 1, 2, 2, 3, 5)), rng.choice((1, 3, 3, 4, 8, 16, 17))
    sizes = [1 if rng.random() < 0.1 else rng.randint(*rng.choice(((2, 9), (8, most)))) for _ in range(ndim)]
    open_batch, open_sizes = rng.random() < 0.5, rng.random() < 0.4
    runs = [(batch, c, *sizes)]
    for _ in range(rng.choice((1, 2, 3)) if open_batch or open_sizes else 0):
        n = rng.choice((0, 1, 1, 2, 2, 3, 5)) if open_batch else batch
        other = [max(1, round(s * rng.uniform(0.7, 1.5))) for s in sizes] if open_sizes else sizes
        runs.append((n, c, *other))
    names = [f"s{i}" if open_sizes else s for i, s in enumerate(sizes)]
    return ["n" if open_batch else batch, c, *names], tuple(runs)


def random_network(seed: Any, quantisable: bool = False) -> RandomNetwork:
    """A valid model with one or more inputs and outputs.

    Args:
        quantisable: without what ONNX Runtime's quantiser does not take.
    """
    rng = random.Random(f"network {seed}")
    d = Drawing(rng, 17 if quantisable else rng.choice((13, 17, 20, 20)), quantisable)
    ndim = rng.choice((1, 2, 2, 2, 2, 2, 2, 3))
    ndim = 2 if quantisable and rng.random() < 0.8 else ndim
    declared, runs = _input_shapes(rng, ndim)
    names = ["x", *(["z"] if rng.random() < 0.25 else [])]
    for name in names:
        d.inputs[name] = d.shapes[name] = runs
    blocks, weights = list(BLOCKS), list(BLOCKS.values())
    for turn in range(rng.randint(2, 9)):
        block = plain_block if turn == 0 and rng.random() < 0.6 else rng.choices(blocks, weights)[0]
        try:
            block(d)
        except DoesNotFit:
            continue
    made = [name for node in d.nodes for name in node.output]
    outputs = [name for name in made if name not in d.read]
    outputs = outputs[-4:] if len(outputs) > 4 else outputs
    if made and rng.random() < 0.3:
        outputs.append(rng.choice(made))  # which others may read
    if not made:
        outputs = [d.node("Relu", "x")]
    outputs = list(dict.fromkeys(outputs))
    rng.shuffle(outputs)
    model = _model(d, declared, outputs)
    used = [value.name for value in model.graph.input]
    feeds = [{name: d.numbers.standard_normal(run).astype("f4") for name in used} for run in runs]
    return RandomNetwork(model, feeds)


def _model(d: Drawing, declared: list[Any], outputs: list[str]) -> onnx.ModelProto:
    """Of the nodes that outputs need."""
    needed, nodes = set(outputs), []
    for node in reversed(d.nodes):
        if needed & {*node.output}:
            needed |= {*node.input}
            nodes.insert(0, node)
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, declared)
        for name in d.inputs
        if name in needed
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    constants = [tensor for name, tensor in d.constants.items() if name in needed]
    graph = helper.make_graph(nodes, "random", inputs, results, constants)
    opset = [helper.make_opsetid("", d.opset)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=9)
    return onnx.shape_inference.infer_shapes(model)


def quantised(network: RandomNetwork, rng: random.Random) -> RandomNetwork:
    """The network with scales and zero points, by ONNX Runtime's quantiser."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.left = [feed for feed in network.feeds if all(x.size for x in feed.values())]

        def get_next(self):
            return self.left.pop() if self.left else None

    ops = {node.op_type for node in network.model.graph.node} - NEVER_QUANTISED
    ops = {op for op in ops if rng.random() < 0.93} or ops
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "quantised.onnx")
        try:
            quantize_static(
                network.model, str(path), Reader(), op_types_to_quantize=sorted(ops), reduce_range=True,
                quant_format=rng.choice((QuantFormat.QDQ, QuantFormat.QOperator)),
                per_channel=rng.random() < 0.6,
                weight_type=rng.choice((QuantType.QInt8,) * 3 + (QuantType.QUInt8,)),
                activation_type=rng.choice((QuantType.QUInt8, QuantType.QUInt8, QuantType.QInt8)),
                extra_options={
                    "WeightSymmetric": rng.random() < 0.8, "ActivationSymmetric": rng.random() < 0.2,
                },
            )  # fmt: skip
        except Exception as error:  # of several types
            raise NotAModel(f"quantiser: {error}") from None
        return RandomNetwork(onnx.load(path), network.feeds)
