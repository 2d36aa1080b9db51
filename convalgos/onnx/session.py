"""An ONNX model as a session: what a program that runs ONNX Runtime's `InferenceSession` calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from convalgos.network.network import Network
from convalgos.network.onnx_reader.graph import graph_of
from convalgos.network.onnx_reader.messages import dims_of, dtype_of
from convalgos.network.onnx_reader.model import OnnxModel, load_onnx

KINDS = {"float32": "float", "float64": "double"}  # types whose names in ONNX Runtime are not NumPy's


class SessionValue(NamedTuple):
    """An input or an output of a model, as `NodeArg` of ONNX Runtime tells of it."""

    name: str
    type: str  # "tensor(float)"
    shape: list[int | str | None]  # a word is the name of a size that is open, None one without a name


class Session:
    """A model whose convolutions, and what stands between them, run by this library; see `ca.network`.

    Sizes that the model leaves open may be others in each call: later ones take the layouts, algorithms and
    prepared filters of the first. Any number of threads may call `run` at a time.

    Args:
        model: a path, the bytes of a model, or an `onnx.ModelProto`.

    Raises:
        ValueError: it is no valid model.
        Unsupported: onnx is not installed, or the model has nodes for which onnxruntime must be.

    Example:
        >>> session = Session("model.onnx")  # doctest: +SKIP
        >>> (y,) = session.run(None, {session.get_inputs()[0].name: x})  # doctest: +SKIP
    """

    def __init__(self, model: Any):
        read = load_onnx(model)
        values = {v.name: v for v in (*read.proto.graph.input, *read.proto.graph.output)}
        self._inputs = [_told(values[name], read) for name in read.inputs]
        self._outputs = [_told(values[name], read) for name in read.outputs]
        self._names = list(read.outputs)
        self.network = Network(graph_of(read))

    def get_inputs(self) -> list[SessionValue]:
        """Name, type and shape of each input."""
        return list(self._inputs)

    def get_outputs(self) -> list[SessionValue]:
        """Name, type and shape of each output."""
        return list(self._outputs)

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[np.ndarray]:
        """The outputs of these names, or all of them, as new arrays.

        Args:
            feeds: the inputs by name.

        Raises:
            ValueError: an input is missing, a name is none of the model's, or a shape is wrong.
            TypeError: an input has a wrong dtype, or it is no list of names or no dict that is given.
        """
        known = self._names
        if isinstance(output_names, str):
            raise TypeError(f"output_names={output_names!r} must be None or a list of names, of {known}")
        wanted = None if output_names is None else list(output_names)
        if unknown := [name for name in wanted or () if name not in known]:
            raise ValueError(f"output_names has {unknown}; the model has {known}")
        found = self.network.run(self.network.checked(feeds))
        if wanted is None or wanted == known:
            return found
        by_name = dict(zip(known, found, strict=True))
        return [by_name[name] for name in wanted]


def _told(value: Any, model: OnnxModel) -> SessionValue:
    tensor = value.type.tensor_type
    dtype = dtype_of(tensor.elem_type).name if tensor.elem_type else model.dtype(value.name)
    return SessionValue(value.name, f"tensor({KINDS.get(dtype, dtype)})", dims_of(tensor) or [])
