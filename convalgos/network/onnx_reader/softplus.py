"""Softplus as exporters spell it out: x itself beyond a threshold, from which floats do not differ there."""

from __future__ import annotations

from collections import Counter

from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode
from convalgos.network.onnx_reader.named import Named, with_patterns_named

LEAST = 18.0  # threshold, from which on the softplus of a float32 is the float32 itself


def with_softplus_named(model: OnnxModel) -> list[OnnxNode]:
    """The nodes of a model, where a choice between x and its softplus is the softplus."""
    return with_patterns_named(model, _named)


def _named(last: OnnxNode, model: OnnxModel, readers: Counter[str]) -> Named | None:
    """Where(x > threshold, x, Softplus(x))"""
    if last.op != "Where":
        return None
    asked, x, curve = model.maker(last.inputs[0]), last.inputs[1], model.maker(last.inputs[2])
    if asked is None or curve is None or (asked.op, curve.op) != ("Greater", "Softplus"):
        return None
    threshold = model.number(asked.inputs[1])
    if asked.inputs[0] != x or curve.inputs[0] != x or threshold is None or threshold < LEAST:
        return None
    inside = asked.outputs[0], curve.outputs[0]
    if any(readers[name] != 1 for name in inside):
        return None
    protos = (*asked.protos, *curve.protos, *last.protos)
    return OnnxNode("Softplus", last.name, [x], last.outputs, {}, protos), inside
