"""A model of ONNX that grows node by node, with the shapes of all values for several sizes of its inputs."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MOST_ELEMENTS = 300_000  # of a value
Shapes = tuple[tuple[int, ...], ...]  # of a value, one for each size of the inputs


class DoesNotFit(Exception):
    """A node cannot be added."""


@dataclass
class Drawing:
    """A model that grows. Values are named; `shapes` has those of each."""

    rng: random.Random
    opset: int
    quantisable: bool = False  # without what ONNX Runtime's integers have another way
    inputs: dict[str, Shapes] = field(default_factory=dict)
    shapes: dict[str, Shapes] = field(default_factory=dict)
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    count: int = 0

    def __post_init__(self) -> None:
        self.numbers = np.random.default_rng(self.rng.getrandbits(32))

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def constant(self, array: Any) -> str:
        self.count += 1
        name = f"c{self.count}"
        self.constants[name] = numpy_helper.from_array(np.asarray(array), name)
        return name

    def floats(self, *shape: int, scale: float = 1.0) -> str:
        return self.constant((self.numbers.standard_normal(shape) * scale).astype("f4"))

    def node(self, op: str, *inputs: Any, count: int = 1, **attributes: Any) -> Any:
        """The name of its output, or the names; inputs that are no names are constants."""
        self.count += 1
        given = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        names = [f"{op.lower()}{self.count}{'abcd'[i]}" for i in range(count)]
        made = helper.make_node(op, given, names, f"{op}_{self.count}", **attributes)
        self.shapes |= self._inferred(made)
        self.nodes.append(made)
        self.read |= {name for name in given if name in self.shapes}
        return names[0] if count == 1 else names

    def _inferred(self, made: Any) -> dict[str, Shapes]:
        known = [name for name in dict.fromkeys(made.input) if name in self.shapes]
        constants = [self.constants[name] for name in dict.fromkeys(made.input) if name in self.constants]
        sizes = len(next(iter(self.inputs.values())))
        found: dict[str, list[tuple[int, ...]]] = {name: [] for name in made.output}
        for i in range(sizes):
            values = [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shapes[name][i]) for name in known
            ]
            outputs = [helper.make_empty_tensor_value_info(name) for name in made.output]
            graph = helper.make_graph([made], "one", values, outputs, constants)
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
            try:
                model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
            except Exception as error:  # of several types
                raise DoesNotFit(str(error)) from None
            for value in model.graph.output:
                dims = value.type.tensor_type.shape.dim
                shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in dims)
                batch = self.inputs["x"][i][0]
                if any(n < 1 for n in shape[1:]) or shape[:1] < (min(1, batch),):
                    raise DoesNotFit(f"{made.op_type} gives {shape}")
                if math.prod(shape) > MOST_ELEMENTS:
                    raise DoesNotFit("too large")
                found[value.name].append(shape)
        return {name: tuple(shapes) for name, shapes in found.items()}

    # --- what blocks read --------------------------------------------------------------------

    def rank(self, name: str) -> int:
        return len(self.shapes[name][0])

    def channels(self, name: str) -> int:
        return self.shapes[name][0][1]

    def maps(self) -> list[str]:
        return [name for name in self.shapes if self.rank(name) >= 3]

    def map(self) -> str:
        """One of the maps, mostly of the last, and of those that nobody reads yet."""
        found = self.maps()
        fresh = [name for name in found if name not in self.read]
        return self.rng.choice(
            fresh if fresh and self.chance(0.6) else found[-4:] if self.chance(0.7) else found
        )

    def like(self, name: str, channels: bool = True) -> list[str]:
        """The values of the same shapes, or of the same but for channels."""

        def key(shapes: Shapes) -> Any:
            return shapes if channels else tuple((s[:1], s[2:]) for s in shapes)

        return [other for other, shapes in self.shapes.items()
                if len(shapes[0]) == self.rank(name) and key(shapes) == key(self.shapes[name])]  # fmt: skip
