"""Inputs and outputs of a session in memory of the caller, as `IOBinding` of ONNX Runtime has them."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from convalgos.core.errors import Unsupported
from convalgos.network.onnx_reader.messages import dtype_of

Run = Callable[[Sequence[str], Mapping[str, Any], Any], list[np.ndarray]]  # that of a session


class IOBinding:
    """What `Session.io_binding` gives: it binds names to memory, and `Session.run_with_iobinding` runs on it.

    Inputs are read, and outputs are written, when the session runs. Where an output is bound without memory,
    a new array is made.

    Example:
        >>> binding = session.io_binding()  # doctest: +SKIP
        >>> binding.bind_cpu_input("x", x)  # doctest: +SKIP
        >>> binding.bind_output("y")  # doctest: +SKIP
        >>> session.run_with_iobinding(binding)  # doctest: +SKIP
        >>> (y,) = binding.copy_outputs_to_cpu()  # doctest: +SKIP
    """

    def __init__(self, run: Run, inputs: Sequence[str], outputs: Sequence[str]):
        self._run, self._input_names, self._output_names = run, inputs, outputs
        self._inputs: dict[str, Any] = {}
        self._memory: dict[str, np.ndarray | None] = {}  # of outputs, in the order in which they were bound
        self._held: dict[str, Any] = {}  # what that memory belongs to
        self._found: dict[str, np.ndarray] = {}  # outputs of the last run, or what they are bound to since

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Read an input from an array."""
        self._inputs[_known(name, self._input_names)] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Read an input from an `onnxruntime.OrtValue`."""
        self.bind_cpu_input(name, ortvalue)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:  # fmt: skip
        """Read an input from an address; the memory there must live as long as it is bound.

        Args:
            element_type: a NumPy dtype, or the number of a type of ONNX.

        Raises:
            Unsupported: it lies on another device than the CPU.
        """
        _check_device(device_type)
        self.bind_cpu_input(name, _at(buffer_ptr, element_type, shape))

    def bind_output(
        self, name: str, device_type: str = "cpu", device_id: int = 0, element_type: Any = None,
        shape: Sequence[int] | None = None, buffer_ptr: int | None = None,
    ) -> None:  # fmt: skip
        """Write an output to an address, or to a new array where none is given; arguments as of an input."""
        _check_device(device_type)
        memory = None
        if buffer_ptr:
            if element_type is None or shape is None:
                raise ValueError(f"buffer_ptr={buffer_ptr} needs an element_type and a shape")
            memory = _at(buffer_ptr, element_type, shape)
        self._bind(name, memory)

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """Write an output to an `onnxruntime.OrtValue`."""
        self._bind(name, _memory_of(ortvalue), ortvalue)

    def run(self, run_options: Any = None) -> None:
        """`Session.run_with_iobinding` of this."""
        names = list(self._memory)
        outputs = self._run(names, self._inputs, run_options) if names else []
        found = dict(zip(names, outputs, strict=True))
        for name, memory in self._memory.items():
            if memory is None:
                continue
            y = found[name]
            if (memory.shape, memory.dtype) != (y.shape, y.dtype):
                told = f"{memory.dtype} of shape {memory.shape}"
                raise ValueError(f"output {name} is bound as {told}, but is {y.dtype} of shape {y.shape}")
            memory[...] = y
            found[name] = memory
        self._found = found

    def get_outputs(self) -> list[Any]:
        """The outputs of the last run as `onnxruntime.OrtValue`, in the order in which they were bound."""
        return [self._held[name] or ort_values([self._found[name]])[0] for name in self._names_found()]

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """The outputs of the last run as new arrays, in the order in which they were bound."""
        return [self._found[name].copy() for name in self._names_found()]

    def clear_binding_inputs(self) -> None:
        """Forget what inputs are bound to."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget what outputs are bound to, and those of the last run."""
        self._memory.clear()
        self._held.clear()
        self._found.clear()

    def synchronize_inputs(self) -> None:
        """Nothing has to be waited for on the CPU."""

    def synchronize_outputs(self) -> None:
        """Nothing has to be waited for on the CPU."""

    def _bind(self, name: str, memory: np.ndarray | None, held: Any = None) -> None:
        """Bind an output; what it was bound to before may be gone from here on."""
        name = _known(name, self._output_names)
        self._memory[name], self._held[name] = memory, held
        self._found.pop(name, None)
        if memory is not None:
            self._found[name] = memory

    def _names_found(self) -> list[str]:
        return [name for name in self._memory if name in self._found]


def ort_values(arrays: Iterable[np.ndarray]) -> list[Any]:
    """Arrays as `onnxruntime.OrtValue`, copied: what shares memory with an array does not keep it alive.

    Raises:
        Unsupported: onnxruntime is not installed.
    """
    try:
        from onnxruntime import OrtValue
    except ImportError:
        raise Unsupported("an OrtValue needs onnxruntime, which is not installed") from None
    found = []
    for array in arrays:
        if array.dtype == object:  # words, which are copied
            found.append(OrtValue.ortvalue_from_numpy(array))
        else:
            value = OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype, "cpu", 0)
            value.update_inplace(array)
            found.append(value)
    return found


def _known(name: str, names: Sequence[str]) -> str:
    if name not in names:
        raise ValueError(f"name={name!r} must be one of {[*names]}")
    return name


def _memory_of(value: Any) -> np.ndarray:
    """The memory of an `onnxruntime.OrtValue`, of which `numpy()` may be a copy."""
    _check_device(value.device_name())
    return _at(value.data_ptr(), value.element_type(), value.shape())


def _at(address: int, element_type: Any, shape: Sequence[int]) -> np.ndarray:
    """The array at an address."""
    dtype = np.dtype(dtype_of(element_type) if isinstance(element_type, int) else element_type)
    size = math.prod(shape) * dtype.itemsize
    memory: Any = (ctypes.c_byte * size).from_address(address) if size else bytearray()
    found: np.ndarray = np.ndarray(tuple(shape), dtype, memory)
    return found


def _check_device(kind: str) -> None:
    if kind.lower() != "cpu":
        raise Unsupported(f"device_type={kind!r}: a session reads and writes memory of the CPU")
