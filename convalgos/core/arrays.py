"""Arrays of other libraries at the door: what comes in, which device it lies on, how the answer goes back.

NumPy and CuPy arrays pass through untouched. Torch tensors on the CPU are viewed as NumPy arrays, those on
a GPU as CuPy arrays, without a copy (also as `out`), and answers go back as tensors. Host arrays of libraries
that keep to the array API standard, such as JAX, are viewed through DLPack, and answers go back that way.
Arrays of any other library on a GPU come in through DLPack, or `__cuda_array_interface__`, and answers go
back as CuPy arrays. What would be lost is refused: gradients that torch would record, masks, labels, blocks
that are not computed yet. Others that NumPy reads, such as lists and memory maps, count as NumPy arrays.
Nothing here imports torch: a tensor can only arrive when the caller has imported it.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.element_types import FLOAT8_DTYPES, OF_ML_DTYPES, ml_dtype

DLPACK_CUDA = (2, 13)  # its device types of CUDA's memory, ordinary and managed
NO_DLPACK = (TypeError, ValueError, RuntimeError, BufferError)  # of dtypes that it has not, as bfloat16
REFUSED = {  # library -> what NumPy's view of its arrays would lose, and what to give instead
    "dask": "would be computed as a whole: give {0}.compute(), or use dask.array.map_overlap",
    "xarray": "would lose its labels: give {0}.values",
    "tensorflow": "would leave its graph: give {0}.numpy()",
}


def device_of(array: Any) -> str:
    """'cpu' or 'cuda:N', as an array says."""
    if isinstance(array, np.ndarray):
        return "cpu"
    if is_tensor(array):
        return f"cuda:{array.get_device()}" if array.is_cuda else "cpu"
    if _is_cupy(array):
        return f"cuda:{array.device.id}"
    return f"cuda:{as_cupy('array', array).device.id}" if _is_on_gpu(array) else "cpu"


class Facts(NamedTuple):
    """What an array is, whoever owns it. Strides are bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype


def facts(name: str, array: Any) -> Facts:
    """Those of a NumPy or CuPy array, or of a tensor, which need not be viewed for that.

    Raises:
        TypeError: a tensor of a dtype that NumPy has not.
    """
    if not is_tensor(array):
        return Facts(array.shape, array.strides, array.dtype)
    try:
        dtype = _dtype_of(array.dtype)
    except TypeError:
        raise TypeError(f"{name} has dtype {array.dtype}, which NumPy has not") from None
    return Facts(tuple(array.shape), tuple([s * dtype.itemsize for s in array.stride()]), dtype)


@cache
def _dtype_of(of_torch: Any) -> np.dtype:
    """A dtype of torch as NumPy has it."""
    name: Any = str(of_torch).removeprefix("torch.")
    return ml_dtype(name) if name in OF_ML_DTYPES else np.dtype(name)


def moveaxis(array: Any, source: int, destination: int) -> Any:
    """A view with one axis elsewhere, of the kind of the array."""
    if is_tensor(array):
        return array.movedim(source, destination)
    return np.moveaxis(array, source, destination)


def as_numpy(name: str, array: Any) -> np.ndarray:
    """A NumPy view of a host array.

    Raises:
        TypeError: `array` is neither a NumPy array, nor a CPU tensor, nor something NumPy reads as numbers,
            or it holds more than these, as a mask or what gradients need.
    """
    if type(array) is np.ndarray:
        return array
    if "numpy.ma" in sys.modules and isinstance(array, np.ma.MaskedArray):  # as it is where there is one
        raise TypeError(f"{name} is a masked array, whose mask would be lost: give {name}.filled(0)")
    if isinstance(array, np.ndarray):
        return np.asarray(array)  # of a subclass, such as a memory map, the plain array
    if is_tensor(array):
        return _torch_to_numpy(name, array)
    if _is_cupy(array):
        raise TypeError(f"{name} lies on {device_of(array)}; this plan takes arrays in host memory")
    if told := REFUSED.get(type(array).__module__.partition(".")[0]):
        raise TypeError(f"{name} is a {_kind(array)}, which {told.format(name)}")
    if namespace_of(array) is not None:
        return _standard_to_numpy(name, array)
    try:
        view = np.asarray(array)
    except ValueError as error:  # of lists of unequal lengths
        raise ValueError(f"{name}={type(array).__name__} is no array: {error}") from None
    if view.dtype == object:
        raise TypeError(f"{name}={type(array).__name__} must be a NumPy array or a CPU tensor")
    return view


