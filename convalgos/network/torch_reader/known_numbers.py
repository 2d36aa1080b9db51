"""Numbers that a module asks of tensors while it is exported, where no input has a part in them.

`torch.export` runs a module on tensors without numbers, and gives up where one is asked for: in
`torch.arange(1, x.dim()).tolist()`, or `if self.flags[0]:`. What small tensors hold that a module has, or
makes of its shapes and of such tensors alone, is computed beside, and told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

MOST = 1 << 16  # elements of tensors that are known
MAKERS = frozenset((torch.arange, torch.tensor, torch.full, torch.zeros, torch.ones, torch.linspace))
ASKED = frozenset((
    Tensor.tolist, Tensor.item, Tensor.__int__, Tensor.__float__, Tensor.__bool__, Tensor.__index__,
))  # fmt: skip


class KnownNumbers(TorchFunctionMode):
    """Within it, tensors that no input has a part in tell their numbers.

    Args:
        held: the buffers and parameters of the module, by what stands for them during the export.
    """

    def __init__(self, held: Mapping[Tensor, Tensor]) -> None:
        super().__init__()
        # by the id of a tensor: itself, and its numbers
        self._known = {id(one): (one, numbers) for one, numbers in held.items() if numbers.numel() <= MOST}
        self._is_written = False  # something that was known

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in ASKED and (found := self._numbers(args[0])) is not None:
            with _disable_current_modes():
                return function(found)
        if function is Tensor.__iter__:
            return iter(self.__torch_function__(Tensor.unbind, types, args))
        result = function(*args, **kwargs)
        self._follow(function, args, kwargs, result)
        return result

    def _numbers(self, leaf: Tensor) -> Tensor | None:
        """What is known of a tensor. Attributes that are neither buffers nor parameters are themselves."""
        if (known := self._known.get(id(leaf))) is not None:
            return known[1]
        is_attribute = type(leaf) in (Tensor, nn.Parameter) and not self._is_written
        return leaf if is_attribute and leaf.numel() <= MOST else None

    def _follow(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Know what a function made of what is known."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        numbers = [self._numbers(leaf) for leaf in leaves if isinstance(leaf, Tensor)]
        if any(known is not None for known in numbers) and _writes(function, kwargs):
            self._known.clear()  # also what others see of the same memory
            self._is_written = True
            return
        given = list(result) if isinstance(result, tuple | list) else [result]
        if not (numbers or function in MAKERS) or any(known is None for known in numbers):
            return
        if not all(isinstance(y, Tensor) for y in given) or any(map(_is_open, (*leaves, *given))):
            return
        if sum(y.numel() for y in given) > MOST:
            return
        known = iter(numbers)
        own = [next(known) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        again, keywords = pytree.tree_unflatten(own, spec)
        with _disable_current_modes():
            found = _computed(function, again, keywords)
        if found is None:
            self._known.clear()
        else:
            self._known |= {id(y): (y, values) for y, values in zip(given, found, strict=True)}


def held_by(module: nn.Module) -> dict[str, Tensor]:
    """The buffers and parameters of a module, by name."""
    return {**dict(module.named_buffers()), **dict(module.named_parameters())}


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
        name.startswith("__i") and name not in ("__invert__", "__iter__", "__int__", "__index__")
    )


def _is_open(leaf: Any) -> bool:
    """Whether it is a size that is open, or a tensor of one, or on another device."""
    if isinstance(leaf, Tensor):
        return leaf.device.type != "cpu" or any(map(_is_open, leaf.shape))
    return isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool)
