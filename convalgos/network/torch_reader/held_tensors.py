"""The tensors that a module holds, and whether a call leaves others there for the next one to read."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from torch import Tensor, nn

from convalgos.network.torch_reader.writes import memory_of


def held_by(module: nn.Module) -> dict[str, Tensor]:
    """The buffers and parameters of a module, by name."""
    return {**dict(module.named_buffers()), **dict(module.named_parameters())}


def tensors_held(module: nn.Module) -> dict[str, Tensor]:
    """The buffers of a module and of those in it, and their attributes that are tensors, by name."""
    found: dict[str, Tensor] = {}
    for name, part in module.named_modules():
        for key, value in (*vars(part).items(), *part.named_buffers(recurse=False)):
            if isinstance(value, Tensor):
                found[f"{name}.{key}".lstrip(".")] = value
    return found


def state_of(before: dict[str, Tensor], module: nn.Module, read: Container[int]) -> str:
    """An attribute that a call reads, and in whose place it puts another tensor, by name; "" if none.

    What is laid there and never read, as maps of attention, and caches that grow, are no state.

    Args:
        before: `tensors_held`, as the call began.
        read: the ids of the tensors whose numbers it took.
    """
    after = tensors_held(module)
    changed = (name for name, one in before.items() if not _share_memory(one, after.get(name)))
    return next((name for name in changed if id(before[name]) in read), "")


def _share_memory(one: Tensor, other: Any) -> bool:
    """Whether both lie in the same memory, as x.to("cpu") in that of x."""
    return other is one or (isinstance(other, Tensor) and memory_of(one) == memory_of(other))
