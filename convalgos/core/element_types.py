"""Number formats: which types x, w and y may have together, and what the products are summed in.

Floating-point problems have one type; of 16 bits y may be wider. Floats of 8 bits are multiplied exactly and
summed in float32: x and w are of either of their two types, y is wider. Integers are multiplied exactly and
summed in int32, which wraps as ONNX's ConvInteger does; y is that sum, or is requantised, or dequantised.
Binary values are +1 and -1, held as int8.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.core import arguments

DTYPES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}  # bytes of an element; floating-point
HALF_DTYPES = ("float16", "bfloat16")
# Up to 448 and without infinity, and up to 57344; all of their numbers are float16, too. Micikevicius et al.
# 2022, arXiv:2209.05433.
FLOAT8_DTYPES = ("float8_e4m3fn", "float8_e5m2")
SHORT_FLOATS = (*HALF_DTYPES, *FLOAT8_DTYPES)  # summed in float32
OF_ML_DTYPES = ("bfloat16", *FLOAT8_DTYPES)  # that NumPy has by this package
INTEGERS = ("int8", "uint8")
BINARY = "binary"
X_DTYPES = (*DTYPES, *FLOAT8_DTYPES, *INTEGERS, BINARY)
Y_DTYPES = (*DTYPES, *INTEGERS, "int32")
ITEM_BYTES = DTYPES | dict.fromkeys(FLOAT8_DTYPES, 1) | {"int8": 1, "uint8": 1, "int32": 4, BINARY: 1}
EXPLICIT_BITS = {"float32": 23, "float64": 52, "float16": 10, "bfloat16": 7}  # of the significand
COMPUTE_DTYPES = ("float32", "float64", "tf32", "float16", "bfloat16", "int32")
PRECISIONS = ("float32", "bfloat16", "float16", "int8")  # that a float32 problem may be computed in
SCALES = ("per_tensor", "per_channel")


def default_compute(dtype: str) -> str:
    """What products of x's type are summed in."""
    if dtype in INTEGERS or dtype == BINARY:
        return "int32"
    return "float64" if dtype == "float64" else "float32"


def defaults(dtype: str) -> dict[str, str]:
    """The types of a problem that only x's is given of."""
    compute = default_compute(dtype)
    of_sums = compute == "int32" or dtype in FLOAT8_DTYPES
    return {"w_dtype": dtype, "y_dtype": compute if of_sums else dtype, "compute_dtype": compute}


def dtype_name(dtype: Any) -> Any:
    """'float32' from a string, a type or anything with a dtype's `name`."""
    if isinstance(dtype, str):
        return dtype
    return getattr(dtype, "name", None) or getattr(dtype, "__name__", dtype)


def ml_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of one of `OF_ML_DTYPES`."""
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


def needed_modules(problem: Any) -> tuple[str, ...]:
    """Optional modules that arrays of a problem's types ask for."""
    of_arrays = {problem.dtype, problem.w_dtype, problem.y_dtype}
    return ("ml_dtypes",) if of_arrays & {*OF_ML_DTYPES} else ()


def checked_types(
    dtype: Any, w_dtype: Any, y_dtype: Any, compute_dtype: Any, direction: str
) -> dict[str, str]:
    """The types of a problem by name; None stands for what x's implies.

    Raises:
        ValueError: names the argument, its value and what would be valid beside the others.
    """
    dtype = arguments.one_of("dtype", dtype_name(dtype), X_DTYPES)
    given = {"w_dtype": w_dtype, "y_dtype": y_dtype, "compute_dtype": compute_dtype}
    types = {
        k: default if given[k] is None else dtype_name(given[k]) for k, default in defaults(dtype).items()
    }
    arguments.one_of("compute_dtype", types["compute_dtype"], COMPUTE_DTYPES)
    if types != defaults(dtype) or dtype not in DTYPES:
        for name, allowed in _beside(dtype).items():
            _check_beside(name, types[name], allowed, f"dtype={dtype!r}")
        if types["y_dtype"] != types["w_dtype"] and direction != "forward":
            raise ValueError(
                f"direction={direction!r} must be 'forward' where dtype={dtype!r} and "
                f"y_dtype={types['y_dtype']!r}: gradients are of one floating-point type"
            )
    return {"dtype": dtype} | types


def _beside(dtype: str) -> dict[str, tuple[str, ...]]:
    """The types that w, y and the sums may have beside x's."""
    if dtype in INTEGERS:
        return {
            "w_dtype": INTEGERS,
            "y_dtype": ("int32", *INTEGERS, "float32"),
            "compute_dtype": ("int32",),
        }
    if dtype == BINARY:
        return {"w_dtype": (BINARY,), "y_dtype": ("int32", "float32"), "compute_dtype": ("int32",)}
    if dtype in FLOAT8_DTYPES:
        return {
            "w_dtype": FLOAT8_DTYPES,
            "y_dtype": ("float32", *HALF_DTYPES),
            "compute_dtype": ("float32",),
        }
    sums = tuple(d for d in COMPUTE_DTYPES if d != "int32")
    y = (dtype, "float32") if dtype in HALF_DTYPES else (dtype,)
    return {"w_dtype": (dtype,), "y_dtype": y, "compute_dtype": sums}


def _check_beside(name: str, value: Any, allowed: tuple[str, ...], beside: str) -> None:
    if value not in allowed:
        listed = ("one of " if len(allowed) > 1 else "") + ", ".join(map(repr, allowed))
        raise ValueError(f"{name}={arguments.shown(value)} must be {listed} where {beside}")
