"""Numbers that a module makes of its shapes alone, known while it is exported.

`torch.export` runs a module on tensors without numbers, and gives up where one is asked for: in
`torch.arange(1, x.dim()).tolist()`, which reads no input, as in others. Here what small tensors hold that no
input has a part in is computed beside, and told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

MOST = 4096  # elements of a tensor that is known
MAKERS = frozenset((torch.arange, torch.tensor, torch.full, torch.zeros, torch.ones, torch.linspace))
ASKED = frozenset((
    Tensor.tolist, Tensor.item, Tensor.__int__, Tensor.__float__, Tensor.__bool__, Tensor.__index__,
))  # fmt: skip


class KnownNumbers(TorchFunctionMode):
    """Within it, tensors that no input has a part in tell their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, tuple[Tensor, Tensor]] = {}  # by the id of a tensor: itself, and its numbers

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in ASKED and (found := self._known.get(id(args[0]))) is not None:
            with _disable_current_modes():
                return function(found[1])
        result = function(*args, **kwargs)
        if function in MAKERS or self._known:
            self._follow(function, args, kwargs, result)
        return result

    def _follow(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Know what a function made of what is known."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if any(id(tensor) in self._known for tensor in tensors) and _writes(function, kwargs):
            self._known.clear()  # also what others see of the same memory
            return
        given = list(result) if isinstance(result, tuple | list) else [result]
        if not (tensors or function in MAKERS) or any(id(tensor) not in self._known for tensor in tensors):
            return
        if not all(isinstance(y, Tensor) for y in given) or any(map(_is_open, (*leaves, *given))):
            return
        if sum(y.numel() for y in given) > MOST:
            return
        own = [self._known[id(leaf)][1] if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        again, keywords = pytree.tree_unflatten(own, spec)
        with _disable_current_modes():
            found = _computed(function, again, keywords)
        if found is None:
            self._known.clear()
        else:
            self._known |= {id(y): (y, numbers) for y, numbers in zip(given, found, strict=True)}


def _computed(function: Any, args: Any, kwargs: Any) -> list[Tensor] | None:
    """What it gives; None of what writes into an argument, or draws numbers, which are others each time."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    before, state = [tensor._version for tensor in tensors], torch.get_rng_state()
    found = function(*args, **kwargs)
    if not torch.equal(state, torch.get_rng_state()):
        torch.set_rng_state(state)
        return None
    if before != [tensor._version for tensor in tensors]:
        return None
    return [found] if isinstance(found, Tensor) else list(found)


def _writes(function: Any, kwargs: Any) -> bool:
    """Whether it changes an argument."""
    name = getattr(function, "__name__", "").partition(".")[0]
    if kwargs.get("out") is not None or name in ("__set__", "__setitem__"):
        return True
    return (name.endswith("_") and not name.endswith("__")) or (
        name.startswith("__i") and name != "__invert__"
    )


def _is_open(leaf: Any) -> bool:
    """Whether it is a size that is open, or a tensor of one, or on another device."""
    if isinstance(leaf, Tensor):
        return leaf.device.type != "cpu" or any(map(_is_open, leaf.shape))
    return isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool)
