"""What a training step keeps in memory for each layer: weights, maps, gradients, workspaces."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import convalgos as ca
from convalgos.core.errors import Unsupported
from convalgos.core.problem import DIRECTIONS, ConvProblem
from convalgos.studies.network_training.networks import TrainedNetwork

WITH_WEIGHTS = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)


@dataclass(frozen=True)
class LayerMemory:
    """Bytes of layers of a network that are alike.

    Args:
        kind: the class of the module.
        shape: of the weights, or "" without any.
        count: layers that are alike; the bytes are those of all of them.
        weights: and as many are those of their gradients, and of the momentum.
        maps: outputs, which are kept until the backward pass; their gradients take as many while they live.
        workspaces: by algorithm, the largest of a convolution's three passes; a step holds one at a time.
    """

    kind: str
    shape: str
    count: int
    weights: int
    maps: int
    workspaces: dict[str, int]

    @property
    def name(self) -> str:
        return f"{self.kind} {self.shape}".strip()


def layer_memory(
    network: TrainedNetwork, batch: int, device: str, algorithms: Iterable[str]
) -> list[LayerMemory]:
    """The layers of a network in the order of their first use; nothing is computed.

    Args:
        device, algorithms: whose workspaces are told, as in `convalgos.plan`.
    """
    found: dict[tuple[str, str, int, int, ConvProblem | None], int] = {}
    for module, x, y in traced(network, batch):
        weights = sum(map(_bytes, module.parameters(recurse=False)))
        in_place = getattr(module, "inplace", False) or isinstance(module, nn.Identity | nn.Flatten)
        shape = "x".join(map(str, module.weight.shape)) if isinstance(module, WITH_WEIGHTS) else ""
        problem = problem_of(module, tuple(x.shape))
        key = (type(module).__name__, shape, weights, 0 if in_place else _bytes(y), problem)
        found[key] = found.get(key, 0) + 1
    return [
        LayerMemory(
            kind, shape, count, count * weights, count * maps, _workspaces(problem, device, algorithms)
        )
        for (kind, shape, weights, maps, problem), count in found.items()
    ]


def problem_of(module: nn.Module, x_shape: tuple[int, ...]) -> ConvProblem | None:
    """The forward problem of a convolution; None of another module, and of one that is transposed."""
    if not isinstance(module, nn.Conv2d):
        return None
    padding: Any = module.padding
    how = (module.stride, padding, module.dilation, module.groups)
    return ConvProblem(x_shape, tuple(module.weight.shape), *how)


def traced(network: TrainedNetwork, batch: int) -> list[tuple[nn.Module, Tensor, Tensor]]:
    """(module, input, output) of each innermost module, on torch's device without memory."""
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []
    with torch.device("meta"), torch.no_grad():
        model = network.build()
        for module in model.modules():
            if not list(module.children()):
                module.register_forward_hook(lambda m, inputs, y: calls.append((m, inputs[0], y)))
        model(torch.empty(batch, *network.image))
    return calls


def _workspaces(problem: ConvProblem | None, device: str, algorithms: Iterable[str]) -> dict[str, int]:
    if problem is None:
        return {}
    passes = [problem.replace(direction=direction) for direction in DIRECTIONS]
    found = {}
    for algorithm in algorithms:
        with suppress(Unsupported):
            plans = [ca.plan(p, device, algorithm, weights_constant=False) for p in passes]
            found[algorithm] = max(plan.workspace_bytes for plan in plans)
    return found


def _bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * tensor.element_size()