def as_operand(name: str, array: Any, device: str) -> Any:
    """A tensor as it is; of all else a view of the device's kind."""
    if is_tensor(array):
        return array
    return as_numpy(name, array) if device == "cpu" else as_cupy(name, array)


def same_dtype(one: np.dtype, other: np.dtype) -> bool:
    """Whether two dtypes are the same but for the order of bytes."""
    return one == other or one.newbyteorder("=") == other.newbyteorder("=")


def host_array(array: Any) -> np.ndarray:
    """A NumPy array of what lies on any device, copied where it must be."""
    if _is_cupy(array):
        copied: np.ndarray = array.get()
        return copied
    return as_numpy("array", array.detach().cpu() if is_tensor(array) else array)


def writable_view(name: str, array: Any) -> np.ndarray:
    """A NumPy array through which a host array is written; `as_numpy` would copy a list.

    Raises:
        TypeError: `array` is neither a NumPy array nor a CPU tensor.
    """
    if not (isinstance(array, np.ndarray) or is_tensor(array) or _is_cupy(array)):
        raise TypeError(f"{name}={type(array).__name__} must be an array of x's kind")
    return as_numpy(name, array)


def float8_bits(given: Any, view: Any, dtype: np.dtype) -> Any:
    """The bits of 8-bit floats, as uint8; None where the array is of neither.

    Args:
        given: an array of any kind.
        view: the same as a NumPy or CuPy array; CuPy, which has not these types, holds them as uint8.
    """
    found = facts("array", given).dtype if is_tensor(given) else view.dtype
    return view.view(np.uint8) if found in (dtype, np.dtype(np.uint8)) else None


def as_cupy(name: str, array: Any) -> Any:
    """A CuPy array over the memory of an array on a GPU; of 8-bit floats, which CuPy has not, uint8.

    What its library has still to do on it is ordered before what CuPy's current stream does from now on.

    Raises:
        TypeError: `array` does not lie on a GPU, or not so that it can be viewed.
    """
    if _is_cupy(array):
        return array
    if not (is_tensor(array) or _is_on_gpu(array)):
        raise TypeError(f"{name}={type(array).__name__} must be a CuPy array or a CUDA tensor")
    if is_tensor(array) and not array.is_cuda:
        raise TypeError(f"{name} lies on {array.device}; this plan takes arrays on a GPU")
    import cupy

    if not is_tensor(array):
        return cupy.from_dlpack(array) if hasattr(array, "__dlpack__") else cupy.asarray(array)
    _refuse_gradient(name, array)
    if array.is_neg():
        raise TypeError(f"{name} has its negative bit set: give {name}.resolve_neg()")
    index = array.get_device()
    if torch_stream(array) == cupy.cuda.get_current_stream(index).ptr:  # nothing to be ordered: a bare view
        shape, strides, dtype = facts(name, array)
        dtype = np.dtype(np.uint8) if dtype.name in FLOAT8_DTYPES else dtype
        memory = cupy.cuda.UnownedMemory(array.data_ptr(), array.nbytes, array, index)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0), strides)
    tensor = array.detach()
    if str(tensor.dtype).removeprefix("torch.") in FLOAT8_DTYPES:
        return cupy.from_dlpack(tensor.view(sys.modules["torch"].uint8))
    if tensor.dtype == sys.modules["torch"].bfloat16:  # which CuPy does not take through DLPack
        return cupy.from_dlpack(tensor.view(sys.modules["torch"].int16)).view(ml_dtype("bfloat16"))
    return cupy.from_dlpack(tensor)


