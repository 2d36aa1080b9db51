"""What a module returns, as a flat list: also the attributes of objects that `torch.utils._pytree` does not
look into, as dataclasses. What else it does not know might hold tensors of the export, which have no numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

NO_TENSORS = (  # what is no tensor, and holds none
    bool, int, float, complex, str, bytes, type(None), Enum, torch.Size, torch.dtype, torch.device,
    torch.layout, torch.memory_format,
)  # fmt: skip
OPEN = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class _Attributes:
    """In the place of an object."""

    kind: type
    values: dict[str, Any]


def _attributes_flattened(of: _Attributes) -> tuple[list[Any], Any]:
    return [*of.values.values()], (of.kind, tuple(of.values))


def _object_of(values: Iterable[Any], context: Any) -> Any:
    kind, names = context
    made = kind.__new__(kind)
    vars(made).update(zip(names, values, strict=True))
    return made


pytree.register_pytree_node(_Attributes, _attributes_flattened, _object_of)


def flattened(returned: Any) -> tuple[list[Any], Any]:
    """Its leaves, and how `tree_unflatten` makes it of them."""
    return pytree.tree_flatten(_opened(returned))


def _opened(returned: Any) -> Any:
    return pytree.tree_map(_attributes_of, returned)


def _attributes_of(leaf: Any) -> Any:
    """Those of an object that is no more than they; of others, themselves."""
    kind: Any = type(leaf)
    if isinstance(leaf, (*NO_TENSORS, nn.Module)) or kind.__new__ is not object.__new__:
        return leaf
    if any(vars(cls).get("__slots__") for cls in kind.__mro__) or not hasattr(leaf, "__dict__"):
        return leaf
    return _Attributes(kind, {name: _opened(value) for name, value in vars(leaf).items()})


def check_returned(leaves: Sequence[Any]) -> None:
    """Raises ValueError for what might hold tensors."""
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, *NO_TENSORS, *OPEN)):
            raise ValueError(f"it returns a {type(leaf).__name__}, which may hold tensors")
