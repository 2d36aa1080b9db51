"""Numbers that a module asks of tensors while it is exported, where no input has a part in them.

`torch.export` runs a module on tensors without numbers, and gives up where one is asked for: in
`torch.arange(1, x.dim()).tolist()`, or `if self.flags[0]:`. What small tensors hold that a module has, or
makes of its shapes and of such tensors alone, is computed beside, and told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

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
DATA = Tensor.data.__get__  # type: ignore[attr-defined]


class _Known(NamedTuple):
    """A tensor, what torch counted of the writes to its memory as its numbers were seen, and these."""

    tensor: Tensor
    version: int
    numbers: Tensor


class KnownNumbers(TorchFunctionMode):
    """Within it, tensors that no input has a part in tell their numbers, until somebody writes to them.

    Args:
        held: the buffers and parameters of the module, by what stands for them during the export.
    """

    def __init__(self, held: Mapping[Tensor, Tensor]) -> None:
        super().__init__()
        self._known: dict[int, _Known] = {}  # by the id of a tensor
        self.read: set[int] = set()  # ids of tensors whose numbers functions took
        self._is_written = False  # something that is known perhaps, and torch has not counted it
        for stand_in, numbers in held.items():
            self._know(stand_in, numbers)

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        numbers = [*map(self._numbers, tensors)]  # of attributes, before they are written
        if function in ASKED:
            self.read.add(id(args[0]))
            if numbers[0] is not None:
                with _disable_current_modes():
                    return function(numbers[0])
        if function is Tensor.__iter__:
            return iter(self.__torch_function__(Tensor.unbind, types, args))
        if function == DATA:  # writes to what `detach` gives are counted
            function = Tensor.detach
        result = function(*args, **kwargs)
        given = list(result) if isinstance(result, tuple | list) else [result]
        if any(isinstance(y, Tensor) for y in given):  # no size
            self.read.update(map(id, tensors))
        if _writes_uncounted(function):
            self._known.clear()
            self._is_written = True
        else:
            self._follow(function, leaves, spec, given)
        return result

    def _know(self, tensor: Tensor, numbers: Tensor) -> None:
        if numbers.numel() <= MOST and not tensor.is_inference():  # whose writes are not counted
            self._known[id(tensor)] = _Known(tensor, tensor._version, numbers)

    def _numbers(self, leaf: Tensor) -> Tensor | None:
        """What is known of a tensor. Attributes that are neither buffers nor parameters are themselves."""
        is_attribute = type(leaf) in (Tensor, nn.Parameter) and not self._is_written
        if is_attribute and id(leaf) not in self._known:
            self._know(leaf, leaf)
        known = self._known.get(id(leaf))
        return known.numbers if known is not None and known.version == leaf._version else None

    def _follow(self, function: Any, leaves: Sequence[Any], spec: Any, given: Sequence[Any]) -> None:
        """Know what a function made of what is known."""
        numbers = [self._numbers(leaf) for leaf in leaves if isinstance(leaf, Tensor)]
        if not (numbers or function in MAKERS) or any(known is None for known in numbers):
            return
        if not all(isinstance(y, Tensor) for y in given) or any(map(_is_open, (*leaves, *given))):
            return
        if sum(y.numel() for y in given) > MOST:
            return
        with _disable_current_modes():
            found = _computed(function, leaves, spec, numbers)
        for y, values in zip(given, found, strict=False):
            self._know(y, values)


def _computed(
    function: Any, leaves: Sequence[Any], spec: Any, numbers: Sequence[Tensor | None]
) -> list[Tensor]:
    """What it gives of copies, as it may write to them; nothing where it draws numbers, which are others each
    time."""
    copies = (known.clone() for known in numbers if known is not None)
    own = [next(copies) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    args, kwargs = pytree.tree_unflatten(own, spec)
    state = torch.get_rng_state()
    found = function(*args, **kwargs)
    if not torch.equal(state, torch.get_rng_state()):
        torch.set_rng_state(state)
        return []
    return [found] if isinstance(found, Tensor) else list(found)


def _writes_uncounted(function: Any) -> bool:
    """Whether it changes tensors, and torch does not count it: attributes, and lists of tensors."""
    name = getattr(function, "__name__", "").partition(".")[0]
    return name == "__set__" or (name.startswith("_foreach_") and name.endswith("_"))


def _is_open(leaf: Any) -> bool:
    """Whether it is a size that is open, or a tensor of one, or on another device, or draws numbers."""
    if isinstance(leaf, Tensor):
        return leaf.device.type != "cpu" or any(map(_is_open, leaf.shape))
    return isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool | torch.Generator)
