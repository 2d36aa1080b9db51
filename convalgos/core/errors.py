"""What is raised where something cannot be served, and how to get what is missing for it."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache

from convalgos.core.compiler_record import known_compiler

EXTRAS = {  # module -> how to get it
    "llvmlite": "pip install llvmlite",
    "pyfftw": "pip install pyfftw",
    "mkl": "pip install 'convalgos[mkl]'",
    "cupy": "pip install 'convalgos[gpu]'",
    "cudnn": "pip install 'convalgos[gpu]'",
    "onnx": "pip install 'convalgos[bench]'",
    "onnxruntime": "pip install 'convalgos[bench]'",
    "openvino": "pip install openvino",
    "scipy": "pip install scipy",
    "ml_dtypes": "pip install ml_dtypes",
    "numba": "pip install numba",
    "torch": "pip install 'convalgos[torch]'",
    "asv": "pip install 'convalgos[history]'",
    "plotly": "pip install 'convalgos[report]'",
    "PIL": "pip install 'convalgos[study]'",
    "dask": "pip install 'convalgos[dask]'",
    "jax": "pip install 'convalgos[jax]'",
    "skimage": "pip install 'convalgos[skimage]'",
}


class Unsupported(RuntimeError):
    """The problem is valid, but this algorithm, device or machine cannot serve it; the message says why."""


def read_only(name: str) -> ValueError:
    """What is raised where an array is to be written that cannot be."""
    return ValueError(f"{name} is read-only; it must be writeable")


@cache
def missing(module: str) -> str | None:
    """How to get an optional module that is not installed, or None if it is there.

    llvmlite is imported where it never was before, to tell what is wrong where it does not go with what else
    is installed.
    """
    try:
        found = importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        return f"needs {module}, which is not installed ({EXTRAS[module]})"
    if module == "llvmlite" and known_compiler() is None:
        try:
            importlib.import_module("llvmlite.binding")  # loads LLVM
        except Exception as error:
            return not_imported(module, error)
    return None


def not_imported(module: str, error: Exception) -> str:
    """What is wrong with an optional module that is installed."""
    told = (str(error).splitlines() or [""])[0][:200]
    return f"needs {module}, which is installed but cannot be imported ({type(error).__name__}: {told})"