def torch_stream(array: Any) -> int | None:
    """The CUDA stream that torch works on, where the array is one of its tensors on a GPU."""
    if not (is_tensor(array) and array.is_cuda):
        return None
    stream: int = sys.modules["torch"].cuda.current_stream(array.device).cuda_stream
    return stream


def like(array: Any, example: Any) -> Any:
    """`array` as the kind of array that `example` is, without a copy where its library can do so."""
    if type(example) is np.ndarray:
        return array
    if not is_tensor(example):
        namespace = None if isinstance(example, np.ndarray) else namespace_of(example)
        if namespace is None or not isinstance(array, np.ndarray):
            return array
        try:
            return namespace.from_dlpack(array)
        except NO_DLPACK:
            return namespace.asarray(array)
    torch = sys.modules["torch"]
    if example.is_cuda:
        if array.dtype.name == "bfloat16":
            return torch.from_dlpack(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_dlpack(array)
    if array.itemsize == 2 and array.dtype != np.float16:  # bfloat16, which torch does not take from NumPy
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def empty_like(example: Any, shape: tuple[int, ...], dtype: str | None = None) -> Any:
    """An uninitialised tensor of the dtype and the device of an example, or None where that is no tensor.

    dtype: another one, by its name.
    """
    if not is_tensor(example):
        return None
    other = {} if dtype is None else {"dtype": getattr(sys.modules["torch"], dtype)}
    return example.new_empty(shape, **other)


def is_tensor(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, getattr(torch, "Tensor", ()))


def namespace_of(array: Any) -> Any:
    """The functions of an array's library in the array API standard, or None where it does not keep to that.

    Source: https://data-apis.org/array-api
    """
    if not (hasattr(array, "__array_namespace__") and hasattr(array, "__dlpack__")):
        return None
    return array.__array_namespace__()


def _is_on_gpu(array: Any) -> bool:
    """Whether an array of any library is one that CuPy can view."""
    if hasattr(array, "__dlpack_device__"):
        return array.__dlpack_device__()[0] in DLPACK_CUDA
    return hasattr(array, "__cuda_array_interface__")


def _is_cupy(array: Any) -> bool:
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(array, getattr(cupy, "ndarray", ()))


def _standard_to_numpy(name: str, array: Any) -> np.ndarray:
    try:
        return np.from_dlpack(array)
    except NO_DLPACK:
        pass
    try:
        return np.asarray(array)
    except Exception as error:  # each library has its own, as JAX for arrays that are being traced
        told = str(error).partition("\n")[0]
        raise TypeError(f"{name} is a {_kind(array)} whose numbers cannot be read here: {told}") from None


def _kind(array: Any) -> str:
    return f"{type(array).__module__.partition('.')[0]}.{type(array).__name__}"


def _refuse_gradient(name: str, tensor: Any) -> None:
    """TypeError where torch would record what is computed from a tensor, to differentiate it."""
    torch = sys.modules["torch"]
    ad = torch.autograd.forward_ad
    recorded = tensor.requires_grad and torch.is_grad_enabled()
    if recorded or (ad._current_level >= 0 and ad.unpack_dual(tensor).tangent is not None):
        raise TypeError(
            f"{name} requires a gradient, which would be lost: call conv2d, conv_transpose2d, ... of "
            f"convalgos.torch, give {name}.detach(), or work within torch.no_grad()"
        )


def _torch_to_numpy(name: str, tensor: Any) -> np.ndarray:
    if tensor.is_cuda:
        raise TypeError(f"{name} lies on {tensor.device}; this plan takes arrays in host memory")
    _refuse_gradient(name, tensor)
    torch = sys.modules["torch"]
    tensor = tensor.detach()
    name = str(tensor.dtype).removeprefix("torch.")
    if name in OF_ML_DTYPES:
        bits: np.ndarray = tensor.view(torch.int16 if tensor.itemsize == 2 else torch.uint8).numpy()
        return bits.view(ml_dtype(name))
    values: np.ndarray = tensor.numpy()
    return values
