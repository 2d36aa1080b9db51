"""An ONNX model as a session: what a program that runs ONNX Runtime's `InferenceSession` calls.

Planning takes as long as some runs, which pays where a shape of the inputs comes again and again. So of a
model with open sizes, such as the widths of lines of text, the first shape is planned at once; any other is
run by ONNX Runtime until it has come AGAIN times, and is then planned beside the calls that go on.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.errors import Unsupported, missing
from convalgos.core.setting import thread_count
from convalgos.network.network import Network
from convalgos.network.onnx_graph import graph_of
from convalgos.network.onnx_model import load_onnx
from convalgos.network.onnx_region import runtime_session

AGAIN = 8  # how often a shape comes before it is planned: planning takes as long as about so many runs
PLANNER = "convalgos plans a network"  # a thread
SEEN = 1 << 12  # shapes that are counted
KINDS = {"float32": "float", "float64": "double"}  # types whose names in ONNX Runtime are not NumPy's


class SessionValue(NamedTuple):
    """An input or an output of a model, as `NodeArg` of ONNX Runtime tells of it."""

    name: str
    type: str  # "tensor(float)"
    shape: list[int | str | None]  # a word is the name of a size that is open, None one without a name


class Session:
    """A model whose convolutions, and what stands between them, run by this library; see `ca.network`.

    Sizes that the model leaves open may be others in each call, without a pause to plan them. Any number of
    threads may call `run` at a time.

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
        self._inputs = [_told(values[name]) for name in read.inputs]
        self._outputs = [_told(values[name]) for name in read.outputs]
        self.network = Network(graph_of(read))
        is_open = any(not isinstance(n, int) for value in self._inputs for n in value.shape)
        self._fallback = (
            _Fallback(self.network, read.proto) if is_open and not missing("onnxruntime") else None
        )

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
            TypeError: an input has a wrong dtype.
        """
        known = [value.name for value in self._outputs]
        wanted = known if output_names is None else list(output_names)
        if unknown := [name for name in wanted if name not in known]:
            raise ValueError(f"output_names has {unknown}; the model has {known}")
        views = self.network.checked(feeds)
        shapes = tuple(view.shape for view in views)
        plan = self.network.known_plan(shapes)
        if plan is None and self._fallback is not None and self.network.plans():
            return self._fallback.run(wanted, views)
        found = (plan or self.network.plan(shapes)).run(views)
        by_name = dict(zip(known, found, strict=True))
        return [by_name[name] for name in wanted]


class _Fallback:
    """ONNX Runtime in the place of plans that are not worth their time, or not made yet."""

    def __init__(self, network: Network, proto: Any):
        self._network, self._session = network, runtime_session(proto, thread_count())
        self._seen: Counter[tuple[Shape, ...]] = Counter()
        self._lock = threading.Lock()

    def run(self, wanted: list[str], inputs: list[np.ndarray]) -> list[np.ndarray]:
        """The outputs of these names. Inputs of a shape that came before are planned meanwhile."""
        shapes = tuple(x.shape for x in inputs)
        with self._lock:
            if len(self._seen) >= SEEN:
                self._seen.clear()
            self._seen[shapes] += 1
            due = self._seen[shapes] == AGAIN
        if due:
            threading.Thread(target=self._plan, args=(shapes,), name=PLANNER, daemon=True).start()
        found: list[np.ndarray] = self._session.run(
            wanted, dict(zip(self._network.graph.inputs, inputs, strict=True))
        )
        return found

    def _plan(self, shapes: tuple[Shape, ...]) -> None:
        with suppress(Unsupported, ValueError):  # ONNX Runtime goes on, and tells what is wrong
            self._network.plan(shapes)


def _told(value: Any) -> SessionValue:
    import onnx

    tensor = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    sizes = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]
    return SessionValue(value.name, f"tensor({KINDS.get(dtype, dtype)})", sizes)
