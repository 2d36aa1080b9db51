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
compute_as_if_collection: Any = import_module("dask.base").compute_as_if_collection
get_scheduler: Any = import_module("dask.base").get_scheduler
in_this_process: Any = import_module("dask.threaded").get, import_module("dask.local").get_sync
ArrayValuesDep: Any = import_module("dask.layers").ArrayValuesDep
HighLevelGraph: Any = import_module("dask.highlevelgraph").HighLevelGraph
DaskArray: TypeAlias = Any  # dask.array.Array
