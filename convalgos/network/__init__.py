"""Whole networks: read from ONNX or torch, planned across layers, and run end to end.

`ca.network.from_onnx(path)` gives a `Network`, which is called with arrays; `Network.save` writes it into a
file, which `ca.network.load(path)` reads.
"""

from importlib import import_module
from typing import Any

__all__ = ["Network", "from_onnx", "from_torch", "load"]

HOMES = {"Network": "network", "from_onnx": "onnx_reader.graph", "from_torch": "torch_reader.graph"}


def __getattr__(name: str) -> Any:
    if name in HOMES:
        return getattr(import_module(f"convalgos.network.{HOMES[name]}"), name)
    if name == "load":
        return import_module("convalgos.network.network").Network.load
    raise AttributeError(f"module 'convalgos.network' has no attribute {name!r}")
