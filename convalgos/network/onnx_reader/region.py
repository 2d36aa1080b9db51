"""Nodes of an ONNX model that ONNX Runtime runs: a session of their own, bound to this library's arrays."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from convalgos.core.bound_run import BoundRun
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.errors import Unsupported, missing
from convalgos.core.forks import renewed
from convalgos.core.setting import thread_count
from convalgos.network.graph import Foreign, Sizes
from convalgos.network.onnx_reader.array_functions import tells_shapes
from convalgos.network.onnx_reader.inference import inferred_types
from convalgos.network.onnx_reader.messages import (
    Dim,
    bound_type,
    is_of_others,
    kind_of_dtype,
    messages,
    model_with,
    value_info,
)
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode
from convalgos.network.onnx_reader.open_shapes import OpenShapes
from convalgos.network.onnx_reader.order import captured_by, read_by
from convalgos.network.onnx_reader.patterns import names_of
from convalgos.network.onnx_reader.runtime_sessions import runtime_session
from convalgos.network.onnx_reader.runtime_types import runtime_errors
from convalgos.network.onnx_reader.types import INT32, INT64
from convalgos.network.onnx_reader.value_types import DynamicShape, ValueType
from convalgos.network.onnx_reader.window_types import pads_as_undilated
from convalgos.network.sizes_of_run import SizesOfRun

SHAPE_VALUES = 64  # elements of a constant that may hold sizes, such as the target of a Reshape
SIZES = ("int32", "int64")  # types of values that may be sizes
COPIED = 1 << 16  # bytes of outputs that are copied in the time that it takes to bind them
SHAPES = 64  # of inputs, for which the shapes of outputs are remembered


class OnnxRegion:
    """A part of a model as a model by itself. Any number of threads may run it at a time.

    Args:
        inputs, outputs: names of the values that it reads and writes; constants are its own.
    """

    library = "onnxruntime"
    is_alone = False  # whether it is all of a network

    def __init__(
        self, model: OnnxModel, nodes: Sequence[OnnxNode], inputs: Sequence[str], outputs: Sequence[str]
    ):
        self.what = names_of(nodes)
        self.operators: Sequence[str] = [node.op for node in nodes]
        self.nodes = tuple(nodes)
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.source = model
        self._proto: Any = None
        self._sessions: dict[int, Any] = {}
        self._shapes: dict[tuple[Any, ...], Sequence[Sizes]] = {}
        # Until an inference has not found what outputs have; with ceil_mode ONNX infers windows behind maps.
        self._is_inferred = not any(
            node.attributes.get("ceil_mode") or pads_as_undilated(node.attributes) for node in nodes
        )
        self._gives_sizes = any(model.dtype(name) in SIZES for name in outputs)
        # which ONNX Runtime does not give as arrays
        self.has_others_types = any(map(is_of_others, map(model.dtype, (*self.inputs, *self.outputs))))
        self._lock = renewed(threading.Lock())
        self._open = OpenShapes(self._open_shapes)

    def shapes(self, inputs: Sequence[Sizes]) -> Sequence[Sizes]:
        """Shapes of the outputs, as ONNX infers them, else by a run on ones, which gives sizes as well."""
        key = tuple((x.shape, x.tobytes()) if isinstance(x, np.ndarray) else tuple(x) for x in inputs)
        found: Sequence[Sizes] | None = self._shapes.get(key)
        if found is None:
            found = self._open.of(inputs)
            found = self._found(inputs) if found is None else found
            if len(self._shapes) >= SHAPES:
                self._shapes.clear()
            self._shapes[key] = found
        return found

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Write the outputs, which are C-contiguous arrays of their shapes; so are the inputs."""
        if sum([y.nbytes for y in outputs]) <= COPIED and not self.has_others_types:
            self._copy(inputs, outputs)
        else:
            self.bind(inputs, outputs).run()

    def opened(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """The outputs, new arrays of whatever shapes."""
        session, given = self.session(), dict(zip(self.inputs, inputs, strict=True))
        try:
            found: Sequence[np.ndarray] = session.run(list(self.outputs), given)
        except runtime_errors() as error:
            raise SizesOfRun(f"{self.what} cannot be computed: {error}", self) from None
        return found

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> BoundRun:
        """A run on arrays that stay where they are, which the session reads and writes there."""
        session, arrays = self.session(), (*inputs, *outputs)
        if not all(array.size for array in arrays):  # arrays of no elements cannot be bound
            return BoundRun(partial(self._copy, inputs, outputs))
        binding = session.io_binding()
        for name, x in zip(self.inputs, inputs, strict=True):
            binding.bind_input(name, "cpu", 0, bound_type(x.dtype), x.shape, x.ctypes.data)
        for name, y in zip(self.outputs, outputs, strict=True):
            binding.bind_output(name, "cpu", 0, bound_type(y.dtype), y.shape, y.ctypes.data)
        return BoundRun(partial(self._run_bound, session, binding), None, arrays)

    def session(self) -> Any:
        """The session of as many threads as this library has now."""
        threads = thread_count()
        with self._lock:
            if threads not in self._sessions:
                self._sessions[threads] = self._new_session(threads)
            return self._sessions[threads]

    def model(self) -> Any:
        """The ModelProto of the region."""
        if self._proto is None:
            self._proto = self._new_model()
        return self._proto

    # --- inside ------------------------------------------------------------------------------

    def _run_bound(self, session: Any, binding: Any) -> None:
        try:
            session.run_with_iobinding(binding)
        except runtime_errors() as error:
            raise SizesOfRun(f"{self.what} cannot be computed: {error}", self) from None

    def _found(self, inputs: Sequence[Sizes]) -> Sequence[Sizes]:
        found: list[Sizes] | None = None
        if self._is_inferred and not self._gives_sizes:
            found = self._inferred(inputs)
            self._is_inferred = found is not None
        found = found or self._tried(inputs)
        self._open.learn(inputs, found)
        return found

    def _copy(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        for y, value in zip(outputs, self.opened(inputs), strict=True):
            if y.shape != value.shape:
                raise SizesOfRun(f"{self.what} gives {value.shape}, but its output is {y.shape}", self)
            y[...] = value

    def _new_session(self, threads: int) -> Any:
        if reason := missing("onnxruntime"):
            raise Unsupported(f"the network has {self.what}, which {reason}")
        return runtime_session(self.model(), threads, self.is_alone)

    def _new_model(self) -> Any:
        graph = messages().GraphProto(name="region")
        graph.node.extend(proto for node in self.nodes for proto in node.protos)
        self._add_dequantized(graph)
        own = {name for proto in graph.node for name in proto.output}
        read = {n for proto in graph.node for n in read_by(proto)} - own
        graph.initializer.extend(
            self.source.tensor(name) for name in sorted(read) if self.source.is_constant(name)
        )
        graph.input.extend(self._declared(name, self.source.shape(name)) for name in self.inputs)
        # what a model says of the shapes of its outputs may be wrong: ONNX Runtime refuses to write them then
        graph.output.extend(self._declared(name, None) for name in self.outputs)
        return model_with(graph, self.source.proto, self.source.proto.ir_version)

    def _declared(self, name: str, shape: DynamicShape | None) -> Any:
        """A value with its type and rank, and the sizes that an input of the model has: nodes may ask."""
        dtype = self.source.dtype(name)
        if not dtype:
            raise Unsupported(f"the network has {self.what}, where the type of {name!r} is not known")
        fixed = name in self.source.inputs
        sizes = [n if fixed and isinstance(n, int) else None for n in shape or ()]
        return value_info(name, kind_of_dtype(np.dtype(dtype)), None if shape is None else sizes)

    def _inferred(self, inputs: Sequence[Sizes]) -> list[Sizes] | None:
        if any(isinstance(x, np.ndarray) for x in inputs):
            return None

        with self._lock:
            self._set_sizes(inputs)
            own = inferred_types(self._outline)
            if own is not None and all(map(_are_numbers, dims := [own[name].dims for name in self.outputs])):
                return dims  # type: ignore[return-value]
            written = self._outline.SerializeToString()
        import onnx

        try:
            inferred = onnx.shape_inference.infer_shapes(written, strict_mode=True, data_prop=True)
        except onnx.shape_inference.InferenceError:  # also of what runs well, as of lists: a run tells
            return None
        found = [ValueType.told(value).shape for value in inferred.graph.output]
        return found if all(map(_are_numbers, found)) else None  # type: ignore[return-value]

    def _open_shapes(self, inputs: Sequence[Sequence[Dim]]) -> Sequence[Sequence[Dim]] | None:
        """Of the outputs, where those of the inputs are open."""
        with self._lock:
            self._set_sizes(inputs)
            own = inferred_types(self._outline, (INT32, INT64))
        found = [own[name].dims for name in self.outputs] if own is not None else [None]
        return None if None in found else found  # type: ignore[return-value]

    def _set_sizes(self, inputs: Sequence[Any]) -> None:
        """Those of the inputs of the outline: to make their types anew takes as long again."""
        for value, shape in zip(self._outline.graph.input, inputs, strict=False):  # and constants behind
            sizes = value.type.tensor_type.shape
            del sizes.dim[len(shape) :]
            for i, n in enumerate(shape):
                dim = sizes.dim[i] if i < len(sizes.dim) else sizes.dim.add()
                setattr(dim, "dim_param" if isinstance(n, str) else "dim_value", n)
            sizes.SetInParent()  # of a number, which has a shape of no sizes

    @cached_attribute
    def _outline(self) -> Any:
        """The model for an inference of shapes: large constants are inputs behind the others, without values,
        and outputs have none of their shapes. To copy and to read values takes an inference most of its time.
        """
        model = messages().ModelProto()
        model.CopyFrom(self.model())
        constants = list(model.graph.initializer)
        large = [t for t in constants if math.prod(t.dims) > SHAPE_VALUES]
        for tensor in large:
            model.graph.input.append(value_info(tensor.name, tensor.data_type, tensor.dims))
            model.graph.initializer.remove(tensor)
        for value in model.graph.output:
            value.type.tensor_type.ClearField("shape")
        return model

    def _add_dequantized(self, graph: Any) -> None:
        """Let constants that are read be dequantised in the region, as they are in the model."""
        read = dict.fromkeys(n for proto in graph.node for n in read_by(proto))
        nodes = [proto for name in read if (proto := self.source.dequantizing(name)) is not None]
        if nodes:
            others = list(graph.node)
            del graph.node[:]
            graph.node.extend([*nodes, *others])

    def _tried(self, inputs: Sequence[Sizes]) -> list[Sizes]:
        arrays = {
            name: x if isinstance(x, np.ndarray) else np.ones(x, self.source.dtype(name))
            for name, x in zip(self.inputs, inputs, strict=True)
        }
        try:
            found = self.session().run(list(self.outputs), arrays)
        except runtime_errors() as error:
            told = f"inputs of shapes {inputs} do not go with {self.what}: {error}"
            raise SizesOfRun(told, self) from None
        return [y if y.dtype.name in SIZES and y.size <= SHAPE_VALUES else y.shape for y in found]


def _are_numbers(dims: Sequence[Dim] | None) -> bool:
    """Whether all sizes of a value are known."""
    return dims is not None and all(isinstance(n, int) for n in dims)


def foreign_step(model: OnnxModel, node: OnnxNode) -> Foreign:
    """A node that ONNX Runtime is to run, as a step."""
    region = OnnxRegion(model, [node], _read(node, model), [name for name in node.outputs if name])
    return _step(node.name, region)


def join_regions(steps: Sequence[Foreign], inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Foreign:
    """Foreign steps of a model as one."""
    regions = [step.region for step in steps]
    nodes = [node for region in regions if isinstance(region, OnnxRegion) for node in region.nodes]
    first = regions[0]
    assert isinstance(first, OnnxRegion)
    return _step(steps[0].name, OnnxRegion(first.source, nodes, inputs, outputs))


def _step(name: str, region: OnnxRegion) -> Foreign:
    opens = not all(tells_shapes(node, region.source) for node in region.nodes)
    return Foreign(name, region.inputs, region.outputs[0], region, region.outputs[1:], opens)


def stored_region(data: bytes, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> OnnxRegion:
    """The region of which these are the bytes of its model.

    Raises:
        Unsupported: onnx is not installed.
    """
    if reason := missing("onnx"):
        raise Unsupported(f"a region of an ONNX model {reason}")
    model = OnnxModel(messages().ModelProto.FromString(data), inputs)
    return OnnxRegion(model, model.nodes, inputs, outputs)


def _read(node: OnnxNode, model: OnnxModel) -> list[str]:
    """Values that a node and the bodies in it read and that are not constant."""
    found = dict.fromkeys(node.inputs)
    for proto in node.protos:
        found |= dict.fromkeys(captured_by(proto))
    return [name for name in found if name and not model.is_constant(name)]
