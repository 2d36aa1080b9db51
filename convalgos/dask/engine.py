"""Dask's functions, which have types in part only; and what to install where there is no Dask."""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeAlias

from convalgos.core.errors import missing

if reason := missing("dask"):
    raise ImportError(f"convalgos.dask {reason}")

da: Any = import_module("dask.array")
persist: Any = import_module("dask").persist
tokenize: Any = import_module("dask.base").tokenize
HighLevelGraph: Any = import_module("dask.highlevelgraph").HighLevelGraph
DaskArray: TypeAlias = Any  # dask.array.Array
