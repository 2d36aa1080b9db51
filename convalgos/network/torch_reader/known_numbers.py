"""What a module asks of numbers that it holds, while `torch.export` follows it: `if self.flags[0]:`.

`torch.export` runs a module on tensors that have no numbers, and cannot tell which way such a module goes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

MOST = 1 << 16  # elements of a tensor whose numbers are known
ASKED = frozenset(("item", "tolist", "__bool__", "__int__", "__float__", "__index__"))
NAMES = (
    "add", "all", "any", "argmax", "argmin", "bool", "clone", "contiguous", "cpu", "cumsum", "detach",
    "div", "eq", "flatten", "float", "floordiv", "ge", "getitem", "gt", "int", "invert", "le",
    "logical_and", "logical_not", "logical_or", "long", "lt", "max", "mean", "min", "mul", "ne", "neg",
    "prod", "reshape", "round", "select", "squeeze", "sub", "sum", "to", "truediv", "unbind",
    "unsqueeze", "view",
)  # fmt: skip
FOLLOWED = frozenset((*NAMES, *(f"__{name}__" for name in NAMES)))


class KnownNumbers(TorchFunctionMode):
    """Answers by the numbers that buffers, parameters and other tensors of a module had before the export.

    Args:
        held: the tensors that have them, by what stands for them during the export.
    """

    def __init__(self, held: dict[Tensor, Tensor]):
        super().__init__()
        self._held: dict[
            int, tuple[Tensor, Tensor | None]
        ] = {  # numbers; None of those that are not followed
            id(stand_in): (stand_in, tensor if tensor.numel() <= MOST else None)
            for stand_in, tensor in held.items()
        }
        self._ends = False  # once anything of it is written to

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        keywords, name = kwargs or {}, getattr(function, "__name__", "")
        if name in ASKED and (held := self._numbers(args[0])) is not None:
            with _disable_current_modes():
                return function(held, *args[1:], **keywords)
        if name == "__iter__":
            return iter(self.__torch_function__(Tensor.unbind, types, args))
        made = function(*args, **keywords)
        leaves, spec = pytree.tree_flatten((args, keywords))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if _writes(name, keywords):
            self._ends |= any(map(self._is_held, tensors))
        elif tensors and all(map(self._is_held, tensors)):
            stand_ins, numbers = _tensors(made), [self._numbers(tensor) for tensor in tensors]
            small = all(stand_in.numel() <= MOST for stand_in in stand_ins)
            found: list[Tensor] | list[None] = [None] * len(stand_ins)
            if name in FOLLOWED and small and all(tensor is not None for tensor in numbers):
                given = iter(numbers)
                known = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
                found = _computed(function, *pytree.tree_unflatten(known, spec))
            self._held |= {id(one): (one, tensor) for one, tensor in zip(stand_ins, found, strict=True)}
        return made

    def _numbers(self, tensor: Any) -> Tensor | None:
        if self._ends or not self._is_held(tensor):
            return None
        found: Tensor | None = self._held.get(id(tensor), (tensor, tensor))[1]
        return found

    def _is_held(self, leaf: Any) -> bool:
        """Of attributes that are neither buffers nor parameters, the very tensors are seen."""
        return type(leaf) in (Tensor, nn.Parameter) or (isinstance(leaf, Tensor) and id(leaf) in self._held)


def _tensors(made: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, Tensor)]


def _computed(function: Callable[..., Any], args: Any, keywords: Any) -> list[Tensor]:
    """What an operator gives of numbers."""
    with _disable_current_modes():
        return _tensors(function(*args, **keywords))


def _writes(name: str, keywords: Any) -> bool:
    inplace = name.endswith("_") and not name.endswith("__")
    return inplace or name in ("__setitem__", "__set__") or name.startswith("__i") or "out" in keywords


def held_by(module: nn.Module) -> dict[str, Tensor]:
    """The buffers and parameters of a module, by name."""
    return {**dict(module.named_buffers()), **dict(module.named_parameters())}
