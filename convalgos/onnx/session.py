"""An ONNX model as a session: what a program that runs ONNX Runtime's `InferenceSession` calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from convalgos.core import arguments
from convalgos.core.arrays import as_numpy
from convalgos.core.errors import Unsupported
from convalgos.core.setting import threads_of_calls
from convalgos.network.network import Network
from convalgos.network.onnx_reader.graph import network_of_read
from convalgos.network.onnx_reader.loading import folded_model, given_model, naming_file_of
from convalgos.network.onnx_reader.no_arrays import no_array_of_numbers
from convalgos.onnx.io_binding import IOBinding, ort_values
from convalgos.onnx.overriding import Overriding, overridable
from convalgos.onnx.session_values import ModelMetadata, SessionValue, told_model, told_value
from convalgos.onnx.whole_model import WholeModel

LISTS = frozenset((list, tuple, int, float, bool))
CPU = "CPUExecutionProvider"


class Session:
    """A model whose convolutions, and what stands between them, run by this library; see `ca.network`.

    It takes the calls of ONNX Runtime's `InferenceSession`, under the same names, and can stand in its place.
    Sizes that the model leaves open may be others in each call: later ones take the layouts, algorithms and
    prepared filters of the first. Any number of threads may call `run` at a time.

    Args:
        path_or_bytes: a path, the bytes of a model, or an `onnx.ModelProto`.
        sess_options: an `onnxruntime.SessionOptions`, whose `intra_op_num_threads` are the threads that calls
            run on; those of the library for 0, less, or no options. Nothing else of it is looked at.
        providers: names, as ONNX Runtime takes them, or pairs of a name and its options; the model runs on
            the CPU, whatever they are.
        provider_options, disabled_optimizers, enable_fallback: are taken, and change nothing.

    Raises:
        ValueError: it is no valid model, or the providers are no such list.
        Unsupported: onnx is not installed, or the model has nodes for which onnxruntime must be.

    Example:
        >>> session = Session("model.onnx")  # doctest: +SKIP
        >>> (y,) = session.run(None, {session.get_inputs()[0].name: x})  # doctest: +SKIP
    """

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        *,
        disabled_optimizers: Any = None,
        enable_fallback: Any = None,
    ):
        self._options = sess_options
        self._threads = _threads_of(sess_options)
        self.set_providers(providers, provider_options)
        given = given_model(path_or_bytes)
        self._meta = told_model(given.proto)
        self._network: Network | None = None
        self._whole: WholeModel | None = None
        self._overriding: Overriding | None = None
        self._defaults: list[SessionValue] = []
        if others := no_array_of_numbers(given.proto):
            self._whole = WholeModel(given, self._threads, others)
            self._inputs, self._outputs = self._whole.inputs, self._whole.outputs
        else:
            defaults = overridable(given.proto)
            self._overriding = Overriding(path_or_bytes, defaults) if defaults else None
            read = folded_model(given)
            values = {v.name: v for v in (*read.proto.graph.input, *read.proto.graph.output)} | defaults
            self._inputs = [told_value(values[name], read) for name in read.inputs]
            self._outputs = [told_value(values[name], read) for name in read.outputs]
            self._defaults = [told_value(value, read) for value in defaults.values()]
            with naming_file_of(given):
                self._network = network_of_read(read)
        self._names = [value.name for value in self._outputs]

    @property
    def network(self) -> Network:
        """The network that runs the model.

        Raises:
            Unsupported: ONNX Runtime runs all of it, as it moves other things than arrays of numbers.
        """
        if self._network is None:
            assert self._whole is not None
            raise Unsupported(self._whole.why)
        return self._network

    # --- what is told of the model -----------------------------------------------------------

    def get_inputs(self) -> list[SessionValue]:
        """Name, type and shape of each input."""
        return list(self._inputs)

    def get_outputs(self) -> list[SessionValue]:
        """Name, type and shape of each output."""
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[SessionValue]:
        """Name, type and shape of each constant in whose place `run` takes another one."""
        return list(self._defaults)

    def get_modelmeta(self) -> ModelMetadata:
        """What the model says of itself."""
        return self._meta

    # --- what is told of the session ---------------------------------------------------------

    def get_session_options(self) -> Any:
        """Those that were given; new ones where none were.

        Raises:
            ImportError: none were given, and onnxruntime is not installed.
        """
        if self._options is None:
            from onnxruntime import SessionOptions

            self._options = SessionOptions()
        return self._options

    def get_providers(self) -> list[str]:
        """The CPU's."""
        return [CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The CPU's, which has none."""
        return {CPU: {}}

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Any] | None = None
    ) -> None:
        """Nothing changes: the model runs on the CPU.

        Raises:
            ValueError: it is no list of names, or of pairs of a name and its options.
        """
        if providers is None:
            return
        named = [p[0] if isinstance(p, tuple) and len(p) == 2 else p for p in providers]
        if isinstance(providers, str) or not all(isinstance(name, str) for name in named):
            raise ValueError(f"providers={providers!r} must be a list of names, such as [{CPU!r}]")

    def enable_fallback(self) -> None:
        """Nothing changes: there is one provider."""

    def disable_fallback(self) -> None:
        """Nothing changes: there is one provider."""

    # --- runs --------------------------------------------------------------------------------

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[np.ndarray]:
        """The outputs of these names, or all of them where none are given, as new arrays.

        Args:
            input_feed: the inputs by name: arrays, or lists of numbers.
            run_options: are taken, and change nothing.

        Raises:
            ValueError: an input is missing, a name is none of the model's, or a shape is wrong.
            TypeError: an input has a wrong dtype, or it is no list of names or no dict that is given.
        """
        known = self._names
        wanted = known if output_names is None else self._wanted(output_names)
        network = self._network
        if network is None:
            assert self._whole is not None
            return self._whole.run(wanted, input_feed)
        if self._overriding is not None:
            network = self._overriding.network(input_feed, network)
        known_run = network.repeated.run
        if known_run is not None and wanted == known and (known_run.alone or not self._threads):
            outputs = known_run.run(input_feed)
            if outputs is not None:
                return outputs
        if type(input_feed) is dict and not LISTS.isdisjoint(map(type, input_feed.values())):
            input_feed = {name: _array(name, x, network) for name, x in input_feed.items()}
        if self._threads:
            with threads_of_calls(self._threads):
                found = network.run(network.checked(input_feed))
        else:  # a context would cost a tenth of a small network
            found = network.run(network.checked(input_feed))
        if wanted == known:
            return found
        by_name = dict(zip(known, found, strict=True))
        return [by_name[name] for name in wanted]

    def run_async(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any],
        callback: Callable[[list[np.ndarray], Any, str], Any], user_data: Any, run_options: Any = None,
    ) -> None:  # fmt: skip
        """`run` in another thread, which then calls `callback` with the outputs, `user_data`, and what went
        wrong: nothing of it is an empty string, and otherwise there are no outputs."""

        def run() -> None:
            found, error = [], ""
            try:
                found = self.run(output_names, input_feed, run_options)
            except Exception as problem:  # whatever it is, the caller waits for it
                error = f"{type(problem).__name__}: {problem}"
            callback(found, user_data, error)

        threading.Thread(target=run, name="convalgos runs a session").start()

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Any]:  # fmt: skip
        """`run`, of and to `onnxruntime.OrtValue`."""
        return ort_values(self.run(output_names, dict(input_dict_ort_values), run_options))

    def io_binding(self) -> IOBinding:
        """Inputs and outputs that lie in memory of the caller, for `run_with_iobinding`."""
        inputs = [value.name for value in (*self._inputs, *self._defaults)]
        return IOBinding(self.run, inputs, self._names)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run on the inputs that are bound, and write to where outputs are.

        Raises:
            ValueError: an input is not bound, or an output has another shape or type than its memory.
        """
        iobinding.run(run_options)

    # --- inside ------------------------------------------------------------------------------

    def _wanted(self, output_names: Sequence[str]) -> list[str]:
        """The names of outputs that a caller gives: all where it gives none."""
        known = self._names
        if isinstance(output_names, str):
            raise TypeError(f"output_names={output_names!r} must be None or a list of names, of {known}")
        wanted = list(output_names) or known
        if unknown := [name for name in wanted if name not in known]:
            raise ValueError(f"output_names has {unknown}; the model has {known}")
        return wanted


def _array(name: str, given: Any, network: Network) -> Any:
    """An input that is a list of numbers as an array of the type that a network takes."""
    if type(given) not in LISTS or name not in network.graph.inputs:
        return given
    array, dtype = as_numpy(name, given), network.graph.dtypes.get(name, "float32")
    if array.dtype.kind not in "iu" and not np.can_cast(array.dtype, dtype, "same_kind"):
        return array  # whose dtype is told to be wrong
    try:
        return np.asarray(given, dtype)
    except OverflowError as error:
        raise ValueError(f"{name}: {error}") from None


def _threads_of(options: Any) -> int:
    """Threads that options ask for; 0 where they leave it open."""
    if options is None:
        return 0
    count = getattr(options, "intra_op_num_threads", None)
    if count is None:
        told = f"sess_options={type(options).__name__}"
        raise TypeError(f"{told} must be an onnxruntime.SessionOptions, or have its intra_op_num_threads")
    return max(0, arguments.integer("sess_options.intra_op_num_threads", count, -arguments.LARGEST))
