"""ONNX: `convalgos.onnx.Session(path)` runs whole models as an `InferenceSession` of ONNX Runtime does.

`convalgos.onnx.ops()` gives operators of convolution for onnx's reference evaluator.

`convalgos.onnx.fuse_quantized(model)` makes the convolutions of a model in QDQ form those of integers.
"""

from importlib import import_module
from typing import Any

__all__ = ["Session", "fuse_quantized", "ops"]


def __getattr__(name: str) -> Any:
    if name == "ops":  # importing it needs onnx
        return import_module("convalgos.onnx.operators").ops
    if name == "Session":
        return import_module("convalgos.onnx.session").Session
    if name == "fuse_quantized":
        return import_module("convalgos.onnx.fusion").fuse_quantized
    raise AttributeError(f"module 'convalgos.onnx' has no attribute {name!r}")
