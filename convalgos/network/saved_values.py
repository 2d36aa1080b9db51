"""Graphs, choices and filters as plain data beside a list of arrays, and back; nothing is executed.

What may be anything comes as null, a number, a text, a list, or an object of one key that says what it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields
from importlib import import_module
from typing import Any

import numpy as np

from convalgos.core.allocator import consecutive_empty
from convalgos.core.byte_scale import ByteScale
from convalgos.core.epilogue import Activation
from convalgos.core.errors import Unsupported
from convalgos.core.quantization import Quantization
from convalgos.cpu.runtime.plan import Packed
from convalgos.network import (
    array_functions,
    attention,
    dynamic_convolutions,
    functions,
    group_norms,
    pixel_moves,
    quantized_graph,
    recurrence,
    softmax,
)
from convalgos.network import graph as graphs
from convalgos.network.graph import Foreign, NetworkGraph, Step
from convalgos.network.mapped_weights import in_memory

STEPS: dict[str, type[Step]] = {
    found.__name__: found
    for module in (
        *(
            graphs,
            array_functions,
            attention,
            dynamic_convolutions,
            functions,
            group_norms,
            pixel_moves,
            softmax,
            recurrence,
            quantized_graph,
        ),
    )
    for found in vars(module).values()
    if isinstance(found, type) and issubclass(found, Step) and found not in (Step, Foreign)
}


class Arrays:
    """Arrays by number, each stored once however often it is met."""

    def __init__(self, arrays: list[np.ndarray] | None = None):
        self.all = arrays or []
        self._numbers: dict[int, int] = {}

    def put(self, array: np.ndarray) -> int:
        """The number of an array, which is one that will not change."""
        number = self._numbers.setdefault(id(array), len(self.all))
        if number == len(self.all):
            self.all.append(array)
        return number

    def get(self, number: int) -> np.ndarray:
        """The array of a number."""
        return self.all[number]


class ArraysInMemory(Arrays):
    """Arrays of a file, of which those that are asked for are copied into memory.

    Args:
        in_a_row: the numbers of those that lie in one piece of it, in this order.
    """

    def __init__(self, arrays: list[np.ndarray], in_a_row: Iterable[int] = ()):
        super().__init__(arrays)
        numbers = list(dict.fromkeys(in_a_row))
        places = consecutive_empty([arrays[number].nbytes for number in numbers])
        self._places = dict(zip(numbers, places, strict=True))

    def get(self, number: int) -> np.ndarray:
        self.all[number] = in_memory(self.all[number], self._places.get(number))
        return self.all[number]


def plain_value(value: Any, arrays: Arrays) -> Any:
    """A value as plain data.

    Raises:
        TypeError: there is no form for it.
    """
    if isinstance(value, float) and not math.isfinite(value):  # for which JSON has no form
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray):
        return {"array": arrays.put(value)}
    if isinstance(value, Packed):
        return {"packed": arrays.put(value.array)}
    if isinstance(value, Activation):
        return {"activation": [plain_value(item, arrays) for item in value]}
    if isinstance(value, ByteScale):
        return {"byte_scale": list(value)}
    if isinstance(value, Quantization):
        given = (getattr(value, field.name) for field in fields(value))
        return {"quantization": [plain_value(item, arrays) for item in given]}
    if type(value) is tuple:  # one with names has no form: it may hold addresses
        return [plain_value(item, arrays) for item in value]
    if isinstance(value, list):
        return {"list": [plain_value(item, arrays) for item in value]}
    raise TypeError(f"{type(value).__name__} cannot be stored")


def value_of_plain(value: Any, arrays: Arrays) -> Any:
    """The value of plain data from a file, whose like may raise any error where the file is wrong."""
    if isinstance(value, list):
        return tuple(value_of_plain(item, arrays) for item in value)
    if not isinstance(value, dict):
        return value
    ((kind, given),) = value.items()
    if kind == "array":
        return arrays.get(given)
    if kind == "packed":
        array = arrays.get(given)
        return Packed(array, array.ctypes.data)
    if kind == "float":
        return float(given)
    if kind == "activation":
        name, *numbers = given
        return Activation(str(name), *(float(value_of_plain(number, arrays)) for number in numbers))
    if kind == "byte_scale":
        scale, zero_point = given
        return ByteScale(float(scale), int(zero_point))
    if kind == "quantization":
        return Quantization(*(value_of_plain(item, arrays) for item in given))
    if kind == "list":
        return [value_of_plain(item, arrays) for item in given]
    raise ValueError(f"{kind!r} is no kind of value")


def plain_graph(graph: NetworkGraph, arrays: Arrays) -> dict[str, Any]:
    """A graph as plain data.

    Raises:
        Unsupported: it has a region of a library whose regions cannot be stored.
    """
    return {
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "shapes": {name: list(shape) for name, shape in graph.shapes.items()},
        "dtypes": dict(graph.dtypes),
        "steps": [_plain_step(step, arrays) for step in graph.steps],
    }


def graph_of_plain(data: dict[str, Any], arrays: Arrays) -> NetworkGraph:
    """The graph of plain data."""
    return NetworkGraph(
        tuple(data["inputs"]), tuple(data["outputs"]),
        tuple(_step_of_plain(step, arrays) for step in data["steps"]),
        {name: tuple(shape) for name, shape in data["shapes"].items()}, dict(data["dtypes"]),
    )  # fmt: skip


def _plain_step(step: Step, arrays: Arrays) -> dict[str, Any]:
    kind = type(step).__name__
    if isinstance(step, Foreign):
        region: Any = step.region
        if getattr(region, "library", "") != "onnxruntime":
            runs = getattr(region, "library", kind)
            raise Unsupported(
                f"step {step.name!r} cannot be stored: {runs} runs it, and there is no form of its programs "
                "that is read without executing what the file has; write the model to ONNX "
                "(torch.onnx.export), read that by convalgos.network.from_onnx, and save it"
            )
        model = np.frombuffer(region.model().SerializeToString(), np.uint8)
        return {
            "kind": kind, "name": step.name, "model": arrays.put(model), "inputs": list(step.inputs),
            "outputs": list(step.outputs), "reads": list(region.inputs), "writes": list(region.outputs),
            "opens": step.opens,
        }  # fmt: skip
    if STEPS.get(kind) is not type(step):
        raise Unsupported(f"step {step.name!r} cannot be stored: there is no form for {kind}")
    own = {field.name: plain_value(getattr(step, field.name), arrays) for field in fields(step)}
    return {"kind": kind} | own


def _step_of_plain(data: dict[str, Any], arrays: Arrays) -> Step:
    own = dict(data)
    kind = own.pop("kind")
    if kind == "Foreign":
        # what runs regions comes from a reader, which lies above: loaded for networks that have regions alone
        stored_region = import_module("convalgos.network.onnx_reader.region").stored_region
        region = stored_region(arrays.get(own["model"]).tobytes(), tuple(own["reads"]), tuple(own["writes"]))
        first, *others = own["outputs"]
        opens = bool(own.get("opens", False))
        return Foreign(own["name"], tuple(own["inputs"]), first, region, tuple(others), opens)
    return STEPS[kind](**{name: value_of_plain(value, arrays) for name, value in own.items()})
