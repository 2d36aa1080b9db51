"""convalgos: one convolution call, many algorithms, and a selector that says why.

>>> import numpy as np, convalgos as ca
>>> ca.conv(np.ones((1, 3, 8, 8), "f4"), np.ones((4, 3, 3, 3), "f4"), padding=1).shape
(1, 4, 8, 8)
"""

import os
import sys
from importlib import import_module
from typing import Any

from convalgos import select
from convalgos.api import wisdom
from convalgos.api.extensions import register, unregister
from convalgos.api.forward import conv
from convalgos.api.gradients import conv_backward_data, conv_backward_weights, conv_transpose
from convalgos.api.planning import algorithms, explain, find, forget_plans, plan
from convalgos.core.errors import Unsupported
from convalgos.core.problem import ConvProblem
from convalgos.core.version import __version__

__all__ = [
    "__version__",
    "ConvProblem",
    "Unsupported",
    "algorithms",
    "avg_pool",
    "avg_pool_backward",
    "binary",
    "capture",
    "conv",
    "conv_backward_data",
    "conv_backward_weights",
    "conv_transpose",
    "explain",
    "filter_pattern",
    "find",
    "forget_plans",
    "max_pool",
    "max_pool_backward",
    "ndimage",
    "network",
    "plan",
    "prune",
    "quantized",
    "register",
    "select",
    "signal",
    "unregister",
    "wisdom",
]

sys.modules[f"{__name__}.wisdom"] = wisdom  # so that `import convalgos.wisdom` finds it, too


def __getattr__(name: str) -> Any:
    if name in ("ndimage", "network", "quantized", "signal"):  # these few need; signal imports SciPy
        return import_module(f"convalgos.{name}")
    if name == "capture":
        return import_module("convalgos.select.measure.capture").capture
    if name == "binary":
        return import_module("convalgos.api.binary")
    if name in ("avg_pool", "avg_pool_backward", "max_pool", "max_pool_backward"):
        found = globals()[name] = getattr(import_module("convalgos.api.pooling"), name)
        return found  # next time without a look at what is imported, which takes a microsecond
    if name == "filter_pattern":
        return import_module("convalgos.api.known_filters").filter_pattern
    if name == "prune":
        return import_module("convalgos.api.pruning").prune_filter
    raise AttributeError(f"module 'convalgos' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)  # not the modules that importing this one has loaded


if _capture := os.environ.get("CONVALGOS_CAPTURE"):
    import_module("convalgos.select.measure.capture").capture_program(_capture)
