"""ONNX: `convalgos.onnx.ops()` gives the operators Conv and ConvTranspose for onnx's reference evaluator."""

from importlib import import_module
from typing import Any

__all__ = ["ops"]


def __getattr__(name: str) -> Any:
    if name == "ops":  # importing it needs onnx
        return import_module("convalgos.onnx.operators").ops
    raise AttributeError(f"module 'convalgos.onnx' has no attribute {name!r}")
