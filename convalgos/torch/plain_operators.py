"""What the operators compute of ordinary tensors of the CPU: plans run on views, without the checks of calls.

In a training step each convolution is computed three times, and of small layers the checks of the arguments
of `convalgos.conv` and of its gradients take longer than the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from convalgos.api import call_plans
from convalgos.torch.eager import plain_values
from convalgos.torch.tensor_views import numbers_as_tensor, seen

Arrays = tuple[np.ndarray, ...]


def plain_arrays(*tensors: Tensor) -> Arrays | None:
    """Views of the numbers of tensors of one dtype; None where one is not an ordinary one of the CPU."""
    arrays: list[np.ndarray] = []
    for tensor in tensors:
        values = plain_values(tensor)
        if values is None or (arrays and values.dtype != arrays[0].dtype):
            return None
        arrays.append(values)
    return tuple(arrays)


def compute_plain(
    direction: str, arrays: Arrays, bias: np.ndarray | None, x_shape: Sequence[int], w_shape: Sequence[int],
    how: dict[str, Any], example: Tensor, out: np.ndarray | None = None,
) -> Tensor:  # fmt: skip
    """The result for arrays as they lie, (N, *spatial, C) where channels lie last, as torch sees it.

    Args:
        x_shape: (N, C, *spatial).
        how: stride, padding, dilation, groups, layout and boundary, as `convalgos.conv` takes them.
        out: an array for the result, which then is of its order.
    """
    plan = call_plans.plan_for(
        tuple(x_shape), tuple(w_shape), how["stride"], how["padding"], how["dilation"], how["groups"],
        "cross_correlation", how["layout"], arrays[0].dtype, "auto", "cpu", direction,
        *call_plans.limits(False, None, None, how["boundary"]),
    )  # fmt: skip
    y = plan(*arrays, bias=bias, out=out)
    last = direction != "backward_weights" and how["layout"] == "channels_last"
    return numbers_as_tensor(seen(y) if last else y, example)
