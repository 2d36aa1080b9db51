"""Arrays that compiled code makes for Python: `PyArray_NewFromDescr` of NumPy's C API, where that is known.

`numpy.empty` takes 0.15 us from Python, as long as all else that a call on a few pixels does.
"""

from __future__ import annotations

import ctypes
import functools
from importlib import import_module

import numpy as np

from convalgos.cpu.vectors.simd import Value, intrinsic, ir

VERSIONS = (0x01000009, 0x02000000)  # of NumPy's binary interface, 1 and 2
GET_VERSION, NEW = 0, 94  # places of functions in the interface, which do not change within a version
TOLD = (
    object.__basicsize__ + 8
)  # from the first byte of a dtype to kind, character, order of bytes and number
NUMBER = 1 << 32  # by which the number is multiplied there


@intrinsic
def python_array(
    builder: Value, function: Value, of: Value, dtype: Value, ndim: Value, sizes: Value
) -> Value:
    """A new array of a class and a type, of which it takes a reference; without memory 0, with an error set.

    Args:
        function: what `array_maker` tells.
        sizes: the address of ndim of them.
    """
    word, half = ir.IntType(64), ir.IntType(32)
    kind = ir.FunctionType(word, [word, word, half, word, word, word, half, word])
    none, no_flags = ir.Constant(word, 0), ir.Constant(half, 0)
    maker = builder.inttoptr(function, ir.PointerType(kind))
    return builder.call(maker, [of, dtype, builder.trunc(ndim, half), sizes, none, none, no_flags, none])


@functools.cache
def array_maker() -> int:
    """The address of the function; 0 where this NumPy is another one."""
    for module in ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath"):
        try:
            capsule = import_module(module)._ARRAY_API
        except (ImportError, AttributeError):
            continue
        address = ctypes.pythonapi.PyCapsule_GetPointer
        address.restype, address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        functions = (ctypes.c_void_p * (NEW + 1)).from_address(address(capsule, None))
        version = ctypes.CFUNCTYPE(ctypes.c_uint)(functions[GET_VERSION] or 0)()
        known = version in VERSIONS and all(_is_known(np.dtype(name)) for name in ("b", "f", "D", ">i4"))
        return functions[NEW] or 0 if known else 0
    return 0


def type_word(dtype: np.dtype) -> int:
    """What tells a type of numbers, whichever object stands for it, as those of pickled arrays do."""
    return ctypes.c_int64.from_address(id(dtype) + TOLD).value


def _is_known(dtype: np.dtype) -> bool:
    """Whether it is told where it is looked for."""
    told = f"{dtype.kind}{dtype.char}{dtype.byteorder}".encode()
    word = type_word(dtype)
    return word.to_bytes(8, "little")[:3] == told and word // NUMBER == dtype.num
