"""A model that ONNX Runtime runs as a whole, as it takes or gives other things than arrays of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from convalgos.core.arguments import shown
from convalgos.core.errors import Unsupported, missing
from convalgos.core.setting import thread_count
from convalgos.network.onnx_reader.loading import GivenModel, naming_file_of
from convalgos.network.onnx_reader.runtime_sessions import runtime_session
from convalgos.network.onnx_reader.runtime_types import runtime_errors
from convalgos.onnx.session_values import SessionValue, dtype_of_told


class WholeModel:
    """Runs a model of strings, lists, or what may be absent.

    Args:
        threads: that it runs on; 0 for those of the library.
        why: the model is run as a whole, in words.

    Raises:
        ValueError: ONNX Runtime refuses the model. Unsupported: it is not installed.
    """

    def __init__(self, given: GivenModel, threads: int, why: str):
        if reason := missing("onnxruntime"):
            raise Unsupported(f"the model {why}, which {reason}")
        self.why = f"the model {why}: ONNX Runtime runs it as a whole, and there is no network"
        model = given.proto if given.path is None else str(given.path)
        with naming_file_of(given):
            self._session = runtime_session(model, threads or thread_count(), is_alone=True)
        self.inputs, self.outputs = (
            [SessionValue(v.name, v.type, list(v.shape)) for v in values]
            for values in (self._session.get_inputs(), self._session.get_outputs())
        )
        told = ((value.name, dtype_of_told(value.type)) for value in self.inputs)
        self._dtypes = {name: dtype for name, dtype in told if dtype is not None}

    def run(self, output_names: Sequence[str], input_feed: Mapping[str, Any]) -> list[Any]:
        """The outputs of these names.

        Raises:
            ValueError: ONNX Runtime refuses an input, or the run of a node; its words tell which.
            TypeError: strings are given for numbers.
        """
        given = {name: self._taken(name, x) for name, x in input_feed.items()}
        try:
            found: list[Any] = self._session.run(list(output_names), given)
        except runtime_errors() as error:
            raise ValueError(f"ONNX Runtime cannot run the model: {error}") from None
        return found

    def _taken(self, name: str, x: Any) -> Any:
        """An input as ONNX Runtime takes it: lists become arrays, in its order of bytes."""
        if isinstance(x, np.ndarray) and not x.dtype.isnative:
            return x.astype(x.dtype.newbyteorder("="))
        if not isinstance(x, list | tuple | int | float | str) or name not in self._dtypes:
            return x
        dtype, given = self._dtypes[name], np.asarray(x)
        if dtype.kind != "O" and given.dtype.kind in "US":  # which NumPy takes for numbers, or for true
            raise TypeError(f"{name} is {shown(x)}, and must be of {dtype}")
        return np.array(x, dtype)
